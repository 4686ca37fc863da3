"""Starts the fork-server at the strongest level that this machine offers."""

from collections.abc import Sequence
import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from environments.sandbox import client
from environments.sandbox import isolation
from environments.sandbox import processes
from environments.sandbox import protocol
from environments.sandbox import seccomp

AUTO = 'auto'  # The first level of _AUTOMATIC that works.
_AUTOMATIC = (protocol.Level.BWRAP, protocol.Level.KERNEL)
LEVELS = (AUTO, 'bwrap', 'kernel', 'unsafe_rlimit')
MAX_SLOTS = 1024  # A process waits in each.

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PYTHON = os.path.realpath(sys.executable)
_BACKLOG = 4096
_START_SECONDS = 60.0  # Timeout of the trial program.
_END_SECONDS = 10.0  # Timeout of the server's end.

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

_MAX_ADDRESS_BYTES = 107  # See unix(7).
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

  Start it before jax: a process that runs jax must not fork. The level, the
  address of the socket and the process id are known once it has started.
  """

  name = 'sandbox server'

  def __init__(self, num_slots: int | None = None, level: str = AUTO):
    """Starts nothing yet; ValueError for a level that is not in LEVELS.

    `num_slots` programs run at a time, by default one per core.
    """
    if level not in LEVELS:
      raise ValueError(
          f'level={level!r} is unknown; give one of {", ".join(LEVELS)}.')
    self.num_slots = num_slots or len(os.sched_getaffinity(0))
    self.level: protocol.Level | None = None
    self.address = ''
    self.pid = 0
    self._levels = (
        _AUTOMATIC if level == AUTO else (protocol.Level(level),))
    self._process: subprocess.Popen | None = None

  @property
  def sandbox(self) -> client.Sandbox:
    """Runs programs here; stays valid after a restart."""
    return client.Sandbox(self.address)

  def start(self) -> None:
    """Starts the server and runs one program to see that it works.

    Raises NoSandboxError if it works at none of the allowed levels.
    """
    if not sys.platform.startswith('linux'):
      raise NoSandboxError(
          f'The sandbox needs Linux, not {sys.platform!r}; run tasks whose '
          'agents write programs on a Linux machine.')
    directory = tempfile.mkdtemp(prefix='atgrpo-sandbox-')  # Mode 0700.
    self.address, longest = (
        os.path.join(directory, name) for name in protocol.SOCKETS)
    try:
      if len(os.fsencode(longest)) > _MAX_ADDRESS_BYTES:
        raise NoSandboxError(
            f'The path of a socket, {longest}, has more than '
            f'{_MAX_ADDRESS_BYTES} bytes; set TMPDIR to a shorter folder.')
      self._choose_level()
    except BaseException:
      self.close()
      raise
    if self.level is protocol.Level.UNSAFE_RLIMIT:
      logging.warning(
          'Sandbox level unsafe_rlimit: model-written programs run with your '
          'rights. They can read and delete your files and use the network.')

  def _choose_level(self) -> None:
    reasons = []
    for level in self._levels:
      self.level = level
      reason = _missing(level)
      if not reason:
        try:
          return self._launch()
        except (RuntimeError, OSError) as error:
          reason = str(error)
          self._end()
      reasons.append(f'{level.value}: {reason}')
    raise NoSandboxError(
        f'No sandbox for model-written programs at {self.address} '
        f'({"; ".join(reasons)}). Use Linux 5.13 or newer with Landlock, and '
        'install bubblewrap for the strongest level; or set '
        'sandbox.level=unsafe_rlimit to run programs with your rights. See '
        'docs/sandbox.md.')

  def is_running(self) -> bool:
    """True if the process is alive and not stopped."""
    return (
        self._process is not None and self._process.poll() is None
        and not processes.is_stopped(self.pid))

  def restart(self) -> None:
    """Starts a new server at the same address, so every `Sandbox` stays valid.

    Running programs end, and their clients ask again. Does not fork the caller,
    which may run jax by now. Raises RuntimeError or OSError if the new server
    cannot run programs; call it again to retry.
    """
    self._end()
    self._launch()

  def _launch(self) -> None:
    """Starts the process, and runs a program that looks for missing walls."""
    self._process = self._spawn()
    result = dataclasses.replace(
        self.sandbox, reply_seconds=_START_SECONDS).run(_TRIAL, 'ready')
    first, *missing = result.stdout.split() or ['']
    if first != 'ready':
      raise RuntimeError(
          'the server cannot run programs, for the reason printed above; a '
          f'trial program gave {result}')
    if missing and self.level is not protocol.Level.UNSAFE_RLIMIT:
      raise RuntimeError(f'a trial program could use {", ".join(missing)}')
    self.pid = self._process.pid
    if self.level is protocol.Level.BWRAP:
      self.pid, = processes.children(self.pid)

  def _spawn(self) -> subprocess.Popen:
    directory = os.path.dirname(self.address)
    os.makedirs(directory, 0o700, exist_ok=True)  # If it was removed.
    # Programs run in an empty folder where they cannot write.
    os.makedirs(
        os.path.join(directory, protocol.WORK_DIRECTORY), 0o500, exist_ok=True)
    folders = _package_folders()
    with contextlib.ExitStack() as stack:
      fds = []
      for name in protocol.SOCKETS:
        path = pathlib.Path(directory, name)
        path.unlink(missing_ok=True)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        fds.append(listener.fileno())
      settings = {
          'socket_fds': fds, 'num_slots': self.num_slots,
          'level': self.level.value, 'directory': directory,
          'package_folders': folders}
      # No user packages, current folder or site-packages: imports of programs
      # do not depend on the trainer's environment.
      command = [
          _PYTHON, '-s', '-P', '-S', '-X', 'utf8', '-c', _START_SERVER, _FOLDER,
          json.dumps(settings)]
      if self.level is protocol.Level.BWRAP:
        command = [
            *_bwrap(folders), '--bind', directory, directory, '--', *command]
      return subprocess.Popen(
          command,
          # With more arenas, a few threads use up the address space. A fixed
          # hash seed gives sets of strings the same order every run.
          env={'MALLOC_ARENA_MAX': '1', 'PYTHONHASHSEED': '0'},
          stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=fds,
          start_new_session=True)

  def close(self) -> None:
    """Ends the server and every program; pending calls fail."""
    self._end()
    if self.address:
      shutil.rmtree(os.path.dirname(self.address), ignore_errors=True)

  def _end(self) -> None:
    """Ends the process; with bubblewrap's process, the server is killed."""
    if self._process is None:
      return
    self._process.stdin.close()
    self._process.terminate()
    self._process.send_signal(signal.SIGCONT)  # It may be stopped.
    try:
      self._process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    self._process = None

  def __enter__(self) -> 'SandboxServer':
    self.start()
    return self

  def __exit__(self, *exception) -> None:
    self.close()


def _missing(level: protocol.Level) -> str:
  """Why a level cannot work; '' if no reason is known yet."""
  if level is not protocol.Level.UNSAFE_RLIMIT:
    try:
      isolation.landlock_version()
      seccomp.Filter()
    except OSError as error:
      return error.strerror
  if level is protocol.Level.BWRAP:
    if shutil.which('bwrap') is None:
      return 'bubblewrap is not installed'
    trial = subprocess.run(
        [*_bwrap(()), _PYTHON, '-S', '-c', ''], stdin=subprocess.DEVNULL,
        capture_output=True, text=True)
    if trial.returncode:
      reason = ' '.join(trial.stderr.split())
      return reason or f'bubblewrap exits with {trial.returncode}'
  return ''


def _bwrap(package_folders: Sequence[str]) -> list[str]:
  """The command that starts another command in new namespaces."""
  command = [
      shutil.which('bwrap'), '--unshare-all', '--as-pid-1', '--new-session',
      '--cap-drop', 'ALL', '--proc', '/proc', '--dev', '/dev', '--chdir', '/']
  for path in (
      *_SYSTEM, sys.base_prefix, sys.base_exec_prefix, _PYTHON, _FOLDER,
      *package_folders):
    command += ['--ro-bind-try', path, path]
  return command


def _package_folders() -> list[str]:
  """Folders of the packages that programs may import."""
  specs = map(importlib.util.find_spec, protocol.PACKAGES)
  folders = [
      os.path.dirname(os.path.dirname(spec.origin))
      for spec in specs if spec is not None and spec.origin]
  return list(dict.fromkeys(folders))
