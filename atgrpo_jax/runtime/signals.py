"""SIGINT and SIGTERM ask a run to stop after its current step.

jax and orbax handle neither in a single process: without this a preempted run
would lose what it did since its last checkpoint. A second signal kills.
"""

import multiprocessing
import os
import signal
import threading


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


def begin_worker() -> None:
  """Makes a worker process live exactly as long as its parent.

  Ctrl-C and timeout(1) signal all processes of a group, and the step that the
  trainer finishes needs its workers. A trainer that is killed tells nobody.
  """
  os.setsid()
  threading.Thread(
      target=_exit_after, args=[multiprocessing.parent_process()],
      daemon=True).start()


def _exit_after(process):
  process.join()
  os._exit(1)
