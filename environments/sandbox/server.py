"""The fork-server: keeps a supervisor waiting in every slot.

Three kinds of process, so that each is simple:

  server      Keeps `num_slots` supervisors waiting on the listening socket
              and does nothing else. The socket's backlog is the queue. A
              supervisor that ends is replaced, one that is stopped is killed,
              and what its program leaves behind is killed and removed. On the
              socket `health` the server answers itself, as long as it has
              supervisors: who waits long for a slot can tell a long queue
              from a server that is dead or stopped.
  supervisor  Takes one connection after another. For each it forks a program,
              watches it, sweeps up, and says how it ended.
  program     A fork, so a warm interpreter: no start-up, no imports to pay. It
              reads its own request, then runs it.

The server ends within a second of its parent. `start_server.py` starts it.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import site
import socket
import sys

from environments.sandbox import processes
from environments.sandbox import protocol
from environments.sandbox import supervisor

# What programs import most, beside what the server itself does: free in every
# fork.
PRELOADED = (
    'bisect', 'collections', 'functools', 'heapq', 'operator', 're', 'string',
    'typing')
# Seconds between two looks whether the parent lives, or somebody asks for
# health.
TICK = 1.0


def main(
    directory: str, listener_fd: int, health_fd: int, num_slots: int,
    parent: int) -> None:
  """Serves until SIGTERM, or until the parent has gone.

  Args:
    directory: for everything that is written; removed in the end.
    listener_fd: of the socket for programs, which is bound and listens.
    health_fd: of the socket `health`, which does so as well.
    num_slots: programs that run at a time.
    parent: its process id.
  """
  listener = socket.socket(fileno=listener_fd)
  health = socket.socket(fileno=health_fd)
  health.setblocking(False)
  processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
  wakeups = {signal.SIGCHLD, signal.SIGTERM}
  signal.pthread_sigmask(signal.SIG_BLOCK, wakeups)
  _prepare_for_forks()

  supervisors = {}  # Id -> what the names of its directories begin with.
  num_started = 0
  while os.getppid() == parent:
    try:
      while len(supervisors) < num_slots:
        num_started += 1
        # With an id of the server: one before it may have left directories.
        name = f'{os.getpid()}-{num_started}'
        pid = os.fork()
        if not pid:
          health.close()
          supervisor.serve(listener, os.path.join(directory, name))
        supervisors[pid] = name
    except OSError as error:  # Out of processes or memory: try again later.
      print(f'sandbox: cannot fork: {error}', file=sys.stderr)
    wakeup = signal.sigtimedwait(wakeups, TICK)
    if wakeup and wakeup.si_signo == signal.SIGTERM:
      break
    _sweep(directory, processes.reap(), supervisors)
    if supervisors:
      _say_healthy(health)
  processes.kill_descendants()
  supervisor.remove_tree(directory)


def _sweep(
    directory: str, ended: set[int], supervisors: dict[int, str]) -> None:
  """Ends what a dead supervisor can no longer end, generation by generation.

  The processes of its program have become ours.
  """
  if ended:
    for pid in processes.children() - supervisors.keys():
      os.kill(pid, signal.SIGKILL)
  for pid in ended & supervisors.keys():
    name = supervisors.pop(pid)
    for entry in os.listdir(directory):
      if entry.startswith(f'{name}-'):
        supervisor.remove_tree(os.path.join(directory, entry))


def _say_healthy(health: socket.socket) -> None:
  """Answers all who ask."""
  try:
    while True:
      with health.accept()[0] as connection:
        protocol.greet(connection, os.getpid())
  except OSError:  # Nobody asks any more, or who asked has gone.
    pass


def _prepare_for_forks() -> None:
  """Makes this the interpreter that every program starts with."""
  os.environ.clear()
  for name in PRELOADED:
    importlib.import_module(name)
  site.setquit()  # `exit()` and `quit()`, which -S leaves out.
  compile('0', '<warm up>', 'exec')  # Its first call builds lasting tables.
  gc.collect()
  gc.freeze()  # Else a child's first collection copies every page.
  gc.disable()
