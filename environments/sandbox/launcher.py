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
from environments.sandbox import landlock
from environments.sandbox import processes
from environments.sandbox import protocol
from environments.sandbox import seccomp

AUTO = 'auto'  # The first of these that works.
_AUTOMATIC = (protocol.Level.BWRAP, protocol.Level.KERNEL)
LEVELS = (AUTO, *(level.value for level in protocol.Level))
MOST_SLOTS = 1024  # Of a server.

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_START_SERVER = os.path.join(_FOLDER, 'start_server.py')
_PREFIX = 'atgrpo-sandbox-'  # Of the names of their folders.
_OLD_SECONDS = 3600.0
_BACKLOG = 4096
_MAX_ADDRESS_BYTES = 107  # Of a Unix socket.
_START_SECONDS = 60.0  # For bubblewrap.
_END_SECONDS = 10.0  # For the server to end by itself.
_USERNS_SWITCH = '/proc/sys/kernel/apparmor_restrict_unprivileged_userns'

# What programs find of the machine inside bubblewrap, beside the interpreter;
# they may read less, see `landlock`.
_SYSTEM = ('/usr', '/lib', '/lib64', '/etc/ld.so.cache')

# Says 'ready', and which walls are missing.
_TRIAL = '''
import os, socket
def tries(name, function):
  try: function()
  except OSError: return
  print(name)
print(input())
tries('folders', lambda: os.listdir('/'))
tries('files', lambda: open('/proc/self/environ').read())
tries('writing', lambda: open('file', 'w'))
tries('sockets', socket.socket)
tries('signals', lambda: os.kill(os.getppid(), 0))
tries('processes', lambda: os.fork() or os._exit(0))
'''


class NoSandboxError(RuntimeError):
  """This machine has no isolation that was allowed."""


class SandboxServer:
  """Owns the fork-server's process; a context manager.

  Start it early: a process of its own, it costs nothing to keep, and the
  programs' forks then never touch a process that holds JAX.
  """

  name = 'sandbox server'

  def __init__(self, num_slots: int | None = None, level: str = AUTO):
    """`num_slots` programs run at a time; by default one on each core.

    `level` is one of LEVELS.
    """
    if num_slots is None:
      num_slots = len(os.sched_getaffinity(0))
    if not 1 <= num_slots <= MOST_SLOTS:
      raise ValueError(
          f'sandbox num_slots={num_slots}, but must be from 1 to {MOST_SLOTS}; '
          'a process waits in each.')
    if level not in LEVELS:
      raise ValueError(
          f'sandbox level={level!r} is unknown; give one of '
          f'{", ".join(LEVELS)}.')
    self.num_slots = num_slots
    self._wanted = level
    self._level: protocol.Level | None = None
    self._directory: str | None = None
    self._process: subprocess.Popen | None = None
    self._pid: int | None = None
    self._server: int | None = None  # A descriptor of `pid`.

  @property
  def address(self) -> str:
    """Where clients connect, for `Sandbox(address)`."""
    self._check_started()
    return os.path.join(self._directory, 'socket')

  @property
  def sandbox(self) -> client.Sandbox:
    """For programs; stays good when the server is replaced."""
    return client.Sandbox(self.address)

  @property
  def level(self) -> protocol.Level:
    """How programs are kept apart from everything else."""
    self._check_started()
    return self._level

  @property
  def pid(self) -> int:
    """Of the server, as this process sees it."""
    self._check_started()
    return self._pid

  def _check_started(self) -> None:
    if self._directory is None:
      raise RuntimeError('The sandbox server is not running; call start().')

  def start(self) -> None:
    """Starts the server and runs one program to see that it works.

    Raises NoSandboxError if it works at none of the levels that may be.
    """
    if not sys.platform.startswith('linux'):
      raise NoSandboxError(
          f'The sandbox needs Linux, and this is {sys.platform!r}; run tasks '
          'whose agents write programs on a Linux machine.')
    if self._directory is not None:
      raise RuntimeError(
          f'The sandbox server already runs at {self.address!r}; call close() '
          'before a second start().')
    _open_standard_streams()
    _remove_old_folders()
    self._directory = tempfile.mkdtemp(prefix=_PREFIX)  # Mode 0700.
    try:
      self._choose_level()
    except BaseException:
      self.close()
      raise
    if self._level is protocol.Level.UNSAFE_RLIMIT:
      logging.warning(
          'Sandbox level unsafe_rlimit: programs of models run with your '
          'rights. They can read and delete your files and use the network.')

  def _choose_level(self) -> None:
    levels = _AUTOMATIC
    if self._wanted != AUTO:
      levels = protocol.Level(self._wanted),
    reasons = []
    for level in levels:
      self._level = level
      reason = _what_is_missing(level)
      if not reason:
        try:
          return self._launch()
        except RuntimeError as error:
          reason = str(error)
          self._end()
      reasons.append(f'{level.value}: {reason}')
    raise NoSandboxError(
        f'No sandbox for models\' programs ({"; ".join(reasons)}). Use Linux '
        '5.13 or newer with Landlock, and better also install bubblewrap; or, '
        'to run them with your own rights, set sandbox.level=unsafe_rlimit. '
        'See docs/sandbox.md.')

  def is_running(self) -> bool:
    """Whether its process is there, and not stopped."""
    return (
        self._process is not None and self._process.poll() is None
        and not processes.is_stopped(self._pid))

  def restart(self) -> None:
    """A fresh server at the same address, so every `Sandbox` stays good.

    Programs in progress end, and who waits for them asks again. Starts no fork
    of the caller, which may hold JAX by now. Raises RuntimeError or OSError if
    the new server cannot run programs; it may be tried again.
    """
    self._end()
    self._launch()

  def _launch(self) -> None:
    """Starts the process and runs one program to see that it works."""
    self._spawn()
    try_out(self.sandbox, self._level)

  def _spawn(self) -> None:
    addresses = (
        self.address, protocol.packages_address(self.address),
        protocol.health_address(self.address))
    if len(os.fsencode(max(addresses, key=len))) > _MAX_ADDRESS_BYTES:
      raise ValueError(
          f'The socket path {self.address!r} is longer than '
          f'{_MAX_ADDRESS_BYTES} bytes; set TMPDIR to a shorter folder.')
    # An empty folder for the programs, in which they cannot write.
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
          **dict(zip(('listener_fd', 'packages_fd', 'health_fd'), fds)),
          'num_slots': self.num_slots, 'level': self._level.value,
          'directory': self._directory,
          'package_folders': folders}
      # No user packages, no current folder, no site-packages: what a program
      # can import does not depend on the trainer's environment.
      command = [
          os.path.realpath(sys.executable), '-s', '-P', '-S', '-X', 'utf8',
          _START_SERVER, json.dumps(settings)]
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
              # One arena, else a few threads use up the address space; a fixed
              # hash seed, so that sets of strings have the same order every
              # run.
              env={'MALLOC_ARENA_MAX': '1', 'PYTHONHASHSEED': '0'},
              stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
              pass_fds=fds, start_new_session=True)
        finally:
          os.close(info_fd)
        self._pid = self._process.pid
        if is_bwrap:
          self._pid = _child_of(info_pipe)
        self._server = os.pidfd_open(self._pid)
    finally:
      for listener in listeners:
        listener.close()

  def close(self) -> None:
    """Ends the server and every program; calls in progress fail."""
    self._end()
    if self._directory is not None:
      shutil.rmtree(self._directory, ignore_errors=True)
      self._directory = None

  def _end(self) -> None:
    if self._process is None:
      return
    self._process.stdin.close()
    if self._server is None:  # bubblewrap did not start it.
      self._process.kill()
    else:
      # Not our child if bubblewrap started it; that ends with it.
      for number in (signal.SIGTERM, signal.SIGCONT):  # It may be stopped.
        _send(self._server, number)
      if not select.select([self._server], [], [], _END_SECONDS)[0]:
        _send(self._server, signal.SIGKILL)
      os.close(self._server)
    self._process.send_signal(signal.SIGCONT)  # bubblewrap may be stopped.
    self._process.wait()
    self._process = self._server = None

  def __enter__(self) -> SandboxServer:
    self.start()
    return self

  def __exit__(self, *exception) -> None:
    self.close()


def try_out(programs: client.Sandbox, level: protocol.Level) -> None:
  """Runs one program to see that it works, and what holds it.

  Raises RuntimeError if it does not run, or if a wall of the level is missing.
  """
  result = programs.run(_TRIAL, 'ready')
  first, *open_ways = result.stdout.split() or ['']
  if first != 'ready':
    raise RuntimeError(
        'the server cannot run programs; its own stderr says why. A '
        f'trial program gave {result}')
  if open_ways and level is not protocol.Level.UNSAFE_RLIMIT:
    raise RuntimeError(f'a trial program could use {", ".join(open_ways)}')


def _what_is_missing(level: protocol.Level) -> str:
  """Why there cannot be a server at this level; '' if nothing is in sight."""
  if level is protocol.Level.UNSAFE_RLIMIT:
    return ''
  try:
    landlock.version()
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
  """The command that puts what follows into namespaces of its own."""
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
  """Else the server's sockets would take the place of what is closed."""
  while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
    pass
  os.close(fd)


def _remove_old_folders() -> None:
  """Those that servers in bubblewrap had to leave, whose owner was killed.

  They are empty, and that of a server that lives is not.
  """
  with contextlib.suppress(OSError):
    for entry in os.scandir(tempfile.gettempdir()):
      if entry.name.startswith(_PREFIX):
        with contextlib.suppress(OSError):  # Not empty, or of somebody else.
          if time.time() - entry.stat().st_mtime > _OLD_SECONDS:
            os.rmdir(entry)


def _child_of(info: io.FileIO) -> int:
  """The id of the process that bubblewrap started, from what it tells."""
  told, end = b'', time.monotonic() + _START_SECONDS
  while not told.endswith(b'}\n'):
    if not select.select([info], [], [], max(0.0, end - time.monotonic()))[0]:
      raise RuntimeError(
          f'bubblewrap has started nothing within {_START_SECONDS:.0f} s')
    part = info.read(1000)
    if not part:
      raise RuntimeError('bubblewrap ended; it printed its reason above')
    told += part
  return json.loads(told)['child-pid']


def _send(process: int, number: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    signal.pidfd_send_signal(process, number)


def _package_folders() -> list[str]:
  """Where the packages are that programs may import."""
  folders = []
  for name in protocol.PACKAGES:
    found = importlib.util.find_spec(name)
    if found is not None and found.origin:
      folder = os.path.dirname(os.path.dirname(found.origin))
      if folder not in folders:
        folders.append(folder)
  return folders
