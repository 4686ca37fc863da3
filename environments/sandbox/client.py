"""Runs programs on the sandbox server and collects their results.

A supervisor that closes a connection without a reply was killed: a supervisor
that fails replies, and a dead server takes its supervisors and its queue with
it. If this happens twice to one program while the server goes on, the program
killed its supervisor, and its status is ERROR. Every other failure is
INFRASTRUCTURE.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import contextlib
import dataclasses
import io
import math
import os
import socket
import time
from typing import Any

from environments.sandbox import literals
from environments.sandbox import protocol

_MAX_THREADS = 64  # Programs that one call runs side by side.
_MIN_LIMITS = protocol.Limits(
    cpu_seconds=0.01, wall_seconds=0.01, memory_bytes=64 << 20, output_bytes=1)
_SERVER_END_SECONDS = 0.1  # The sockets of a killed server close sooner.


class _KilledSupervisorError(OSError):
  """A supervisor of the server of this start time sent no reply."""

  def __init__(self, server_start: int):
    super().__init__('the process that watched the program was killed')
    self.server_start = server_start


@dataclasses.dataclass(frozen=True)
class ProgramResult:
  """How a program ended, and its output.

  Attributes:
    status: how the program ended.
    stdout: at most `output_bytes`; undecodable bytes are replaced.
    stderr: as `stdout`; the last line says why the sandbox stopped the program.
    value: returned by the function of `Sandbox.call`, built by `literals`
      without code of the program; None otherwise, and unless the status is OK.
  """

  status: protocol.Status
  stdout: str
  stderr: str
  value: Any = None


@dataclasses.dataclass(frozen=True)
class Sandbox:
  """Runs programs on a server; picklable and thread-safe.

  Attributes:
    address: the socket of the server.
    limits: resources of each program.
    reply_seconds: timeout of the reply beyond the wall-clock limit. It includes
      the time in the queue.

  Raises ValueError for limits that are too low.
  """

  address: str
  limits: protocol.Limits = protocol.Limits()
  reply_seconds: float = 3600.0
  # Seconds before each further attempt, if the sandbox fails.
  _pauses = (0.0,)

  def __post_init__(self):
    for name, value, low in zip(self.limits._fields, self.limits, _MIN_LIMITS):
      if not low <= value < math.inf:
        raise ValueError(
            f'Sandbox limit {name}={value!r} must be finite and at least '
            f'{low}.')

  def run(self, source: str, stdin: str = '') -> ProgramResult:
    """Runs one program, again if the sandbox fails; raises nothing."""
    return self._execute(protocol.Request(source, stdin, '', '', self.limits))

  def run_tests(
      self, source: str, stdins: Sequence[str]) -> list[ProgramResult]:
    """Runs one program on each input, side by side in new processes."""
    return _side_by_side(lambda stdin: self.run(source, stdin), stdins)

  def call(
      self, source: str, function: str,
      calls: Sequence[tuple]) -> list[ProgramResult]:
    """Runs a program and calls its function, in a new process for each call.

    Args:
      source: runs as a module whose `__name__` is 'program', with empty stdin.
      function: a name, or names joined by dots. A name that ends in `()` is
        called without arguments: 'solve', 'Solution().solve', or
        'Solution.solve' for a static method. The first alternative that exists
        is called; `|` separates alternatives.
      calls: positional arguments of each call, values as in `literals`.

    A call that returns no value, or ends the program, has the status ERROR.
    Objects of the program's classes and functions are returned as
    `literals.Opaque`.

    Raises ValueError for other arguments.
    """
    return self._call(source, function, [
        ([literals.Call(tuple(arguments), {})], False) for arguments in calls])

  def call_in_turn(
      self, source: str, function: str,
      sessions: Sequence[Sequence[literals.Call]]) -> list[ProgramResult]:
    """As `call`, with several calls in each process.

    A result has a tuple of the value of the last call and of its positional and
    keyword arguments, which the call may have changed.
    """
    return self._call(source, function, [(calls, True) for calls in sessions])

  def _call(
      self, source: str, function: str,
      requests: Sequence[tuple]) -> list[ProgramResult]:
    packed = []
    for request in requests:
      try:
        text = literals.encode(request, is_request=True)
      except ValueError as error:
        raise ValueError(
            f'{function} cannot be called with these arguments: '
            f'{error}.') from error
      packed.append(protocol.Request(source, '', function, text, self.limits))
    return _side_by_side(self._execute, packed)

  def _execute(self, request: protocol.Request) -> ProgramResult:
    failures = []
    for pause in (0.0, *self._pauses):
      time.sleep(pause)
      try:
        result, value = self._request(request)
        break
      except (OSError, ValueError) as error:
        failures.append(error)
    else:
      return self._failed(failures)
    if not request.function or result.status is not protocol.Status.OK:
      return result
    try:
      return dataclasses.replace(result, value=literals.decode(value))
    except ValueError as error:
      # The program ended inside the function, or wrote to the value's file.
      reason = (
          f'the value of {request.function} cannot be read: {error}' if value
          else f'no value of {request.function} came back')
      return dataclasses.replace(
          result, status=protocol.Status.ERROR,
          stderr=join_lines(result.stderr, f'stopped: {reason}'))

  def _failed(self, failures: Sequence[Exception]) -> ProgramResult:
    if all(
        isinstance(failure, _KilledSupervisorError)
        and self._is_running(failure.server_start) for failure in failures):
      return ProgramResult(
          protocol.Status.ERROR, '',
          'stopped: the program ended or stopped the process that watched it')
    error = failures[-1]
    return ProgramResult(
        protocol.Status.INFRASTRUCTURE, '',
        f'The sandbox failed repeatedly: {type(error).__name__}: {error}')

  def _is_running(self, server_start: int) -> bool:
    """True if the server that was started then still serves."""
    time.sleep(_SERVER_END_SECONDS)
    try:
      with self._connect(protocol.SOCKETS[0]):
        return os.stat(self.address).st_mtime_ns == server_start
    except OSError:
      return False

  @contextlib.contextmanager
  def _connect(self, socket_name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
      connection.settimeout(self.limits.wall_seconds + self.reply_seconds)
      connection.connect(
          os.path.join(os.path.dirname(self.address), socket_name))
      yield connection

  def _request(
      self, request: protocol.Request) -> tuple[ProgramResult, bytes]:
    """The result, and the function's value as `literals` text.

    Raises OSError or ValueError if the sandbox fails.
    """
    text = request.source + request.arguments
    needs_packages = any(package in text for package in protocol.PACKAGES)
    server_start = os.stat(self.address).st_mtime_ns
    with self._connect(protocol.SOCKETS[needs_packages]) as connection:
      try:
        connection.sendall(protocol.pack(request))
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile('rb') as stream:
          reply = stream.read()
      except ConnectionError:
        reply = b''
    if not reply:
      raise _KilledSupervisorError(server_start)
    stream = io.BytesIO(reply)
    report = protocol.unpack_report(stream.readline())
    if report.status is protocol.Status.INFRASTRUCTURE:
      raise OSError(f'a supervisor failed: {report.reason}')
    if stream.tell() + sum(report.output_sizes) != len(reply):
      raise OSError('a supervisor sent only a part of the output')
    *outputs, value = map(stream.read, report.output_sizes)
    stdout, stderr = (text.decode('utf-8', 'replace') for text in outputs)
    result = ProgramResult(
        report.status, stdout, join_lines(stderr, report.reason))
    return result, value


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
  with futures.ThreadPoolExecutor(_MAX_THREADS) as pool:
    return list(pool.map(function, jobs))
