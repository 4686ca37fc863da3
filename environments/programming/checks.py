"""Tests that are code: `check(candidate)` of HumanEval and MBPP.

The program and the asserts never share a process, so a program cannot forge
what an assert says, whatever it does to `==`, to the interpreter or to its
process. Values go between them as literals:

  1. `check` runs with a candidate that knows no value yet and writes down the
     arguments that it is called with. An assert that fails is passed over.
  2. The program runs, once for each of these calls, in a process of its own.
  3. `check` runs with a candidate that gives these values, or raises where the
     program raised, ended or took too long. If it is called with arguments that
     are not known yet, 2. and 3. are done again.

What is counted are asserts of different texts, but for constants such as
`assert True`. One in a loop holds if it holds every time. A call has the CPU
time that the official graders give to all calls together. Random numbers of the
tests are drawn from a fixed seed.

Arguments are given by position and are plain, see `Sandbox.call`; a call with
others counts as one that raised.
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

MAX_ROUNDS = 8  # Of 2. and 3.
_LIMITS = sandbox_lib.Limits(
    cpu_seconds=10.0, wall_seconds=30.0, memory_bytes=512 << 20,
    output_bytes=16 << 20)
_ERROR = re.compile(r'([A-Za-z_][\w.]*)(?:: (.*))?')
_MESSAGE_CHARS = 200
_REPORT = '__report__'  # Name of a function of `_REPLAY`.

_TIMEOUT = True, ('TimeoutError', '')

# The program that runs the asserts. `run` returns
#   calls   what was asked for and is not known: (key, arguments)
#   held    index of an assert -> whether it held, and the error if not
#   error   why `check` ended early, or ''
#   odd     arguments that no program can be given
# `known` is key -> whether the program raised, and its value, or the name and
# the message of what it raised.
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
    elif not held.get(index):  # The first error stays.
      held[index] = describe(error or AssertionError())

  if 'random' in preamble + check:  # To import it takes as long as all else.
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
  """What the tests say of a program.

  Attributes:
    passed: there are asserts, all held, and `check` came to its end.
    asserts: the texts of the asserts, in their order.
    errors: for each of them '', or why it did not hold.
    status: how the first call ended that did not end well; OK without one.
    program_runs: calls of the program.
  """

  passed: bool
  asserts: tuple[str, ...]
  errors: tuple[str, ...]
  status: sandbox_lib.Status
  program_runs: int

  @property
  def share(self) -> float:
    """Of asserts that held, 0 to 1; of no asserts 0."""
    if not self.errors:
      return 0.0
    return self.errors.count('') / len(self.errors)

  @property
  def failed(self) -> bool:
    """The sandbox failed, so the verdict is not known."""
    return self.status is sandbox_lib.Status.INFRASTRUCTURE


class _SandboxError(Exception):
  """The sandbox failed."""


def check(
    sandbox: sandbox_lib.Sandbox, problem: problems.Problem,
    program: str) -> Verdict:
  """Runs the tests of a problem of the kind check."""
  text, asserts = soften(problem.check_code)
  ok = sandbox_lib.Status.OK
  status, num_runs = ok, 0
  nothing = dict.fromkeys(range(len(asserts)), 'not reached')
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
        False, asserts, tuple(nothing.values()),
        sandbox_lib.Status.INFRASTRUCTURE, num_runs)
  held, error, odd = report
  for arguments in odd:
    logging.warning(
        '%s: its tests call %s with what no program can be given: %s',
        problem.task_id, problem.entry_point, arguments)
  errors = tuple((nothing | held).values())
  return Verdict(
      bool(asserts) and not error and not any(errors) and not calls, asserts,
      errors, status, num_runs)


@functools.lru_cache(1024)
def soften(check_code: str) -> tuple[str, tuple[str, ...]]:
  """Text whose asserts report and go on, and the texts of the asserts."""
  softener = _Softener()
  tree = ast.fix_missing_locations(softener.visit(ast.parse(check_code)))
  return ast.unparse(tree), tuple(softener.asserts)


class _Softener(ast.NodeTransformer):
  """Writes `try: report(index, x)` for `assert x`."""

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
  """What `run` returns with nothing known; the same for every program."""
  result = _run_tests(sandbox, text, preamble, name, {})
  if result.status is not sandbox_lib.Status.OK:  # It is no program's fault.
    raise _SandboxError
  return result.value


def _replay(
    sandbox: sandbox_lib.Sandbox, text: str, preamble: str, name: str,
    known: dict[str, tuple]) -> tuple:
  """What `run` returns."""
  result = _run_tests(sandbox, text, preamble, name, known)
  if result.status is sandbox_lib.Status.INFRASTRUCTURE:
    raise _SandboxError
  if result.status is not sandbox_lib.Status.OK:  # Of values that are huge.
    return [], {}, grading.last_line(result.stderr), []
  return result.value


def _run_tests(
    sandbox: sandbox_lib.Sandbox, text: str, preamble: str, name: str,
    known: dict[str, tuple]) -> sandbox_lib.CallResult:
  """Calls `run` of `_REPLAY`."""
  sandbox = dataclasses.replace(sandbox, limits=_LIMITS)
  result, = sandbox.call(_REPLAY, 'run', [(text, preamble, name, known)])
  return result


def _outcome(result: sandbox_lib.CallResult) -> tuple[bool, object]:
  """Whether a call raised, and its value, or the name and message of that."""
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
