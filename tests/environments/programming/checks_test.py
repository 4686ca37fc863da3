"""Tests that are code: verdicts, and programs that try to forge them."""

import pytest

from environments import sandbox as sandbox_lib
from environments.programming import checks
from tests.environments.programming import examples
from tests.environments.sandbox import forgeries

Status = sandbox_lib.Status


@pytest.mark.parametrize('body, errors, status', [
    ('return x + y', [], Status.OK),
    ('return x + y if x != 3 else 0', [3], Status.OK),
    ('return (x + y, "a")[x == "a"]', [2], Status.OK),
    ('if x == "a": raise KeyError("no")\n  return x + y', [2], Status.ERROR),
    # An error outside of an assert ends `check`.
    ('if x == [1]: raise KeyError\n  return x + y', [4], Status.ERROR),
    ('return (x + y) * 1.0 if x == 1 else x + y', [], Status.OK),
])
def test_failing_asserts_lower_the_pass_rate(sandbox, body, errors, status):
  verdict = checks.check(
      sandbox, examples.make_check(), f'def add(x, y):\n  {body}')
  assert verdict.asserts == (
      'assert candidate(1, 2) == 3', 'assert candidate(0.1, 0.2) == 0.1 + 0.2',
      "assert candidate('a', 'b') == 'ab'", 'assert candidate(i, i) == 2 * i',
      'assert len(total) == 2 and total[1] == 2')
  assert [i for i, error in enumerate(verdict.errors) if error] == errors
  assert verdict.passed is (not errors)
  assert verdict.pass_rate == (5 - len(errors)) / 5
  assert verdict.status is status


def test_verdict_has_the_errors_of_the_program(sandbox):
  program = """
class Own(Exception): pass
def add(x, y):
  if x == 1: raise ZeroDivisionError('a: b')
  if x == 0.1: raise KeyError
  if x == 'a': raise Own('no')
  if x == 0: raise UnicodeDecodeError('utf-8', b'', 0, 0, 'odd')
  exit('that is all')
"""
  verdict = checks.check(sandbox, examples.make_check(), program)
  assert verdict.errors == (
      'ZeroDivisionError: a: b', 'KeyError', 'Exception: program.Own: no',
      "Exception: UnicodeDecodeError: 'utf-8' codec can't decode bytes in "
      'position 0--1: odd', 'not reached')


EXPECTS_ERRORS = '''
def check(candidate):
    for i in range(20):
        try:
            candidate(i, 'a')
            assert 0, 'no error'  # A constant is not counted.
        except TypeError:
            pass
    assert candidate(1, 1) == 2
'''
DEPENDS_ON_VALUES = '''
import random
def check(candidate):
    x = 1
    for _ in range({}):
        x = candidate(x, x)
    assert x > 7
    assert candidate(random.random(), 0) < 1
'''
MUTATES = '''
def check(candidate):
    a = [twice(1)]
    assert candidate(a, [3]) == [2, 3]
    a.append(9)
    assert candidate(a, []) == [2, 9]
'''
OTHER_ARGUMENTS = '''
class Node: pass
def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(Node(), 2) == 3
    assert candidate(abs, 2) == 3
    assert candidate([iter([])], 2) == 3
'''
NOT_PLAIN = 'TypeError: arguments that are not plain'


@pytest.mark.parametrize('check, program, errors', [
    (EXPECTS_ERRORS, examples.ADD, ['']),
    (EXPECTS_ERRORS, 'def add(x, y): return 2 if x != 19 else x + y',
     ['not reached']),
    ('def check(candidate):\n'
     '  assert all(map(lambda i: candidate(i, 0) == i, [1, 2]))',
     'def add(x, y): raise StopIteration', ['Exception: StopIteration']),
    (EXPECTS_ERRORS, 'class Own(TypeError): pass\n'
     'def add(x, y):\n  if x != y: raise Own\n  return 2', ['not reached']),
    # A value that would take the trainer seconds to decode.
    (f'{examples.CHECK.partition("    assert candidate(0")[0]}',
     'def add(x, y): return [[]] * 400_000', ['MemoryError']),
    (DEPENDS_ON_VALUES.format(3), examples.ADD, ['', '']),
    (DEPENDS_ON_VALUES.format(30), examples.ADD, ['not reached'] * 2),
    (MUTATES, examples.ADD, ['', '']),
    (MUTATES, 'def add(x, y):\n  x += y\n  return x', ['', 'AssertionError']),
    (OTHER_ARGUMENTS, examples.ADD, ['', *[NOT_PLAIN] * 3]),
    ('def check(candidate):\n  pass', examples.ADD, []),
    ('def check(candidate):\n  candidate(1, 2)', examples.ADD, [])])
def test_other_forms_of_tests(sandbox, check, program, errors):
  problem = examples.make_check(
      check, preamble=f'def twice(x):\n    return 2 * x\n\n{examples.STUB}')
  verdict = checks.check(sandbox, problem, program)
  assert list(verdict.errors) == errors
  assert verdict.passed is (bool(errors) and not any(errors))
  assert verdict.status is not Status.INFRASTRUCTURE


# Programs, and asserts that hold for them in one process. Other types of values
# are in `literals_test.py`.
VALUES = {
    'generator': (
        'def f(x): yield from x', 'f([1]) != [1] and next(f([1])) == 1'),
    'order of an OrderedDict': (
        'def f(x):\n  x.move_to_end(1)\n  return x',
        '(lambda d: list(f(d)) == list(d) == [3, 1])('
        '__import__("collections").OrderedDict({1: 2, 3: 4}))'),
    'numbers as arguments': (
        'from decimal import *\ndef f(x): return Decimal(int(2 * x)) / 4',
        'f(f(3)) == 0.75 == f(__import__("fractions").Fraction(3, 2))'),
    'array': (
        'import numpy\nf = numpy.array',
        'f([1, 2]).tolist() == [1, 2] and (f([1, 2]) == [1, 2]).all()'),
    'object': (
        'class A:\n  def __bool__(self): return False\ndef f(x): return A()',
        'not f(1) and f(1) is not None and f(1) != 0'),
    'order of an argument': (
        'def f(x): x[1] = x.pop(1)',
        '(lambda x: f(x) is None and list(x) == [3, 1])({1: 2, 3: 4})'),
    'type in an argument': (
        'def f(x): x[0] = True',
        '(lambda x: f(x) is None and x[0] is True)([1])'),
    'keyword argument': (
        'def f(x, *, y): x[1] = y.pop()',
        '(lambda x, y: f(y=y, x=x) or (x, y) == ({1: 3}, [2]))({}, [2, 3])'),
    'function': (
        'def f(x): return lambda y, z=1: x + y + z',
        'f(1)(2) == 4 and f(1)(2, z=3) == 6 and callable(f(1))'),
    'function with a state': (
        'def f(x):\n  def g():\n    nonlocal x\n    x += 1\n    return x\n'
        '  return g', '(lambda g: [g(), g(), g()] == [2, 3, 4])(f(1))'),
    'class': ('class f:\n  pass', 'f() and f() != f()'),
}


def test_values_compare_as_in_one_process(sandbox):
  for name, (program, condition) in VALUES.items():
    check = (
        f'def check(f):\n  assert {condition}\n  assert not ({condition})')
    problem = examples.make_check(check, entry_point='f', preamble='')
    verdict = checks.check(sandbox, problem, program)
    assert verdict.errors == ('', 'AssertionError'), (name, verdict)
  direct = sandbox.run('\n'.join(
      f'names = {{}}\nexec({program!r}, names)\n'
      f'assert eval({condition!r}, names), {name!r}  # numpy'
      for name, (program, condition) in VALUES.items()))
  assert direct.status is Status.OK, direct


@pytest.mark.parametrize('value', [
    'nested(99)', '{-1: 2, -2: 3}', '"\\ud800"', 'float("nan")', 'nested(500)',
    'type("T", (), {"__eq__": None})()', 'iter(int, 1)'])
def test_unusual_values_fail_and_stop_nothing(sandbox, value):
  verdict = checks.check(sandbox, examples.make_check(), f"""
def nested(n):
  value = 0
  for _ in range(n): value = [value]
  return value
def add(x, y): return {value}
""")
  assert not verdict.passed
  assert verdict.status is not Status.INFRASTRUCTURE


def test_third_timeout_ends_the_calls(sandbox):
  problem = examples.make_check(time_limit=0.1)
  verdict = checks.check(sandbox, problem, '''
import time
def add(x, y):
  while x in (0.1, 'a', 0) and time.process_time() < 0.2: pass
  return x + y
''')
  # Batches of one, two and four calls; three of them time out.
  assert verdict.status is Status.TIMEOUT
  assert verdict.program_runs == 7
  assert verdict.errors == ('', *['TimeoutError'] * 3, 'not reached')


def test_sandbox_failures_are_not_cached(sandbox, monkeypatch):
  problem = examples.make_check()
  broken = sandbox_lib.Sandbox('/nowhere')
  verdict = checks.check(broken, problem, examples.ADD)
  assert verdict.status is Status.INFRASTRUCTURE and not verdict.passed
  checks._first_report.cache_clear()
  with monkeypatch.context() as patch:
    patch.setattr(checks, '_REPLAY', 'bytearray(2**40)')  # Too large.
    verdict = checks.check(sandbox, problem, examples.ADD)
  assert verdict.status is Status.INFRASTRUCTURE
  assert checks.check(sandbox, problem, examples.ADD).passed


def test_tests_that_exit_are_named(sandbox):
  problem = examples.make_check(
      'def check(candidate):\n  assert candidate(1, 2) == 3\n  exit()')
  with pytest.raises(ValueError, match='fail without a program: .*no value'):
    checks.check(sandbox, problem, examples.ADD)


@pytest.mark.parametrize('name', forgeries.FORGERIES)
def test_no_forgery_passes(sandbox, name):
  verdict = checks.check(
      sandbox, examples.make_check(), forgeries.FORGERIES[name])
  assert not verdict.passed
  assert verdict.status is not Status.INFRASTRUCTURE
  # A constant may be correct once.
  assert verdict.pass_rate <= 0.2


@pytest.mark.parametrize('name', ['equal object', 'sys.exit', 'os._exit'])
def test_forgery_passes_if_asserts_share_its_process(sandbox, name):
  """Shows that the test above can fail."""
  check = examples.CHECK.partition('    for i')[0]
  result = sandbox.run(f'{forgeries.FORGERIES[name]}\n{check}\ncheck(add)')
  assert result.status is Status.OK
