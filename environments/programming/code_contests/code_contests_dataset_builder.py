"""CodeContests (arXiv 2203.07814): train 13328, valid 117, test 165 tasks.

The tests are the public, the private and the generated ones, in this order.
Time limits are those of the contests. A program reads stdin and prints to
stdout, even if the contest asked for files.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from environments.programming import problems
from environments.programming import problems_dataset_builder as base

DEFAULT_TIME_LIMIT = 4.0  # If the row has none.
MAX_TIME_LIMIT = 600.0
_PYTHON3 = 3  # In the field `language`.


class Builder(base.TestsBuilder):
  HUB_REPO = 'deepmind/code_contests'
  SPLIT_FILES = {
      split: (f'data/{split}-*.parquet', f'*{split}*.parquet')
      for split in ('train', 'valid', 'test')}
  FIELDS = {
      'description': (str,), 'public_tests': (dict,), 'private_tests': (dict,),
      'generated_tests': (dict,), 'solutions': (dict,),
      'time_limit': (dict, NoneType)}

  def task(self, row):
    tests = []
    for kind in ('public_tests', 'private_tests', 'generated_tests'):
      inputs, outputs = (
          _values(row, kind, name, str) for name in ('input', 'output'))
      if len(inputs) != len(outputs):
        raise base.UnusableRowError(
            f'{kind} has {len(inputs)} inputs and {len(outputs)} outputs')
      tests += [
          problems.Case(given, (expected,))
          for given, expected in zip(inputs, outputs)]
    languages = _values(row, 'solutions', 'language', int)
    solutions = _values(row, 'solutions', 'solution', str)
    return base.make_task(
        statement=row['description'], comparison='code_contests',
        tests=base.check_tests(tests), time_limit=_seconds(row['time_limit']),
        reference=base.first_python(
            text for language, text in zip(languages, solutions)
            if language == _PYTHON3))


def _values(row: Any, field: str, name: str, kind: type) -> list[Any]:
  values = row[field].get(name)
  if not isinstance(values, list) or not all(type(x) is kind for x in values):
    raise base.UnusableRowError(
        f'{field} has no list {name} of {kind.__name__}')
  return values


def _seconds(limit: dict[str, Any] | None) -> float:
  seconds, nanos = (
      (limit or {}).get(name) or 0 for name in ('seconds', 'nanos'))
  if type(seconds) is not int or type(nanos) is not int or not (
      0 <= seconds + nanos / 1e9 <= MAX_TIME_LIMIT):
    raise base.UnusableRowError(
        f'time_limit={limit} must be from 0 to {MAX_TIME_LIMIT:.0f} seconds')
  return seconds + nanos / 1e9 or DEFAULT_TIME_LIMIT
