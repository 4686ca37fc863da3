"""The fork-server: keeps a supervisor waiting in every slot.

Four kinds of process, so that each is simple:

  server      Keeps `num_slots` supervisors waiting on the listening socket
              and does nothing else. The socket's backlog is the queue. A
              supervisor that ends is replaced, one that is stopped is killed,
              and what its program leaves behind is killed. On the socket
              `health` the server answers itself, as long as it has
              supervisors: who waits long for a slot can tell a long queue
              from a server that is dead or stopped.
  packages    A fork of the server that has loaded numpy and the like, with
              supervisors of its own on a socket of its own. It is started when
              the first program asks for it; the server ends if it does.
  supervisor  Takes one connection after another. For each it forks a program,
              watches it, sweeps up, and says how it ended.
  program     A fork, so a warm interpreter: no start-up, no imports to pay. It
              reads its own request, then runs it.

The server ends within a second of its parent. `start_server.py` starts it.
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

# What programs import most, beside what the server itself does: free in every
# fork.
_PRELOADED = (
    'bisect', 'collections', 'functools', 'heapq', 'operator', 're', 'string',
    'typing')
# And with the packages.
_PARTS_OF_PACKAGES = ('numpy.random',)
_ONE_THREAD = dict.fromkeys(
    ('OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS'), '1')
# Seconds between two looks whether the parent lives, or somebody asks for
# health or packages.
_TICK = 1.0
_WAKEUPS = {signal.SIGCHLD, signal.SIGTERM}


def main(
    listener_fd: int, packages_fd: int, health_fd: int, num_slots: int,
    level: str, directory: str, package_folders: Sequence[str]) -> None:
  """Serves until SIGTERM, or until the parent has gone.

  Args:
    listener_fd: of the socket for programs, which is bound and listens.
    packages_fd: of the socket for programs with packages, which does so too.
    health_fd: of the socket `health`, which does so too.
    num_slots: programs that run at a time, and as many with packages.
    level: a `protocol.Level`.
    directory: of the sockets, and of an empty folder where programs run;
      removed in the end.
    package_folders: where the packages are.

  Standard input is a pipe, whose other end the parent holds while it lives.
  """
  if level == protocol.Level.BWRAP.value:
    # The parent ends bubblewrap's process, and that must end us.
    processes.set_option(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
  listener, packages, health = (
      socket.socket(fileno=fd) for fd in (listener_fd, packages_fd, health_fd))
  health.setblocking(False)
  for name in _PRELOADED:
    importlib.import_module(name)
  site.setquit()  # `exit()` and `quit()`, which -S leaves out.
  compile('0', '<warm up>', 'exec')  # Its first call builds lasting tables.
  os.environ.clear()
  _end_loading()
  work_directory = os.path.join(directory, protocol.WORK_DIRECTORY)
  isolation = isolation_lib.Isolation(protocol.Level(level), work_directory)
  number = int.from_bytes(os.urandom(8))

  def serve_packages() -> None:
    health.close()
    listener.close()
    _load_packages(package_folders)
    _Server(packages, num_slots, number, isolation_lib.Isolation(
        protocol.Level(level), work_directory)).serve()

  _Server(
      listener, num_slots, number, isolation, health, packages,
      serve_packages).serve()
  for name in os.listdir(directory):
    supervisor.remove_tree(os.path.join(directory, name))
  with contextlib.suppress(OSError):  # bubblewrap has mounted it.
    os.rmdir(directory)


class _Server:
  """Keeps its supervisors, and the fork with the packages, alive."""

  def __init__(
      self, listener: socket.socket, num_slots: int, number: int,
      isolation: isolation_lib.Isolation, health: socket.socket | None = None,
      packages: socket.socket | None = None,
      serve_packages: Callable[[], None] | None = None):
    self._listener = listener
    self._num_slots = num_slots
    self._number = number  # In greetings.
    self._isolation = isolation
    self._health = health
    self._packages = packages
    self._serve_packages = serve_packages
    self._supervisors: set[int] = set()
    self._packages_pid: int | None = None

  def serve(self) -> None:
    processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKEUPS)
    while not _is_readable(0):  # The end: nobody writes there.
      try:
        self._fork_what_is_missing()
      except OSError as error:  # Out of processes or memory: try again later.
        print(f'sandbox: cannot fork: {error}', file=sys.stderr)
      wakeup = signal.sigtimedwait(_WAKEUPS, _TICK)
      if wakeup and wakeup.si_signo == signal.SIGTERM:
        break
      self._sweep(processes.reap())
      if self._health is not None and self._supervisors:
        _say_healthy(self._health, self._number)
    processes.kill_descendants()

  def _fork_what_is_missing(self) -> None:
    while len(self._supervisors) < self._num_slots and not _is_readable(0):
      parent = os.getpid()
      pid = os.fork()
      if not pid:
        for other in (self._health, self._packages):
          if other is not None:
            other.close()
        supervisor.serve(
            self._listener, self._isolation, self._number, parent)
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
    """Forgets the dead, and ends what they can no longer end.

    The processes of a dead supervisor's program have become ours. Without the
    packages there would be programs that wait for ever, so all ends then.
    """
    self._supervisors -= ended
    if self._packages_pid in ended:
      sys.exit('sandbox: the process with the packages has ended')
    if ended:
      own = self._supervisors | {self._packages_pid}
      for pid in processes.children() - own:
        os.kill(pid, signal.SIGKILL)


def _is_readable(stream: socket.socket | int) -> bool:
  return bool(select.select([stream], [], [], 0)[0])


def _say_healthy(health: socket.socket, number: int) -> None:
  """Answers all who ask."""
  try:
    while True:
      with health.accept()[0] as connection:
        protocol.greet(connection, number)
  except OSError:  # Nobody asks any more, or who asked has gone.
    pass


def _load_packages(folders: Sequence[str]) -> None:
  """Loads those that are installed; a program need not find them by itself."""
  sys.path += folders
  os.environ.update(_ONE_THREAD)  # A fork has no others.
  for name in (*protocol.PACKAGES, *_PARTS_OF_PACKAGES):
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
  """Makes this the interpreter that programs start with."""
  gc.collect()
  gc.freeze()  # Else a child's first collection copies every page.
  gc.disable()
