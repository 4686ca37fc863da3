"""Shared base of the data sets of programming problems.

A row is left out if it has no tests, if its tests cannot be read, or if its
statement or all of its tests are too large. Single tests that are too large or
too many are left out as well. The log names every such task.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
import json
import logging
from typing import Any
import warnings

import numpy as np
import tensorflow_datasets as tfds

from environments import dataset_files
from environments.programming import checks
from environments.programming import problems
from environments.sandbox import literals

MAX_STATEMENT_BYTES = 16 << 10  # Including the starter code.
MAX_TEST_BYTES = 4 << 20  # Input and answers.
MAX_TASK_BYTES = 32 << 20
MAX_TRAIN_TESTS = 16  # Per training task.

# Names that starter code uses without importing them: the part of the official
# preambles that the sandbox provides.
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

UnusableRowError = dataset_files.UnusableRowError


class ProblemsBuilder(dataset_files.FilesBuilder, skip_registration=True):
  """Writes rows as tasks that `problems.from_task` reads."""

  VERSION = tfds.core.Version('1.0.0')
  HUB_REVISION = 'main'
  FEATURES = {
      **dict.fromkeys((
          'statement', 'starter_code', 'entry_point', 'preamble', 'comparison',
          'reference', 'tests'), tfds.features.Text()),
      'time_limit': tfds.features.Scalar(np.float64)}
  MAX_LETTERS = 1 << 30  # Some tasks have megabytes of tests.


class TestsBuilder(ProblemsBuilder, skip_registration=True):
  """Problems whose tests are inputs and answers; `task` returns them as a list.

  Training tasks keep the first `MAX_TRAIN_TESTS` tests, all others keep all.
  """

  def _generate_examples(self, split, paths):
    max_tests = MAX_TRAIN_TESTS if split == 'train' else None
    for index, task in super()._generate_examples(split, paths):
      tests = _drop_large(task['tests'][:max_tests])
      num_large = len(task['tests'][:max_tests]) - len(tests)
      if num_large:
        logging.warning(
            '%s: %d of %d tests are left out: they exceed %d bytes, or %d '
            'together', task['task_id'], num_large, len(task['tests']),
            MAX_TEST_BYTES, MAX_TASK_BYTES)
      if tests:
        yield index, task | {'tests': problems.pack_tests(tests)}


def _drop_large(tests: Sequence[problems.Case]) -> list[problems.Case]:
  kept, total = [], 0
  for test in tests:
    size = len(literals.encode((test.input, test.answers)))
    if size <= MAX_TEST_BYTES and total + size <= MAX_TASK_BYTES:
      kept.append(test)
      total += size
  return kept


def make_task(
    *, statement: str, comparison: str, tests: str, time_limit: float,
    starter_code: str = '', entry_point: str = '', preamble: str = '',
    reference: str = '') -> dict[str, Any]:
  """Returns the fields of `problems.Problem`.

  Raises:
    UnusableRowError: the statement is too long.
  """
  size = len((statement + starter_code).encode(errors='replace'))
  if size > MAX_STATEMENT_BYTES:
    raise UnusableRowError(
        f'its statement has {size} bytes, more than {MAX_STATEMENT_BYTES}')
  return dict(
      statement=statement, starter_code=starter_code, entry_point=entry_point,
      preamble=preamble, comparison=comparison, reference=reference,
      tests=tests, time_limit=time_limit)


def make_check_task(
    stub: str, check_code: str, entry_point: str, time_limit: float, *,
    preamble: str = '', reference: str = '') -> dict[str, Any]:
  """Returns a task whose tests are code; `stub` is statement and starter code.

  Raises:
    UnusableRowError: the code tests nothing.
  """
  try:
    body = ast.parse(check_code).body
    _, asserts = checks.soften(check_code)
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    raise UnusableRowError(f'its tests are not Python: {error}') from error
  if not any(
      isinstance(x, ast.FunctionDef) and x.name == 'check' for x in body):
    raise UnusableRowError('its tests have no function check')
  if not asserts:
    raise UnusableRowError('its tests assert nothing')
  if not check_name('entry_point', entry_point):
    raise UnusableRowError('its entry_point is empty')
  return make_task(
      statement=stub, starter_code=stub, comparison='check',
      tests=problems.pack(check_code), time_limit=time_limit,
      entry_point=entry_point, preamble=preamble, reference=reference)


def check_tests(tests: Sequence[problems.Case]) -> list[problems.Case]:
  """Returns the tests without duplicates.

  Raises:
    UnusableRowError: there are none, or a test cannot be sent to a program.
  """
  unique = {}
  for test in tests:
    try:
      unique.setdefault(literals.encode((test.input, test.answers)), test)
    except (ValueError, RecursionError) as error:
      raise UnusableRowError(f'a test cannot be written: {error}') from error
  if not unique:
    raise UnusableRowError('it has no tests')
  return list(unique.values())


def check_name(field: str, name: Any) -> str:
  """Returns the name of a function, or ''; UnusableRowError for others."""
  if name != '' and (not isinstance(name, str) or not name.isidentifier()):
    raise UnusableRowError(f'{field}={name!r} is not the name of a function')
  return name


def parse_json(name: str, text: str, kind: type = object) -> Any:
  """Reads a field; UnusableRowError if it is not JSON of this type."""
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:  # ValueError: 4300 digits, too.
    raise UnusableRowError(f'{name} cannot be read: {error}') from error
  if not isinstance(value, kind):
    raise UnusableRowError(
        f'{name} is a JSON {type(value).__name__} instead of a '
        f'{kind.__name__}')
  return value


def first_python(programs: Iterable[str]) -> str:
  """Returns the first program that parses as Python 3, or ''."""
  return next(filter(_is_python, programs), '')


def _is_python(program: str) -> bool:
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # About escapes in strings.
    try:
      ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
      return False
  return True
