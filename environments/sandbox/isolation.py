"""The limits and walls that a program enters before it runs.

The server prepares an `Isolation` once, and each program, a fork of the server,
enters it for good: resource limits, no capabilities, Landlock, and `seccomp`.
UNSAFE_RLIMIT has only the limits and the loss of capabilities.

Landlock, see landlock(7), refuses every access to files that no rule allows:
reading, writing, making, removing, running. From Linux 6.7 it also refuses TCP,
from 6.12 signals and abstract Unix sockets; `seccomp` refuses these on any
kernel.
"""

import contextlib
import ctypes
import errno
import math
import os
import re
import resource
import struct
import sys

from environments.sandbox import processes
from environments.sandbox import protocol
from environments.sandbox import seccomp

_MAX_OPEN_FILES = 64
MAX_THREADS = 64
# Stack of a program's main thread, for deep recursion through C. Only the used
# part takes memory.
STACK_BYTES = 512 << 20
# Address space for the stacks of other threads. Contest programs often ask for
# one of 512 MiB.
_STACKS_BYTES = 1 << 30
# Real user of a program of root: the first of a range that no system assigns,
# plus the process id.
_FIRST_USER = 0x70000000
_MAX_PENDING_SIGNALS = 64
# Arguments of capset(2): version 3 and the calling process; two words each of
# effective, permitted and inheritable capabilities, all zero.
_NO_CAPABILITIES = struct.pack('=Ii', 0x20080522, 0), bytes(24)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # Flag of _CREATE_RULESET.
_PATH_BENEATH = 1
# Version of Landlock -> the accesses to files that it handles.
_FILES = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
_TCP = 0x3  # From version 4.
_SCOPES = 0x3  # Signals and abstract sockets; from version 6.
_WRITE_FILE, _READ_FILE, _READ_FOLDER = 0x2, 0x4, 0x8

_DEVICES = {
    '/dev/null': _READ_FILE | _WRITE_FILE, '/dev/zero': _READ_FILE,
    '/dev/random': _READ_FILE, '/dev/urandom': _READ_FILE}
_PUBLIC = ('/etc/ld.so.cache', '/usr/share/zoneinfo')
_INSTALLED = ('site-packages', 'dist-packages')  # Not the standard library.
_LIBRARY = re.compile(r'.+\.so(\.\d\w*)*')  # libz.so, libz.so.1.2.13


class Isolation:
  """The walls shared by all programs of one server."""

  def __init__(self, level: protocol.Level, work_directory: str):
    """Construct it after importing everything that programs may use.

    The calling thread has a stack of STACK_BYTES.

    Raises OSError if the kernel lacks a part of the level.
    """
    self._work_directory = work_directory
    with open('/proc/self/statm', encoding='ascii') as file:
      num_pages = int(file.read().split()[0])
    self._interpreter_bytes = num_pages * os.sysconf('SC_PAGESIZE')
    self._ruleset = self._filter = None
    if level is not protocol.Level.UNSAFE_RLIMIT:
      self._ruleset = _make_ruleset()
      self._filter = seccomp.Filter()

  def max_resident_bytes(self, limits: protocol.Limits) -> int:
    """Maximum memory of a program, including that of the interpreter."""
    return self._interpreter_bytes - STACK_BYTES + limits.memory_bytes

  def enter(self, limits: protocol.Limits) -> None:
    """Confines the calling process for good."""
    os.setsid()
    processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 0)
    processes.set_option(processes.PR_SET_NO_NEW_PRIVS, 1)
    os.chdir(self._work_directory)
    for kind, value in (
        # The supervisor ends the program sooner, unless killed or stopped.
        (resource.RLIMIT_CPU, math.ceil(limits.cpu_seconds) + 1),
        (resource.RLIMIT_AS,
         self._interpreter_bytes + limits.memory_bytes + _STACKS_BYTES),
        # One byte more shows that the output was longer.
        (resource.RLIMIT_FSIZE, int(limits.output_bytes) + 1),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_NPROC, self._max_tasks()),
        (resource.RLIMIT_SIGPENDING, _MAX_PENDING_SIGNALS),
        # 1, not 0: the kernel starts a core-dump program even at 0.
        (resource.RLIMIT_CORE, 1)):
      present = resource.getrlimit(kind)[1]  # A lower limit stays.
      if present != resource.RLIM_INFINITY:
        value = min(value, present)
      resource.setrlimit(kind, (value, value))
    # Without any capability for good; root keeps its files.
    processes.check(processes.libc.capset(*_NO_CAPABILITIES), 'capset')
    if self._ruleset is not None:
      _landlock(_RESTRICT_SELF, self._ruleset, 0)
      self._filter.install()

  def _max_tasks(self) -> int:
    """Limit of the processes and threads of the program's user.

    The kernel exempts root. If root may change its real user, each program gets
    a user with the exact limit; files are opened with the effective user, which
    stays root. Otherwise the user may have all other tasks of the machine.
    """
    if self._ruleset is not None:
      with contextlib.suppress(OSError):
        os.setreuid(_FIRST_USER + os.getpid(), -1)
        return MAX_THREADS
    fd = os.open('/proc/loadavg', os.O_RDONLY)  # `open` costs a program 10 %.
    num_tasks = os.read(fd, 100).split()[3].partition(b'/')[2]
    os.close(fd)
    return int(num_tasks) + MAX_THREADS


def landlock_version() -> int:
  """Version of the kernel's Landlock; OSError if it has none."""
  return _landlock(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)


def _make_ruleset() -> int:
  """File descriptor of the Landlock rules, which many forks enter."""
  version = landlock_version()
  attributes = struct.pack(
      '=QQQ', _FILES[min(version, max(_FILES))], _TCP if version >= 4 else 0,
      _SCOPES if version >= 6 else 0)
  ruleset = _landlock(
      _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
  for path, access in _readable_paths():
    if not os.path.isdir(path):
      access &= ~_READ_FOLDER  # Landlock refuses it for files.
    with contextlib.suppress(FileNotFoundError, PermissionError):
      fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
      rule = struct.pack('=Qi', access, fd)
      _landlock(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
      os.close(fd)
  return ruleset


def _readable_paths() -> list[tuple[str, int]]:
  """Paths that forks of this interpreter need, with their accesses.

  These are the standard library, the loaded packages, the shared libraries next
  to the loaded ones, a few devices, and the time zones. Other installed
  packages are left out: the trainer's code may be among them.
  """
  read = _READ_FILE | _READ_FOLDER
  standard = {path for path in sys.path if os.path.isdir(path)}
  rules = [*_DEVICES.items(), *((path, read) for path in _PUBLIC)]
  for folder in standard:
    rules.append((folder, _READ_FOLDER))
    rules += [
        (os.path.join(folder, name), read) for name in os.listdir(folder)
        if name not in _INSTALLED]
  for name, module in list(sys.modules.items()):
    path = getattr(module, '__file__', None)
    if '.' in name or not path or name in ('__main__', 'environments'):
      continue
    if os.path.basename(path).startswith('__init__.'):
      path = os.path.dirname(path)
    if os.path.dirname(path) not in standard:
      rules.append((path, read))  # A loaded package.
  with open('/proc/self/maps', encoding='utf-8') as file:
    loaded = [line.split(None, 5)[-1].strip() for line in file]
  for folder in {
      os.path.dirname(path) for path in loaded
      if path.startswith('/') and _LIBRARY.fullmatch(path)}:
    rules += [
        (os.path.join(folder, name), _READ_FILE) for name in os.listdir(folder)
        if _LIBRARY.fullmatch(name)]
  return rules


def _landlock(number: int, *arguments) -> int:
  result = processes.libc.syscall(number, *arguments)
  if result < 0:
    error = ctypes.get_errno()
    reasons = {
        errno.ENOSYS: 'this kernel has none, or a container hides it',
        errno.EOPNOTSUPP: 'this kernel was started without it'}
    raise OSError(error, f'Landlock: {reasons.get(error, os.strerror(error))}')
  return result
