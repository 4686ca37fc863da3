"""Options, states and ends of processes, as Linux has them."""

from __future__ import annotations

import ctypes
import os
import signal

# Options of a process, see prctl(2).
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def set_option(option: int, value: int) -> None:
  """Sets one of the options above for the calling process."""
  if _libc.prctl(option, int(value), 0, 0, 0):
    error = ctypes.get_errno()
    raise OSError(error, f'prctl({option}): {os.strerror(error)}')


def reap() -> set[int]:
  """Ids of the children that have ended; kills those that are stopped."""
  ended = set()
  try:
    while True:
      pid, wait_status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
      if not pid:
        return ended
      if os.WIFSTOPPED(wait_status):
        os.kill(pid, signal.SIGKILL)
      else:
        ended.add(pid)
  except ChildProcessError:
    return ended


def is_stopped(pid: int) -> bool:
  """Whether a process got SIGSTOP or its like, and no SIGCONT since."""
  return _stat(pid)[0] == b'T'


def kill_descendants() -> None:
  """Kills and reaps every descendant.

  A dead child's children become ours (PR_SET_CHILD_SUBREAPER), so also those
  that left the process group are found, one generation in each round.
  """
  while True:
    try:
      if os.waitpid(-1, os.WNOHANG)[0]:
        continue
    except ChildProcessError:
      return
    for pid in children():
      os.kill(pid, signal.SIGKILL)
    os.waitpid(-1, 0)


def children() -> set[int]:
  """Ids of this process's children."""
  parent = str(os.getpid()).encode()
  return {
      int(name) for name in os.listdir('/proc')
      if name.isdigit() and _stat(int(name))[1] == parent}


def _stat(pid: int) -> tuple[bytes, bytes]:
  """State and parent of a process, as /proc has them; empty if it is gone."""
  try:
    with open(f'/proc/{pid}/stat', 'rb') as file:
      state, parent, *_ = file.read().rpartition(b')')[2].split()
  except OSError:
    return b'', b''
  return state, parent
