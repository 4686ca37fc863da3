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
    ('return [1, 2]', [0, 1, 2, 3], Status.OK),
    ('return None', [0, 1, 2, 3, 4], Status.OK),
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
      'ZeroDivisionError: a: b', 'KeyError', 'RuntimeError: program.Own: no',
      "RuntimeError: UnicodeDecodeError: 'utf-8' codec can't decode bytes in "
      'position 0--1: odd', 'not reached')


EXPECTS_ERROR = '''
def check(candidate):
    try:
        candidate(1, 'a')
    except TypeError:
        pass
    else:
        assert False  # A constant is not counted.
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
    assert candidate(x=1, y=2) == 3
    assert candidate(Node(), 2) == 3
'''
NOT_PLAIN = 'TypeError: arguments that are not plain'


@pytest.mark.parametrize('check, program, errors', [
    (EXPECTS_ERROR, examples.ADD, ['']),
    (EXPECTS_ERROR, 'def add(x, y):\n  return x + y if x == y else 1 / 0',
     ['not reached']),
    (DEPENDS_ON_VALUES.format(3), examples.ADD, ['', '']),
    (DEPENDS_ON_VALUES.format(30), examples.ADD, ['not reached'] * 2),
    (MUTATES, 'def add(x, y):\n  x += y\n  return x', ['', '']),
    (OTHER_ARGUMENTS, examples.ADD, ['', NOT_PLAIN, NOT_PLAIN]),
    ('def check(candidate):\n  pass', examples.ADD, []),
    ('def check(candidate):\n  assert True', examples.ADD, []),
    ('def check(candidate):\n  candidate(1, 2)', examples.ADD, [])])
def test_other_forms_of_tests(sandbox, check, program, errors):
  problem = examples.make_check(
      check, preamble=f'def twice(x):\n    return 2 * x\n\n{examples.STUB}')
  verdict = checks.check(sandbox, problem, program)
  assert list(verdict.errors) == errors
  assert verdict.passed is (bool(errors) and not any(errors))
  assert verdict.status is not Status.INFRASTRUCTURE


def test_third_timeout_ends_the_calls(sandbox):
  problem = examples.make_check(time_limit=0.2)
  verdict = checks.check(sandbox, problem, '''
import time
def add(x, y):
  while x in (0.1, 'a', 0) and time.process_time() < 0.3: pass
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
  with monkeypatch.context() as patch:  # The tests fail without a program.
    patch.setattr(checks, '_REPLAY', '1 / 0')
    verdict = checks.check(sandbox, problem, examples.ADD)
  assert verdict.status is Status.INFRASTRUCTURE
  assert checks.check(sandbox, problem, examples.ADD).passed


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
