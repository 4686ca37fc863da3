"""Attacks are refused and limits hold at every level but the unsafe one.

The tests run as the present user, and if that is root, as an ordinary user too.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from environments import sandbox
from environments.sandbox import protocol
from environments.sandbox import seccomp
from environments.sandbox import Status
from tests.environments.sandbox import attacks
from tests.environments.sandbox import servers
from tests.environments.sandbox.servers import CANARY

_OTHER_PYTHON = servers.other_python() if os.getuid() == 0 else None
_USERS = ['self'] + ['ordinary'] * (_OTHER_PYTHON is not None)


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """Names for the attacks, of things that must stay untouched."""
  folder = tmp_path_factory.mktemp('world')
  for parent in (folder, *folder.parents):
    if parent.owner() == folder.owner() and parent != pathlib.Path('/tmp'):
      parent.chmod(0o755)  # Only the sandbox keeps others out.
  secret = folder / 'secret.txt'
  secret.write_text(CANARY)
  secret.chmod(0o666)
  with subprocess.Popen(
      [sys.executable, '-S', '-c', 'input()'], stdin=subprocess.PIPE,
      env={'HF_TOKEN': CANARY}) as victim:
    yield {
        'CANARY': str(secret), 'VICTIM': victim.pid,
        'SOURCE': sandbox.__file__, 'INSTALLED': pytest.__file__}
    assert victim.poll() is None
    victim.stdin.close()
  assert secret.read_text() == CANARY
  assert os.listdir(folder) == ['secret.txt']
  assert secret.stat().st_mode & 0o777 == 0o666
  assert not list(pathlib.Path('/tmp').glob('forged*'))
  assert not list(pathlib.Path('/dev/shm').glob('forged*'))


@pytest.fixture(
    scope='module', params=[
        (user, level) for user in _USERS for level in servers.CONFINED],
    ids=' '.join)
def address(request, server_at):
  """One server for all attacks: it must survive them."""
  user, level = request.param
  if user == 'ordinary':
    with servers.ordinary_server(_OTHER_PYTHON, level) as found:
      yield found
  else:
    yield server_at(level).address


@pytest.fixture(scope='module')
def results(address, world):
  """Name of an attack -> its result."""
  done = servers.run_all(sandbox.Sandbox(address, servers.LIMITS), [
      attacks.program(line, {**world, 'SERVER': address})
      for line in attacks.ATTACKS.values()])
  return dict(zip(attacks.ATTACKS, done, strict=True))


@pytest.mark.parametrize('name', attacks.ATTACKS)
def test_attack_is_refused(results, name):
  stdout = results[name].stdout
  assert re.fullmatch(r'begun\nrefused \d+\n', stdout), results[name]


def test_every_call_that_is_not_listed_is_refused(address):
  listed = seccomp.numbers_of(os.uname().machine).values()
  # The kernel filters no calls of probes (335 and 336), and ends the program.
  numbers = sorted({*range(600)} - {335, 336, *listed})
  x32 = [number | 1 << 30 for number in range(600)]
  result = servers.run(address, f'''
      import ctypes
      libc = ctypes.CDLL(None, use_errno=True)
      for number in {numbers + x32}:
        result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
        assert (result, ctypes.get_errno()) == (-1, 1), number
      print('refused')''')
  assert result.stdout == 'refused\n', result


@pytest.mark.skipif(os.uname().machine != 'x86_64', reason='x86-64 code')
def test_a_32_bit_call_ends_the_program(address):
  result = servers.run(address, '''
      import ctypes, mmap
      page = mmap.mmap(-1, 4096, flags=34, prot=7)
      page.write(bytes.fromhex('b802000000cd80c3'))  # fork()
      print('begun', flush=True)
      ctypes.CFUNCTYPE(ctypes.c_long)(
          ctypes.addressof(ctypes.c_char.from_buffer(page)))()
      print('ESCAPED')''')
  assert (result.stdout, result.stderr) == ('begun\n', 'killed by SIGSYS')


@pytest.mark.skipif(
    os.uname().machine != 'x86_64' or os.getuid() != 0
    or 'kernel' not in servers.CONFINED, reason='x86-64 code, run by root')
def test_kernel_refuses_more_threads_of_a_program_of_root(server_at):
  # A thousand calls of `clone`, faster than threads are counted.
  result = servers.run(server_at('kernel').address, '''
      import ctypes, mmap
      page = mmap.mmap(-1, 4096, flags=34, prot=7)
      page.write(bytes.fromhex(
          '5331dbb838000000bf000f010031f60f0585c07410780affc381fb'
          'e803000072e289d85bc3b8220000000f05ebf7'))
      print(ctypes.CFUNCTYPE(ctypes.c_int)(
          ctypes.addressof(ctypes.c_char.from_buffer(page)))())''')
  assert (result.status, result.stdout) == (Status.OK, '63\n'), result


def test_cpu_limit_is_exact_if_its_signal_is_ignored(address):
  result = servers.run(address, '''
      import os, signal, time
      signal.signal(signal.SIGXCPU, signal.SIG_IGN)
      while True: os.pwrite(1, b"%.3f" % time.process_time(), 0)''',
      cpu_seconds=0.2, wall_seconds=20.0)
  assert (result.status, result.stderr) == (Status.TIMEOUT, CPU)
  assert 0.1 < float(result.stdout) < 0.4


CPU = 'stopped: CPU limit of 0.2 s'
WALL_CLOCK = 'stopped: wall-clock limit of 0.1 s'
MEMORY = (
    'stopped: memory limit of 134217728 bytes', 'Cannot allocate memory\n')
OUTPUT = 'stopped: more than 10000 bytes of output'
THREADS = 'stopped: more than 64 threads', "can't start new thread\n"


@pytest.mark.parametrize('program, stderr', [
    ('10 ** 10 ** 10', CPU),  # One operation of the interpreter.
    ('import os, signal; os.kill(os.getpid(), signal.SIGSTOP)', WALL_CLOCK),
    ('import signal, time\nfor s in (1, 2, 3, 15): signal.signal(s, print)\n'
     'while True: time.sleep(1)', WALL_CLOCK),
    ('[0] * 10**9', MEMORY),
    ('x = b"x" * (160 << 20); del x', MEMORY),
    ('import sys\nsys.setrecursionlimit(10**6)\ndef f(n):\n  x = [n] * 10**5\n'
     '  return max(map(f, [n + 1]))\nf(0)', MEMORY),
    ('import threading\nthreading.stack_size(512 << 20)\n'
     'def f():\n  x = []\n  while True: x.append(b"x" * 4096)\n'
     't = threading.Thread(target=f); t.start(); t.join()', MEMORY),
    ('import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 22, 34))',
     MEMORY),
    # Pages of zeros are not resident, but their page tables take memory.
    ('import ctypes\nmmap = ctypes.CDLL(None).mmap\n'
     'mmap.restype = ctypes.c_void_p\n'
     'for i in range(60_000):\n  ctypes.c_char.from_address(mmap(\n'
     '    ctypes.c_void_p((1 << 40) + (i << 30)), 4096, 1, 0x32, -1, 0)).value',
     MEMORY),
    ('import threading, time\nthreading.stack_size(65536)\nwhile True:\n'
     '  threading.Thread(target=time.sleep, args=(60,), daemon=True).start()',
     THREADS),
    # The kernel reports no memory of a process whose main thread has ended.
    ('import ctypes, os, threading, time\n'
     'threading.Thread(target=time.sleep, args=(60,)).start()\n'
     'ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93)',
     'killed by SIGKILL'),
    ('print("x" * 20_000)', OUTPUT),
    ('import sys\nwhile True: print("x" * 99, file=sys.stderr)', OUTPUT),
    # It ignores the signal, or takes space in another way.
    ('import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
     'try:\n  while True: os.write(1, b"x" * 4096)\nexcept OSError: pass',
     OUTPUT),
    ('import os\nos.lseek(1, 10_000, 0); os.write(1, b"x")', OUTPUT)])
def test_limits_hold(address, program, stderr):
  result = servers.run(
      address, program,
      # Filling memory or starting threads may take a busy kernel a second.
      cpu_seconds=0.2 if stderr is CPU else 5.0,
      wall_seconds=0.1 if stderr is WALL_CLOCK else 20.0)
  assert result.status is not Status.OK
  assert result.stderr.endswith(stderr), result
  assert len(result.stdout) in (0, 10_000)


@pytest.mark.parametrize('package', ['', '# numpy'])
def test_nothing_of_the_trainer_is_inherited(address, package):
  result = servers.run(address, f'''
      {package}
      import ctypes, os, sys
      print(dict(os.environ), ctypes.CDLL(None).getenv(b'HF_TOKEN'))
      for fd in range(1024):
        try:
          print(fd, os.fstat(fd).st_size)
        except OSError:
          pass
      print({{name for name in sys.modules if 'environments' in name}})
      print(sys.path == [p for p in sys.path if 'site-packages' not in p])
      import environments''')
  assert result.stdout == (
      '{} 0\n0 0\n1 0\n2 0\nset()\nTrue\n'), result
  assert result.stderr.endswith("No module named 'environments'\n"), result


@pytest.mark.usefixtures('results')
def test_attacks_leave_nothing_and_the_server_lives(address):
  directory = os.path.dirname(address)
  assert servers.run(address, 'print(1)').stdout == '1\n'
  assert set(os.listdir(directory)) == {
      *protocol.SOCKETS, protocol.WORK_DIRECTORY}
  assert not os.listdir(os.path.join(directory, 'empty'))
