"""Runs programs on the sandbox server and collects their results.

A supervisor that ends without a report while a program runs was killed: a
supervisor that fails sends a fault first, a dead server takes its supervisors
and its queue with it, and the server kills stopped supervisors. If this happens
twice to one program on one server that still answers, the program did it, and
its status is ERROR. Every other failure is INFRASTRUCTURE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
import dataclasses
import re
import signal
import socket
from typing import Any

from environments.sandbox import literals
from environments.sandbox import protocol

_MAX_THREADS = 64  # Programs that one call runs side by side.
_FUNCTION = re.compile(r'[^\W\d]\w*(\(\))?(\.[^\W\d]\w*(\(\))?)*')
_MIN_LIMITS = protocol.Limits(
    cpu_seconds=0.01, wall_seconds=0.01, memory_bytes=64 << 20, output_bytes=1)
_MAX_LIMITS = protocol.Limits(
    cpu_seconds=1e6, wall_seconds=1e6, memory_bytes=1 << 44,
    output_bytes=1 << 32)
_REPLY_SECONDS = 30.0  # Timeout of a reply after the wall-clock limit.
# A client that waits for a slot checks the server's health this often. The
# server answers within a second unless it is dead or stopped.
_CHECK_SECONDS = 10.0
_HEALTH_SECONDS = 60.0


class _KilledSupervisorError(OSError):
  """A supervisor of the server `server_id` was killed while a program ran."""

  def __init__(self, server_id: int):
    super().__init__('the process that watched the program was killed')
    self.server_id = server_id


@dataclasses.dataclass(frozen=True)
class ProgramResult:
  """Output and exit status of a program.

  Attributes:
    status: how the program ended.
    exit_code: -N after signal N; None if the sandbox failed.
    stdout: at most `output_bytes`; undecodable bytes are replaced.
    stderr: as `stdout`; the last line says why the sandbox stopped the program.
    cpu_seconds: user and system time of the program and its children.
    wall_seconds: time from its start to its end.
  """

  status: protocol.Status
  exit_code: int | None
  stdout: str
  stderr: str
  cpu_seconds: float
  wall_seconds: float


@dataclasses.dataclass(frozen=True)
class CallResult(ProgramResult):
  """A `ProgramResult` with the value that a function returned.

  Attributes:
    value: built from Python's own types only; None unless the status is OK.
  """

  value: Any = None


@dataclasses.dataclass(frozen=True)
class Sandbox:
  """Runs programs on a server; picklable and thread-safe.

  Attributes:
    address: the socket of the server.
    limits: resources of each program.

  Raises ValueError for limits that are too low or too high.
  """

  address: str
  limits: protocol.Limits = protocol.Limits()

  def __post_init__(self):
    for name, value in self.limits._asdict().items():
      low, high = getattr(_MIN_LIMITS, name), getattr(_MAX_LIMITS, name)
      if not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(
            f'Sandbox limit {name}={value!r} must be at least {low} and at '
            f'most {high}.')

  def run(self, source: str, stdin: str = '') -> ProgramResult:
    """Runs one program. A failing program never raises.

    Retries once if the sandbox fails. Waits for a free slot as long as the
    server is alive.
    """
    result, _ = self._execute(
        protocol.Request(source, stdin, '', '', self.limits))
    return result

  def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[ProgramResult]:
    """Runs (source, stdin) pairs side by side; results in the same order."""
    return _side_by_side(lambda job: self.run(*job), jobs)

  def run_tests(
      self, source: str, stdins: Sequence[str]) -> list[ProgramResult]:
    """Runs one program on each input, each time in a new process."""
    return self.run_many([(source, stdin) for stdin in stdins])

  def call(
      self, source: str, function: str,
      calls: Sequence[tuple]) -> list[CallResult]:
    """Runs a program and calls its function, in a new process for each call.

    Args:
      source: runs as a module whose `__name__` is 'program', with empty stdin.
      function: a name, or names joined by dots. A name that ends in `()` is
        called without arguments: 'solve', 'Solution().solve', or
        'Solution.solve' for a static method.
      calls: positional arguments of each call. Arguments and values are None,
        bool, int, float, complex, str, bytes, and lists, tuples, dicts, sets
        and frozensets of these; `literals` has the limits.

    A call that returns a value of another type, or ends the program, has the
    status ERROR.

    Raises ValueError for other functions or arguments.
    """
    if not _FUNCTION.fullmatch(function):
      raise ValueError(
          f'function={function!r} cannot be called; give a name such as '
          "'solve' or 'Solution().solve'.")
    requests = []
    for arguments in calls:
      if not isinstance(arguments, (list, tuple)):
        raise ValueError(
            f'{function} cannot be called with {arguments!r}; each call must '
            'be a tuple of arguments.')
      try:
        text = literals.encode(tuple(arguments))
      except ValueError as error:
        raise ValueError(
            f'{function} cannot be called with these arguments: '
            f'{error}.') from error
      requests.append(protocol.Request(source, '', function, text, self.limits))
    return _side_by_side(self._call, requests)

  def _call(self, request: protocol.Request) -> CallResult:
    result, text = self._execute(request)
    fields = dataclasses.asdict(result)
    if result.status is not protocol.Status.OK:
      return CallResult(**fields)
    try:
      return CallResult(**fields, value=literals.decode(text))
    except ValueError:
      # The program ended inside the function, or wrote to the value's channel.
      reason = f'stopped: no value of {request.function} came back'
      return CallResult(**fields | {
          'status': protocol.Status.ERROR,
          'stderr': join_lines(result.stderr, reason)})

  def _execute(self, request: protocol.Request) -> tuple[ProgramResult, bytes]:
    """The result, and the function's value as `literals` text."""
    failures = []
    for _ in range(2):
      try:
        return self._request(request)
      except (OSError, ValueError) as error:
        failures.append(error)
    if self._program_killed_supervisor(failures):
      return ProgramResult(
          protocol.Status.ERROR, -signal.SIGKILL, '',
          'stopped: the program ended or stopped the process that watched it',
          0.0, 0.0), b''
    return infrastructure_failure(failures[-1]), b''

  def _program_killed_supervisor(self, failures: Sequence[Exception]) -> bool:
    if not all(isinstance(x, _KilledSupervisorError) for x in failures):
      return False
    try:
      return {x.server_id for x in failures} == {self._server_id()}
    except OSError:
      return False

  def _server_id(self) -> int:
    """Asks the server for its id; OSError if it is dead or stopped."""
    with self._connect('health', _HEALTH_SECONDS) as connection:
      return protocol.receive_greeting(connection)

  def _connect(self, socket_name: str, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
      connection.settimeout(timeout)
      connection.connect(protocol.socket_path(self.address, socket_name))
    except BaseException:
      connection.close()
      raise
    return connection

  def _request(
      self, request: protocol.Request) -> tuple[ProgramResult, bytes]:
    needs_packages = any(
        package in request.source for package in protocol.PACKAGES)
    with self._connect(
        'packages' if needs_packages else 'socket',
        _CHECK_SECONDS) as connection:
      server_id = None
      while server_id is None:  # The greeting says that a slot is free.
        try:
          server_id = protocol.receive_greeting(connection)
        except TimeoutError:
          self._server_id()
      connection.settimeout(self.limits.wall_seconds + _REPLY_SECONDS)
      connection.sendall(protocol.pack(request))
      connection.shutdown(socket.SHUT_WR)
      try:
        with connection.makefile('rb') as stream:
          reply = protocol.unpack_reply(stream.read())
      except ConnectionError as error:
        raise _KilledSupervisorError(server_id) from error
    report = reply.report
    if report is None:
      raise _KilledSupervisorError(server_id)
    stdout, stderr = (
        output.decode('utf-8', 'replace')
        for output in (reply.stdout, reply.stderr))
    return ProgramResult(
        report.status, report.exit_code, stdout,
        join_lines(stderr, report.reason), report.cpu_seconds,
        report.wall_seconds), reply.value


def infrastructure_failure(error: Exception) -> ProgramResult:
  return ProgramResult(
      protocol.Status.INFRASTRUCTURE, None, '',
      f'The sandbox failed repeatedly: {type(error).__name__}: {error}',
      0.0, 0.0)


def check_given(sandbox: Sandbox | None, writers: object) -> None:
  """Raises ValueError without a sandbox if `writers` write programs."""
  if sandbox is None:
    raise ValueError(
        f'sandbox=None, but {writers} write programs; give a Sandbox, or set '
        'sandbox.level to a level other than none')


def join_lines(stderr: str, reason: str) -> str:
  """Appends the reason as a new line."""
  if reason and stderr and not stderr.endswith('\n'):
    return f'{stderr}\n{reason}'
  return stderr + reason


def _side_by_side(function: Callable[[Any], Any], jobs: Sequence) -> list:
  """Maps `function` over jobs in threads, keeping the order."""
  if not jobs:
    return []
  with futures.ThreadPoolExecutor(min(len(jobs), _MAX_THREADS)) as pool:
    return list(pool.map(function, jobs))
