"""The server and its supervisors: what dies or stops, and what is left."""

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
from tests.environments.sandbox.servers import exists
from tests.environments.sandbox.servers import LIMITS
from tests.environments.sandbox.servers import wait_until

UNSAFE = 'unsafe_rlimit'
FILES = {'socket', 'health', 'packages', 'empty'}  # In a server's folder.


@pytest.fixture(scope='module')
def server():
  """At the level where programs can reach what watches them."""
  with sandbox.SandboxServer(num_slots=2, level=UNSAFE) as running:
    yield running


@pytest.fixture
def programs(server):
  return sandbox.Sandbox(server.address, LIMITS)


@pytest.fixture
def lone_unsafe():
  with sandbox.SandboxServer(num_slots=1, level=UNSAFE) as running:
    yield running


@pytest.fixture(scope='module')
def single():
  """A server with one slot, at the level of this machine."""
  with sandbox.SandboxServer(num_slots=1) as running:
    yield running


def descendants(pid):
  """Ids of all processes below one."""
  found = []
  for parent in children(pid):
    found += [parent, *descendants(parent)]
  return found


def children(pid):
  with open(f'/proc/{pid}/task/{pid}/children') as file:
    return [int(child) for child in file.read().split()]


def run(server, text, stdin='', **limits):
  return servers.run(server.address, text, stdin, **limits)


# Processes; at the other levels there are none.


@pytest.mark.skipif(os.getuid() == 0, reason='the kernel exempts root')
def test_number_of_processes(server, programs):
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
def test_processes_left_behind(server, detach):
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


def test_processes_left_behind_at_a_time_out(server):
  result = run(server, '''
      import os, time
      for _ in range(3):
        if not os.fork(): os.setsid()
      print(os.getpid(), flush=True)
      time.sleep(60)''', wall_seconds=0.5)
  pids = [int(line) for line in result.stdout.split()]
  assert result.status is Status.TIMEOUT and len(pids) == 8
  assert not any(exists(pid) for pid in pids)


def test_memory_of_other_programs(lone_unsafe):
  single = lone_unsafe  # Which lets a program read its own.
  words = ['told-to-the-earlier', 'told-to-nobody-else', 'told-to-the-present']
  run(single, f'print("{words[0]}")', words[0] * 100)
  # The program gets the words backwards, so that it cannot find its own text;
  # a search always meets the copy that it searches for.
  result = run(single, f'''
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


def test_nothing_is_left_and_the_server_lives(server, programs):
  # Runs after tests that left something.
  directory = os.path.dirname(server.address)
  pid = server.pid
  assert programs.run('print(1)').stdout == '1\n'
  assert set(os.listdir(directory)) == FILES
  assert len(os.listdir(f'/proc/{pid}/fd')) == 6  # 0, 1, 2 and the sockets.
  assert len(children(pid)) <= 2  # The waiting supervisors.


@pytest.mark.parametrize('level', servers.LEVELS)
def test_close_kills_and_removes(level):
  server = sandbox.SandboxServer(num_slots=1, level=level)
  server.start()
  address = server.address
  with futures.ThreadPoolExecutor(1) as pool:
    running = pool.submit(
        sandbox.Sandbox(address).run, 'import time; time.sleep(4)')
    wait_until(lambda: len(descendants(server.pid)) == 2)
    pids = [server.pid, *descendants(server.pid)]
    server.close()
    assert running.result().status is Status.INFRASTRUCTURE
  assert not os.path.exists(os.path.dirname(address))
  wait_until(lambda: not any(map(exists, pids)))  # Or zombies of init's.
  server.close()  # Twice is harmless.
  # Without a server a call fails, and says why.
  result = sandbox.Sandbox(address).run('print(1)')
  assert result.status is Status.INFRASTRUCTURE
  assert 'FileNotFoundError' in result.stderr


@pytest.mark.parametrize('level', servers.LEVELS)
def test_server_ends_with_its_parent(level):
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
  # What bubblewrap has mounted cannot be removed from inside.
  wait_until(lambda: not os.path.exists(address))
  assert level == 'bwrap' or not os.path.exists(os.path.dirname(address))


def test_a_failure_of_the_sandbox_is_retried_once(programs, tmp_path):
  kill = 'import os; os.kill(os.getppid(), 9)'
  mark = str(tmp_path / 'first')
  result = programs.run(
      f'import os\nif not os.path.exists({mark!r}):\n'
      f'  open({mark!r}, "w").close(); {kill}\nprint("second")')
  assert result.stdout == 'second\n'


# The process that watches a program, and the server.


@pytest.mark.parametrize('attack', [
    *(f'os.kill(os.getppid(), {int(number)})' for number in (
        signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)),
    # And then whatever has adopted it, if it lives long enough. The parent is
    # read once: asked twice, it may have become the server in between.
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


def test_what_it_leaves_behind_is_swept_up(server, tmp_path):
  pids = tmp_path  # Each makes a folder there, named for itself.
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


def test_a_supervisor_that_fails_says_so(single):
  # Else it would look like one that was killed.
  with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(single.address)
    protocol.await_greeting(connection)
    connection.sendall(b'{"source": ')
    connection.shutdown(socket.SHUT_WR)
    with connection.makefile('rb') as stream:
      reply = stream.read()
  with pytest.raises(OSError, match='supervisor failed: RuntimeError: .*died'):
    protocol.unpack_reply(reply)


@pytest.fixture
def lone():
  """A server that may be harmed."""
  with sandbox.SandboxServer(num_slots=1) as running:
    yield running


def supervisor_of(server):
  return children(server.pid)[0]


def test_a_supervisor_that_is_stopped_is_replaced(lone):
  for number in (signal.SIGSTOP, signal.SIGKILL):
    first = supervisor_of(lone)
    os.kill(first, number)
    # It waited for a client, so nobody has to try again.
    assert sandbox.Sandbox(lone.address).run('print(1)').stdout == '1\n'
    assert supervisor_of(lone) != first
  assert lone.is_running()


def test_a_dead_or_stopped_server_is_told_from_a_long_queue(
    lone, monkeypatch):
  monkeypatch.setattr(client, '_PATIENCE_SECONDS', 0.1)
  programs = sandbox.Sandbox(lone.address)
  # Half a second each, and only the first has a slot.
  slow = [('import time; time.sleep(0.5); print(1)', '')] * 4
  assert [r.stdout for r in programs.run_many(slow)] == ['1\n'] * 4

  os.kill(lone.pid, signal.SIGSTOP)
  os.kill(supervisor_of(lone), signal.SIGSTOP)
  wait_until(lambda: not lone.is_running())
  with monkeypatch.context() as patch:
    patch.setattr(client, '_HEALTH_SECONDS', 0.1)
    result = programs.run('print(1)')
  assert result.status is Status.INFRASTRUCTURE and 'imed' in result.stderr
  lone.restart()
  assert lone.is_running() and programs.run('print(1)').stdout == '1\n'

  lone._process.kill()
  wait_until(lambda: not lone.is_running())
  assert programs.run('print(1)').status is Status.INFRASTRUCTURE
  lone.restart()
  assert programs.run('print(1)').stdout == '1\n'


def test_a_program_that_dies_with_the_server_is_not_to_blame(lone):
  # Bite: whoever answers in the end counts as the server that was there.
  programs = sandbox.Sandbox(lone.address)
  here = programs._ask_server()
  for numbers, own_doing in (
      ([here, here], True), ([here - 1, here - 1], False),
      ([here - 1, here], False)):
    failures = [client._KilledSupervisorError(server) for server in numbers]
    assert programs._is_own_doing(failures) == own_doing
  failures = [client._KilledSupervisorError(here)] * 2
  assert not programs._is_own_doing([failures[0], TimeoutError()])
  lone._process.kill()
  wait_until(lambda: not lone.is_running())
  assert not programs._is_own_doing(failures)


def test_a_server_whose_folder_is_gone_can_be_restarted(lone):
  programs = sandbox.Sandbox(lone.address)
  shutil.rmtree(os.path.dirname(lone.address))
  assert programs.run('print(1)').status is Status.INFRASTRUCTURE
  lone.restart()
  assert programs.run('print(1)').stdout == '1\n'


def test_clients_that_go_away_are_no_harm(single):
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
  monkeypatch.setattr(launcher, '_START_SERVER', str(tmp_path / 'missing.py'))
  monkeypatch.setattr(launcher.tempfile, 'tempdir', str(tmp_path / folder))
  (tmp_path / folder).mkdir()
  with pytest.raises(error, match=words):
    sandbox.SandboxServer().start()
  assert not list((tmp_path / folder).iterdir())


def test_errors_say_what_to_do(server):
  for call, error, words in (
      (lambda: sandbox.Sandbox('', sandbox.Limits(memory_bytes=1000)),
       ValueError, 'memory_bytes=1000 .* at least'),
      (lambda: sandbox.Sandbox('', sandbox.Limits(wall_seconds=float('nan'))),
       ValueError, 'wall_seconds=nan'),
      (lambda: sandbox.Sandbox('', sandbox.Limits(cpu_seconds=float('inf'))),
       ValueError, 'cpu_seconds=inf .* at most'),
      (lambda: sandbox.SandboxServer(num_slots=1025), ValueError, '1 to 1024'),
      (lambda: sandbox.SandboxServer(num_slots=0), ValueError, 'num_slots=0'),
      (lambda: sandbox.SandboxServer().address, RuntimeError, 'call start'),
      (server.start, RuntimeError, 'already runs')):
    with pytest.raises(error, match=words):
      call()


def test_a_handle_is_a_value(programs):
  copy = pickle.loads(pickle.dumps(programs))
  assert copy == programs and hash(copy) == hash(programs)
  assert copy.run('print(1)').stdout == '1\n'
