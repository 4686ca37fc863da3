"""The server and its supervisors survive what dies, stops or is left behind."""

from concurrent import futures
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from environments import sandbox
from environments.sandbox import client
from environments.sandbox import launcher
from environments.sandbox import protocol
from environments.sandbox import Status
from tests.environments.sandbox import servers
from tests.environments.sandbox.servers import children
from tests.environments.sandbox.servers import descendants
from tests.environments.sandbox.servers import exists
from tests.environments.sandbox.servers import LIMITS
from tests.environments.sandbox.servers import wait_until

UNSAFE = 'unsafe_rlimit'
FILES = {*protocol.SOCKETS, protocol.WORK_DIRECTORY}  # In a server's folder.


@pytest.fixture(scope='module')
def server():
  """At the level where programs can reach the processes that watch them."""
  with sandbox.SandboxServer(num_slots=2, level=UNSAFE) as running:
    yield running


@pytest.fixture(scope='module')
def single():
  """A server with one slot, at the level of this machine."""
  with sandbox.SandboxServer(num_slots=1) as running:
    yield running


@pytest.fixture
def fragile():
  """A server that a test may damage."""
  with sandbox.SandboxServer(num_slots=1) as running:
    yield running


def run(server, text, stdin='', **limits):
  return servers.run(server.address, text, stdin, **limits)


# Processes of programs; at the other levels there are none.


@pytest.mark.skipif(os.getuid() == 0, reason='the kernel exempts root')
def test_the_number_of_processes_is_limited(server):
  result = run(server, '''
      import os, time
      for i in range(2000):
        if not os.fork():
          time.sleep(60)''')
  assert 'BlockingIOError' in result.stderr
  result = run(server, '''
      import os
      while True:
        try:
          os.fork()
        except OSError:
          pass''', wall_seconds=0.5)
  assert result.status is Status.TIMEOUT, result


@pytest.mark.parametrize('detach', ['', 'os.setsid()', 'os.setpgid(0, 0)'])
def test_no_process_is_left_behind(server, detach):
  start = time.monotonic()
  result = run(server, f'''
      import os, time
      reader, writer = os.pipe()
      if os.fork() == 0:
        {detach or 'pass'}
        if os.fork() == 0:
          os.write(writer, str(os.getpid()).encode())
          time.sleep(60)  # Holds stdout and stderr open.
        os._exit(0)
      print(os.read(reader, 10).decode())''')
  assert result.status is Status.OK, result
  assert not exists(int(result.stdout))
  assert time.monotonic() - start < 2.0


def test_no_process_is_left_behind_after_a_timeout(server):
  result = run(server, '''
      import os, time
      for _ in range(3):
        if not os.fork(): os.setsid()
      print(os.getpid(), flush=True)
      time.sleep(60)''', wall_seconds=0.5)
  pids = [int(line) for line in result.stdout.split()]
  assert result.status is Status.TIMEOUT and len(pids) == 8
  assert not any(exists(pid) for pid in pids)


def test_no_text_of_another_program_is_in_memory():
  with sandbox.SandboxServer(num_slots=1, level=UNSAFE) as server:
    _search_memory(server)


def _search_memory(server):
  words = ['told-to-the-earlier', 'told-to-nobody-else', 'told-to-the-present']
  run(server, f'print("{words[0]}")', words[0] * 100)
  # The program gets the words backwards, so that it does not find its source; a
  # search always finds the copy that it searches for.
  result = run(server, f'''
      words = {[word[::-1] for word in words]}
      words = [word[::-1].encode() for word in words]
      found = [0, 0, 0]
      with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb') as mem:
        for line in maps:
          span, rights = line.split()[:2]
          start, end = (int(text, 16) for text in span.split('-'))
          if 'r' in rights and '[v' not in line:
            mem.seek(start)
            data = mem.read(end - start)
            for i in range(3):
              found[i] += data.count(words[i])
            del data
      print(found)''', words[2], memory_bytes=256 << 20)
  earlier, nobody, present = json.loads(result.stdout)
  assert earlier == nobody < present


# The server.


def test_nothing_is_left_and_the_server_lives(server):
  # Runs after the tests above.
  directory = os.path.dirname(server.address)
  pid = server.pid
  assert run(server, 'print(1)').stdout == '1\n'
  assert set(os.listdir(directory)) == FILES
  assert len(os.listdir(f'/proc/{pid}/fd')) == 6  # 0, 1, 2 and the sockets.
  assert len(children(pid)) <= 2  # The waiting supervisors.


@pytest.mark.parametrize('level', servers.LEVELS)
def test_close_kills_programs_and_removes_files(level):
  server = sandbox.SandboxServer(num_slots=1, level=level)
  server.start()
  address = server.address
  with futures.ThreadPoolExecutor(1) as pool:
    running = pool.submit(
        sandbox.Sandbox(address).run, 'import time; time.sleep(9)')
    wait_until(lambda: len(descendants(server.pid)) == 2)
    pids = [server.pid, *descendants(server.pid)]
    server.close()
    assert running.result().status is Status.INFRASTRUCTURE
  assert not os.path.exists(os.path.dirname(address))
  wait_until(lambda: not any(map(exists, pids)))
  server.close()  # A second call is harmless.
  result = sandbox.Sandbox(address).run('print(1)')
  assert result.status is Status.INFRASTRUCTURE
  assert 'FileNotFoundError' in result.stderr


@pytest.mark.parametrize('level', servers.LEVELS)
def test_the_server_ends_with_its_parent(level):
  program = f'''
      import os
      from environments import sandbox
      server = sandbox.SandboxServer(num_slots=1, level={level!r})
      server.start()
      print(server.address, server.pid, flush=True)
      os.kill(os.getpid(), 9)'''
  child = subprocess.run(
      [sys.executable, '-c', textwrap.dedent(program)], capture_output=True,
      text=True, cwd=servers.ROOT)
  address, pid = child.stdout.split()
  assert child.returncode == -signal.SIGKILL
  wait_until(lambda: not exists(int(pid)))
  # The server cannot remove the folder that bubblewrap mounted.
  wait_until(lambda: not os.path.exists(address))
  assert level == 'bwrap' or not os.path.exists(os.path.dirname(address))


def test_a_program_is_retried_once(server, tmp_path):
  kill = 'import os; os.kill(os.getppid(), 9)'
  mark = str(tmp_path / 'first')
  result = server.sandbox.run(
      f'import os\nif not os.path.exists({mark!r}):\n'
      f'  open({mark!r}, "w").close(); {kill}\nprint("second")')
  assert result.stdout == 'second\n'


@pytest.mark.parametrize('attack', [
    *(f'os.kill(os.getppid(), {int(number)})' for number in (
        signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)),
    # And then every process that adopts it. The parent is read once: between
    # two reads it may become the server.
    'while (parent := os.getppid()) != SERVER: os.kill(parent, 9)'])
def test_a_program_that_ends_its_supervisor_has_failed(server, attack):
  # Bite: silence counts as INFRASTRUCTURE.
  result = run(server, f'''
      import os, time
      SERVER = {server.pid}
      {attack}
      time.sleep(1)''', wall_seconds=60.0)
  assert (result.status, result.exit_code) == (Status.ERROR, -9), result
  assert 'ended or stopped the process that watched it' in result.stderr
  assert run(server, 'print(1)').stdout == '1\n'


def test_processes_of_a_killed_supervisor_are_killed(server, tmp_path):
  pids = tmp_path  # Each process makes a folder named by its id.
  result = run(server, f'''
      import os, time
      supervisor = os.getppid()
      for _ in range(2):
        if not os.fork(): os.setsid()
      os.mkdir({str(pids)!r} + f'/{{os.getpid()}}')
      while len(os.listdir({str(pids)!r})) % 4: time.sleep(0.01)
      try:
        os.kill(supervisor, 9)
      finally:
        time.sleep(60)''')
  assert result.status is Status.ERROR, result
  found = [int(pid) for pid in os.listdir(pids)]
  assert len(found) == 8
  wait_until(lambda: not any(map(exists, found)))
  directory = os.path.dirname(server.address)
  wait_until(lambda: set(os.listdir(directory)) == FILES)


def test_a_failing_supervisor_sends_a_fault(single):
  # Silence would blame the program.
  with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(single.address)
    protocol.receive_greeting(connection)
    connection.sendall(b'{"source": ')
    connection.shutdown(socket.SHUT_WR)
    with connection.makefile('rb') as stream:
      reply = stream.read()
  with pytest.raises(OSError, match='supervisor failed: RuntimeError: .*died'):
    protocol.unpack_reply(reply)


def test_a_stopped_or_killed_supervisor_is_replaced(fragile):
  for number in (signal.SIGSTOP, signal.SIGKILL):
    first = children(fragile.pid)[0]
    os.kill(first, number)
    assert fragile.sandbox.run('print(1)').stdout == '1\n'
    assert children(fragile.pid)[0] != first
  assert fragile.is_running()


def test_a_dead_or_stopped_server_is_no_long_queue(fragile, monkeypatch):
  monkeypatch.setattr(client, '_CHECK_SECONDS', 0.1)
  programs = fragile.sandbox
  # Only one of them has a slot.
  slow = [('import time; time.sleep(0.3); print(1)', '')] * 3
  assert [r.stdout for r in programs.run_many(slow)] == ['1\n'] * 3

  os.kill(fragile.pid, signal.SIGSTOP)
  os.kill(children(fragile.pid)[0], signal.SIGSTOP)
  wait_until(lambda: not fragile.is_running())
  with monkeypatch.context() as patch:
    patch.setattr(client, '_HEALTH_SECONDS', 0.1)
    result = programs.run('print(1)')
  assert result.status is Status.INFRASTRUCTURE and 'imed' in result.stderr
  fragile.restart()
  assert fragile.is_running() and programs.run('print(1)').stdout == '1\n'

  fragile._process.kill()
  wait_until(lambda: not fragile.is_running())
  assert programs.run('print(1)').status is Status.INFRASTRUCTURE
  fragile.restart()
  assert programs.run('print(1)').stdout == '1\n'


def test_a_program_that_dies_with_its_server_is_not_blamed(fragile):
  # Bite: comparing the failures with any server that answers.
  programs = fragile.sandbox
  here = programs._server_id()
  for server_ids, blamed in (
      ([here, here], True), ([here - 1, here - 1], False),
      ([here - 1, here], False)):
    failures = list(map(client._KilledSupervisorError, server_ids))
    assert programs._program_killed_supervisor(failures) == blamed
  failures = [client._KilledSupervisorError(here)] * 2
  assert not programs._program_killed_supervisor([failures[0], TimeoutError()])
  fragile._process.kill()
  wait_until(lambda: not fragile.is_running())
  assert not programs._program_killed_supervisor(failures)


def test_a_server_whose_folder_is_gone_can_be_restarted(fragile):
  programs = fragile.sandbox
  shutil.rmtree(os.path.dirname(fragile.address))
  assert programs.run('print(1)').status is Status.INFRASTRUCTURE
  fragile.restart()
  assert programs.run('print(1)').stdout == '1\n'


def test_clients_may_disconnect(single):
  for half in (b'', b'{"source": '):  # And never the rest.
    with socket.socket(socket.AF_UNIX) as connection:
      connection.connect(single.address)
      if half:
        connection.recv(1)
        connection.sendall(half)
  assert run(single, 'print(1)').stdout == '1\n'


@pytest.mark.parametrize('folder, error, words', [
    ('x', RuntimeError, 'kernel: .* cannot run programs'),
    ('x' * 100, ValueError, 'set TMPDIR to a shorter')])
def test_a_server_that_cannot_start(
    monkeypatch, tmp_path, folder, error, words):
  monkeypatch.setattr(launcher, '_START_SERVER', '1 / 0')
  monkeypatch.setattr(launcher.tempfile, 'tempdir', str(tmp_path / folder))
  (tmp_path / folder).mkdir()
  with pytest.raises(error, match=words):
    sandbox.SandboxServer().start()
  assert not list((tmp_path / folder).iterdir())


@pytest.mark.parametrize('name, value', [
    ('memory_bytes', 1000), ('wall_seconds', float('nan')),
    ('cpu_seconds', float('inf')), ('output_bytes', 'x')])
def test_impossible_limits_are_refused(name, value):
  with pytest.raises(ValueError, match=f'{name}={value!r}'):
    sandbox.Sandbox('', sandbox.Limits(**{name: value}))


@pytest.mark.parametrize('num_slots, level, words', [
    (0, 'auto', 'num_slots=0'), (1025, 'auto', 'num_slots=1025'),
    (1, 'remote', "level='remote'"), (1, 'x', "level='x'")])
def test_impossible_servers_are_refused(num_slots, level, words):
  with pytest.raises(ValueError, match=words):
    sandbox.SandboxServer(num_slots, level)


def test_a_server_is_started_once(server):
  with pytest.raises(RuntimeError, match='already runs'):
    server.start()
  with pytest.raises(RuntimeError, match='call start'):
    sandbox.SandboxServer().address  # noqa: B018


def test_a_handle_is_a_value(server):
  programs = sandbox.Sandbox(server.address, LIMITS)
  copy = pickle.loads(pickle.dumps(programs))
  assert copy == programs and hash(copy) == hash(programs)
  assert copy.run('print(1)').stdout == '1\n'
