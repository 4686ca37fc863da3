"""Starts the fork-server and asks it to run programs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
import dataclasses
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile

from environments.sandbox import protocol

_START_SERVER = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'start_server.py')
_BACKLOG = 4096
_MAX_ADDRESS_BYTES = 107  # Of a Unix socket.
_NUM_CONNECTIONS = 64  # At most, of one `run_many`.
_LEAST_LIMITS = protocol.Limits(
    cpu_seconds=0.01, wall_seconds=0.01, memory_bytes=64 << 20, output_bytes=1)
_GRACE_SECONDS = 30.0  # For a reply, beyond the program's wall-clock limit.


@dataclasses.dataclass(frozen=True)
class ProgramResult:
  """What a program did.

  Attributes:
    status: how it ended.
    exit_code: -N after signal N; None when the sandbox failed.
    stdout: at most `output_bytes`, undecodable bytes replaced.
    stderr: the same; its last line says why the sandbox stopped the program.
    cpu_seconds: user and system time of the program and its children.
    wall_seconds: from its start to its end.
  """

  status: protocol.Status
  exit_code: int | None
  stdout: str
  stderr: str
  cpu_seconds: float
  wall_seconds: float


@dataclasses.dataclass(frozen=True)
class Sandbox:
  """A handle on a running server; picklable, for any process and thread.

  Raises ValueError for limits that are too low for any program.
  """

  address: str
  limits: protocol.Limits = protocol.Limits()

  def __post_init__(self):
    for name, least in _LEAST_LIMITS._asdict().items():
      value = getattr(self.limits, name)
      if not value >= least:
        raise ValueError(
            f'Sandbox limit {name}={value!r} is too low for any program; '
            f'give at least {least}.')

  def run(self, source: str, stdin: str = '') -> ProgramResult:
    """Runs one program to its end. Never raises for what it does."""
    try:
      return self._request(source, stdin)
    except (OSError, ValueError):
      pass  # The sandbox's own fault: one more try.
    try:
      return self._request(source, stdin)
    except (OSError, ValueError) as error:
      return ProgramResult(
          protocol.Status.INFRASTRUCTURE, None, '',
          f'The sandbox failed twice: {type(error).__name__}: {error}', 0., 0.)

  def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[ProgramResult]:
    """Runs (source, stdin) pairs side by side; results in the same order."""
    if not jobs:
      return []
    num_threads = min(len(jobs), _NUM_CONNECTIONS)
    with futures.ThreadPoolExecutor(num_threads) as pool:
      return list(pool.map(lambda job: self.run(*job), jobs))

  def _request(self, source: str, stdin: str) -> ProgramResult:
    request = protocol.Request(source, stdin, self.limits)
    with socket.socket(socket.AF_UNIX) as connection:
      connection.connect(self.address)
      # The first byte says that a slot is free. Only from then on does a
      # silent server mean a broken one.
      if not connection.recv(1):
        raise ConnectionError('the server closed the connection')
      connection.settimeout(self.limits.wall_seconds + _GRACE_SECONDS)
      connection.sendall(protocol.pack(request))
      connection.shutdown(socket.SHUT_WR)
      with connection.makefile('rb') as stream:
        reply = stream.read()
    stdout, stderr, report = protocol.unpack_frames(reply)
    if report is None:
      raise ConnectionError('no reply; the server has logged the reason')
    stdout, stderr = (
        output.decode('utf-8', 'replace') for output in (stdout, stderr))
    reason = report.reason
    if reason and stderr and not stderr.endswith('\n'):
      reason = f'\n{reason}'
    return ProgramResult(
        report.status, report.exit_code, stdout, stderr + reason,
        report.cpu_seconds, report.wall_seconds)


class SandboxServer:
  """Owns the fork-server's process; a context manager.

  Start it early: a process of its own, it costs nothing to keep, and the
  programs' forks then never touch a process that holds JAX.
  """

  def __init__(self, num_slots: int | None = None):
    """`num_slots` programs run at a time; by default one on each core."""
    if num_slots is None:
      num_slots = len(os.sched_getaffinity(0))
    if num_slots < 1:
      raise ValueError(
          f'sandbox num_slots={num_slots}: at least 1 is needed to run any '
          'program.')
    self.num_slots = num_slots
    self._directory: str | None = None
    self._process: subprocess.Popen | None = None

  @property
  def address(self) -> str:
    """Where clients connect, for `Sandbox(address)`."""
    if self._directory is None:
      raise RuntimeError('The sandbox server is not running; call start().')
    return os.path.join(self._directory, 'socket')

  def start(self) -> None:
    """Starts the server and runs one program to see that it works."""
    if not sys.platform.startswith('linux'):
      raise RuntimeError(
          f'The sandbox needs Linux, and this is {sys.platform!r}; run tasks '
          'whose agents write programs on a Linux machine.')
    if self._directory is not None:
      raise RuntimeError(
          f'The sandbox server already runs at {self.address!r}; call close() '
          'before a second start().')
    self._directory = tempfile.mkdtemp(prefix='sandbox-')  # Mode 0700.
    try:
      self._spawn()
      result = Sandbox(self.address).run('print(input())', 'ready')
      if result.stdout != 'ready\n':
        raise RuntimeError(
            'The sandbox server cannot run programs; it printed its reason '
            f'above. A trial program gave {result}.')
    except BaseException:
      self.close()
      raise
    logging.warning(
        'Programs run under resource limits only: they can read files and '
        'use the network. See environments/sandbox/__init__.py.')

  def _spawn(self) -> None:
    if len(os.fsencode(self.address)) > _MAX_ADDRESS_BYTES:
      raise ValueError(
          f'The socket path {self.address!r} is longer than '
          f'{_MAX_ADDRESS_BYTES} bytes; set TMPDIR to a shorter folder.')
    with socket.socket(socket.AF_UNIX) as listener:
      listener.bind(self.address)
      listener.listen(_BACKLOG)
      fd = listener.fileno()
      self._process = subprocess.Popen(
          # No user packages, no current folder, no site-packages: what a
          # program can import does not depend on the trainer's environment.
          [sys.executable, '-s', '-P', '-S', '-X', 'utf8', _START_SERVER,
           self._directory, str(fd), str(self.num_slots), str(os.getpid())],
          # One arena, else a few threads use up the address space; a fixed
          # hash seed, so that sets of strings have the same order every run.
          env={'MALLOC_ARENA_MAX': '1', 'PYTHONHASHSEED': '0'},
          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
          pass_fds=[fd], start_new_session=True)

  def close(self) -> None:
    """Ends the server and every program; calls in progress fail."""
    if self._process is not None:
      self._process.terminate()
      try:
        self._process.wait(timeout=10.0)
      except subprocess.TimeoutExpired:
        self._process.kill()
        self._process.wait()
      self._process = None
    if self._directory is not None:
      shutil.rmtree(self._directory, ignore_errors=True)
      self._directory = None

  def __enter__(self) -> SandboxServer:
    self.start()
    return self

  def __exit__(self, *exception) -> None:
    self.close()
