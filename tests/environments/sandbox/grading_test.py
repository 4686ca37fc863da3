"""Functions are called and tests are run; no program forges a pass.

A grader compares the results outside.
"""

import math
import textwrap

import numpy as np
import pytest

from environments import sandbox
from environments.programming import comparisons
from environments.sandbox import literals
from environments.sandbox import Status
from tests.environments.sandbox import forgeries
from tests.environments.sandbox import fusion
from tests.environments.sandbox import servers


@pytest.fixture(scope='module')
def local(server_at):
  return server_at(servers.LEVELS[0]).sandbox


@pytest.fixture(scope='module', params=['local', 'remote'])
def programs(request, local, unsafe):
  if request.param == 'local':
    yield local
  else:
    with fusion.running(unsafe.sandbox) as service:
      yield sandbox.RemoteSandbox(service.url)


def call(programs, source, *arguments, function='f'):
  result, = programs.call(textwrap.dedent(source), function, [arguments])
  return result


def test_each_call_has_a_new_process(programs):
  # Bite: all calls in one process.
  source = 'seen = []\ndef f(x):\n  seen.append(x)\n  print(x)\n  return seen'
  results = programs.call(source, 'f', [(i,) for i in range(5)])
  assert [r.value for r in results] == [[i] for i in range(5)]
  assert [r.stdout for r in results] == [f'{i}\n' for i in range(5)]
  results_of_tests = programs.run_tests('print(input())', list('abcdef'))
  assert [r.stdout for r in results_of_tests] == [f'{x}\n' for x in 'abcdef']
  assert {(r.status, r.stderr) for r in results} == {(Status.OK, '')}
  assert programs.call(source, 'f', []) == programs.run_tests(source, []) == []


def test_arguments_and_values_keep_their_types(programs):
  given = (
      None, True, -7, 10**50, 2.5, math.inf, 1 - 2j, 'ß→😀', b'\xff', [1, [2]],
      (1, ()), {1: {'a': (2,)}, (1, 2): None}, {1, 'x'}, frozenset({2}))
  result = call(programs, 'def f(*given): return given', *given)
  assert result.status is Status.OK, result
  assert result.value == given
  assert list(map(type, result.value)) == list(map(type, given))
  assert math.isnan(call(programs, 'def f(x): return x', math.nan).value)
  assert call(programs, 'def f(x): return x', np.int64(3)).value == 3


def test_calls_in_turn_share_a_process(programs):
  calls = [
      literals.Call(([2],), {}), literals.Call(([3],), {'z': {4}}, 0),
      literals.Call(([5],), {'z': {6}}, 0)]
  results = programs.call_in_turn(
      'def f(x):\n  def g(y, z):\n    x.extend(y)\n    y.clear()\n'
      '    z.add(7)\n    return x\n  return g', 'f', [calls, calls[:2]])
  assert [result.value for result in results] == [
      ([2, 3, 5], ([],), {'z': {6, 7}}), ([2, 3], ([],), {'z': {4, 7}})]


SOLUTION = '''
    class Solution:
      def __init__(self): self.one = 1
      def method(self, x): return x + self.one
      @staticmethod
      def static(x): return x + 2
      class Inner:
        def __call__(self, x): return x + 3
    inner = Solution.Inner()
    twice = lambda x: 2 * x
    if __name__ == '__main__': print(input())
    '''


@pytest.mark.parametrize('function, value', [
    ('Solution().method', 6), ('Solution.static', 7), ('Solution().static', 7),
    ('Solution.Inner()', 8), ('inner', 8), ('twice', 10),
    ('Solution().method|twice', 6), ('Solution().twice|twice', 10),
    ('Other().twice|twice', 10), ('twice|inner', 10)])
def test_names_of_functions(programs, function, value):
  result = call(programs, SOLUTION, 5, function=function)
  assert (result.status, result.value, result.stdout) == (Status.OK, value, '')


@pytest.mark.parametrize('source, function, stderr', [
    (SOLUTION, 'Solution.method', "required positional argument: 'x'\n"),
    (SOLUTION, 'missing', "has no attribute 'missing'\n"),
    (SOLUTION, 'inner()()', "has no attribute 'inner()'\n"),
    ('f = 3', 'f', "'int' object is not callable\n"),
    ('def f(x): return 1 / 0', 'f', '\nZeroDivisionError: division by zero\n'),
    ('def f(x): return', 'f', ''),  # No error: None is a value.
    ('def f(x): return iter(int, x)', 'f', 'it has an iterator over more than '
     '100000 values.\n'),
    ('f(', 'f', "\nSyntaxError: '(' was never closed\n"),
    ('def f(x):\n  import sys\n  sys.exit()', 'f',
     'stopped: no value of f came back'),
    ('def f(x):\n  print("a", file=__import__("sys").stderr, end="")\n'
     '  exit()', 'f', 'a\nstopped: no value of f came back')])
def test_calls_that_fail(programs, source, function, stderr):
  result = call(programs, source, 5, function=function)
  assert result.value is None
  assert (result.status is Status.ERROR) == bool(stderr), result
  assert result.stderr.endswith(stderr) and bool(result.stderr) == bool(stderr)
  # Nothing of the sandbox itself.
  assert 'program.py' not in result.stderr
  assert 'literals.py' not in result.stderr


@pytest.mark.parametrize('source, status', [
    ('def f(x): return "x" * 100_000', Status.RESOURCE_LIMIT),
    # The value came back, but a thread goes on.
    ('import threading\ndef f(x):\n  threading.Thread(target=g).start()\n'
     '  return 5\ndef g():\n  while True: pass', Status.TIMEOUT)])
def test_a_value_needs_a_program_that_ends_well(local, source, status):
  limits = servers.LIMITS._replace(cpu_seconds=0.1)
  result = call(sandbox.Sandbox(local.address, limits), source, 5)
  assert (result.status, result.value) == (status, None), result


def test_arguments_without_a_text_are_refused(local):
  with pytest.raises(ValueError, match='f cannot be called with'):
    local.call('def f(x): pass', 'f', [(1,), (object(),)])


SECRET = 123_456  # The right value is SECRET + x, which no program knows.


@pytest.mark.parametrize('name', forgeries.FORGERIES)
def test_no_program_forges_a_pass(programs, name):
  source = forgeries.FORGERIES[name]
  result = call(programs, source, 5, 6, function='add')
  printed, = programs.run_tests(f'{source}\nprint(add(int(input()), 6))', ['5'])
  assert {result.status, printed.status} <= {
      Status.OK, Status.ERROR, Status.TIMEOUT}, result
  # Neither side of a comparison belongs to the program.
  value = result.value
  for expected in (SECRET + 5, [SECRET + 5], (SECRET + 5,), {SECRET + 5}):
    assert not comparisons.same_value(value, expected)
    assert not comparisons.same_value([value], [expected])
  assert str(SECRET + 5) != str(value)
  assert str(SECRET + 5) not in printed.stdout
