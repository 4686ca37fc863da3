"""Runs tests that are code: `check(candidate)` of HumanEval and MBPP.

The program and the asserts never share a process, so a program cannot forge the
result of an assert by changing `==`, the interpreter or its process. Values
pass between them as text, see `environments.sandbox.literals`:

  1. `check` runs with a stand-in candidate that records the arguments of each
     call and returns an unknown value. Failing asserts are skipped.
  2. The program runs once for each recorded call, in a separate process.
  3. `check` runs with a candidate that returns the recorded values, or raises
     if the program raised, exited or timed out. New calls repeat 2 and 3.

The candidate also changes its arguments as the program did. If the program
returned a function, the candidate returns a stand-in for it. A call of the
stand-in is run in one process after the calls that led to it.

Asserts are counted by their text, without constants: `assert True` does
nothing, and `assert False` ends the tests. An assert in a loop holds if it
holds every time. Each call has the CPU time that the official graders give to
all calls together. The tests' random numbers have a fixed seed.

Differences from running the asserts and the program in one process:

1. Values and arguments are of the types in `environments.sandbox.literals`.
   Instances of a program's classes have a truth but no attributes, and equal
   nothing, whatever their `==` says. A namedtuple is a tuple, a Counter or a
   defaultdict a dictionary, and a view of a dictionary an iterator. An iterator
   ends within 100,000 values.
2. Arguments must have a type in `PLAIN` or `PLAIN_NAMES`. Functions, iterators,
   arrays and instances of the tests' classes raise TypeError in the tests.
3. Values and arguments are copies: `f(x) is x` is false, and no object is in a
   value twice. A value and its arguments have at most 512 KiB as text.
4. A returned function must be the value itself, not a part of it. It has no
   attributes, and coroutines cannot be awaited.
5. Errors have the type and the message of the program's. Those of its own
   classes and StopIteration become instances of Exception.
6. Calls do not see global variables that earlier calls changed, nor the tests'
   variables and standard input. Tests see neither the program's output nor its
   other names.
7. Tests fail if their calls depend on earlier values in more than MAX_ROUNDS
   steps, or if they have no asserts.
"""

import ast
import dataclasses
import functools

from environments import sandbox as sandbox_lib
from environments.programming import grading
from environments.programming import problems

MAX_ROUNDS = 8  # Maximum repetitions of steps 2 and 3.
_LIMITS = sandbox_lib.Limits(
    cpu_seconds=10.0, wall_seconds=30.0, memory_bytes=512 << 20,
    output_bytes=16 << 20)
_VALUE_BYTES = 256 << 10  # Half the limit of a value with its arguments.
_ALL_VALUES_BYTES = 4 << 20  # Of a round; decoded they take up to 20 times it.
_ERROR_CHARS = 200

_Status = sandbox_lib.Status
_LIMIT_ERRORS = {
    _Status.TIMEOUT: 'TimeoutError', _Status.RESOURCE_LIMIT: 'MemoryError'}

# The program that runs the asserts. `run` returns
#   calls   (key, session) of calls without a known result
#   held    index of an assert -> its error, '' if it held
#   error   the error that ended `check` early, or ''
# A session is a list of `literals.Call`. `known` is the key of a session
# -> (False, (value, arguments, keywords)) with the arguments after the last
# call, or (True, (name, message)) of an error.
_REPLAY = '''
import builtins
import collections
import copy
import sys

PLAIN = {
    type(None), bool, int, float, complex, str, bytes, range, list, tuple, set,
    frozenset, dict, collections.Counter, collections.OrderedDict,
    collections.defaultdict, collections.deque}
# Importing these modules would take longer than most programs.
PLAIN_NAMES = {'decimal': 'Decimal', 'fractions': 'Fraction'}


class NotKnown:
  pass


def is_plain(value):
  kind = type(value)
  if kind not in PLAIN and not any(
      kind is getattr(sys.modules.get(module), name, None)
      for module, name in PLAIN_NAMES.items()):
    return False
  if isinstance(value, dict):
    return is_plain(list(value.items()))
  return isinstance(value, (str, bytes, range)) or not hasattr(
      kind, '__iter__') or all(map(is_plain, value))


def replace(given, after):
  for old, new in zip(given, after):
    # Equal values may differ in their order or in the types of elements.
    if hasattr(old, 'clear') and repr(old) != repr(new):
      old.clear()
      getattr(old, 'extend', getattr(old, 'update', None))(new)


def make_error(name, message):
  kind = getattr(builtins, name, None)
  # StopIteration would silently end a `map` over the tests.
  if (isinstance(kind, type) and issubclass(kind, Exception)
      and kind is not StopIteration):
    try:
      return kind(message) if message else kind()
    except TypeError:
      pass
  return Exception(name + (': ' + message if message else ''))


def describe(error):
  text = str(error)
  return type(error).__name__ + (': ' + text if text else '')


def run(check, preamble, name, known):
  sessions, held = {}, {}

  def candidate(*args, **kwargs):
    return call([], None, args, kwargs)

  def call(session, target, args, kwargs):
    if not is_plain((args, kwargs)):
      raise TypeError('arguments that are not plain')
    index = len(session)
    session.append(copy.deepcopy((args, kwargs, target)))
    key = repr(session)
    if key not in known:
      sessions.setdefault(key, list(session))
      return NotKnown()
    raised, result = known[key]
    if raised:
      raise make_error(*result)
    value, after, keywords = copy.deepcopy(result)
    replace(args, after)
    replace(kwargs.values(), keywords.values())
    if type(value).__name__ == 'Opaque' and value.is_callable:
      return lambda *args, **kwargs: call(session, index, args, kwargs)
    return value

  def report(index, condition, error=None):
    if condition:
      held.setdefault(index, '')
    elif not held.get(index):  # Keep the first error.
      held[index] = describe(error or AssertionError())

  def fail():
    if not sessions:  # Otherwise it may depend on an unknown value.
      raise AssertionError

  if 'random' in preamble + check:  # Importing it doubles the run time.
    import random
    random.seed(0)
  names = {'__name__': 'tests'}
  error = ''
  try:
    exec(preamble, names)
    names[name] = candidate
    names['__report__'] = report
    names['__fail__'] = fail
    exec(check, names)
    names['check'](candidate)
  except Exception as raised:
    error = describe(raised)
  return list(sessions.items()), held, error
'''


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Test results of a program."""

  passed: bool  # There are asserts, all held, and `check` ran to its end.
  asserts: tuple[str, ...]  # Their texts, in order.
  errors: tuple[str, ...]  # The error of each assert, '' if it held.
  # The first failure of a call, or OK. INFRASTRUCTURE means that the sandbox
  # failed, so the verdict is unknown.
  status: _Status
  program_runs: int  # Number of calls of the program.

  @property
  def pass_rate(self) -> float:
    """Fraction of asserts that held; 0 without asserts."""
    return self.errors.count('') / max(1, len(self.errors))


class _SandboxError(Exception):
  pass


def check(
    sandbox: sandbox_lib.Sandbox, problem: problems.Problem,
    program: str) -> Verdict:
  """Runs the tests of a problem whose tests are code."""
  code, asserts = soften(problem.check_code)
  tests = code, problem.preamble, problem.entry_point
  errors = dict.fromkeys(range(len(asserts)), 'not reached')
  known, results = {}, []
  try:
    calls, held, error = _first_report(sandbox, tests)
    for _ in range(MAX_ROUNDS):
      if not calls:
        break
      found = [*grading.run(
          sandbox, problem, program, [session for _, session in calls],
          min(_VALUE_BYTES, _ALL_VALUES_BYTES // len(calls)))]
      results += found
      if grading.any_failed(found):
        raise _SandboxError
      known |= dict.fromkeys(
          (key for key, _ in calls), (True, ('TimeoutError', '')))
      known |= {key: _outcome(result) for (key, _), result in zip(calls, found)}
      calls, held, error = _report(sandbox, tests, known)
  except _SandboxError:
    return Verdict(
        False, asserts, tuple(errors.values()), _Status.INFRASTRUCTURE,
        len(results))
  errors = tuple((errors | held).values())
  status = next(
      (x.status for x in results if x.status is not _Status.OK), _Status.OK)
  return Verdict(
      bool(asserts) and not error and not any(errors) and not calls, asserts,
      errors, status, len(results))


@functools.lru_cache(1024)
def soften(check_code: str) -> tuple[str, tuple[str, ...]]:
  """Returns code whose asserts report and continue, and the assert texts."""
  softener = _Softener()
  tree = ast.fix_missing_locations(softener.visit(ast.parse(check_code)))
  return ast.unparse(tree), tuple(softener.asserts)


class _Softener(ast.NodeTransformer):
  """Replaces `assert x` by a call of `report` that never raises.

  `assert False` ends the tests, as after a call that should have raised.
  """

  def __init__(self):
    self.asserts: list[str] = []

  def visit_Assert(self, node: ast.Assert) -> ast.AST:
    if isinstance(node.test, ast.Constant):
      code = 'pass' if node.test.value else '__fail__()'
      return ast.parse(code).body[0]
    text = f'assert {ast.unparse(node.test)}'
    if text not in self.asserts:
      self.asserts.append(text)
    index = self.asserts.index(text)
    softened, = ast.parse(
        'try:\n'
        f'  __report__({index}, condition)\n'
        'except Exception as error:\n'
        f'  __report__({index}, False, error)\n').body
    softened.body[0].value.args[1] = node.test
    return softened


@functools.lru_cache(256)
def _first_report(
    sandbox: sandbox_lib.Sandbox, tests: tuple[str, str, str]) -> tuple:
  """Returns the report without known calls, shared by all programs."""
  return _report(sandbox, tests, {})


def _report(
    sandbox: sandbox_lib.Sandbox, tests: tuple[str, str, str],
    known: dict[str, tuple]) -> tuple:
  """Returns the result of `run` in `_REPLAY`.

  Raises:
    ValueError: the tests raise an error, or exit, before any program ran.
    _SandboxError: the sandbox failed, or stopped these tests.
  """
  sandbox = dataclasses.replace(sandbox, limits=_LIMITS)
  result, = sandbox.call(_REPLAY, 'run', [(*tests, known)])
  if result.status is _Status.OK:
    return result.value
  if result.status is _Status.ERROR and not known:
    raise ValueError(
        'the tests fail without a program: '
        f'{grading.last_line(result.stderr)}')
  if result.status is _Status.INFRASTRUCTURE or not known:
    raise _SandboxError
  return [], {}, grading.last_line(result.stderr)  # The values are huge.


def _outcome(result: sandbox_lib.ProgramResult) -> tuple[bool, object]:
  """Returns an entry of `known` for a call."""
  if result.status is _Status.OK:
    return False, result.value
  error = _LIMIT_ERRORS.get(result.status, grading.last_line(result.stderr))
  name, _, message = error[:_ERROR_CHARS].partition(': ')
  return True, (name, message)
