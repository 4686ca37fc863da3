"""SIGINT and SIGTERM end a run at once, or after the update that it is in.

jax and orbax handle neither in a single process: without this a preempted run
would lose what it did since its last checkpoint. A second signal kills.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import multiprocessing
import os
import signal
import sys
import threading

STOPPED = 42  # The exit status; the same command goes on.
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
  """A rollout is dropped, because a signal has come."""


class StopFlag:
  """What the first SIGINT or SIGTERM does within `listen`.

  While a run starts or evaluates, nothing is to be saved, and the process ends
  at once with status `STOPPED`, also in the midst of a compilation. Between
  `hold` and `release` the signal is only noted, so that the run can save. Cloud
  machines are taken away 30 seconds after it.
  """

  def __init__(self):
    self.name = ''
    self.end = end  # The process; of several, all of them.
    self._is_held = False
    self._lock = threading.Lock()

  @contextlib.contextmanager
  def listen(self) -> Iterator[None]:
    """Takes the signals to itself; only the main thread may call this."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Handlers wait for the main thread, which may compile for minutes. The
    # numbers of the signals are in the pipe at once.
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
    """Whether a signal waits for the run to save."""
    return self._is_held and bool(self.name)

  def hold(self) -> None:
    """From now on there is something to save."""
    with self._lock:
      self._is_held = True

  def release(self) -> None:
    """All is saved; ends the process if a signal has come."""
    with self._lock:
      self._is_held = False
    if self.name:
      self._end()

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
            self._end()

  def _end(self):
    self.end(
        STOPPED, f'stopped by {self.name}, with nothing to save; the same '
        'command resumes')


def end(status: int, sentence: str = '') -> None:
  """Ends the process at once, from whatever thread, and says why.

  The main thread may be where no exception reaches it. Workers and the sandbox
  end with their parent.
  """
  with contextlib.suppress(OSError):
    if sentence and status == STOPPED:
      print(sentence)
    elif sentence:
      print(f'error: {sentence}', file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
  os._exit(status)


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
