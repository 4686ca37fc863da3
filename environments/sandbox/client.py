"""Starts the fork-server and asks it to run programs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
import dataclasses
import enum
import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

_SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'server.py')
_HEADER = struct.Struct('>cI')  # Of a frame, see server.py.
_BACKLOG = 4096
_MAX_ADDRESS_BYTES = 107  # Of a Unix socket.
_NUM_CONNECTIONS = 64  # At most, of one `run_many`.
_GRACE_SECONDS = 30.0  # For a reply, beyond the program's wall-clock limit.


class Status(enum.Enum):
  """How a program ended."""

  OK = 'ok'
  ERROR = 'error'  # An uncaught exception, a signal, or a non-zero exit.
  TIMEOUT = 'timeout'  # CPU or wall clock.
  RESOURCE_LIMIT = 'resource_limit'  # Memory, output, or size of a file.
  INFRASTRUCTURE = 'infrastructure'  # The sandbox failed, not the program.


@dataclasses.dataclass(frozen=True)
class Limits:
  """What one program may use."""

  cpu_seconds: float = 2.0
  wall_seconds: float = 5.0  # From its start; waiting for a slot is free.
  memory_bytes: int = 256 << 20  # Address space of each process.
  output_bytes: int = 64 << 10  # Of stdout, and as much of stderr.

  def __post_init__(self):
    for name, value, least in (
        ('cpu_seconds', self.cpu_seconds, 0.01),
        ('wall_seconds', self.wall_seconds, 0.01),
        ('memory_bytes', self.memory_bytes, 64 << 20),
        ('output_bytes', self.output_bytes, 1)):
      if not value >= least:
        raise ValueError(
            f'Sandbox limit {name}={value!r} is too low for any program; '
            f'give at least {least}.')


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

  status: Status
  exit_code: int | None
  stdout: str
  stderr: str
  cpu_seconds: float
  wall_seconds: float


@dataclasses.dataclass(frozen=True)
class Sandbox:
  """A handle on a running server; picklable, for any process and thread."""

  address: str
  limits: Limits = Limits()

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
          Status.INFRASTRUCTURE, None, '',
          f'The sandbox failed twice: {type(error).__name__}: {error}', 0., 0.)

  def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[ProgramResult]:
    """Runs (source, stdin) pairs side by side; results in the same order."""
    if not jobs:
      return []
    num_threads = min(len(jobs), _NUM_CONNECTIONS)
    with futures.ThreadPoolExecutor(num_threads) as pool:
      return list(pool.map(lambda job: self.run(*job), jobs))

  def _request(self, source: str, stdin: str) -> ProgramResult:
    request = {
        'source': source, 'stdin': stdin, **dataclasses.asdict(self.limits)}
    with socket.socket(socket.AF_UNIX) as connection:
      connection.connect(self.address)
      # The first byte says that a slot is free. Only from then on does a
      # silent server mean a broken one.
      if not connection.recv(1):
        raise ConnectionError('the server closed the connection')
      connection.settimeout(self.limits.wall_seconds + _GRACE_SECONDS)
      connection.sendall(json.dumps(request).encode())
      connection.shutdown(socket.SHUT_WR)
      with connection.makefile('rb') as stream:
        text = stream.read()
    outputs, result = _read_frames(text)
    if result is None:
      raise ConnectionError('no reply; the server has logged the reason')
    stderr, reason = outputs[b'e'], result.pop('reason')
    if reason and stderr and not stderr.endswith('\n'):
      reason = f'\n{reason}'
    return ProgramResult(
        Status(result.pop('status')), stdout=outputs[b'o'],
        stderr=stderr + reason, **result)


def _read_frames(data: bytes) -> tuple[dict[bytes, str], dict | None]:
  """What the program printed, and its result if it is there."""
  outputs, at = {b'o': [], b'e': [], b'r': []}, 0
  while at < len(data):
    kind, length = _HEADER.unpack_from(data, at)
    at += _HEADER.size + length
    outputs[kind].append(data[at - length:at])
  result = b''.join(outputs.pop(b'r'))
  texts = {
      kind: b''.join(parts).decode('utf-8', 'replace')
      for kind, parts in outputs.items()}
  return texts, json.loads(result) if result else None


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
          [sys.executable, '-s', '-P', '-S', '-X', 'utf8', _SERVER,
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
