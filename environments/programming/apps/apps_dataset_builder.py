"""APPS: the data set codeparrot/apps of the hub (arXiv 2105.09938)."""

from __future__ import annotations

from typing import Any

import tensorflow_datasets as tfds

from environments import dataset_files
from environments.programming import problems
from environments.programming import problems_dataset_builder as base

TIME_LIMIT = 4.0  # Of the official grader.


class Builder(base.TestsBuilder):
  """The official splits, 5000 tasks each.

  The reference is the first solution that is Python 3. Where a function is
  called, an answer that is a list may stand for its first element as well, and
  keys that are digits may stand for ints, as in the official grader.
  """

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'Statement, tests and first solution of each row.'}
  HUB_REPO = 'codeparrot/apps'
  HUB_REVISION = 'main'
  SPLIT_FILES = {
      split: (f'{split}.jsonl', f'all/{split}-*.parquet',
              f'*{split}*.parquet')
      for split in ('train', 'test')
  }
  FIELDS = {
      name: (str,)
      for name in ('question', 'solutions', 'input_output', 'starter_code')}

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    if not row['input_output']:
      raise base.UnusableRowError('it has no tests')
    found = base.parse_json('input_output', row['input_output'], dict)
    solutions = base.parse_json('solutions', row['solutions'] or '[]', list)
    if not all(isinstance(text, str) for text in solutions):
      raise base.UnusableRowError('a solution is no text')
    if not all(
        isinstance(found.get(name), list) for name in ('inputs', 'outputs')):
      raise base.UnusableRowError('input_output has no inputs and outputs')
    entry_point = found.get('fn_name') or ''
    if entry_point:
      base.check_name('fn_name', entry_point)
    inputs, outputs = found['inputs'], found['outputs']
    if len(inputs) != len(outputs):
      raise base.UnusableRowError(
          f'it has {len(inputs)} inputs and {len(outputs)} outputs')
    make_test = _make_call_test if entry_point else _make_stdin_test
    return base.make_task(
        statement=row['question'], comparison='apps',
        tests=base.check_tests(list(map(make_test, inputs, outputs))),
        time_limit=TIME_LIMIT, starter_code=row['starter_code'],
        entry_point=entry_point,
        preamble=base.CALL_PREAMBLE if entry_point else '',
        reference=base.first_python(solutions))


def _make_stdin_test(given: Any, expected: Any) -> problems.Case:
  return problems.Case(_lines(given), (_lines(expected),))


def _lines(value: Any) -> str:
  """A text, or a list of its lines."""
  lines = value if isinstance(value, list) else [value]
  if not all(isinstance(line, str) for line in lines):
    raise base.UnusableRowError('an input or output is no text')
  return '\n'.join(lines)


def _make_call_test(given: Any, expected: Any) -> problems.Case:
  if not isinstance(given, list):
    raise base.UnusableRowError('the arguments of a test are no list')
  answers = [expected]
  if isinstance(expected, list) and expected:
    answers.append(expected[0])
  return problems.Case(
      tuple(map(_with_int_keys, given)), tuple(map(_with_int_keys, answers)))


def _with_int_keys(value: Any) -> Any:
  """JSON has no ints as keys of objects."""
  if isinstance(value, dict):
    try:
      return {int(key): item for key, item in value.items()}
    except ValueError:
      pass
  return value
