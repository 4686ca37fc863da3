"""What the builders of programming problems have in common.

A row is left out if it has no tests, if its tests cannot be read, or if its
statement or all of its tests are too large. Single tests that are too large or
too many are left out, too. The log names the tasks of both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
import json
import logging
import pathlib
from typing import Any
import warnings

import numpy as np
import tensorflow_datasets as tfds

from environments import dataset_files
from environments.programming import checks
from environments.programming import problems
from environments.sandbox import literals

MAX_STATEMENT_BYTES = 16 << 10  # With the starter code.
MAX_TEST_BYTES = 4 << 20  # Of an input with its answers.
MAX_TASK_BYTES = 32 << 20
TRAIN_TESTS = 16  # Of a task to train on.

# What starter code takes for granted: of the official preambles what the
# sandbox has.
CALL_PREAMBLE = """\
import bisect, collections, copy, functools, heapq, itertools, json, math
import operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
sys.setrecursionlimit(50000)
"""

_TEXTS = (
    'statement', 'starter_code', 'entry_point', 'preamble', 'comparison',
    'reference', 'tests')

UnusableRowError = dataset_files.UnusableRowError


class ProblemsBuilder(dataset_files.FilesBuilder, skip_registration=True):
  """Writes rows as tasks that `problems.from_task` reads."""

  FEATURES = {
      **dict.fromkeys(_TEXTS, tfds.features.Text()),
      'time_limit': tfds.features.Scalar(np.float64)}
  MAX_LETTERS = 1 << 30  # Some tasks have megabytes of tests; see above.


class TestsBuilder(ProblemsBuilder, skip_registration=True):
  """Of problems whose tests are inputs and answers.

  `task` returns the tests as a list. A task of the split `train` has the first
  `TRAIN_TESTS` of them, all others have all.
  """

  def _generate_examples(
      self, split: str, paths: Sequence[pathlib.Path]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    most = TRAIN_TESTS if split == 'train' else None
    for index, task in super()._generate_examples(split, paths):
      tests = fit_tests(task['tests'], most)
      num_large = len(task['tests'][:most]) - len(tests)
      if num_large:
        logging.warning(
            '%s: %d of %d tests are left out: they have more than %d bytes, or '
            'together more than %d', task['task_id'], num_large,
            len(task['tests']), MAX_TEST_BYTES, MAX_TASK_BYTES)
      if tests:
        yield index, task | {'tests': problems.pack_tests(tests)}


def fit_tests(
    tests: Sequence[problems.Case], most: int | None) -> list[problems.Case]:
  """The first `most` tests, without those that are too large."""
  kept, total = [], 0
  for test in tests[:most]:
    size = len(literals.encode((test.input, test.answers)))
    if size <= MAX_TEST_BYTES and total + size <= MAX_TASK_BYTES:
      kept.append(test)
      total += size
  return kept


def make_task(
    *, statement: str, comparison: str, tests: str, time_limit: float,
    starter_code: str = '', entry_point: str = '', preamble: str = '',
    reference: str = '') -> dict[str, Any]:
  """The fields of `problems.Problem`; UnusableRowError for a long statement."""
  size = len((statement + starter_code).encode(errors='replace'))
  if size > MAX_STATEMENT_BYTES:
    raise UnusableRowError(
        f'its statement has {size} bytes, more than {MAX_STATEMENT_BYTES}')
  return dict(
      statement=statement, starter_code=starter_code, entry_point=entry_point,
      preamble=preamble, comparison=comparison, reference=reference,
      tests=tests, time_limit=time_limit)


def check_tests(tests: Sequence[problems.Case]) -> list[problems.Case]:
  """The tests without repetitions; UnusableRowError if there are none.

  Raises it too for a test that cannot be given to a program.
  """
  kept, seen = [], set()
  for test in tests:
    try:
      text = literals.encode((test.input, test.answers))
    except (ValueError, RecursionError) as error:
      raise UnusableRowError(f'a test cannot be written: {error}') from error
    if text not in seen:
      seen.add(text)
      kept.append(test)
  if not kept:
    raise UnusableRowError('it has no tests')
  return kept


def pack_check(check_code: str, entry_point: str) -> str:
  """Packs tests that are code; UnusableRowError for such that test nothing."""
  try:
    body = ast.parse(check_code).body
    _, asserts = checks.soften(check_code)
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    raise UnusableRowError(f'its tests are no Python: {error}') from error
  if not any(
      isinstance(x, ast.FunctionDef) and x.name == 'check' for x in body):
    raise UnusableRowError('its tests have no function check')
  if not asserts:
    raise UnusableRowError('its tests assert nothing')
  check_name('entry_point', entry_point)
  return problems.pack(check_code)


def check_name(field: str, name: Any) -> None:
  """Raises UnusableRowError for what is no name of a function."""
  if not isinstance(name, str) or not name.isidentifier():
    raise UnusableRowError(f'{field}={name!r} is no name of a function')


def parse_json(name: str, text: str, kind: type = object) -> Any:
  """The JSON value of a field; UnusableRowError if it has none of a kind."""
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:  # Or an int of 4300 digits.
    raise UnusableRowError(f'{name} cannot be read: {error}') from error
  if not isinstance(value, kind):
    raise UnusableRowError(
        f'{name} is JSON of a {type(value).__name__}, not of a '
        f'{kind.__name__}')
  return value


def first_python(programs: Iterable[str]) -> str:
  """The first program that is Python 3, or ''."""
  return next(filter(_is_python, programs), '')


def _is_python(program: str) -> bool:
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of escapes in strings.
    try:
      ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
      return False
  return True
