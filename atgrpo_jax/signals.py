"""SIGINT and SIGTERM ask a run to stop after its current step.

jax and orbax handle neither in a single process: without this a preempted run
would lose what it did since its last checkpoint. A second signal kills.
"""

import signal


class StopFlag:
  """Set by the first SIGINT or SIGTERM."""

  def __init__(self):
    self.name = ''
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, self._set)

  def is_set(self) -> bool:
    return bool(self.name)

  def _set(self, number, frame):
    del frame
    self.name = signal.Signals(number).name
    signal.signal(number, signal.SIG_DFL)
