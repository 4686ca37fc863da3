"""Starts the fork-server at the strongest level that this machine offers."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import importlib.util
import io
import json
import logging
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from environments.sandbox import client
from environments.sandbox import isolation
from environments.sandbox import processes
from environments.sandbox import protocol
from environments.sandbox import seccomp

AUTO = 'auto'  # The first level of _AUTOMATIC that works.
_AUTOMATIC = (protocol.Level.BWRAP, protocol.Level.KERNEL)
LOCAL_LEVELS = (*_AUTOMATIC, protocol.Level.UNSAFE_RLIMIT)
LEVELS = (AUTO, *(level.value for level in LOCAL_LEVELS))
MAX_SLOTS = 1024  # A process waits in each.

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_BACKLOG = 4096
_MAX_ADDRESS_BYTES = 107  # Of a Unix socket.
_START_SECONDS = 60.0  # Timeout of bubblewrap's start.
_END_SECONDS = 10.0  # Timeout of the server's end.
_USERNS_SWITCH = '/proc/sys/kernel/apparmor_restrict_unprivileged_userns'

# Visible inside bubblewrap besides the interpreter. Programs may read less, see
# `isolation`.
_SYSTEM = ('/usr', '/lib', '/lib64', '/etc/ld.so.cache')

# Loads the modules of this folder as a package without its `__init__`, which
# would load the client. Then forgets their names: programs are forks of this
# process, and must import only the standard library and PACKAGES.
_START_SERVER = '''
import importlib, json, sys, types
folder, settings = sys.argv[1:]
for name, path in ('environments', []), ('environments.sandbox', [folder]):
  sys.modules[name] = types.ModuleType(name)
  sys.modules[name].__path__ = path
server = importlib.import_module('environments.sandbox.server')
for name in list(sys.modules):
  if name.partition('.')[0] == 'environments':
    del sys.modules[name]
server.main(**json.loads(settings))
'''

# Prints its input, and the walls that are missing.
_TRIAL = '''
import os, socket
def attempt(name, function):
  try: function()
  except OSError: return
  print(name)
print(input())
attempt('folders', lambda: os.listdir('/'))
attempt('files', lambda: open('/proc/self/environ').read())
attempt('writing', lambda: open('file', 'w'))
attempt('sockets', socket.socket)
attempt('signals', lambda: os.kill(os.getppid(), 0))
attempt('processes', lambda: os.fork() or os._exit(0))
'''


class NoSandboxError(RuntimeError):
  """This machine offers no allowed level of isolation."""


class SandboxServer:
  """Owns the fork-server's process; a context manager.

  Start it before jax: a process that runs jax must not fork.
  """

  name = 'sandbox server'

  def __init__(self, num_slots: int | None = None, level: str = AUTO):
    """Checks the arguments.

    Args:
      num_slots: programs that run at a time; by default one per core.
      level: one of LEVELS.
    """
    if num_slots is None:
      num_slots = len(os.sched_getaffinity(0))
    if not 1 <= num_slots <= MAX_SLOTS:
      raise ValueError(
          f'num_slots={num_slots} must be from 1 to {MAX_SLOTS}; a process '
          'waits in each slot.')
    if level not in LEVELS:
      raise ValueError(
          f'level={level!r} is unknown; give one of {", ".join(LEVELS)}.')
    self.num_slots = num_slots
    self._wanted = level
    self._level: protocol.Level | None = None
    self._directory: str | None = None
    self._process: subprocess.Popen | None = None
    self._pid: int | None = None
    self._pidfd: int | None = None  # A process descriptor of `pid`.

  @property
  def address(self) -> str:
    """The socket for `Sandbox(address)`."""
    self._check_started()
    return os.path.join(self._directory, protocol.SOCKETS[0])

  @property
  def sandbox(self) -> client.Sandbox:
    """Runs programs here; stays valid after a restart."""
    return client.Sandbox(self.address)

  @property
  def level(self) -> protocol.Level:
    """How programs are isolated."""
    self._check_started()
    return self._level

  @property
  def pid(self) -> int:
    """Process id of the server."""
    self._check_started()
    return self._pid

  def _check_started(self) -> None:
    if self._directory is None:
      raise RuntimeError('The sandbox server is not running; call start().')

  def start(self) -> None:
    """Starts the server and runs one program to see that it works.

    Raises NoSandboxError if it works at none of the allowed levels.
    """
    if not sys.platform.startswith('linux'):
      raise NoSandboxError(
          f'The sandbox needs Linux, not {sys.platform!r}; run tasks whose '
          'agents write programs on a Linux machine.')
    if self._directory is not None:
      raise RuntimeError(
          f'The sandbox server already runs at {self.address!r}; call close() '
          'before start().')
    _open_standard_streams()
    self._directory = tempfile.mkdtemp(prefix='atgrpo-sandbox-')  # Mode 0700.
    try:
      self._choose_level()
    except BaseException:
      self.close()
      raise
    if self._level is protocol.Level.UNSAFE_RLIMIT:
      logging.warning(
          'Sandbox level unsafe_rlimit: model-written programs run with your '
          'rights. They can read and delete your files and use the network.')

  def _choose_level(self) -> None:
    levels = _AUTOMATIC
    if self._wanted != AUTO:
      levels = protocol.Level(self._wanted),
    reasons = []
    for level in levels:
      self._level = level
      reason = _missing(level)
      if not reason:
        try:
          return self._launch()
        except RuntimeError as error:
          reason = str(error)
          self._end()
      reasons.append(f'{level.value}: {reason}')
    raise NoSandboxError(
        'No sandbox for model-written programs '
        f'({"; ".join(reasons)}). Use Linux 5.13 or newer with Landlock, and '
        'install bubblewrap for the strongest level; or set '
        'sandbox.level=unsafe_rlimit to run programs with your rights. See '
        'docs/sandbox.md.')

  def is_running(self) -> bool:
    """True if the process is alive and not stopped."""
    return (
        self._process is not None and self._process.poll() is None
        and not processes.is_stopped(self._pid))

  def restart(self) -> None:
    """Starts a new server at the same address, so every `Sandbox` stays valid.

    Running programs end, and their clients ask again. Does not fork the caller,
    which may run jax by now. Raises RuntimeError or OSError if the new server
    cannot run programs; call it again to retry.
    """
    self._end()
    self._launch()

  def _launch(self) -> None:
    """Starts the process and runs one program to see that it works."""
    self._spawn()
    self._run_trial()

  def _run_trial(self) -> None:
    """Raises RuntimeError if no program runs, or a wall is missing."""
    result = self.sandbox.run(_TRIAL, 'ready')
    first, *missing = result.stdout.split() or ['']
    if first != 'ready':
      raise RuntimeError(
          'the server cannot run programs; its stderr has the reason. A trial '
          f'program gave {result}')
    if missing and self._level is not protocol.Level.UNSAFE_RLIMIT:
      raise RuntimeError(f'a trial program could use {", ".join(missing)}')

  def _spawn(self) -> None:
    addresses = [
        protocol.socket_path(self.address, name) for name in protocol.SOCKETS]
    if len(os.fsencode(max(addresses, key=len))) > _MAX_ADDRESS_BYTES:
      raise ValueError(
          f'The socket path {self.address!r} is longer than '
          f'{_MAX_ADDRESS_BYTES} bytes; set TMPDIR to a shorter folder.')
    # Programs run in an empty folder where they cannot write.
    work_directory = os.path.join(self._directory, protocol.WORK_DIRECTORY)
    os.makedirs(self._directory, 0o700, exist_ok=True)  # If it was removed.
    os.makedirs(work_directory, 0o500, exist_ok=True)
    is_bwrap = self._level is protocol.Level.BWRAP
    folders = _package_folders()
    listeners, fds = [], []
    try:
      for address in addresses:
        pathlib.Path(address).unlink(missing_ok=True)
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[-1].bind(address)
        listeners[-1].listen(_BACKLOG)
        fds.append(listeners[-1].fileno())
      settings = {
          'socket_fds': fds, 'num_slots': self.num_slots,
          'level': self._level.value, 'directory': self._directory,
          'package_folders': folders}
      # No user packages, current folder or site-packages: imports of programs
      # do not depend on the trainer's environment.
      command = [
          os.path.realpath(sys.executable), '-s', '-P', '-S', '-X', 'utf8',
          '-c', _START_SERVER, _FOLDER, json.dumps(settings)]
      info, info_fd = os.pipe()
      if is_bwrap:
        command = [
            *_bwrap(folders), '--bind', self._directory, self._directory,
            '--info-fd', str(info_fd), '--', *command]
        fds.append(info_fd)
      with open(info, 'rb', 0) as info_pipe:
        try:
          self._process = subprocess.Popen(
              command,
              # With more arenas, a few threads use up the address space. A
              # fixed hash seed gives sets of strings the same order every run.
              env={'MALLOC_ARENA_MAX': '1', 'PYTHONHASHSEED': '0'},
              stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
              pass_fds=fds, start_new_session=True)
        finally:
          os.close(info_fd)
        self._pid = self._process.pid
        if is_bwrap:
          self._pid = _bwrap_child(info_pipe)
        self._pidfd = os.pidfd_open(self._pid)
    finally:
      for listener in listeners:
        listener.close()

  def close(self) -> None:
    """Ends the server and every program; pending calls fail."""
    self._end()
    if self._directory is not None:
      shutil.rmtree(self._directory, ignore_errors=True)
      self._directory = None

  def _end(self) -> None:
    if self._process is None:
      return
    self._process.stdin.close()
    if self._pidfd is None:  # bubblewrap did not start it.
      self._process.kill()
    else:
      # Under bubblewrap it is not our child; bubblewrap ends with it.
      for number in (signal.SIGTERM, signal.SIGCONT):  # It may be stopped.
        _send(self._pidfd, number)
      if not select.select([self._pidfd], [], [], _END_SECONDS)[0]:
        _send(self._pidfd, signal.SIGKILL)
      os.close(self._pidfd)
    self._process.send_signal(signal.SIGCONT)  # bubblewrap may be stopped.
    self._process.wait()
    self._process = self._pidfd = None

  def __enter__(self) -> SandboxServer:
    self.start()
    return self

  def __exit__(self, *exception) -> None:
    self.close()


def _missing(level: protocol.Level) -> str:
  """Why a level cannot work; '' if no reason is known yet."""
  if level is protocol.Level.UNSAFE_RLIMIT:
    return ''
  try:
    isolation.landlock_version()
    seccomp.Filter()
  except OSError as error:
    return error.strerror
  if level is protocol.Level.KERNEL:
    return ''
  if shutil.which('bwrap') is None:
    return 'bubblewrap is not installed'
  try:
    trial = subprocess.run(
        [*_bwrap([]), '--', os.path.realpath(sys.executable), '-I', '-S', '-c',
         ''], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=_START_SECONDS)
  except subprocess.TimeoutExpired:
    return f'bubblewrap did not end within {_START_SECONDS:.0f} s'
  if not trial.returncode:
    return ''
  reason = trial.stderr.strip() or f'exit status {trial.returncode}'
  switch = pathlib.Path(_USERNS_SWITCH)
  if switch.exists() and switch.read_text().strip() != '0':
    reason += f' ({_USERNS_SWITCH} is on)'
  return f'bubblewrap does not work: {reason}'


def _bwrap(package_folders: Sequence[str]) -> list[str]:
  """The command that starts another command in new namespaces."""
  command = [
      shutil.which('bwrap'), '--unshare-all', '--as-pid-1', '--new-session',
      '--cap-drop', 'ALL', '--proc', '/proc', '--dev', '/dev', '--chdir', '/']
  python = os.path.realpath(sys.executable)
  for path in (
      *_SYSTEM, sys.base_prefix, sys.base_exec_prefix, python, _FOLDER,
      *package_folders):
    command += ['--ro-bind-try', path, path]
  return command


def _open_standard_streams() -> None:
  """Opens closed ones; otherwise the server's sockets would replace them."""
  while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
    pass
  os.close(fd)


def _bwrap_child(info: io.FileIO) -> int:
  """Id of the process that bubblewrap started, read from its --info-fd."""
  told, end = b'', time.monotonic() + _START_SECONDS
  while not told.endswith(b'}\n'):
    if not select.select([info], [], [], max(0.0, end - time.monotonic()))[0]:
      raise RuntimeError(
          f'bubblewrap started nothing within {_START_SECONDS:.0f} s')
    part = info.read(1000)
    if not part:
      raise RuntimeError('bubblewrap ended; it printed the reason above')
    told += part
  return json.loads(told)['child-pid']


def _send(pidfd: int, number: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    signal.pidfd_send_signal(pidfd, number)


def _package_folders() -> list[str]:
  """Folders of the packages that programs may import."""
  folders = []
  for name in protocol.PACKAGES:
    found = importlib.util.find_spec(name)
    if found is not None and found.origin:
      folder = os.path.dirname(os.path.dirname(found.origin))
      if folder not in folders:
        folders.append(folder)
  return folders
