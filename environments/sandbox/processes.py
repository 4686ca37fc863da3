"""Options of a process and the end of its descendants, as Linux has them."""

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
  """Ids of the children that have ended."""
  ended = set()
  try:
    while pid := os.waitpid(-1, os.WNOHANG)[0]:
      ended.add(pid)
  except ChildProcessError:
    pass
  return ended


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
    for pid in _children():
      os.kill(pid, signal.SIGKILL)
    os.waitpid(-1, 0)


def _children() -> list[int]:
  """Ids of this process's children."""
  found = []
  for name in os.listdir('/proc'):
    if name.isdigit():
      try:
        with open(f'/proc/{name}/stat', 'rb') as file:
          stat = file.read()
      except OSError:  # It has ended since.
        continue
      if int(stat.rpartition(b')')[2].split()[1]) == os.getpid():
        found.append(int(name))
  return found
