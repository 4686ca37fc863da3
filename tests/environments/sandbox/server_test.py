"""The server and its supervisors survive what dies, stops or is left behind."""

from concurrent import futures
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from environments import sandbox
from environments.sandbox import protocol
from environments.sandbox import Status
from environments.sandbox.processes import children
from tests.checkout import is_running
from tests.checkout import wait_until
from tests.environments.sandbox import servers
from tests.environments.sandbox.servers import descendants


@pytest.mark.parametrize('detach', ['pass', 'os.setsid()', 'os.setpgid(0, 0)'])
@pytest.mark.parametrize('end, status', [
    ('pass', Status.OK), ('while True: pass', Status.TIMEOUT)])
def test_no_process_is_left_behind(unsafe, detach, end, status):
  result = servers.run(unsafe.address, f'''
      import os, time
      reader, writer = os.pipe()
      if os.fork() == 0:
        {detach}
        if os.fork() == 0:
          os.write(writer, str(os.getpid()).encode())
          time.sleep(60)  # Holds stdout and stderr open.
        os._exit(0)
      print(os.read(reader, 10).decode(), flush=True)
      {end}''', cpu_seconds=0.1)
  assert result.status is status, result
  assert not os.path.exists(f'/proc/{int(result.stdout)}')


def test_no_text_of_another_program_is_in_memory(unsafe):
  words = ['told-to-the-earlier', 'told-to-nobody-else', 'told-to-the-present']
  for _ in range(4):  # Both slots have seen it.
    servers.run(unsafe.address, f'print("{words[0]}")', words[0] * 100)
  # The program gets the words backwards, so that it does not find its source; a
  # search always finds the copy that it searches for.
  result = servers.run(unsafe.address, f'''
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
      print(found)''', words[2], memory_bytes=1 << 30, cpu_seconds=10.0,
               wall_seconds=30.0)
  earlier, nobody, present = json.loads(result.stdout)
  assert earlier == nobody < present


def test_root_has_no_capabilities_inside(unsafe):
  # At this level, programs may read it.
  status = servers.run(
      unsafe.address, 'print(open("/proc/self/status").read())').stdout
  assert f'CapPrm:\t{"0" * 16}\nCapEff:\t{"0" * 16}\n' in status
  assert 'NoNewPrivs:\t1\n' in status


@pytest.mark.parametrize('level', servers.CONFINED)
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
  wait_until(lambda: not any(map(is_running, pids)))
  server.close()  # A second call is harmless.


@pytest.mark.parametrize('level', servers.CONFINED)
def test_server_ends_with_its_parent(level):
  program = f'''
      import os
      from environments import sandbox
      from environments.sandbox import launcher
      launcher._START_SERVER = launcher._START_SERVER.replace(
          'server.main', 'server._SERVER_TICK = 0.1; server.main')
      server = sandbox.SandboxServer(num_slots=1, level={level!r})
      server.start()
      print(server.address, server.pid, flush=True)
      os.kill(os.getpid(), 9)'''
  child = subprocess.run(
      [sys.executable, '-c', textwrap.dedent(program)], capture_output=True,
      text=True, cwd=servers.ROOT)
  address, pid = child.stdout.split()
  assert child.returncode == -signal.SIGKILL
  wait_until(lambda: not is_running(pid))
  # The server cannot remove the folder that bubblewrap mounted.
  wait_until(lambda: not os.path.exists(address))
  folder = os.path.dirname(address)
  assert os.path.exists(folder) == (level == 'bwrap')


@pytest.mark.parametrize('attack', [
    'os.kill(os.getppid(), 19)',
    # And then every process that adopts it. The parent is read once: between
    # two reads it may become the server.
    'while (parent := os.getppid()) != SERVER: os.kill(parent, 9)'])
def test_program_that_ends_its_supervisor_has_failed(unsafe, attack):
  result = servers.run(unsafe.address, f'''
      import os, time
      SERVER = {unsafe.pid}
      {attack}
      time.sleep(1)''', wall_seconds=60.0)
  assert result.status is Status.ERROR, result
  assert 'ended or stopped the process that watched it' in result.stderr
  assert servers.run(unsafe.address, 'print(1)').stdout == '1\n'


def test_supervisor_survives_clients_that_disconnect(unsafe):
  for half in (b'', b'{"source": '):
    with socket.socket(socket.AF_UNIX) as connection:
      connection.connect(unsafe.address)
      connection.sendall(half)
  # `half` is not a request. Silence would blame the program.
  with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(unsafe.address)
    connection.sendall(half)
    connection.shutdown(socket.SHUT_WR)
    with connection.makefile('rb') as stream:
      report = protocol.unpack_report(stream.read())
  assert report.status is Status.INFRASTRUCTURE
  assert 'RuntimeError: a process died' in report.reason
  assert servers.run(unsafe.address, 'print(1)').stdout == '1\n'


def test_server_whose_folder_was_removed_can_be_restarted():
  with sandbox.SandboxServer(num_slots=1) as server:
    programs = server.sandbox
    shutil.rmtree(os.path.dirname(server.address))
    assert programs.run('print(1)').status is Status.INFRASTRUCTURE
    server.restart()
    assert server.is_running() and programs.run('print(1)').stdout == '1\n'


def test_unsafe_server_is_left_as_it_was(unsafe):
  # Runs after the tests above.
  assert servers.run(unsafe.address, 'print(1)').stdout == '1\n'
  assert set(os.listdir(os.path.dirname(unsafe.address))) == {
      *protocol.SOCKETS, protocol.WORK_DIRECTORY}
  # 0, 1, 2 and the sockets.
  assert len(os.listdir(f'/proc/{unsafe.pid}/fd')) == 5
  # Two supervisors and the process with the packages.
  wait_until(lambda: len(children(unsafe.pid)) <= 3)
