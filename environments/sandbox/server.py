"""The fork-server: keeps a supervisor waiting in every slot.

Three kinds of process, so that each is simple:

  server      Keeps `num_slots` supervisors waiting on the listening socket
              and does nothing else. The socket's backlog is the queue.
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
from environments.sandbox import supervisor

# What programs import most, beside what the server itself does: free in every
# fork.
PRELOADED = (
    'bisect', 'collections', 'functools', 'heapq', 'operator', 're', 'string',
    'typing')
TICK = 1.0  # Seconds between two looks whether the parent lives.


def main(directory: str, listener_fd: int, num_slots: int, parent: int) -> None:
  """Serves until SIGTERM, or until the parent has gone.

  Args:
    directory: for everything that is written; removed in the end.
    listener_fd: of the socket, which is bound and listens.
    num_slots: programs that run at a time.
    parent: its process id.
  """
  listener = socket.socket(fileno=listener_fd)
  processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
  wakeups = {signal.SIGCHLD, signal.SIGTERM}
  signal.pthread_sigmask(signal.SIG_BLOCK, wakeups)
  _prepare_for_forks()

  supervisors = set()
  num_started = 0
  while os.getppid() == parent:
    try:
      while len(supervisors) < num_slots:
        num_started += 1
        pid = os.fork()
        if not pid:
          supervisor.serve(listener, os.path.join(directory, str(num_started)))
        supervisors.add(pid)
    except OSError as error:  # Out of processes or memory: try again later.
      print(f'sandbox: cannot fork: {error}', file=sys.stderr)
    wakeup = signal.sigtimedwait(wakeups, TICK)
    if wakeup and wakeup.si_signo == signal.SIGTERM:
      break
    supervisors -= processes.reap()
  processes.kill_descendants()
  supervisor.remove_tree(directory)


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
