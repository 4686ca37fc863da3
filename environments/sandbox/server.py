"""The fork-server: keeps a supervisor waiting in every slot.

There are four kinds of processes:

  server      Keeps `num_slots` supervisors waiting on the listening socket,
              whose backlog is the queue. It replaces supervisors that ended and
              kills stopped ones.
  packages    A fork of the server that has loaded numpy and sympy, with its own
              supervisors and socket. It starts with the first program that
              asks for it; the server ends if it does.
  supervisor  Takes one connection after another. For each it forks a program,
              watches it, sweeps up, and reports how it ended.
  program     A fork, so a warm interpreter without start-up or imports. It
              reads its request and runs it.

The server ends within a second of its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import gc
import importlib
import os
import select
import signal
import site
import socket
import sys
import traceback

from environments.sandbox import isolation as isolation_lib
from environments.sandbox import processes
from environments.sandbox import protocol
from environments.sandbox import supervisor

# Modules that programs import most, besides those of the server.
_PRELOADED = (
    'bisect', 'collections', 'functools', 'heapq', 'operator', 're', 'string',
    'typing')
_PRELOADED_PACKAGES = (*protocol.PACKAGES, 'numpy.random')
_ONE_THREAD = dict.fromkeys(
    ('OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS'), '1')
_TICK = 1.0  # Seconds between checks of the parent and of `packages`.
_WAKEUPS = {signal.SIGCHLD, signal.SIGTERM}


def main(
    socket_fds: Sequence[int], num_slots: int, level: str, directory: str,
    package_folders: Sequence[str]) -> None:
  """Serves until SIGTERM, or until the parent is gone.

  Args:
    socket_fds: listening sockets in the order of `protocol.SOCKETS`.
    num_slots: programs that run at a time, and as many with packages.
    level: a `protocol.Level`.
    directory: holds the sockets and the empty folder where programs run;
      removed at the end.
    package_folders: where the packages are installed.

  Standard input is a pipe whose other end the parent keeps open.
  """
  if level == protocol.Level.BWRAP.value:
    # The parent ends bubblewrap's process, and that must end this one.
    processes.set_option(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
  listener, packages = (socket.socket(fileno=fd) for fd in socket_fds)
  for name in _PRELOADED:
    importlib.import_module(name)
  site.setquit()  # `exit()` and `quit()`, which -S leaves out.
  compile('0', '<warm up>', 'exec')  # Its first call builds lasting tables.
  os.environ.clear()
  _end_loading()
  isolation_args = (
      protocol.Level(level), os.path.join(directory, protocol.WORK_DIRECTORY))

  def serve_packages() -> None:
    _load_packages(package_folders)
    _serve(packages, num_slots, isolation_lib.Isolation(*isolation_args))

  _serve(
      listener, num_slots, isolation_lib.Isolation(*isolation_args), packages,
      serve_packages)
  os.spawnlp(
      os.P_WAIT, 'rm', 'rm', '-rf', '--',
      *(os.path.join(directory, name) for name in os.listdir(directory)))
  with contextlib.suppress(OSError):  # bubblewrap has mounted it.
    os.rmdir(directory)


def _serve(
    listener: socket.socket, num_slots: int, isolation: isolation_lib.Isolation,
    packages: socket.socket | None = None,
    serve_packages: Callable[[], None] | None = None) -> None:
  """Keeps the supervisors and the fork with the packages alive.

  If the fork with the packages ends, its programs would wait forever, so the
  server ends as well.
  """
  processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
  signal.pthread_sigmask(signal.SIG_BLOCK, _WAKEUPS)
  supervisors, packages_pid = set(), None
  while not _is_readable(0):  # Readable once the parent's end is closed.
    try:
      while len(supervisors) < num_slots:
        supervisors.add(_fork(supervisor.serve, listener, isolation))
      if packages and packages_pid is None and _is_readable(packages):
        packages_pid = _fork(serve_packages)
    except OSError as error:  # Out of processes or memory: try again later.
      print(f'sandbox: cannot fork: {error}', file=sys.stderr)
    wakeup = signal.sigtimedwait(_WAKEUPS, _TICK)
    if wakeup and wakeup.si_signo == signal.SIGTERM:
      break
    ended = processes.reap()
    supervisors -= ended
    if packages_pid in ended:
      sys.exit('sandbox: the process with the packages has ended')
  processes.kill_descendants()


def _fork(function: Callable[..., None], *arguments) -> int:
  """Runs a function in a new process that dies with this one."""
  parent = os.getpid()
  pid = os.fork()
  if pid:
    return pid
  try:
    processes.die_with(parent)
    function(*arguments)
  except BaseException:
    traceback.print_exc()
  finally:
    os._exit(1)


def _is_readable(stream: socket.socket | int) -> bool:
  return bool(select.select([stream], [], [], 0)[0])


def _load_packages(folders: Sequence[str]) -> None:
  """Loads the packages that are installed."""
  sys.path += folders
  os.environ.update(_ONE_THREAD)  # Threads would not survive a fork.
  for name in _PRELOADED_PACKAGES:
    try:
      importlib.import_module(name)
    except ImportError:
      pass
    except Exception:
      traceback.print_exc()
  del sys.path[-len(folders):]
  os.environ.clear()
  _end_loading()


def _end_loading() -> None:
  """Prepares the interpreter for forking."""
  gc.collect()
  gc.freeze()  # Otherwise a child's first collection copies every page.
  gc.disable()
