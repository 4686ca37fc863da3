"""SIGINT and SIGTERM end a run immediately, or after the current update.

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
import sys
import threading

STOPPED = 42  # Exit status; the same command resumes.
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
  """The rollout is abandoned because of a signal."""


class StopFlag:
  """Handles the first SIGINT or SIGTERM within `listen`.

  A run that starts or evaluates has nothing to save, so the process exits
  immediately with status `STOPPED`, even during a compilation. Between `hold`
  and `release` the signal is only recorded, and the run saves a checkpoint.
  Cloud machines disappear 30 seconds after the signal.
  """

  def __init__(self):
    self.name = ''  # The signal, e.g. 'SIGTERM'.
    self._is_held = False
    self._is_deferred = False
    self._lock = threading.Lock()

  @contextlib.contextmanager
  def listen(self) -> Iterator[None]:
    """Handles the signals during the block; main thread only."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Python runs handlers in the main thread, which may compile for minutes.
    # The wake-up pipe receives the signal's number immediately.
    fd_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, self._set) for number in _NUMBERS}
    watcher = threading.Thread(target=self._watch, args=[reader], daemon=True)
    watcher.start()
    try:
      yield
    finally:
      signal.set_wakeup_fd(fd_before)
      for number, handler in before.items():
        signal.signal(number, handler)
      os.close(writer)
      watcher.join()
      os.close(reader)

  def is_set(self) -> bool:
    """True if a signal has arrived and the run should save and stop."""
    return self._is_held and not self._is_deferred and bool(self.name)

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
    with self._lock:
      self._is_held = True

  def release(self) -> None:
    """Marks that everything is saved; exits if a signal has arrived."""
    with self._lock:
      self._is_held = False
    if self.name:
      self._exit()

  def _set(self, number, frame):
    del frame
    self.name = signal.Signals(number).name
    signal.signal(number, signal.SIG_DFL)

  def _watch(self, reader):
    while numbers := os.read(reader, 64):
      for number in numbers:
        if number in _NUMBERS:
          with self._lock:
            self.name = signal.Signals(number).name
            is_held = self._is_held
          if not is_held:
            self._exit()

  def _exit(self):
    # An exception would not reach a main thread inside a compilation. Workers
    # and the sandbox exit with their parent.
    with contextlib.suppress(OSError):
      print(f'stopped by {self.name}, with nothing to save; the same command '
            'resumes', flush=True)
      sys.stderr.flush()
    os._exit(STOPPED)


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
