"""Ordinary programs run at every level, and failing programs say why."""

import resource
import sys
import time

import pytest

from environments import sandbox
from environments.sandbox import Status
from tests.environments.sandbox import servers


@pytest.fixture
def programs(server):
  return sandbox.Sandbox(server.address, servers.LIMITS)


ORDINARY = [
    ('print(int(input()) + 1)', '41', '42\n'),
    ('import sys; sys.stdout.write(sys.stdin.read())', 'ß→😀', 'ß→😀'),
    ('print(open("/dev/stdin").read(), end="")', 'x\n', 'x\n'),
    # Loaded when the program asks for them, some with shared libraries.
    ('import bz2, csv, ctypes, hashlib, lzma, sqlite3, ssl, zoneinfo\n'
     'import concurrent.futures, decimal, fractions, itertools, statistics\n'
     'print(decimal.Decimal(1) / 8)', '', '0.125\n'),
    ('import atexit; atexit.register(print, "bye")', '', 'bye\n'),
    ('print(len(str(int(input()) + 10**5000)))', '9' * 5001, '5002\n'),
    ('\ufeffprint(1)', '', '1\n'),
    ('import dataclasses, pickle\n@dataclasses.dataclass\nclass Point:\n'
     '  x: int\nprint(pickle.loads(pickle.dumps(Point(3))))', '',
     'Point(x=3)\n'),
    # The interpreter waits for threads.
    ('import threading, time\nthreading.Thread(target=lambda: ('
     'time.sleep(0.1), print("late"))).start()\nprint("early")', '',
     'early\nlate\n'),
    # The main thread runs on the stack of a thread of the server.
    ('import signal, threading\nsignal.signal(signal.SIGUSR2, print)\n'
     'print(threading.current_thread() is threading.main_thread(),\n'
     '      threading.active_count(), threading.stack_size())', '',
     'True 1 8388608\n'),
    # Address space is not memory.
    ('import threading\nthreading.stack_size(256 << 20)\n'
     'threads = [threading.Thread(target=print) for _ in range(3)]\n'
     'for t in threads: t.start()', '', '\n\n\n'),
    ('import asyncio\nasync def main():\n  await asyncio.sleep(0.01)\n'
     '  print("slept")\nasyncio.run(main())', '', 'slept\n'),
    ('import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: '
     'print("rang"))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\n'
     'time.sleep(0.1)', '', 'rang\n'),
    ('import mmap\nprint(mmap.mmap(0, 0, prot=mmap.PROT_READ)[:],'
     'len(mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)))',
     'x', "b'x' 1048576\n"),
    ('import os, socket\na, b = socket.socketpair()\na.sendall(b"x" * 9)\n'
     'print(b.recv(4, socket.MSG_PEEK), b.recv(9, socket.MSG_WAITALL))\n'
     'os.closerange(3, 100)\nprint(os.path.realpath("/dev/null"))', '',
     "b'xxxx' b'xxxxxxxxx'\n/dev/null\n"),
    ('import numpy as np\na = np.random.rand(100, 100)\n'
     'print((a @ a).shape, np.fft.fft(np.ones(4))[0], np.testing is not None)',
     '', '(100, 100) (4+0j) True\n'),
    ('import sympy\nx = sympy.symbols("x")\nprint(sympy.solve(x**2 - 2))', '',
     '[-sqrt(2), sqrt(2)]\n'),
]


# Recursive functions; all but the first recurse through C.
RECURSIVE = [
    'def f(n): return n and 1 + f(n - 1)',
    '@functools.lru_cache(None)\ndef f(n): return n and 1 + f(n - 1)',
    'def f(n): return n and 1 + next(map(f, [n - 1]))',
    'import threading\nthreading.stack_size(512 << 20)\n'
    '@functools.cache\ndef g(n): return n and 1 + g(n - 1)\n'
    'def f(n):\n  found = []\n'
    '  t = threading.Thread(target=lambda: found.append(g(n)))\n'
    '  t.start(); t.join()\n  return found[0]']


@pytest.mark.parametrize('stack_bytes', [1 << 20, resource.RLIM_INFINITY])
def test_recursion_is_deep_whatever_the_limit_of_the_caller(stack_bytes):
  recursive = RECURSIVE
  if sys.version_info[:2] in ((3, 12), (3, 13)):
    recursive = RECURSIVE[:1]  # They limit recursion through C themselves.
  soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
  if stack_bytes > hard != resource.RLIM_INFINITY:
    pytest.skip('the hard limit of stacks is lower')
  resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes, hard))
  try:
    with sandbox.SandboxServer(2) as server:
      limits = sandbox.Limits(cpu_seconds=10.0, wall_seconds=30.0)
      results = servers.run_all(sandbox.Sandbox(server.address, limits), [
          'import functools, sys\nsys.setrecursionlimit(10**6)\n'
          f'{text}\nprint(f(50_000))' for text in recursive])
  finally:
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
  for text, result in zip(recursive, results):
    assert result.stdout == '50000\n', (text, result)


# Left open, or closed by the program's end. Each writes `text` to stdout.
OPEN_FILES = [
    'out = open(1, "w"); out.write("text")',
    'out = open(1, "wb", buffering=99); out.write(b"text"); exit()',
    'import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.detach())\n'
    'print("text", end="")',
    'class A:\n  def __init__(self):\n    self.me = self\n'
    '    self.out = open(1, "w")\n    self.out.write("text")\nA()',
    'import ctypes; ctypes.CDLL(None).printf(b"text")',
    'import sys; sys.stdout.write("te"); out = open(1, "w"); out.write("xt")',
]


@pytest.mark.parametrize('program, stdin, stdout', [
    *ORDINARY, *((program, '', 'text') for program in OPEN_FILES)])
def test_ordinary_program_runs(programs, program, stdin, stdout):
  result = programs.run(program, stdin)
  assert result == sandbox.ProgramResult(Status.OK, stdout, '')


def test_packages_are_loaded_already(server):
  # A program that loads them needs half a second.
  program = 'import sys, sympy; print(len(sys.modules) > 500)'
  servers.run(server.address, program)  # Starts the fork with packages.
  result = servers.run(server.address, program, cpu_seconds=0.2)
  assert result.stdout == 'True\n', result


FAILING = [
    ('import sys; sys.exit(3)', ''),
    ('exit("no")', 'no\n'),
    ('import os; os._exit(4)', ''),
    ('1 / 0', '\nZeroDivisionError: division by zero\n'),
    ('raise KeyboardInterrupt', '\nKeyboardInterrupt\n'),
    # The memory suffices.
    ('raise MemoryError', '\nMemoryError\n'),
    ('int("9" * 50_001)', 'increase the limit\n'),
    # Not Python, or not Unicode.
    ('f(', "\nSyntaxError: '(' was never closed\n"),
    ('print("\ud800")', 'surrogates not allowed\n'),
    ('input()', 'invalid continuation byte\n'),
    ('def f(): f()\nf()', 'maximum recursion depth exceeded\n'),
    ('raise ValueError("x" * 100_000 + "end")', 'xend\n'),
    # Refused by the system.
    ('x = [open("/dev/null") for _ in range(1000)]',
     "Too many open files: '/dev/null'\n"),
    ('import ctypes; ctypes.string_at(0)', 'killed by SIGSEGV'),
    ('import os; os.kill(os.getpid(), 40)', 'killed by signal 40'),
]


@pytest.mark.parametrize('program, stderr', FAILING, ids=range(len(FAILING)))
def test_failing_program_says_why(programs, program, stderr):
  result = programs.run(program, '\ud800')
  assert result.status is Status.ERROR, result
  assert result.stderr.endswith(stderr) and bool(result.stderr) == bool(stderr)


@pytest.mark.parametrize('program, status', [
    ('import os; os.close(0); os.close(1); os.close(2)', Status.OK),
    ('import sys; del sys.stdout, sys.stderr, sys.__stdout__', Status.OK),
    ('import sys; sys.stdout.close(); sys.stderr.close(); 1 / 0',
     Status.ERROR),
    ('import sys, os; os.write(1, b"\\xff"); sys.modules.clear()', Status.OK),
    ('import os; os._exit = os.kill = None', Status.ERROR),
])
def test_program_may_break_its_streams(programs, program, status):
  assert programs.run(program).status is status


def test_traceback_shows_only_the_program(programs):
  result = programs.run('def f(x):\n  return x / 0\n\nprint(f(1))\n')
  assert 'line 4, in <module>\n    print(f(1))\n' in result.stderr
  assert 'line 2, in f\n    return x / 0\n' in result.stderr
  assert result.stderr.count('File "') == 2


RANDOM = """
import random, statistics
def draw():
  yield [random.random(), random.getrandbits(64), random.choice(range(99))]
  yield [random.Random().random(), random.Random().random()]
  random.seed()
  yield [random.random(), statistics.NormalDist().samples(2)]
  yield list({str(i) for i in range(50)})
"""
RANDOM_NUMPY = """
import numpy as np
import sympy
from sympy.core import random as sympy_random
def draw():
  yield [np.random.rand(), np.random.permutation(9), sympy_random.random()]
  yield [np.random.default_rng().random(), np.random.default_rng().random()]
  np.random.seed()
  yield [np.random.rand(), np.random.RandomState().rand()]
  yield [np.random.Generator(np.random.PCG64()).random()]
  yield [sympy.randprime(9, 9999)]
"""


@pytest.mark.parametrize('program', [RANDOM, RANDOM_NUMPY])
def test_runs_draw_the_same_random_numbers(server_at, program):
  program += (
      'numbers = list(draw())\nprint(numbers)\n'
      'assert numbers[1][0] != numbers[1][1]')
  printed = []
  for level in ('unsafe_rlimit', servers.LEVELS[0]):
    results = server_at(level).sandbox.run_tests(program, ['', ''])
    assert {result.status for result in results} == {Status.OK}, results
    printed += [result.stdout for result in results]
  assert len(set(printed)) == 1, printed


def test_waiting_for_a_slot_costs_no_time(server):
  # Requests and outputs are larger than the buffers of the sockets.
  limits = sandbox.Limits(output_bytes=1 << 20, wall_seconds=0.6)
  program = (
      f'{"#" * 500_000}\nimport time; time.sleep(0.3)\nprint("\\0" * 300_000)')
  start = time.monotonic()
  results = sandbox.Sandbox(server.address, limits).run_tests(program, [''] * 6)
  assert time.monotonic() - start > 0.9  # Two at a time.
  assert {(r.status, len(r.stdout)) for r in results} == {(Status.OK, 300_001)}
