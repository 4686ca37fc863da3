"""Runs a program on inputs and compares its outputs with the answers.

The sandbox sees programs and inputs, never answers. Outputs are compared here,
as texts and as values of built-in types.

Inputs run in batches of 1, 2, 4, ..., or fewer if outputs may be large. After a
batch with the third timeout, the remaining inputs are not run and count as
failed.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import hashlib
import re
from typing import Any

from environments import sandbox as sandbox_lib
from environments.programming import comparisons
from environments.programming import problems
from environments.sandbox import literals

Status = sandbox_lib.Status

_MAX_TIMEOUTS = 3
_MEMORY_BYTES = 512 << 20
_MIN_OUTPUT_BYTES = 64 << 10
_BATCH_BYTES = 16 << 20  # Of the outputs of a batch, if one test prints less.
_FUTURE = re.compile(r'^from __future__ import .*\n?', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Grade:
  """Results of the tests that were run, and which of all tests passed."""

  results: tuple[sandbox_lib.ProgramResult, ...]
  passed: tuple[bool, ...]

  @property
  def pass_rate(self) -> float:
    return sum(self.passed) / len(self.passed)


def grade(
    sandbox: sandbox_lib.Sandbox, problem: problems.Problem, program: str,
    cases: Sequence[problems.Case]) -> Grade:
  """Grades a program, or '', on cases of the kinds stdin and call."""
  longest = max(
      (_size(answer) for case in cases for answer in case.answers), default=0)
  same = (
      comparisons.same_value if problem.entry_point
      else comparisons.COMPARISONS[problem.comparison])
  results, passed = [], [False] * len(cases)
  inputs = [case.input for case in cases] if program else []
  for index, result in enumerate(
      run(sandbox, problem, program, inputs, longest)):
    if result.status is Status.OK:
      found = output(problem, result)
      passed[index] = any(
          same(found, answer) for answer in cases[index].answers)
    results.append(dataclasses.replace(result, stdout=_shorten(result.stdout)))
  return Grade(tuple(results), tuple(passed))


def run(
    sandbox: sandbox_lib.Sandbox, problem: problems.Problem, program: str,
    inputs: Sequence[Any],
    output_bytes: int) -> Iterator[sandbox_lib.ProgramResult]:
  """Yields results of the inputs that were run, a prefix of `inputs`.

  `inputs` are texts for stdin, arguments of the function, or calls to make in
  turn if the tests are code. The limits of the sandbox are replaced by those of
  the problem. A program may print twice `output_bytes`.
  """
  seconds = problem.time_limit
  sandbox = dataclasses.replace(sandbox, limits=sandbox_lib.Limits(
      cpu_seconds=seconds, wall_seconds=max(5.0, 2.5 * seconds),
      memory_bytes=_MEMORY_BYTES,
      output_bytes=max(_MIN_OUTPUT_BYTES, 2 * output_bytes)))
  source, function = program, problem.entry_point
  if problem.preamble:  # Python wants imports from __future__ first.
    source = ''.join((
        *_FUTURE.findall(program), problem.preamble, '\n',
        # A function that the preamble imports, such as `gcd`, is no answer.
        f'globals().pop({function!r}, None)\n' * (
            bool(function) and problem.comparison != 'check'
            and 'class Solution' not in program),
        _FUTURE.sub('', program)))
  statuses, size = [], 1
  largest = max(1, _BATCH_BYTES // sandbox.limits.output_bytes)
  while (
      len(statuses) < len(inputs) and Status.INFRASTRUCTURE not in statuses
      and statuses.count(Status.TIMEOUT) < _MAX_TIMEOUTS):
    batch = inputs[len(statuses):len(statuses) + size]
    size = min(2 * size, largest)
    if not function:
      results = sandbox.run_tests(source, batch)
    elif problem.comparison == 'check':
      results = sandbox.call_in_turn(source, function, batch)
    else:  # LeetCode's form first.
      results = sandbox.call(
          source, f'Solution().{function}|{function}', batch)
    for result in results:
      statuses.append(result.status)
      yield dataclasses.replace(
          result, stderr=result.stderr[-_MIN_OUTPUT_BYTES:])


def _shorten(text: str) -> str:
  """The beginning of a long text, and a digest of all of it."""
  if len(text) <= _MIN_OUTPUT_BYTES:
    return text
  digest = hashlib.sha256(text.encode(errors='replace')).hexdigest()
  return f'{text[:_MIN_OUTPUT_BYTES]}… {digest}'


def output(
    problem: problems.Problem, result: sandbox_lib.ProgramResult) -> Any:
  """Returns the value of the called function, or the text on stdout."""
  return result.value if problem.entry_point else result.stdout


def any_failed(results: Sequence[sandbox_lib.ProgramResult]) -> bool:
  """True if the sandbox failed in a run, so that the grade is unknown."""
  return any(result.status is Status.INFRASTRUCTURE for result in results)


def last_line(stderr: str) -> str:
  """Returns the last line of a traceback: `ValueError: ...`."""
  return stderr.strip().rpartition('\n')[2]


def _size(answer: Any) -> int:
  text = answer if isinstance(answer, str) else literals.encode(answer)
  return len(text.encode(errors='replace'))
