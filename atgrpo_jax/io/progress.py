"""Says what the program is doing if the terminal has been silent for seconds.

Unless the program is watched, activities print nothing, and nothing is copied.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import io
import pathlib
import sys
import threading
import time
from typing import TextIO

from atgrpo_jax.io import files

# jax records the start and the duration of a compilation.
COMPILE = '/jax/core/compile/backend_compile_duration'
_SILENT_SECONDS = 4.0

_activities: list[Callable[[], str]] = []  # The innermost is the last.


@contextlib.contextmanager
def activity(describe: Callable[[], str]) -> Iterator[None]:
  """Names what the body does; another thread calls `describe` for a line."""
  _activities.append(describe)
  try:
    yield
  finally:
    _activities.remove(describe)


class _Stdout:
  """A stream that remembers when it was written to, and can be copied."""

  def __init__(self, stream: TextIO):
    self._stream, self.written = stream, time.monotonic()
    self.copy: TextIO = io.StringIO()  # Until `copy_to`.

  def write(self, text: str) -> int:
    self.written = time.monotonic()
    self.copy.write(text)
    return self._stream.write(text)

  def __getattr__(self, name: str):
    return getattr(self._stream, name)


def watch() -> None:
  """Prints the innermost activity from now on.

  A line comes after `_SILENT_SECONDS` without any, and in a long silence only
  when a tenth of it has passed since the last one.
  """
  stdout = sys.stdout = _Stdout(sys.stdout)

  def speak() -> None:
    others_wrote = spoken = stdout.written
    while sys.stdout is stdout:  # Ends if the output is redirected.
      time.sleep(_SILENT_SECONDS / 8)
      if stdout.written != spoken:
        others_wrote = stdout.written
      now = time.monotonic()
      if now - stdout.written >= max(
          _SILENT_SECONDS, (now - others_wrote) / 10):
        for describe in list(_activities)[-1:]:
          print(describe(), flush=True)
          spoken = stdout.written

  threading.Thread(target=speak, daemon=True).start()


@contextlib.contextmanager
def watching() -> Iterator[None]:
  """Watches the body, unless the program is watched already."""
  stdout = sys.stdout
  if not isinstance(stdout, _Stdout):
    watch()
    watch_compilations()
  try:
    yield
  finally:
    sys.stdout = stdout


def copy_to(path: pathlib.Path) -> None:
  """Appends what the program has printed and will print to a local file."""
  if isinstance(sys.stdout, _Stdout) and not files.is_remote(path):
    earlier, sys.stdout.copy = sys.stdout.copy, path.open('a', buffering=1)
    if isinstance(earlier, io.StringIO):
      sys.stdout.copy.write(earlier.getvalue())
    else:  # Of an earlier training of the same process.
      earlier.close()


def print_error(text: str) -> None:
  """Prints to stderr, and to the copy of what the program prints."""
  print(text, file=sys.stderr)
  if isinstance(sys.stdout, _Stdout):
    with contextlib.suppress(OSError):  # The disk may be full.
      print(text, file=sys.stdout.copy)


@functools.cache
def watch_compilations() -> None:
  """Makes each compilation of jax an activity, from the first call on."""
  import jax  # Here, because `watch` must not wait for it.
  compiling = {}  # Thread -> its activity.

  def start(event: str, value: float, *, fun_name: str = '', **kwargs) -> None:
    del value, kwargs
    if event == COMPILE:
      name = fun_name.removeprefix('jit(').removesuffix(')')
      describe = functools.partial('compiling {} …'.format, name)
      compiling[threading.get_ident()] = describe
      _activities.append(describe)

  def end(event: str, seconds: float, **kwargs) -> None:
    del seconds, kwargs
    if event == COMPILE:
      _activities.remove(compiling.pop(threading.get_ident()))

  jax.monitoring.register_scalar_listener(start)
  jax.monitoring.register_event_duration_secs_listener(end)
