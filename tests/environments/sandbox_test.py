"""The sandbox: ordinary programs run, each claim of its docstring holds."""

from concurrent import futures
import fcntl
import json
import multiprocessing
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from environments import sandbox
from environments.sandbox import client
from environments.sandbox import protocol
from environments.sandbox import Status
from environments.sandbox import supervisor

CANARY = 'canary-1f9c'
LIMITS = sandbox.Limits(
    cpu_seconds=1.0, wall_seconds=4.0, memory_bytes=128 << 20,
    output_bytes=10_000)


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  """One server for all tests: it must survive all of them."""
  secret = tmp_path_factory.mktemp('secret') / 'secret.txt'
  secret.write_text(CANARY)
  with pytest.MonkeyPatch.context() as patch, secret.open() as file:
    patch.setenv('HF_TOKEN', CANARY)
    os.set_inheritable(file.fileno(), True)
    with sandbox.SandboxServer(num_slots=2) as running:
      yield running


@pytest.fixture
def programs(server):
  return sandbox.Sandbox(server.address, LIMITS)


@pytest.fixture(scope='module')
def single():
  """A server with one slot."""
  with sandbox.SandboxServer(num_slots=1) as running:
    yield running


def source(text):
  return textwrap.dedent(text)


def exists(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return True


def wait_until(condition, seconds=5.0):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


# Ordinary programs.


@pytest.mark.parametrize('program, stdin, stdout', [
    ('print(int(input()) + 1)', '41', '42\n'),
    ('import sys; print(sys.stdin.buffer.read())', 'ß\n', "b'\\xc3\\x9f\\n'\n"),
    ('import sys; sys.stdout.write(sys.stdin.read())', 'ß→😀', 'ß→😀'),
    ('print(open(0).read(), end="")', 'x\n', 'x\n'),
    ('import json, math, re, heapq; print(json.dumps(math.pi))', '',
     '3.141592653589793\n'),
    ('print(__name__)', '', '__main__\n'),
    ('def f(n): return n and 1 + f(n - 1)\nprint(f(950))', '', '950\n'),
    ('import atexit; atexit.register(print, "bye")', '', 'bye\n'),
    ('print("x", end=""); exit()', '', 'x'),
    ('open("f", "w").write("kept")\nprint(open("f").read())', '', 'kept\n'),
    ('import sys; print(len(sys.argv), sys.flags.utf8_mode)', '', '1 1\n'),
])
def test_ordinary_program(programs, program, stdin, stdout):
  result = programs.run(program, stdin)
  assert (result.status, result.exit_code) == (Status.OK, 0), result
  assert (result.stdout, result.stderr) == (stdout, '')


def test_classes_of_the_program_can_be_pickled(programs):
  result = programs.run(source('''
      import dataclasses, pickle
      @dataclasses.dataclass
      class Point:
        x: int
      print(pickle.loads(pickle.dumps(Point(3))))'''))
  assert result.stdout == 'Point(x=3)\n', result


def test_threads_are_waited_for(programs):
  result = programs.run(source('''
      import threading, time
      threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()
      print('early')'''))
  assert result.stdout == 'early\nlate\n', result


@pytest.mark.parametrize('program, exit_code, last_line', [
    ('import sys; sys.exit(3)', 3, ''),
    ('exit("no")', 1, 'no'),
    ('import os; os._exit(4)', 4, ''),
    ('1 / 0', 1, 'ZeroDivisionError: division by zero'),
    ('raise KeyboardInterrupt', 1, 'KeyboardInterrupt'),
    ('f(', 1, "SyntaxError: '(' was never closed"),
])
def test_failing_program(programs, program, exit_code, last_line):
  result = programs.run('print("before")\n' + program)
  assert (result.status, result.exit_code) == (Status.ERROR, exit_code), result
  assert (result.stderr.splitlines() or [''])[-1] == last_line


def test_traceback_shows_the_program_and_nothing_else(programs):
  result = programs.run('def f(x):\n  return x / 0\n\nprint(f(1))\n')
  assert 'line 4, in <module>\n    print(f(1))\n' in result.stderr
  assert 'line 2, in f\n    return x / 0\n' in result.stderr
  assert result.stderr.count('File "') == 2


def test_output_before_a_failure_is_kept(programs):
  result = programs.run('print("before"); [0] * 10**9')
  assert (result.status, result.stdout) == (Status.RESOURCE_LIMIT, 'before\n')


def test_times_are_measured(programs):
  result = programs.run(source('''
      import time
      time.sleep(0.3)
      while time.process_time() < 0.2: pass'''))
  assert 0.45 < result.wall_seconds < 3.0
  assert 0.15 < result.cpu_seconds < 0.5


def test_sets_have_the_same_order_in_every_server(programs, single):
  program = 'print(list({str(i) for i in range(50)}))'
  other = sandbox.Sandbox(single.address)
  assert programs.run(program).stdout == other.run(program).stdout


def test_programs_do_not_share_random_numbers(single):
  program = 'import random, os; print(random.random(), os.urandom(4))'
  results = sandbox.Sandbox(single.address).run_many([(program, '')] * 3)
  assert len({result.stdout for result in results}) == 3


def test_a_source_of_one_megabyte(programs):
  program = f'text = {"x" * 1_000_000!r}\nprint(len(text))'
  assert programs.run(program).stdout == '1000000\n'


# Many at once.


def test_run_many_keeps_the_order(programs):
  jobs = [('print(int(input()) ** 2)', str(i)) for i in range(100)]
  results = programs.run_many(jobs)
  assert [r.stdout for r in results] == [f'{i * i}\n' for i in range(100)]
  assert programs.run_many([]) == []


def _squares(programs, start):
  jobs = [('print(int(input()) ** 2)', str(start + i)) for i in range(10)]
  return [int(result.stdout) for result in programs.run_many(jobs)]


def test_several_processes_share_one_server(programs):
  context = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(2, mp_context=context) as pool:
    tasks = [pool.submit(_squares, programs, 10 * i) for i in range(4)]
    found = [value for task in tasks for value in task.result()]
  assert found == [i * i for i in range(40)]


def test_large_outputs_and_sources_at_once(single):
  # More than the sockets hold, in both directions, with every slot taken.
  limits = sandbox.Limits(output_bytes=1 << 20)
  program = f'{"#" * 500_000}\nprint("\\0" * 300_000)'
  programs = sandbox.Sandbox(single.address, limits)
  results = programs.run_many([(program, '')] * 4)
  assert {len(result.stdout) for result in results} == {300_001}


def test_waiting_for_a_slot_costs_no_time(single):
  limits = sandbox.Limits(wall_seconds=1.0)
  programs = sandbox.Sandbox(single.address, limits)
  start = time.monotonic()
  results = programs.run_many([('import time; time.sleep(0.4)', '')] * 4)
  assert time.monotonic() - start > 1.6  # One slot: one after the other.
  assert {result.status for result in results} == {Status.OK}


# Hostile programs: the docstring's list, line by line.


@pytest.mark.parametrize('program', [
    'while True: pass',
    'import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n'
    'while True: pass',
    '10 ** 10 ** 10',  # Inside one operation of the interpreter.
])
def test_cpu_time(server, program):
  # Time enough for two seconds of a core that others use as well.
  limits = LIMITS._replace(wall_seconds=30.0)
  result = sandbox.Sandbox(server.address, limits).run(program)
  assert result.status is Status.TIMEOUT, result
  assert result.stderr.endswith('stopped: CPU limit of 1.0 s')


@pytest.mark.parametrize('program', [
    'import time; time.sleep(60)',
    'import os, signal; os.kill(os.getpid(), signal.SIGSTOP)',
    'import threading; threading.Event().wait()',
    'import signal, time\nfor s in (1, 2, 3, 15): signal.signal(s, print)\n'
    'while True: time.sleep(1)',
])
def test_wall_clock(server, program):
  limits = sandbox.Limits(wall_seconds=0.3)
  start = time.monotonic()
  result = sandbox.Sandbox(server.address, limits).run(program)
  assert result.status is Status.TIMEOUT, result
  assert result.stderr == 'stopped: wall-clock limit of 0.3 s'
  assert time.monotonic() - start < 2.0


@pytest.mark.parametrize('program', [
    '[0] * 10**9',
    'x = []\nwhile True: x.append(bytes(1 << 20))',
    'import mmap; mmap.mmap(-1, 1 << 30)',
])
def test_memory(programs, program):
  result = programs.run(program)
  if 'mmap' in program:  # Told to the program as an OSError.
    assert result.status is Status.ERROR
    assert 'Cannot allocate memory' in result.stderr
  else:
    assert result.status is Status.RESOURCE_LIMIT, result
    assert result.stderr.splitlines()[-2:] == [
        'MemoryError', 'stopped: memory limit of 134217728 bytes']


@pytest.mark.parametrize('stream', ['stdout', 'stderr'])
@pytest.mark.parametrize('ending', ['while True: pass', ''])
def test_output(programs, stream, ending):
  result = programs.run(
      f'import sys; sys.{stream}.write("x" * 20_000)\n'
      f'sys.{stream}.flush()\n{ending}')
  assert result.status is Status.RESOURCE_LIMIT, result
  assert result.stderr.endswith('stopped: more than 10000 bytes of output')
  assert (result.stdout + result.stderr).count('x' * 10_000) == 1
  assert result.wall_seconds < 0.9  # Stopped at once, not by another limit.


def test_a_program_that_reads_its_own_output(server):
  limits = LIMITS._replace(output_bytes=1 << 30)
  result = sandbox.Sandbox(server.address, limits).run('''
import os, threading, time
fd = os.open('/proc/self/fd/1', os.O_RDONLY)
end = time.monotonic() + 0.5
def read():
  while time.monotonic() < end:
    os.read(fd, 4096)
for _ in range(3):
  threading.Thread(target=read, daemon=True).start()
while time.monotonic() < end:
  os.write(1, b'x' * 4096)
''')
  assert result.status is Status.OK, result
  assert set(result.stdout) <= {'x', '\0'}


@pytest.mark.parametrize('closes', [False, True])
def test_output_that_is_gone_when_it_is_sent(monkeypatch, closes):
  pipe, program_pipe = os.pipe()
  os.write(program_pipe, b'abc')
  ioctl = fcntl.ioctl

  def read_between(*arguments):
    held = ioctl(*arguments)
    assert os.read(pipe, 2) == b'ab'
    if closes:
      os.close(program_pipe)
    return held

  monkeypatch.setattr(fcntl, 'ioctl', read_between)
  client_end, server_end = socket.socketpair()
  with client_end, server_end, open(pipe, 'rb', 0) as file:
    output = supervisor.Output(protocol.STDOUT, file, 100)
    assert output.move(server_end) == 3
    server_end.shutdown(socket.SHUT_WR)
    assert client_end.makefile('rb').read() == protocol.frame(
        protocol.STDOUT, b'c\0\0')
  if not closes:
    os.close(program_pipe)


def test_file_size(programs):
  result = programs.run(
      'with open("f", "wb") as f:\n  while True: f.write(bytes(1 << 20))')
  assert result.status is Status.RESOURCE_LIMIT, result
  assert 'a file of more than' in result.stderr


def test_number_of_open_files(programs):
  result = programs.run('x = [open("/dev/null") for _ in range(1000)]')
  assert 'Too many open files' in result.stderr


@pytest.mark.skipif(os.getuid() == 0, reason='the kernel exempts root')
def test_number_of_processes(server, programs):
  result = programs.run(source('''
      import os, time
      for i in range(2000):
        if not os.fork():
          time.sleep(60)'''))
  assert 'BlockingIOError' in result.stderr
  limits = sandbox.Limits(wall_seconds=0.5)
  result = sandbox.Sandbox(server.address, limits).run(source('''
      import os
      while True:
        try:
          os.fork()
        except OSError:
          pass'''))
  assert result.status is Status.TIMEOUT, result


@pytest.mark.parametrize('detach', ['', 'os.setsid()', 'os.setpgid(0, 0)'])
def test_processes_left_behind(programs, detach):
  start = time.monotonic()
  result = programs.run(source(f'''
      import os, time
      reader, writer = os.pipe()
      if os.fork() == 0:
        {detach or 'pass'}
        if os.fork() == 0:
          os.write(writer, str(os.getpid()).encode())
          time.sleep(60)  # Holds stdout and stderr open.
        os._exit(0)
      print(os.read(reader, 10).decode())'''))
  assert result.status is Status.OK, result
  assert not exists(int(result.stdout))
  assert time.monotonic() - start < 2.0


def test_processes_left_behind_at_a_time_out(server):
  limits = sandbox.Limits(wall_seconds=0.5)
  result = sandbox.Sandbox(server.address, limits).run(source('''
      import os, time
      for _ in range(3):
        if not os.fork(): os.setsid()
      print(os.getpid(), flush=True)
      time.sleep(60)'''))
  pids = [int(line) for line in result.stdout.split()]
  assert result.status is Status.TIMEOUT and len(pids) == 8
  assert not any(exists(pid) for pid in pids)


@pytest.mark.parametrize('trap', [
    'open("f", "w").write("x")',
    'os.makedirs("a/b"); open("a/b/f", "w").close()\n'
    'os.chmod("a/b", 0); os.chmod("a", 0); os.chmod(".", 0)',
    'for _ in range(3000): os.mkdir("d"); os.chdir("d")',
    'os.symlink("/", "root"); os.symlink("root", "loop")',
])
def test_files_left_behind(server, programs, trap):
  result = programs.run(f'import os; print(os.getcwd())\n{trap}')
  assert result.status is Status.OK, result
  directory = result.stdout.strip()
  assert os.path.dirname(directory) == os.path.dirname(server.address)
  assert not os.path.exists(directory)


def test_environment(programs):
  result = programs.run(source('''
      import os
      print(dict(os.environ), open('/proc/self/environ').read())'''))
  assert result.stdout == (
      '{} MALLOC_ARENA_MAX=1\0PYTHONHASHSEED=0\0\n'), result
  assert CANARY not in result.stdout


def test_modules_are_those_of_the_standard_library(programs):
  result = programs.run(source('''
      import sys
      names = {name.partition('.')[0] for name in sys.modules}
      print(names - sys.stdlib_module_names)
      import environments'''))
  assert result.stdout == "{'__main__'}\n"
  assert result.stderr.endswith("No module named 'environments'\n"), result


def test_open_files_of_others(programs):
  result = programs.run(source('''
      import os, stat
      for fd in range(1024):
        try:
          mode = os.fstat(fd).st_mode
        except OSError:
          continue
        print(fd, stat.S_ISREG(mode), stat.S_ISFIFO(mode))'''))
  assert result.stdout == '0 True False\n1 False True\n2 False True\n', result


def test_memory_of_other_programs(single):
  programs = sandbox.Sandbox(single.address)
  words = ['told-to-the-earlier', 'told-to-nobody-else', 'told-to-the-present']
  programs.run(f'print("{words[0]}")', words[0] * 100)
  # The program gets the words backwards, so that it cannot find its own text;
  # a search always meets the copy that it searches for.
  result = programs.run(source(f'''
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
      print(found)'''), words[2])
  earlier, nobody, present = json.loads(result.stdout)
  assert earlier == nobody < present


@pytest.mark.parametrize('program, signal_name', [
    ('import ctypes; ctypes.string_at(0)', 'SIGSEGV'),
    ('import os; os.abort()', 'SIGABRT'),
    ('import os; os.kill(0, 9)', 'SIGKILL'),
])
def test_crashes(programs, program, signal_name):
  result = programs.run(program)
  assert result.status is Status.ERROR, result
  assert result.exit_code == -getattr(signal, signal_name)
  assert result.stderr == f'killed by {signal_name}'


@pytest.mark.parametrize('program, words', [
    ('def f(): f()\nf()', 'RecursionError'),
    ('print("\ud800")', 'UnicodeEncodeError'),
    ('print("a\0b")', 'null bytes'),
    ('(' * 100_000, 'too many nested parentheses'),
    ('raise ValueError("x" * 100_000 + "end")', 'xend'),
])
def test_bad_sources(programs, program, words):
  result = programs.run(program)
  assert result.status is Status.ERROR, result
  assert words in result.stderr


def test_bad_input(programs):
  result = programs.run('input()', '\ud800')
  assert result.status is Status.ERROR
  assert 'UnicodeDecodeError' in result.stderr


@pytest.mark.parametrize('program, status', [
    ('import os; os.close(0); os.close(1); os.close(2)', Status.OK),
    ('import sys; sys.stdout = sys.stderr = None', Status.OK),
    ('import sys; del sys.stdout, sys.stderr, sys.__stdout__', Status.OK),
    ('import sys; sys.stdout.close(); sys.stderr.close(); 1 / 0',
     Status.ERROR),
    ('import sys; sys.excepthook = None; 1 / 0', Status.ERROR),
    ('import sys, os; os.write(1, b"\\xff"); sys.modules.clear()', Status.OK),
    ('import builtins; builtins.print = builtins.open = None', Status.OK),
    ('import os; os._exit = os.kill = None', Status.ERROR),
])
def test_broken_streams(programs, program, status):
  assert programs.run(program).status is status


def test_setuid_tools_give_no_rights(programs):
  result = programs.run(
      'print([l for l in open("/proc/self/status") if "NoNewPrivs" in l])')
  assert 'NoNewPrivs:\\t1' in result.stdout


# The server.


def test_nothing_is_left_and_the_server_lives(server, programs):
  # Runs after the hostile tests, which used the same server.
  directory = os.path.dirname(server.address)
  pid = server._process.pid
  assert programs.run('print(1)').stdout == '1\n'
  assert os.listdir(directory) == ['socket']
  assert len(os.listdir(f'/proc/{pid}/fd')) == 4  # 0, 1, 2 and the listener.
  with open(f'/proc/{pid}/task/{pid}/children') as file:
    assert len(file.read().split()) <= 2  # The waiting supervisors.


def test_close_kills_and_removes(tmp_path):
  server = sandbox.SandboxServer(num_slots=1)
  server.start()
  address = server.address
  with futures.ThreadPoolExecutor(1) as pool:
    report = tmp_path / 'pid'
    running = pool.submit(sandbox.Sandbox(address).run, (
        f'import os, time; open({str(report)!r}, "w").write(str(os.getpid()))\n'
        'time.sleep(4)'))
    wait_until(lambda: report.exists() and report.read_text())
    server.close()
    assert running.result().status is Status.INFRASTRUCTURE
  assert not os.path.exists(os.path.dirname(address))
  assert not exists(int(report.read_text()))
  server.close()  # Twice is harmless.


def test_server_ends_with_its_parent(tmp_path):
  child = subprocess.run(
      [sys.executable, '-c', source('''
          import os
          from environments import sandbox
          server = sandbox.SandboxServer(num_slots=1)
          server.start()
          print(server.address, server._process.pid, flush=True)
          os.kill(os.getpid(), 9)''')],
      capture_output=True, text=True,
      cwd=pathlib.Path(__file__).parents[2])
  address, pid = child.stdout.split()
  assert child.returncode == -signal.SIGKILL
  wait_until(lambda: not exists(int(pid)))
  assert not os.path.exists(os.path.dirname(address))


def test_a_failure_of_the_sandbox_is_retried_once(programs, tmp_path):
  program = f'''
import os
if not os.path.exists({str(tmp_path / 'first')!r}):
  open({str(tmp_path / 'first')!r}, 'w').close()
  os.kill(os.getppid(), 9)
print('second')'''
  assert programs.run(program).stdout == 'second\n'
  result = programs.run('import os; os.kill(os.getppid(), 9)')
  assert result.status is Status.INFRASTRUCTURE
  assert result.exit_code is None and 'failed twice' in result.stderr


def test_no_server(tmp_path):
  result = sandbox.Sandbox(str(tmp_path / 'socket')).run('print(1)')
  assert result.status is Status.INFRASTRUCTURE
  assert 'FileNotFoundError' in result.stderr


def test_clients_that_go_away_are_no_harm(single):
  for _ in range(3):
    with socket.socket(socket.AF_UNIX) as connection:
      connection.connect(single.address)
  with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(single.address)
    connection.recv(1)
    connection.sendall(b'{"source": ')  # And never the rest.
  assert sandbox.Sandbox(single.address).run('print(1)').stdout == '1\n'


def test_a_server_that_cannot_start(monkeypatch, tmp_path, capfd):
  monkeypatch.setattr(client, '_START_SERVER', str(tmp_path / 'missing.py'))
  monkeypatch.setattr(client.tempfile, 'tempdir', str(tmp_path))
  with pytest.raises(RuntimeError, match='cannot run programs'):
    sandbox.SandboxServer().start()
  assert not list(tmp_path.iterdir())
  assert 'missing.py' in capfd.readouterr().err


def test_errors_say_what_to_do(monkeypatch, tmp_path, server):
  with pytest.raises(ValueError, match='memory_bytes=1000 .* at least'):
    sandbox.Sandbox('', sandbox.Limits(memory_bytes=1000))
  with pytest.raises(ValueError, match='wall_seconds=nan'):
    sandbox.Sandbox('', sandbox.Limits(wall_seconds=float('nan')))
  with pytest.raises(ValueError, match='num_slots=0'):
    sandbox.SandboxServer(num_slots=0)
  with pytest.raises(RuntimeError, match='call start'):
    _ = sandbox.SandboxServer().address
  with pytest.raises(RuntimeError, match='already runs'):
    server.start()
  long = tmp_path / ('x' * 100)
  long.mkdir()
  monkeypatch.setattr(client.tempfile, 'tempdir', str(long))
  with pytest.raises(ValueError, match='set TMPDIR to a shorter'):
    sandbox.SandboxServer().start()
  assert not list(long.iterdir())


def test_the_handle_is_a_value(programs):
  assert pickle.loads(pickle.dumps(programs)) == programs
  assert hash(programs) == hash(sandbox.Sandbox(programs.address, LIMITS))
