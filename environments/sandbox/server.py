"""The fork-server: keeps a supervisor waiting in every slot.

There are four kinds of processes:

  server      Keeps `num_slots` supervisors waiting on the listening socket,
              whose backlog is the queue. It replaces supervisors that ended,
              kills stopped ones, and kills processes that programs left behind.
              It answers on the socket `health` while it has supervisors, so
              clients can tell a long queue from a dead or stopped server.
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
# Seconds between checks of the parent and of the sockets health and packages.
_TICK = 1.0
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
  listener, packages, health = (socket.socket(fileno=fd) for fd in socket_fds)
  health.setblocking(False)
  for name in _PRELOADED:
    importlib.import_module(name)
  site.setquit()  # `exit()` and `quit()`, which -S leaves out.
  compile('0', '<warm up>', 'exec')  # Its first call builds lasting tables.
  os.environ.clear()
  _end_loading()
  work_directory = os.path.join(directory, protocol.WORK_DIRECTORY)
  isolation = isolation_lib.Isolation(protocol.Level(level), work_directory)
  server_id = int.from_bytes(os.urandom(8))

  def serve_packages() -> None:
    health.close()
    listener.close()
    _load_packages(package_folders)
    _Server(packages, num_slots, server_id, isolation_lib.Isolation(
        protocol.Level(level), work_directory)).serve()

  _Server(
      listener, num_slots, server_id, isolation, health, packages,
      serve_packages).serve()
  for name in os.listdir(directory):
    supervisor.remove_tree(os.path.join(directory, name))
  with contextlib.suppress(OSError):  # bubblewrap has mounted it.
    os.rmdir(directory)


class _Server:
  """Keeps its supervisors and the fork with the packages alive."""

  def __init__(
      self, listener: socket.socket, num_slots: int, server_id: int,
      isolation: isolation_lib.Isolation, health: socket.socket | None = None,
      packages: socket.socket | None = None,
      serve_packages: Callable[[], None] | None = None):
    self._listener = listener
    self._num_slots = num_slots
    self._server_id = server_id
    self._isolation = isolation
    self._health = health
    self._packages = packages
    self._serve_packages = serve_packages
    self._supervisors: set[int] = set()
    self._packages_pid: int | None = None

  def serve(self) -> None:
    processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKEUPS)
    while not _is_readable(0):  # Readable once the parent's end is closed.
      try:
        self._fork_missing()
      except OSError as error:  # Out of processes or memory: try again later.
        print(f'sandbox: cannot fork: {error}', file=sys.stderr)
      wakeup = signal.sigtimedwait(_WAKEUPS, _TICK)
      if wakeup and wakeup.si_signo == signal.SIGTERM:
        break
      self._sweep(processes.reap())
      if self._health is not None and self._supervisors:
        _answer_health(self._health, self._server_id)
    processes.kill_descendants()

  def _fork_missing(self) -> None:
    while len(self._supervisors) < self._num_slots and not _is_readable(0):
      parent = os.getpid()
      pid = os.fork()
      if not pid:
        for other in (self._health, self._packages):
          if other is not None:
            other.close()
        supervisor.serve(
            self._listener, self._isolation, self._server_id, parent)
      self._supervisors.add(pid)
    if (self._packages is not None and self._packages_pid is None
        and _is_readable(self._packages)):
      parent = os.getpid()
      pid = os.fork()
      if not pid:
        try:
          processes.die_with(parent)
          self._serve_packages()
        except BaseException:
          traceback.print_exc()
        finally:
          os._exit(1)
      self._packages_pid = pid

  def _sweep(self, ended: set[int]) -> None:
    """Forgets dead supervisors and kills the processes of their programs.

    These processes have become ours. If the fork with the packages has ended,
    its programs would wait forever, so the server ends as well.
    """
    self._supervisors -= ended
    if self._packages_pid in ended:
      sys.exit('sandbox: the process with the packages has ended')
    if ended:
      keep = self._supervisors | {self._packages_pid}
      for pid in processes.children() - keep:
        os.kill(pid, signal.SIGKILL)


def _is_readable(stream: socket.socket | int) -> bool:
  return bool(select.select([stream], [], [], 0)[0])


def _answer_health(health: socket.socket, server_id: int) -> None:
  try:
    while True:
      with health.accept()[0] as connection:
        protocol.send_greeting(connection, server_id)
  except OSError:  # Nobody asks any more, or a client has gone.
    pass


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
