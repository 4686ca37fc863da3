"""APPS (arXiv 2105.09938): the official splits, 5000 tasks each.

The reference is the first solution that is Python 3. As in the official grader,
the expected value of a function may be a list that stands for its first
element, and keys that are digits may stand for ints.
"""

from __future__ import annotations

from typing import Any

from environments.programming import problems
from environments.programming import problems_dataset_builder as base

TIME_LIMIT = 4.0  # Of the official grader.


class Builder(base.TestsBuilder):
  HUB_REPO = 'codeparrot/apps'
  SPLIT_FILES = {
      split: (f'{split}.jsonl', f'all/{split}-*.parquet', f'*{split}*.parquet')
      for split in ('train', 'test')}
  FIELDS = {
      name: (str,)
      for name in ('question', 'solutions', 'input_output', 'starter_code')}

  def task(self, row):
    tests = base.parse_json('input_output', row['input_output'] or '{}', dict)
    solutions = base.parse_json('solutions', row['solutions'] or '[]', list)
    if not all(isinstance(text, str) for text in solutions):
      raise base.UnusableRowError('a solution is not a string')
    inputs, outputs = (tests.get(name, []) for name in ('inputs', 'outputs'))
    if not isinstance(inputs, list) or not isinstance(outputs, list) or (
        len(inputs) != len(outputs)):
      raise base.UnusableRowError(
          'input_output has no lists inputs and outputs of one length')
    entry_point = base.check_name('fn_name', tests.get('fn_name') or '')
    make_test = _make_call_test if entry_point else _make_stdin_test
    return base.make_task(
        statement=row['question'], comparison='apps',
        tests=base.check_tests(list(map(make_test, inputs, outputs))),
        time_limit=TIME_LIMIT, starter_code=row['starter_code'],
        entry_point=entry_point,
        preamble=base.CALL_PREAMBLE if entry_point else '',
        reference=base.first_python(solutions))


def _make_stdin_test(given: Any, expected: Any) -> problems.Case:
  return problems.Case(_join_lines(given), (_join_lines(expected),))


def _join_lines(value: Any) -> str:
  lines = value if isinstance(value, list) else [value]
  if not all(isinstance(line, str) for line in lines):
    raise base.UnusableRowError('an input or output is not a string')
  return '\n'.join(lines)


def _make_call_test(given: Any, expected: Any) -> problems.Case:
  if not isinstance(given, list):
    raise base.UnusableRowError('the arguments of a test are not a list')
  answers = [expected]
  if isinstance(expected, list) and expected:
    answers.append(expected[0])
  return problems.Case(
      tuple(map(_with_int_keys, given)), tuple(map(_with_int_keys, answers)))


def _with_int_keys(value: Any) -> Any:
  """Restores int keys, which JSON objects cannot have."""
  if isinstance(value, dict):
    try:
      return {int(key): item for key, item in value.items()}
    except ValueError:
      pass
  return value
