"""Runs programs on a SandboxFusion service.

https://github.com/bytedance/SandboxFusion; `POST URL/run_code` runs one
program. The service isolates the programs and limits their memory and CPU time.
Only `wall_seconds` and `output_bytes` of `Limits` apply here.

`call` sends a program that calls the function and prints its value between two
random marks. A program can find the marks and print another value, but it never
learns the expected one.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import pathlib
import secrets
import signal
import time
from typing import Any
import urllib.error
import urllib.parse
import urllib.request

from environments.sandbox import client
from environments.sandbox import launcher
from environments.sandbox import literals
from environments.sandbox import protocol

_PAUSES = (0.5, 2.0)  # Seconds before the second and the third attempt.
_TRIAL_SECONDS = 10.0  # Timeout of the trial program's reply.
_COMPILE_SECONDS = 10.0  # Unused for Python; the interface has it.
_RESTART_SECONDS = 60.0
_RESTART_PAUSE = 1.0
_TOO_MANY_REQUESTS = 429
_LITERALS = pathlib.Path(literals.__file__).read_text(encoding='utf-8')

_CALL = '''
import sys, types
def load(name, text):
  module = sys.modules[name] = types.ModuleType(name)
  exec(compile(text, '<program>', 'exec', dont_inherit=True), module.__dict__)
  return module
literals = load('literals', {literals!r})
function = load('program', {source!r})
for name in {names!r}:
  function = getattr(function, name.removesuffix('()'))
  if name.endswith('()'):
    function = function()
value = function(*literals.decode({arguments!r}))
try:
  text = literals.encode(value)
except ValueError as error:
  sys.exit('The value of {function} cannot be returned: %s.' % error)
with open(1, 'w', closefd=False) as stdout:
  stdout.write({mark!r} + text + {mark!r})
'''


@dataclasses.dataclass(frozen=True)
class RemoteSandbox(client.Sandbox):
  """A `Sandbox` whose address is the URL of a SandboxFusion service.

  Attributes:
    reply_seconds: timeout of a reply after the wall-clock limit; includes the
      time in the service's queue.
  """

  reply_seconds: float = 120.0

  def _execute(
      self, request: protocol.Request) -> tuple[client.ProgramResult, bytes]:
    code, mark = request.source, secrets.token_hex(16)
    if request.function:
      code = _CALL.format(
          literals=_LITERALS, source=request.source,
          names=request.function.split('.'), arguments=request.arguments,
          function=request.function, mark=mark)
    try:
      (code + request.stdin).encode()
    except UnicodeEncodeError as error:  # The service would call this its own.
      return client.ProgramResult(
          protocol.Status.ERROR, 1, '', f'stopped: {error}', 0.0, 0.0), b''
    body = json.dumps({
        'code': code, 'language': 'python', 'stdin': request.stdin,
        'run_timeout': self.limits.wall_seconds,
        'compile_timeout': _COMPILE_SECONDS}).encode()
    for pause in (*_PAUSES, None):
      try:
        result = self._post(body)
        break
      except (OSError, http.client.HTTPException) as error:
        refused = isinstance(error, urllib.error.HTTPError) and (
            error.code < 500 and error.code != _TOO_MANY_REQUESTS)
        if pause is None or refused:
          return client.infrastructure_failure(error), b''
        time.sleep(pause)
    stdout, *marked = result.stdout.split(mark)
    value = ''
    if request.function and len(marked) == 2:
      value, after = marked
      result = dataclasses.replace(result, stdout=stdout + after)
    return self._limit_output(result, value), value.encode()

  def _post(self, body: bytes) -> client.ProgramResult:
    """Asks once; raises OSError if the service fails."""
    request = urllib.request.Request(
        f'{self.address.rstrip("/")}/run_code', body,
        {'Content-Type': 'application/json'})
    max_bytes = (1 << 20) + 20 * self.limits.output_bytes
    with urllib.request.urlopen(
        request,
        timeout=self.limits.wall_seconds + self.reply_seconds) as response:
      data = response.read(max_bytes + 1)
    if len(data) > max_bytes:
      return client.ProgramResult(
          protocol.Status.RESOURCE_LIMIT, -signal.SIGKILL, '',
          self._flood_reason(), 0.0, 0.0)
    try:
      return self._parse(json.loads(data))
    except (LookupError, TypeError, ValueError) as error:
      raise OSError(
          f'{self.address} sent no reply of SandboxFusion ({error!r})'
          ) from error

  def _parse(self, reply: dict[str, Any]) -> client.ProgramResult:
    run = reply['run_result']
    if reply['status'] == 'SandboxError' or run['status'] == 'Error':
      raise OSError(
          f'{self.address} failed to run a program: {reply["message"]!r:.300}')
    # JSON may hold lone surrogates; the local sandbox replaces them as well.
    stdout, stderr = (
        (run[name] or '').encode('utf-8', 'replace').decode()
        for name in ('stdout', 'stderr'))
    seconds = float(run['execution_time'] or 0.0)
    if run['status'] == 'TimeLimitExceeded':
      return client.ProgramResult(
          protocol.Status.TIMEOUT, -signal.SIGKILL, stdout, client.join_lines(
              stderr,
              f'stopped: wall-clock limit of {self.limits.wall_seconds} s'),
          0.0, seconds)
    exit_code = int(run['return_code'])
    return client.ProgramResult(
        protocol.Status.ERROR if exit_code else protocol.Status.OK, exit_code,
        stdout, stderr, 0.0, seconds)

  def _limit_output(
      self, result: client.ProgramResult, value: str) -> client.ProgramResult:
    limit = self.limits.output_bytes
    stdout, stderr = result.stdout.encode(), result.stderr.encode()
    if max(len(stdout), len(stderr), len(value)) <= limit:
      return result
    return dataclasses.replace(
        result, status=protocol.Status.RESOURCE_LIMIT,
        stdout=stdout[:limit].decode(errors='ignore'),
        stderr=client.join_lines(
            stderr[:limit].decode(errors='ignore'), self._flood_reason()))

  def _flood_reason(self) -> str:
    return f'stopped: more than {self.limits.output_bytes} bytes of output'


class RemoteServer:
  """The counterpart of `SandboxServer` for a service that runs elsewhere."""

  name = 'connection to the sandbox service'
  level = protocol.Level.REMOTE

  def __init__(self, url: str):
    """`url` is http://HOST:PORT; ValueError for anything else."""
    try:
      parts = urllib.parse.urlsplit(url)
      is_valid = (
          parts.scheme in ('http', 'https') and parts.hostname
          and parts.port != 0 and '@' not in url)
    except ValueError:  # The port is not a number.
      is_valid = False
    if not is_valid:
      # A user may come with a password, which is not shown.
      given = 'a URL with a user' if '@' in url else repr(url)
      raise ValueError(
          f'sandbox.url is {given}, but sandbox.level=remote needs '
          'http://HOST:PORT of a SandboxFusion service, without a user or '
          'password. See docs/sandbox.md.')
    self.sandbox = RemoteSandbox(url)

  def start(self) -> None:
    """Runs one program; NoSandboxError if that fails."""
    try:
      self._run_trial()
    except RuntimeError as error:
      raise launcher.NoSandboxError(f'{error}. See docs/sandbox.md.') from error

  def _run_trial(self) -> None:
    sandbox = dataclasses.replace(self.sandbox, reply_seconds=_TRIAL_SECONDS)
    result = sandbox.run('print(input())', 'ready')
    if result.stdout != 'ready\n':
      raise RuntimeError(
          f'The sandbox service at {self.sandbox.address} runs no programs: '
          f'{result.status.value}: {result.stderr.strip()}')

  def is_running(self) -> bool:
    """Always True; failures show when a program is run."""
    return True

  def restart(self) -> None:
    """Waits up to a minute for a program to run; RuntimeError after that."""
    deadline = time.monotonic() + _RESTART_SECONDS
    while True:
      time.sleep(_RESTART_PAUSE)
      try:
        return self._run_trial()
      except RuntimeError:
        if time.monotonic() > deadline:
          raise

  def close(self) -> None:
    """Does nothing; the service keeps running."""
