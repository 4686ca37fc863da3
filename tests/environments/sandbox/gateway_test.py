"""Programs behind a gateway do what they do here, and strangers do nothing."""

import asyncio
from concurrent import futures
import contextlib
import gc
import os
import pickle
import signal
import socket
import struct
import threading
import time
import types

import pytest

from environments import sandbox
from environments.sandbox import client
from environments.sandbox import connections
from environments.sandbox import gateway as gateway_lib
from environments.sandbox import launcher
from environments.sandbox import protocol
from environments.sandbox import Status
from tests.environments.sandbox import attacks
from tests.environments.sandbox import gateways
from tests.environments.sandbox import servers
from tests.environments.sandbox.servers import wait_until


@pytest.fixture(scope='module')
def gateway(tmp_path_factory):
  """For most tests: they must leave it as it was."""
  with gateways.running(tmp_path_factory.mktemp('gateway')) as running:
    yield running


@pytest.fixture
def fragile(tmp_path):
  """One that may be harmed."""
  with gateways.running(tmp_path) as running:
    yield running


# Programs.

LARGE = 'x' * 3_000_000
PROGRAMS = {
    'text': ('print(int(input()) + 1)', '41'),
    'an exception': ('import sys\nprint("ß→😀")\n1 / 0', ''),
    'an exit status': ('import sys; print(1, file=sys.stderr); exit(7)', ''),
    'a signal': ('import os; os.kill(os.getpid(), 9)', ''),
    'wall clock': ('print(1, flush=True)\nimport time; time.sleep(60)', ''),
    'a flood': ('while True: print("flood" * 100)', ''),
    'a large input': ('import sys; print(len(sys.stdin.read()))', LARGE),
    'a large output': (
        'import sys; sys.stdout.write("o" * 2_000_000); '
        'sys.stderr.write("e" * 1_000_000)', ''),
    'what ends a reply': ('print("' + 'end' * 100 + '")', ''),
    'packages': ('import numpy; print(numpy.arange(3).sum())', ''),
}
_LIMITS = servers.LIMITS._replace(wall_seconds=1.0, output_bytes=3_000_000)


def outcome(result):
  """All but the times, and what a program that is stopped came to print."""
  stdout = result.stdout if 'stopped' not in result.stderr else result.stdout[
      :1]
  return result.status, result.exit_code, stdout, result.stderr


def test_programs_end_as_without_a_gateway(gateway):
  jobs = list(PROGRAMS.values())
  far = sandbox.Sandbox(gateway.sandbox.address, _LIMITS)
  with sandbox.SandboxServer(2, gateway.level) as server:
    near = sandbox.Sandbox(server.address, _LIMITS)
    expected, found = near.run_many(jobs), far.run_many(jobs)
    function = 'def f(a, b):\n  print(a)\n  return {"s": [a, b], 2: (a,)}[b]'
    calls = [('x', 's'), (0.5, 2), (1, 3)]
    expected += near.call(function, 'f', calls)
    found += far.call(function, 'f', calls)
  assert list(map(outcome, found)) == list(map(outcome, expected))
  ok, error, *_ = Status
  assert [result.status for result in found[:5]] == [
      ok, error, error, error, Status.TIMEOUT]
  assert [result.value for result in found[-3:]] == [['x', 's'], (0.5,), None]


def test_many_at_once(gateway):
  results = gateway.sandbox.run_tests(
      'print(int(input()) ** 2)', [str(i) for i in range(100)])
  assert [r.stdout for r in results] == [f'{i * i}\n' for i in range(100)]


@pytest.mark.skipif(
    gateways.LEVEL == 'unsafe_rlimit', reason='no level here has walls')
def test_attacks_are_refused_through_a_gateway(fragile, tmp_path):
  pid = fragile.process.pid
  names = {
      'CANARY': str(fragile.token_file), 'VICTIM': pid, 'SERVER': fragile.port,
      'SOURCE': sandbox.__file__, 'INSTALLED': pytest.__file__}
  lines = {
      **attacks.NETWORK, **attacks.PROCESSES,
      'read the token': attacks.FILES['read a file'],
      'the gateway': 'socket.create_connection(("127.0.0.1", SERVER))'}
  results = fragile.sandbox.run_many(
      [(attacks.program(line, names), 'input') for line in lines.values()])
  assert len(results) >= 40
  for name, result in zip(lines, results):
    printed = result.stdout
    assert printed.startswith('begun\n') and 'ESCAPED' not in printed, (
        name, result)
    assert gateways.TOKEN not in printed + result.stderr
  assert fragile.process.poll() is None and fragile.process.pid == pid
  assert fragile.sandbox.run('print(1)').stdout == '1\n'


def test_a_program_that_ends_its_supervisor_has_failed(tmp_path):
  with gateways.running(tmp_path, 'unsafe_rlimit') as gateway:
    programs = gateway.sandbox
    result = programs.run(
        'import os, time; os.kill(os.getppid(), 9); time.sleep(9)')
    assert (result.status, result.exit_code) == (Status.ERROR, -9), result
    assert 'ended or stopped the process that watched it' in result.stderr
    assert programs.run('print(1)').stdout == '1\n'


# Strangers.


def say(port, *said):
  """What the gateway answers until it closes."""
  with socket.create_connection(('127.0.0.1', port), 20) as connection:
    answer = connection.recv(1000)
    for part in said:
      connection.sendall(part)
    with contextlib.suppress(ConnectionResetError):
      while part := connection.recv(1000):
        answer += part
  return answer


@pytest.mark.parametrize('line, answer', [
    (b'GET / HTTP/1.1\r\n\r\n', b'no wrong token\n'),
    (b'\n', b'no this is no client\n'),
    (b'\xff\x00 \xfe 1\n', b'no this is no client\n'),
    (b'programs 1 ' + b'0' * 64 + b'\n', b'no wrong token\n'),
    (b'programs 1 \xff\n', b'no wrong token\n'),
    (b'secret 1 0\n', b'no this is no client\n'),
    (b'x' * 100_000, b''), (b'\x00' * 5_000_000 + b'\n', b'')],
    ids=['http', 'empty', 'bytes', 'zeros', 'odd proof', 'other socket',
         'no end', 'long'])
def test_strangers_are_refused(gateway, line, answer):
  try:
    said = say(gateway.port, line)
  except ConnectionError:  # It did not listen to all of that.
    assert not answer
    return
  greeting, _, rest = said.partition(b'\n')
  assert greeting.startswith(connections.VERSION.encode() + b' ')
  if line.startswith(b'GET'):
    answer = b'no this is no client\n'
  assert rest == answer
  assert gateway.sandbox.run('print(1)').stdout == '1\n'


def test_what_was_heard_serves_nobody_again(gateway):
  # Bite: a proof without the nonce of the connection.
  proven = {}
  for _ in range(2):
    with socket.create_connection(('127.0.0.1', gateway.port), 20) as stream:
      lines = stream.makefile('rb')
      nonce = lines.readline().split()[1]
      said = proven.setdefault('it', connections.prove(
          gateways.TOKEN.encode(), b'client', nonce, b'1', b'programs'))
      stream.sendall(b'programs 1 %b\n' % said)
      proven.setdefault('answers', []).append(lines.readline().split()[0])
      lines.close()
  assert proven['answers'] == [b'ok', b'no']


def test_another_token_is_refused_for_good(gateway, monkeypatch):
  monkeypatch.setenv(gateways.TOKEN_VARIABLE, 'x' * 64)
  result = gateway.sandbox.run('print(1)')
  assert result.status is Status.INFRASTRUCTURE
  assert f'{gateway.url} has another token' in result.stderr
  monkeypatch.delenv(gateways.TOKEN_VARIABLE)
  result = gateway.sandbox.run('print(1)')
  assert f"'{gateways.TOKEN_VARIABLE}', which should" in result.stderr


@pytest.mark.parametrize('greeting, answer, words', [
    (b'SSH-2.0-OpenSSH\r\n', b'', 'is no gateway of'),
    (b'atgrpo-sandbox-0 1\n', b'', 'is no gateway of'),
    (b'x' * 5000, b'', 'says more than a gateway'),
    (b'', b'', 'closed the connection'),
    (b'atgrpo-sandbox-1 1\n', b'ok kernel 00\n', 'does not know the token'),
    (b'atgrpo-sandbox-1 1\n', b'ok\n', 'does not know the token'),
    (b'atgrpo-sandbox-1 1\n', b'no too many connections\n', '(too many')],
    ids=['ssh', 'version', 'long', 'closed', 'forged', 'short', 'busy'])
def test_what_is_no_gateway_is_found_out(
    greeting, answer, words, monkeypatch):
  # Who has taken the port learns no token, and cannot grade.
  monkeypatch.setenv(gateways.TOKEN_VARIABLE, 'secret-secret-secret')
  heard = []
  with socket.create_server(('127.0.0.1', 0)) as listener:
    def serve():
      for _ in range(2):
        with listener.accept()[0] as connection:
          with contextlib.suppress(ConnectionError):
            connection.sendall(greeting)
            if answer:
              heard.append(connection.recv(1000))
              connection.sendall(answer)
    thread = threading.Thread(target=serve)
    thread.start()
    address = sandbox.Remote(
        f'tcp://127.0.0.1:{listener.getsockname()[1]}',
        gateways.TOKEN_VARIABLE)
    result = sandbox.Sandbox(address).run('print(1)')
    thread.join()
  assert result.status is Status.INFRASTRUCTURE and words in result.stderr
  assert b'secret' not in b''.join(heard)


@pytest.mark.parametrize('url', [
    '', 'host:1', 'http://host:1', 'tcp://host', 'tcp://:1', 'tcp://host:x',
    'tcp://host:99999', 'tcp://host:1/path', 'tcp://host:1?token=x',
    '/tmp/socket'])
def test_other_urls_are_refused(url):
  with pytest.raises(ValueError, match='tcp://HOST:PORT, and not'):
    sandbox.Remote(url, 'TOKEN')
  with pytest.raises(ValueError) as caught:
    sandbox.Remote('tcp://secret@host:1', 'TOKEN')
  assert 'secret' not in str(caught.value)


def test_the_token_is_nowhere(gateway):
  gateway.sandbox.run('print(1)')
  say(gateway.port, b'programs 1 0\n')
  pid = gateway.process.pid
  found = [pickle.dumps(gateway.sandbox), repr(gateway.sandbox).encode()]
  paths = [gateway.folder / 'stderr', f'/proc/{pid}/cmdline']
  paths += [
      f'/proc/{gateway.server_pid()}/{name}' for name in ('cmdline', 'environ')]
  for path in paths:
    with open(path, 'rb') as file:
      found.append(file.read())
  assert not any(gateways.TOKEN.encode() in text for text in found)
  assert b'connections refused: ' in found[2]


# Gateways with a server of a few lines, in this process.


class Fake:
  """Has one socket, whose connections `answer` serves."""

  level = sandbox.Level.KERNEL

  def __init__(self, folder, answer):
    self.address = str(folder / 'socket')
    self._answer = answer

  async def __aenter__(self):
    self.gateway = gateway_lib.Gateway(self, b'token', 3, 2)
    self._servers = [
        await asyncio.start_unix_server(self._answer, self.address),
        await asyncio.start_server(self.gateway.serve, '127.0.0.1', 0)]
    self.port = self._servers[1].sockets[0].getsockname()[1]
    self.remote = sandbox.Remote(
        f'tcp://127.0.0.1:{self.port}', gateways.TOKEN_VARIABLE)
    return self

  async def __aexit__(self, *exception):
    for server in self._servers:
      server.close()


@pytest.fixture
def fake_token(monkeypatch):
  monkeypatch.setenv(gateways.TOKEN_VARIABLE, 'token')


REPORT = protocol.frame(protocol.REPORT, protocol.pack(
    protocol.ExitReport(Status.OK, 0, '', 0.1, 0.1)))


def test_who_waits_is_not_forgotten(fake_token, tmp_path):
  # Bite: the task of a silent client belongs to nobody but itself.
  async def answer(reader, writer):
    writer.write(struct.pack('>Q', 7))
    await reader.read()
    await asyncio.sleep(0.1)
    gc.collect()
    writer.write(REPORT)
    writer.close()

  async def ask():
    async with Fake(tmp_path, answer) as fake:
      return await asyncio.to_thread(sandbox.Sandbox(fake.remote).run, '')

  assert asyncio.run(ask()).status is Status.OK


@pytest.mark.parametrize('ends', ['request', 'greeting'])
def test_only_who_heard_all_is_believed_to_be_killed(
    ends, fake_token, tmp_path):
  # A server that closes before it has the request says nothing of the program.
  async def answer(reader, writer):
    writer.write(struct.pack('>Q', 7))
    if ends == 'request':
      await reader.read()
    writer.close()

  async def ask():
    async with Fake(tmp_path, answer) as fake:
      connection, end = await asyncio.to_thread(
          connections.connect, fake.remote, connections.PROGRAMS, 9.0)
      with connection:
        if ends == 'request':
          connection.shutdown(socket.SHUT_WR)
        stream = connection.makefile('rb')
        data = await asyncio.to_thread(stream.read)
      return data == struct.pack('>Q', 7) + end

  assert asyncio.run(ask()) == (ends == 'request')


def test_a_cut_connection_blames_no_program(fake_token, monkeypatch):
  # Bite: it counts as a supervisor that the program has killed.
  ends = []

  def cut(self, name, timeout):
    ours, theirs = socket.socketpair()
    ends.append(theirs)
    theirs.sendall(struct.pack('>Q', 7))
    theirs.shutdown(socket.SHUT_WR)
    return ours, self.end, 'kernel'

  statuses = {}
  for end in (b'proof', b''):
    monkeypatch.setattr(sandbox.Remote, 'end', end, raising=False)
    monkeypatch.setattr(sandbox.Remote, 'open', cut)
    monkeypatch.setattr(client.Sandbox, '_ask_server', lambda self: 7)
    statuses[end] = sandbox.Sandbox(
        sandbox.Remote('tcp://host:1', 'X')).run('').status
  # Without a proof it is a connection on this machine, which nobody cuts.
  assert statuses == {b'proof': Status.INFRASTRUCTURE, b'': Status.ERROR}
  for end in ends:
    end.close()


def test_silent_strangers_are_given_up(fake_token, monkeypatch, tmp_path):
  async def connect(fake):
    reader, writer = await asyncio.open_connection('127.0.0.1', fake.port)
    await reader.readline()
    return reader, writer

  async def ask():
    async with Fake(tmp_path, lambda *_: None) as fake:
      # The oldest, if there are too many.
      silent = [await connect(fake) for _ in range(4)]
      assert await silent[0][0].read() == b''
      assert len(fake.gateway._strangers) == 3
      # All, after some time; and who says too little.
      monkeypatch.setattr(gateway_lib, '_HELLO_SECONDS', 0.1)
      silent.append(await connect(fake))
      silent[-1][1].write(b'programs')
      assert await silent[-1][0].read() == b''
      # Clients are counted, too.
      fake.gateway._clients = {1, 2}
      with pytest.raises(ConnectionError, match='too many connections'):
        await asyncio.to_thread(fake.remote.ask_level, 9.0)
      for _, writer in silent:
        writer.close()

  asyncio.run(ask())


# What dies.


def test_a_killed_gateway_takes_its_server_along(fragile):
  programs, pid = fragile.sandbox, fragile.server_pid()
  with futures.ThreadPoolExecutor(1) as pool:
    running = pool.submit(programs.run, 'import time; time.sleep(4)')
    time.sleep(0.5)  # Before or while it runs.
    fragile.kill()
  result = running.result()
  assert result.status is Status.INFRASTRUCTURE
  assert 'does not answer' in result.stderr
  wait_until(lambda: not servers.exists(pid))
  fragile.start()
  assert programs.run('print(1)').stdout == '1\n'


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSTOP])
def test_a_gateway_replaces_its_server(fragile, number):
  pid = fragile.server_pid()
  os.kill(pid, number)
  wait_until(lambda: fragile.server_pid() not in (None, pid), 30)
  wait_until(
      lambda: fragile.sandbox.run('print(1)').stdout == '1\n', 30)
  assert 'will be replaced' in (fragile.folder / 'stderr').read_text()


def test_a_server_that_is_silent_is_replaced(tmp_path, monkeypatch):
  monkeypatch.setattr(gateway_lib, '_HEALTH_SECONDS', 0.2)
  monkeypatch.setattr(gateway_lib, '_TICK', 0.05)
  restarts = []

  def restart():
    restarts.append(1)
    if len(restarts) < 3:
      raise RuntimeError('not yet')
    raise KeyError('enough')  # A fault of ours ends the gateway.

  async def never(reader, writer):
    await reader.read()
    writer.close()

  async def keep():
    address = str(tmp_path / 'socket')
    server = types.SimpleNamespace(
        address=address, is_running=lambda: True, restart=restart)
    listening = await asyncio.start_unix_server(
        never, protocol.health_address(address))
    await gateway_lib.Gateway(server, b'', 1, 1).keep_server()
    listening.close()

  with pytest.raises(KeyError, match='enough'):
    asyncio.run(keep())


# Starting one.


@pytest.mark.parametrize('text, mode, words', [
    (None, 0, 'cannot be read'), ('x' * 32, 0o640, 'run `chmod 600`'),
    ('short', 0o600, 'at least 16'), ('', 0o600, 'at least 16'),
    ('two words are no token', 0o600, 'one word'),
    ('ß' * 32, 0o600, 'ASCII')],
    ids=['missing', 'readable', 'short', 'empty', 'words', 'letters'])
def test_tokens_that_are_refused(text, mode, words, tmp_path, capsys):
  path = tmp_path / 'token'
  if text is not None:
    path.write_text(text)
    path.chmod(mode)
  assert gateway_lib.main(['--token-file', str(path)]) == 2
  error = capsys.readouterr().err
  assert error.startswith('error: --token-file ') and words in error
  assert error.count('\n') == 1
  assert not text or text not in error.replace(str(path), '')


def test_gateways_that_cannot_be(tmp_path, capsys, monkeypatch):
  path = tmp_path / 'token'
  path.write_text('x' * 32)
  path.chmod(0o600)
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = str(taken.getsockname()[1])
    assert gateway_lib.main(
        ['--token-file', str(path), '--port', port, '--slots', '1',
         '--level', 'unsafe_rlimit']) == 2
  monkeypatch.setattr(launcher, '_what_is_missing', lambda level: 'nothing')
  assert gateway_lib.main(['--token-file', str(path)]) == 2
  errors = [line for line in capsys.readouterr().err.splitlines()
            if line.startswith('error: ')]
  assert 'address already in use' in errors[0]
  assert 'No sandbox for models' in errors[1] and len(errors) == 2
