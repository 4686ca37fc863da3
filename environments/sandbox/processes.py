"""Options, states and ends of Linux processes."""

import ctypes
import os
import re
import signal

# Environment of processes that fork. A thread for each core would not survive a
# fork, and would reserve 40 MB of address space.
ONE_THREAD = dict.fromkeys(
    ('OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS'), '1')
# Options of a process, see prctl(2).
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

libc = ctypes.CDLL(None, use_errno=True)


def set_option(option: int, value: int) -> None:
  """Sets one of the options above for the calling process."""
  check(libc.prctl(option, int(value), 0, 0, 0), f'prctl({option})')


def die_with(parent: int) -> None:
  """Kills this process when its parent ends, or now if it already has."""
  set_option(PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:
    os._exit(1)


def reap() -> set[int]:
  """Ids of the children that have ended; kills stopped children."""
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
  """True if a signal stopped the process and no SIGCONT followed."""
  return _stat(pid)[0] == b'T'


def usage(pid: int) -> tuple[int, float, int] | None:
  """Number of threads, CPU seconds and bytes of memory of a process.

  Page tables are memory, too: one page in each GiB takes two more for them.
  None if its main thread has ended: the kernel then reports no memory, although
  other threads may go on.
  """
  fields = _stat(pid)
  if fields[0] == b'Z':
    return None
  ticks = int(fields[11]) + int(fields[12])
  page_tables = re.search(rb'VmPTE:\s*(\d+)', _read(pid, 'status'))
  kilobytes = int(page_tables[1]) if page_tables else 0
  return (
      int(fields[17]), ticks / os.sysconf('SC_CLK_TCK'),
      int(fields[21]) * os.sysconf('SC_PAGESIZE') + 1024 * kilobytes)


def kill_descendants() -> None:
  """Kills and reaps every descendant.

  A dead child's children become ours (PR_SET_CHILD_SUBREAPER), so this also
  finds processes that left the group, one generation per round.
  """
  while True:
    try:
      if os.waitpid(-1, os.WNOHANG)[0]:
        continue
    except ChildProcessError:
      return
    for pid in children(os.getpid()):
      os.kill(pid, signal.SIGKILL)
    os.waitpid(-1, 0)


def children(pid: int) -> set[int]:
  """Ids of the children of a process."""
  parent = str(pid).encode()
  return {
      int(name) for name in os.listdir('/proc')
      if name.isdigit() and _stat(int(name))[1] == parent}


def _stat(pid: int) -> list[bytes]:
  """Fields of /proc/PID/stat from the state on; zeros if it is gone."""
  return _read(pid, 'stat').rpartition(b')')[2].split() or [b'0'] * 22


def _read(pid: int, name: str) -> bytes:
  """A file of /proc/PID; empty if it is gone."""
  try:
    # `open` takes five times as long.
    fd = os.open(f'/proc/{pid}/{name}', os.O_RDONLY)
    try:
      return os.read(fd, 4000)
    finally:
      os.close(fd)
  except OSError:
    return b''


def check(result: int, name: str) -> None:
  """Raises the OSError of a call of the C library that failed."""
  if result:
    error = ctypes.get_errno()
    raise OSError(error, f'{name}: {os.strerror(error)}')
