"""Runs programs on a SandboxFusion service.

https://github.com/bytedance/SandboxFusion; `POST URL/run_code` runs one
program. The service isolates the programs and limits their memory and CPU time.
Only `wall_seconds` and `output_bytes` of `Limits` apply here.

`call` sends a program that calls the function and prints its value between two
random marks. A program can find the marks and print another value, but it never
learns the expected one.
"""

import dataclasses
import http.client
import json
import pathlib
import secrets
import time
from typing import Any
import urllib.parse
import urllib.request

from environments.sandbox import client
from environments.sandbox import launcher
from environments.sandbox import literals
from environments.sandbox import protocol

_TRIAL_SECONDS = 10.0  # Timeout of the trial program's reply.
_RESTART_SECONDS = 60.0
_RESTART_PAUSE = 1.0
_LITERALS = pathlib.Path(literals.__file__).read_text(encoding='utf-8')

_CALL = '''
import sys, types
def load(name, text):
  module = sys.modules[name] = types.ModuleType(name)
  exec(compile(text, '<program>', 'exec', dont_inherit=True), module.__dict__)
  return module
literals = load('literals', {literals!r})
value = literals.call(load('program', {source!r}), {function!r}, {arguments!r})
with open(1, 'w', closefd=False) as stdout:
  stdout.write({mark!r} + value + {mark!r})
'''


@dataclasses.dataclass(frozen=True)
class RemoteSandbox(client.Sandbox):
  """A `Sandbox` whose address is the URL of a SandboxFusion service."""

  reply_seconds: float = 120.0
  _pauses = (0.5, 2.0)

  def _request(
      self, request: protocol.Request) -> tuple[client.ProgramResult, bytes]:
    code, mark = request.source, secrets.token_hex(16)
    if request.function:
      code = _CALL.format(
          literals=_LITERALS, mark=mark, **request._asdict())
    try:
      (code + request.stdin).encode()
    except UnicodeEncodeError as error:  # The service would call this its own.
      return client.ProgramResult(
          protocol.Status.ERROR, '', f'stopped: {error}'), b''
    result = self._post({
        'code': code, 'language': 'python', 'stdin': request.stdin,
        'run_timeout': self.limits.wall_seconds})
    stdout, *marked = result.stdout.split(mark)
    value = ''
    if len(marked) == 2:
      value, after = marked
      result = dataclasses.replace(result, stdout=stdout + after)
    outputs = [
        text.encode() for text in (result.stdout, result.stderr, value)]
    limit = self.limits.output_bytes
    if max(map(len, outputs)) > limit:
      stdout, stderr, _ = (
          output[:limit].decode(errors='ignore') for output in outputs)
      result = dataclasses.replace(
          result, status=protocol.Status.RESOURCE_LIMIT, stdout=stdout,
          stderr=client.join_lines(stderr, self._flood_reason()))
    return result, value.encode()

  def _post(self, body: dict[str, Any]) -> client.ProgramResult:
    """Runs a program once; raises OSError or ValueError if that fails."""
    request = urllib.request.Request(
        f'{self.address.rstrip("/")}/run_code', json.dumps(body).encode(),
        {'Content-Type': 'application/json'})
    seconds = self.limits.wall_seconds
    max_bytes = (1 << 20) + 20 * self.limits.output_bytes
    try:
      with urllib.request.urlopen(
          request, timeout=seconds + self.reply_seconds) as response:
        data = response.read(max_bytes + 1)
      if len(data) > max_bytes:
        return client.ProgramResult(
            protocol.Status.RESOURCE_LIMIT, '', self._flood_reason())
      reply = json.loads(data)
      run = reply['run_result']
      if reply['status'] == 'SandboxError' or run['status'] == 'Error':
        raise OSError(
            f'{self.address} failed to run a program: '
            f'{reply["message"]!r:.300}')
      # JSON may hold lone surrogates; the local sandbox replaces them as well.
      stdout, stderr = (
          (run[name] or '').encode('utf-8', 'replace').decode()
          for name in ('stdout', 'stderr'))
      if run['status'] == 'TimeLimitExceeded':
        return client.ProgramResult(
            protocol.Status.TIMEOUT, stdout, client.join_lines(
                stderr, f'stopped: wall-clock limit of {seconds} s'))
      has_failed = int(run['return_code']) != 0
    except (http.client.HTTPException, LookupError, TypeError) as error:
      raise OSError(
          f'{self.address} sent no reply of SandboxFusion ({error!r})'
          ) from error
    status = protocol.Status.ERROR if has_failed else protocol.Status.OK
    return client.ProgramResult(status, stdout, stderr)

  def _flood_reason(self) -> str:
    return f'stopped: more than {self.limits.output_bytes} bytes of output'


class RemoteServer:
  """The counterpart of `SandboxServer` for a service that runs elsewhere."""

  name = 'connection to the sandbox service'
  level = protocol.Level.REMOTE

  def __init__(self, url: str):
    """`url` is http://HOST:PORT; ValueError for anything else."""
    parts = urllib.parse.urlsplit(url)
    if (parts.scheme not in ('http', 'https') or not parts.hostname
        or '@' in url):
      # A user may come with a password, which is not shown.
      given = 'a URL with a user' if '@' in url else repr(url)
      raise ValueError(
          f'sandbox.url is {given}, but sandbox.level=remote needs '
          'http://HOST:PORT of a SandboxFusion service, without a user or '
          'password. See docs/sandbox.md.')
    self.sandbox = RemoteSandbox(url)

  def start(self) -> None:
    """Calls a function of a program; NoSandboxError if that fails."""
    sandbox = dataclasses.replace(self.sandbox, reply_seconds=_TRIAL_SECONDS)
    result, = sandbox.call('def trial(x): return x', 'trial', [('ready',)])
    if result.value != 'ready':
      raise launcher.NoSandboxError(
          f'The sandbox service at {self.sandbox.address} runs no programs: '
          f'{result.status.value}: {result.stderr.strip()}. See '
          'docs/sandbox.md.')

  def is_running(self) -> bool:
    """Always True; failures show when a program is run."""
    return True

  def restart(self) -> None:
    """Waits up to a minute for a program to run; NoSandboxError after that."""
    deadline = time.monotonic() + _RESTART_SECONDS
    while True:
      time.sleep(_RESTART_PAUSE)
      try:
        return self.start()
      except launcher.NoSandboxError:
        if time.monotonic() > deadline:
          raise

  def close(self) -> None:
    """Does nothing; the service keeps running."""
