"""SIGINT and SIGTERM end a run after the current update.

jax and orbax handle neither in a single process: without this module, a
preempted run would lose everything since its last checkpoint. Schedulers repeat
their signals, so repeats are ignored. Only a second Ctrl-C in a terminal ends
the process at once.
"""

from collections.abc import Iterator
import contextlib
import faulthandler
import math
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
  """Handles SIGINT and SIGTERM within `listen`.

  A run that starts or evaluates has nothing to save, so the handler raises
  Stopped. Between `hold` and `release` it only sets the name of the signal, and
  the run saves a checkpoint. Python runs handlers between two bytecodes of the
  main thread: during a compilation, the handler waits for its end. A thread
  answers at once: it says that the run stops, and ends it at a second Ctrl-C.
  Python ignores exceptions in finalizers; then the run stops at its next step
  or `release`.
  """

  def __init__(self):
    self.name = ''  # The first signal, such as 'SIGTERM'.
    self._is_held = False
    self._is_deferred = False
    self._exits_at_once = False

  @contextlib.contextmanager
  def listen(self) -> Iterator[None]:
    """Handles the signals during the block; main thread only.

    After a signal, the caller should exit. Repeats remain ignored, so that they
    do not change the exit status.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    thread = threading.Thread(target=self._answer, args=[reader], daemon=True)
    thread.start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {
        number: signal.signal(number, self._handle) for number in _NUMBERS}
    try:
      yield
    finally:
      for number, handler in before.items():
        is_ignored = self.name and not _is_ctrl_c(number)
        signal.signal(number, signal.SIG_IGN if is_ignored else handler)
      signal.set_wakeup_fd(-1)
      os.close(writer)
      thread.join()
      os.close(reader)

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

  @contextlib.contextmanager
  def exit_at_once(self) -> Iterator[None]:
    """Lets a signal end the process while the block waits outside Python."""
    self._exits_at_once = True
    try:
      yield
    finally:
      self._exits_at_once = False

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
    if self.name:
      return
    self.name = signal.Signals(number).name
    if not self._is_held:
      raise Stopped(self._message())

  def _answer(self, reader: int) -> None:
    """Reads the numbers of arriving signals until the pipe is closed."""
    seen = set()
    while byte := os.read(reader, 1):
      number = byte[0]
      if number in seen:
        if _is_ctrl_c(number):
          os._exit(128 + number)
      elif number in _NUMBERS:
        seen.add(number)
        print(
            f'{signal.Signals(number).name}: stopping'
            + ' after this update' * self._is_held
            + '; press again to end now' * _is_ctrl_c(number), flush=True)
        if self._exits_at_once:
          os._exit(STOPPED)

  def _message(self) -> str:
    return (f'stopped by {self.name}, with nothing to save; the same command '
            'resumes')


def _is_ctrl_c(number: int) -> bool:
  """Whether a user at a terminal can have sent the signal."""
  return number == signal.SIGINT and os.isatty(0)


def begin_worker() -> None:
  """Shields a worker process from signals and ends it with its parent.

  Ctrl-C and timeout(1) signal the whole process group, but the trainer needs
  its workers to finish the step. A killed trainer cannot tell them to exit.
  """
  def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)

  os.setsid()
  threading.Thread(target=end_with_parent, daemon=True).start()


class TooSlowError(BaseException):
  """Code reached its time limit; no `except Exception` catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
  """Raises TooSlowError in the main thread of a process after `seconds`.

  If C code does not return within another minute, the process ends.
  """
  if (seconds == math.inf
      or threading.current_thread() is not threading.main_thread()):
    yield
    return

  def stop(*_):
    raise TooSlowError

  previous = signal.signal(signal.SIGALRM, stop)
  faulthandler.dump_traceback_later(seconds + 60, exit=True, file=2)
  signal.setitimer(signal.ITIMER_REAL, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGALRM, previous)
