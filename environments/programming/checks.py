"""Runs tests that are code: `check(candidate)` of HumanEval and MBPP.

The program and the asserts never share a process, so a program cannot forge the
result of an assert by changing `==`, the interpreter or its process. Values
pass between them as literals:

  1. `check` runs with a stand-in candidate that records the arguments of each
     call and returns an unknown value. Failing asserts are skipped.
  2. The program runs once for each recorded call, in a separate process.
  3. `check` runs with a candidate that returns the recorded values, or raises
     if the program raised, exited or timed out. New calls repeat 2 and 3.

Asserts are counted by their text, without constants such as `assert True`. An
assert in a loop holds if it holds every time. Each call has the CPU time that
the official graders give to all calls together. The tests' random numbers have
a fixed seed.

Arguments must be positional and plain (`Sandbox.call`); other calls count as
raised.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import logging
import re

from environments import sandbox as sandbox_lib
from environments.programming import grading
from environments.programming import problems

MAX_ROUNDS = 8  # Of steps 2 and 3.
_LIMITS = sandbox_lib.Limits(
    cpu_seconds=10.0, wall_seconds=30.0, memory_bytes=512 << 20,
    output_bytes=16 << 20)
_ERROR = re.compile(r'([A-Za-z_][\w.]*)(?:: (.*))?')
_MESSAGE_CHARS = 200
_REPORT = '__report__'  # A function of `_REPLAY`.

_TIMEOUT = True, ('TimeoutError', '')

# The program that runs the asserts. `run` returns
#   calls   (key, arguments) of calls without a known result
#   held    index of an assert -> its error, '' if it held
#   error   the error that ended `check` early, or ''
#   odd     arguments that cannot be sent to a program
# `known` is key -> (False, value), or (True, (name, message)) of an error.
_REPLAY = '''
import builtins
import copy

PLAIN = (type(None), bool, int, float, complex, str, bytes)


class NotKnown:
  pass


def is_plain(value):
  kind = type(value)
  if kind in (list, tuple, set, frozenset):
    return all(map(is_plain, value))
  if kind is dict:
    return all(is_plain(k) and is_plain(v) for k, v in value.items())
  return kind in PLAIN


def make_error(name, message):
  kind = getattr(builtins, name, None)
  if isinstance(kind, type) and issubclass(kind, Exception):
    try:
      return kind(message) if message else kind()
    except TypeError:
      pass
  return RuntimeError(name + ': ' + message)


def describe(error):
  text = str(error)
  return type(error).__name__ + (': ' + text if text else '')


def run(check, preamble, name, known):
  calls, held, odd = {}, {}, []

  def candidate(*args, **kwargs):
    key = repr((args, kwargs))
    if key in known:
      raised, value = known[key]
      if raised:
        raise make_error(*value)
      return copy.deepcopy(value)
    if kwargs or not is_plain(args):
      odd.append(key[:200])
      raise TypeError('arguments that are not plain')
    calls.setdefault(key, copy.deepcopy(args))
    return NotKnown()

  def report(index, condition, error=None):
    if condition:
      held.setdefault(index, '')
    elif not held.get(index):  # Keep the first error.
      held[index] = describe(error or AssertionError())

  if 'random' in preamble + check:  # Importing it doubles the run time.
    import random
    random.seed(0)
  names = {'__name__': 'tests'}
  error = ''
  try:
    exec(preamble, names)
    names[name] = candidate
    names['__report__'] = report
    exec(check, names)
    names['check'](candidate)
  except Exception as raised:
    error = describe(raised)
  return list(calls.items()), held, error, odd
'''


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Test results of a program.

  Attributes:
    passed: there are asserts, all held, and `check` ran to its end.
    asserts: their texts, in order.
    errors: the error of each assert, '' if it held.
    status: of the first call that failed; OK if none did.
    program_runs: number of calls of the program.
  """

  passed: bool
  asserts: tuple[str, ...]
  errors: tuple[str, ...]
  status: sandbox_lib.Status
  program_runs: int

  @property
  def pass_rate(self) -> float:
    """Fraction of asserts that held; 0 without asserts."""
    if not self.errors:
      return 0.0
    return self.errors.count('') / len(self.errors)

  @property
  def failed(self) -> bool:
    """True if the sandbox failed, so that the verdict is unknown."""
    return self.status is sandbox_lib.Status.INFRASTRUCTURE


class _SandboxError(Exception):
  pass


def check(
    sandbox: sandbox_lib.Sandbox, problem: problems.Problem,
    program: str) -> Verdict:
  """Runs the tests of a problem whose tests are code."""
  text, asserts = soften(problem.check_code)
  ok = sandbox_lib.Status.OK
  status, num_runs = ok, 0
  errors = dict.fromkeys(range(len(asserts)), 'not reached')
  try:
    calls, *report = _first_calls(
        sandbox, text, problem.preamble, problem.entry_point)
    known = {}
    for _ in range(MAX_ROUNDS):
      if not calls:
        break
      results = grading.run(
          sandbox, problem, program, [arguments for _, arguments in calls],
          _LIMITS.output_bytes // 4)
      num_runs += len(results)
      if grading.any_failed(results):
        raise _SandboxError
      if status is ok:
        status = next((r.status for r in results if r.status is not ok), ok)
      known |= {
          key: _TIMEOUT for key, _ in calls[len(results):]}
      known |= {
          key: _outcome(result) for (key, _), result in zip(calls, results)}
      calls, *report = _replay(
          sandbox, text, problem.preamble, problem.entry_point, known)
  except _SandboxError:
    return Verdict(
        False, asserts, tuple(errors.values()),
        sandbox_lib.Status.INFRASTRUCTURE, num_runs)
  held, error, odd = report
  for arguments in odd:
    logging.warning(
        '%s: its tests call %s with arguments that are not plain: %s',
        problem.task_id, problem.entry_point, arguments)
  errors = tuple((errors | held).values())
  return Verdict(
      bool(asserts) and not error and not any(errors) and not calls, asserts,
      errors, status, num_runs)


@functools.lru_cache(1024)
def soften(check_code: str) -> tuple[str, tuple[str, ...]]:
  """Returns code whose asserts report and continue, and the assert texts."""
  softener = _Softener()
  tree = ast.fix_missing_locations(softener.visit(ast.parse(check_code)))
  return ast.unparse(tree), tuple(softener.asserts)


class _Softener(ast.NodeTransformer):
  """Replaces `assert x` by `try: report(index, x)`."""

  def __init__(self):
    self.asserts: list[str] = []

  def visit_Assert(self, node: ast.Assert) -> ast.AST:
    if isinstance(node.test, ast.Constant):
      return ast.Pass()
    text = f'assert {ast.unparse(node.test)}'
    if text not in self.asserts:
      self.asserts.append(text)
    index = ast.Constant(self.asserts.index(text))
    return ast.Try(
        body=[_call_report(index, node.test)],
        handlers=[ast.ExceptHandler(
            type=ast.Name('Exception', ast.Load()), name='error',
            body=[_call_report(
                index, ast.Constant(False), ast.Name('error', ast.Load()))])],
        orelse=[], finalbody=[])


def _call_report(*arguments: ast.expr) -> ast.stmt:
  return ast.Expr(ast.Call(
      ast.Name(_REPORT, ast.Load()), list(arguments), keywords=[]))


@functools.lru_cache(256)
def _first_calls(
    sandbox: sandbox_lib.Sandbox, text: str, preamble: str, name: str) -> tuple:
  """Returns the result of `run` without known calls, for every program."""
  result = _run_tests(sandbox, text, preamble, name, {})
  if result.status is not sandbox_lib.Status.OK:  # No program ran yet.
    raise _SandboxError
  return result.value


def _replay(
    sandbox: sandbox_lib.Sandbox, text: str, preamble: str, name: str,
    known: dict[str, tuple]) -> tuple:
  """Returns the result of `run` with known calls."""
  result = _run_tests(sandbox, text, preamble, name, known)
  if result.status is sandbox_lib.Status.INFRASTRUCTURE:
    raise _SandboxError
  if result.status is not sandbox_lib.Status.OK:  # The values are huge.
    return [], {}, grading.last_line(result.stderr), []
  return result.value


def _run_tests(
    sandbox: sandbox_lib.Sandbox, text: str, preamble: str, name: str,
    known: dict[str, tuple]) -> sandbox_lib.CallResult:
  sandbox = dataclasses.replace(sandbox, limits=_LIMITS)
  result, = sandbox.call(_REPLAY, 'run', [(text, preamble, name, known)])
  return result


def _outcome(result: sandbox_lib.CallResult) -> tuple[bool, object]:
  """Returns an entry of `known` for a call."""
  status = sandbox_lib.Status
  if result.status is status.OK:
    return False, result.value
  if result.status is status.TIMEOUT:
    return _TIMEOUT
  if result.status is status.RESOURCE_LIMIT:
    return True, ('MemoryError', '')
  name, message = 'RuntimeError', ''
  found = _ERROR.fullmatch(grading.last_line(result.stderr))
  if found:
    name, message = found[1], (found[2] or '')[:_MESSAGE_CHARS]
  return True, (name, message)
