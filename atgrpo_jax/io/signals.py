"""SIGINT and SIGTERM end a run after the current update.

jax and orbax handle neither in a single process: without this module, a
preempted run would lose everything since its last checkpoint. A second signal
kills the process.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import multiprocessing
import os
import signal
import threading
from types import FrameType

STOPPED = 42  # Exit status; the same command resumes.
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
  """A signal ends the run or its rollout; no `except Exception` catches it."""

  status = STOPPED


class StopFlag:
  """Handles the first SIGINT or SIGTERM within `listen`.

  A run that starts or evaluates has nothing to save, so the handler raises
  Stopped. Between `hold` and `release` it only sets the name of the signal, and
  the run saves a checkpoint. Python runs handlers between two bytecodes of the
  main thread: during a compilation, the handler waits for its end.
  """

  def __init__(self):
    self.name = ''  # The signal, such as 'SIGTERM'.
    self._is_held = False
    self._is_deferred = False

  @contextlib.contextmanager
  def listen(self) -> Iterator[None]:
    """Handles the signals during the block; main thread only."""
    before = {
        number: signal.signal(number, self._handle) for number in _NUMBERS}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def is_set(self) -> bool:
    """True if a signal has arrived and the run should save and stop."""
    return bool(self.name) and not self._is_deferred

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """Keeps `is_set` False during the block, so that the block finishes."""
    self._is_deferred = True
    try:
      yield
    finally:
      self._is_deferred = False

  def hold(self) -> None:
    """Marks that the run has unsaved state."""
    self._is_held = True

  def release(self) -> None:
    """Marks that all is saved; raises Stopped if a signal has arrived."""
    self._is_held = False
    if self.name:
      raise Stopped(self._message())

  def _handle(self, number: int, frame: FrameType | None) -> None:
    del frame
    self.name = signal.Signals(number).name
    for each in _NUMBERS:
      signal.signal(each, signal.SIG_DFL)
    if not self._is_held:
      raise Stopped(self._message())

  def _message(self) -> str:
    return (f'stopped by {self.name}, with nothing to save; the same command '
            'resumes')


def begin_worker() -> None:
  """Shields a worker process from signals and ends it with its parent.

  Ctrl-C and timeout(1) signal the whole process group, but the trainer needs
  its workers to finish the step. A killed trainer cannot tell them to exit.
  """
  os.setsid()
  threading.Thread(
      target=_exit_after, args=[multiprocessing.parent_process()],
      daemon=True).start()


def _exit_after(process):
  process.join()
  os._exit(1)
