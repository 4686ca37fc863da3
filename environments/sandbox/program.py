"""The life of a program's process: reads a request, runs it, and ends."""

import atexit
from collections.abc import Iterator, Sequence
import ctypes
import errno
import fcntl
import gc
import io
import linecache
import os
import random
import signal
import socket
import sys
import traceback
import types
from typing import NoReturn

from environments.sandbox import isolation as isolation_lib
from environments.sandbox import literals
from environments.sandbox import processes
from environments.sandbox import protocol

TRACEBACK_CHARS = 4000
# Receives the value of a function; closed if none is called.
VALUE_FD = 3
# A program that ran out of memory ends by this signal.
OUT_OF_MEMORY = signal.SIGUSR1
_OWN_FILES = __file__, literals.__file__
_FILE = io.IOBase.__base__  # The base of all files, without a metaclass.
_errno_address = processes.libc.__errno_location
_errno_address.restype = ctypes.c_void_p


def main(
    connection: socket.socket, isolation: isolation_lib.Isolation,
    output_fds: Sequence[int], ready_fd: int) -> NoReturn:
  """Runs the program that a client requests; never returns.

  Args:
    connection: holds the request. Without one the process exits with 0.
    isolation: entered before the program runs.
    output_fds: files for stdout, stderr and the value of the function.
    ready_fd: a pipe that gets the packed limits when the program starts.
  """
  exit_code = 1
  try:
    data = b''.join(iter(lambda: connection.recv(1 << 16), b''))
    if not data:  # The client has gone.
      os._exit(0)
    request = protocol.unpack_request(data)
    stdin_fd = _set_up(request.stdin)
    isolation.enter(request.limits)
    # Before this line, faults go to the server's stderr.
    for target, fd in enumerate((stdin_fd, *output_fds)):
      os.dup2(fd, target)
    os.write(ready_fd, protocol.pack(request.limits))
    os.closerange(VALUE_FD + bool(request.function), 1 << 16)
    exit_code = _run(request)
  except BaseException:  # The supervisor sees that `ready_fd` stayed empty.
    traceback.print_exc()
  finally:
    _leave(exit_code)


def _set_up(stdin: str) -> int:
  """Sets up input, signals and random numbers; returns the input's fd."""
  stdin_fd = os.memfd_create('stdin', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
  # A lone surrogate shall fail in the program, not here.
  os.write(stdin_fd, stdin.encode('utf-8', 'surrogatepass'))
  os.lseek(stdin_fd, 0, os.SEEK_SET)
  # Unsealed, it would be memory without a limit.
  fcntl.fcntl(stdin_fd, fcntl.F_ADD_SEALS, (
      fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW
      | fcntl.F_SEAL_SHRINK))
  # Python ignores it; a limit that is hit should stop the program.
  signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
  signal.signal(signal.SIGINT, signal.default_int_handler)  # As in any Python.
  _seed_random_numbers()
  return stdin_fd


def _seed_random_numbers() -> None:
  """Gives generators without a seed the same numbers in every run."""
  entropy = random.Random(0)
  seed_with = random.Random.seed

  def seed(self, a=None, version=2):
    seed_with(self, entropy.getrandbits(128) if a is None else a, version)

  random.Random.seed = seed
  random.seed = random._inst.seed
  for name in ('random', 'numpy.random', 'sympy.core.random'):
    if name in sys.modules:
      sys.modules[name].seed(0)
  if 'numpy.random' in sys.modules:  # For `default_rng()`.
    sys.modules['numpy.random.bit_generator'].randbits = entropy.getrandbits


def _run(request: protocol.Request) -> int:
  """Runs the program as a script; returns -N to end by signal N.

  A program whose function is called is a module, so its `if __name__ ==
  '__main__'` block does not run.
  """
  source = request.source
  sys.argv[:] = ['<program>']
  sys.stdin = sys.__stdin__ = open(0, encoding='utf-8', closefd=False)
  sys.stdout = sys.__stdout__ = open(
      1, 'w', encoding='utf-8', closefd=False)
  sys.stderr = sys.__stderr__ = open(
      2, 'w', encoding='utf-8', errors='backslashreplace', buffering=1,
      closefd=False)
  sys.excepthook = _print_exception
  lines = [line + '\n' for line in source.split('\n')]
  linecache.cache['<program>'] = (len(source), None, lines, '<program>')
  module = types.ModuleType('program' if request.function else '__main__')
  sys.modules['__main__'] = sys.modules[module.__name__] = module
  gc.enable()
  exit_code = 0
  # `raise MemoryError` and a text that is too complex leave no error number.
  error_number = ctypes.c_int.from_address(_errno_address())
  error_number.value = 0
  try:
    # A file may begin with a byte-order mark.
    text = source.removeprefix('\ufeff')
    code = compile(text, '<program>', 'exec', dont_inherit=True)
    exec(code, module.__dict__)
    if request.function:
      value = literals.call(module, request.function, request.arguments)
      with open(VALUE_FD, 'w') as file:
        file.write(value)
  except SystemExit as error:
    exit_code = int(error.code not in (None, 0))
    if exit_code and not isinstance(error.code, int):
      print(error.code, file=sys.stderr)
  except MemoryError as error:
    exit_code = -OUT_OF_MEMORY if error_number.value == errno.ENOMEM else 1
    traceback.clear_frames(error.__traceback__)  # Frees memory for the message.
    module.__dict__.clear()
    _report(error)
  except BaseException as error:
    _report(error)
    exit_code = 1
  if 'threading' in sys.modules:  # Waits for threads.
    sys.modules['threading']._shutdown()
  atexit._run_exitfuncs()
  return exit_code


def _leave(exit_code: int) -> NoReturn:
  """Ends the process without the interpreter's slow finalization."""
  for file in _open_files():
    try:
      file.flush()
    except BaseException:  # The program may have closed or replaced it.
      pass
  processes.libc.fflush(None)  # Of C code.
  if exit_code < 0:
    os.kill(os.getpid(), -exit_code)
  os._exit(abs(exit_code))


def _open_files() -> Iterator[io.IOBase]:
  """The standard streams, then all other files of the program."""
  for name in ('stdout', '__stdout__', 'stderr'):
    yield vars(sys).get(name)
  try:
    objects = gc.get_objects()
  except BaseException:  # Out of memory, or replaced.
    return
  for value in objects:
    if issubclass(type(value), _FILE):
      yield value


def _report(error: BaseException) -> None:
  """Reports an uncaught exception without the frames of the sandbox."""
  frames = error.__traceback__
  while frames and frames.tb_frame.f_code.co_filename in _OWN_FILES:
    frames = frames.tb_next
  sys.excepthook(type(error), error.with_traceback(frames), frames)


def _print_exception(*exception) -> None:
  """Prints a traceback with source lines.

  Long texts are cut in the middle, so that they do not hit the output limit.
  """
  text = ''.join(traceback.format_exception(*exception))
  if len(text) > TRACEBACK_CHARS:
    half = TRACEBACK_CHARS // 2
    text = f'{text[:half]} [...] {text[-half:]}'
  print(text, end='', file=sys.stderr)
