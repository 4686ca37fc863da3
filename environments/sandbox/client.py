"""Asks the fork-server to run programs.

A program can end or stop the supervisor that watches it. It is told apart from
a broken sandbox in this way. A supervisor that fails says so before it ends; a
server that is dead takes its supervisors and its queue with it; a supervisor
that is stopped is killed by the server. So a supervisor that ends without a
word while it runs a program has been killed. If that happens twice to the same
program, on the same server, and that server still answers by itself, the
program did it: its status is ERROR. Everything else is INFRASTRUCTURE, also a
connection to a gateway that is cut: then nobody knows what became of the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
import dataclasses
import re
import signal
import socket
from typing import Any

from environments.sandbox import connections
from environments.sandbox import literals
from environments.sandbox import protocol

_NUM_CONNECTIONS = 64  # At most, of one call.
_FUNCTION = re.compile(r'[^\W\d]\w*(\(\))?(\.[^\W\d]\w*(\(\))?)*')
_LEAST_LIMITS = protocol.Limits(
    cpu_seconds=0.01, wall_seconds=0.01, memory_bytes=64 << 20, output_bytes=1)
_MOST_LIMITS = protocol.Limits(
    cpu_seconds=1e6, wall_seconds=1e6, memory_bytes=1 << 44,
    output_bytes=1 << 32)
_GRACE_SECONDS = 30.0  # For a reply, beyond the program's wall-clock limit.
# Who waits for a slot asks the server so often whether it lives, and waits so
# long for its answer, which takes a second.
_PATIENCE_SECONDS = 10.0
_HEALTH_SECONDS = 60.0


class _KilledSupervisorError(OSError):
  """A supervisor of `server` ended without a word while a program ran."""

  def __init__(self, server: int):
    super().__init__('the process that watched the program has been killed')
    self.server = server


@dataclasses.dataclass(frozen=True)
class ProgramResult:
  """What a program did.

  Attributes:
    status: how it ended.
    exit_code: -N after signal N; None when the sandbox failed. A program that
      ends its supervisor is killed with it.
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
class CallResult(ProgramResult):
  """What a program did whose function was called.

  Attributes:
    value: what the function returned if the status is OK, else None. Made of
      Python's own types alone, so it can be compared with the right answer.
  """

  value: Any = None


@dataclasses.dataclass(frozen=True)
class Sandbox:
  """A handle on a running server; picklable, for any process and thread.

  Attributes:
    address: of the server on this machine, or a `Remote` for one behind a
      gateway.
    limits: what each program may use.

  Raises ValueError for limits that are too low, or too high, for any program.
  """

  address: str | connections.Remote
  limits: protocol.Limits = protocol.Limits()

  def __post_init__(self):
    for name, least in _LEAST_LIMITS._asdict().items():
      value, most = getattr(self.limits, name), getattr(_MOST_LIMITS, name)
      if not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(
            f'Sandbox limit {name}={value!r} fits no program; give at least '
            f'{least} and at most {most}.')

  def run(self, source: str, stdin: str = '') -> ProgramResult:
    """Runs one program to its end. Never raises for what it does.

    What fails is tried once more. Waits as long as the queue for a slot is, but
    not for a server that is dead or stopped.
    """
    result, _ = self._answer(
        protocol.Request(source, stdin, '', '', self.limits))
    return result

  def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[ProgramResult]:
    """Runs (source, stdin) pairs side by side; results in the same order."""
    return _side_by_side(lambda job: self.run(*job), jobs)

  def run_tests(
      self, source: str, stdins: Sequence[str]) -> list[ProgramResult]:
    """Runs one program on each input, every time in a fresh process."""
    return self.run_many([(source, stdin) for stdin in stdins])

  def call(
      self, source: str, function: str,
      calls: Sequence[tuple]) -> list[CallResult]:
    """Runs a program, then calls its function, afresh for each call.

    Args:
      source: is run as a module: its `__name__` is 'program'. Its stdin is
        empty.
      function: a name, or names with dots in between. A name that ends in `()`
        is called without arguments: 'solve', 'Solution().solve', or
        'Solution.solve' for a static method.
      calls: the arguments of each call, by position. They and what is returned
        are None, bool, int, float, complex, str, bytes, and lists, tuples,
        dicts, sets and frozensets of these; `literals` has the limits.

    A function that returns nothing else has the status OK, whatever it returns.
    No value, or one of another kind, is an ERROR, and stderr says which.

    Raises ValueError for another function or arguments.
    """
    if not _FUNCTION.fullmatch(function):
      raise ValueError(
          f'function={function!r} cannot be called; give a name such as '
          "'solve' or 'Solution().solve'.")
    requests = []
    for arguments in calls:
      if not isinstance(arguments, (list, tuple)):
        raise ValueError(
            f'{function} cannot be called with {arguments!r}; each of the '
            'calls must be a tuple of arguments.')
      try:
        text = literals.encode(tuple(arguments))
      except ValueError as error:
        raise ValueError(
            f'{function} cannot be called with these arguments: '
            f'{error}.') from error
      requests.append(protocol.Request(source, '', function, text, self.limits))
    return _side_by_side(self._call, requests)

  def _call(self, request: protocol.Request) -> CallResult:
    result, text = self._answer(request)
    fields = dataclasses.asdict(result)
    if result.status is not protocol.Status.OK:
      return CallResult(**fields)
    try:
      return CallResult(**fields, value=literals.decode(text))
    except ValueError:
      # It ended before its function did, or wrote beside it.
      reason = f'stopped: no value of {request.function} came back'
      return CallResult(**fields | {
          'status': protocol.Status.ERROR,
          'stderr': _join(result.stderr, reason)})

  def _answer(self, request: protocol.Request) -> tuple[ProgramResult, bytes]:
    """What `run` says, and what the program's function returned, as text."""
    failures = []
    for _ in range(2):
      try:
        return self._request(request)
      except (OSError, ValueError) as error:
        failures.append(error)
    if self._is_own_doing(failures):
      return ProgramResult(
          protocol.Status.ERROR, -signal.SIGKILL, '',
          'stopped: it ended or stopped the process that watched it',
          0., 0.), b''
    error = failures[-1]
    return ProgramResult(
        protocol.Status.INFRASTRUCTURE, None, '',
        f'The sandbox failed twice: {type(error).__name__}: {error}',
        0., 0.), b''

  def _is_own_doing(self, failures: Sequence[Exception]) -> bool:
    """Whether the program itself ended its supervisors; see the module."""
    if not all(isinstance(x, _KilledSupervisorError) for x in failures):
      return False
    try:
      return {x.server for x in failures} == {self._ask_server()}
    except OSError:
      return False

  def _ask_server(self) -> int:
    """The server's id; an OSError if it is dead or stopped."""
    connection, _ = connections.connect(
        self.address, connections.HEALTH, _HEALTH_SECONDS)
    with connection:
      return protocol.await_greeting(connection)

  def _request(
      self, request: protocol.Request) -> tuple[ProgramResult, bytes]:
    name = connections.PROGRAMS
    if any(package in request.source for package in protocol.PACKAGES):
      name = connections.PACKAGES
    connection, end = connections.connect(
        self.address, name, _PATIENCE_SECONDS)
    with connection:
      server = None
      while server is None:  # The greeting says that a slot is free.
        try:
          server = protocol.await_greeting(connection)
        except TimeoutError:
          self._ask_server()
      connection.settimeout(self.limits.wall_seconds + _GRACE_SECONDS)
      connection.sendall(protocol.pack(request))
      connection.shutdown(socket.SHUT_WR)
      try:
        with connection.makefile('rb') as stream:
          data = stream.read()
      except ConnectionError as error:
        if end:
          raise
        raise _KilledSupervisorError(server) from error
    if not data.endswith(end):
      raise ConnectionError('the connection to the gateway was cut')
    reply = protocol.unpack_reply(data.removesuffix(end))
    report = reply.report
    if report is None:
      raise _KilledSupervisorError(server)
    stdout, stderr = (
        output.decode('utf-8', 'replace')
        for output in (reply.stdout, reply.stderr))
    return ProgramResult(
        report.status, report.exit_code, stdout, _join(stderr, report.reason),
        report.cpu_seconds, report.wall_seconds), reply.value


def check_given(sandbox: Sandbox | None, writers: object) -> None:
  """Raises ValueError without a sandbox; `writers` write programs."""
  if sandbox is None:
    raise ValueError(
        f'sandbox=None, but {writers} write programs; give a Sandbox, as '
        'sandbox.level does unless it is none')


def _join(stderr: str, reason: str) -> str:
  """The reason in a line of its own."""
  if reason and stderr and not stderr.endswith('\n'):
    return f'{stderr}\n{reason}'
  return stderr + reason


def _side_by_side(function: Callable[[Any], Any], jobs: Sequence) -> list:
  """What the function returns for each job, in their order."""
  if not jobs:
    return []
  num_threads = min(len(jobs), _NUM_CONNECTIONS)
  with futures.ThreadPoolExecutor(num_threads) as pool:
    return list(pool.map(function, jobs))
