"""Published benchmarks of programming problems, from the Hugging Face hub.

`dataset.config` names the benchmark. The splits are the official ones.

  name            paper             tasks
  apps            arXiv 2105.09938  5000 to train, 5000 to test
  code_contests   arXiv 2203.07814  train 13328, valid 117, test 165
  livecodebench   arXiv 2403.07974  v6, the newest file
  humaneval       arXiv 2107.03374  test 164
  humaneval_calls                   test 150: problems of humaneval with at
                                    least three asserts that compare a call with
                                    a constant; these calls are the tests
  coop_humaneval  arXiv 2508.04652  test 82, of which `test[16:]` train
  mbpp            arXiv 2108.07732  the sanitized version: train 120,
                                    validation 43, test 257, prompt 7

A row is skipped if it has no tests, if its fields cannot be read, or if its
statement or all of its tests are too large. Single tests that are too large or
too many are dropped. The log names every such task.
"""

import ast
import base64
from collections.abc import Iterable, Sequence
import contextlib
import io
import itertools
import json
import logging
import pickle
import textwrap
from typing import Any
import zlib

import numpy as np
import tensorflow_datasets as tfds

from environments import dataset_files
from environments.programming import checks
from environments.programming import problems
from environments.programming.functions import source
from environments.sandbox import literals

MAX_STATEMENT_BYTES = 16 << 10  # Including the starter code.
MAX_TEST_BYTES = 4 << 20  # Input and answers.
MAX_TASK_BYTES = 32 << 20
MAX_TRAIN_TESTS = 16  # Per task of the split `train`.
_MIN_CALLS = 3  # Tests of a problem of humaneval_calls.
_MAX_PRIVATE_BYTES = 512 << 20  # Unpacked private tests of LiveCodeBench.

FEATURES = {
    **dict.fromkeys((
        'statement', 'starter_code', 'entry_point', 'preamble', 'comparison',
        'reference', 'tests'), tfds.features.Text()),
    'time_limit': tfds.features.Scalar(np.float64)}

# Names that starter code uses without importing them: the part of the official
# preambles that the sandbox provides.
_CALL_PREAMBLE = """\
import bisect, collections, copy, functools, heapq, itertools, json, math
import operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from builtins import *
from typing import *
sys.setrecursionlimit(50000)
"""

# Errors of a row with missing, damaged or wrongly typed content.
_ROW_ERRORS = (
    AttributeError, EOFError, LookupError, MemoryError, OverflowError,
    RecursionError, SyntaxError, TypeError, ValueError, pickle.UnpicklingError,
    zlib.error)

# The fields of a `problems.Problem`. `tests` is a list of cases, or text that
# defines `check`.
_Fields = dict[str, Any]


def _apps(row: dataset_files.Row) -> _Fields:
  """APPS. The reference is the first solution that is Python 3.

  As in the official grader, the expected value of a function may be a list that
  stands for its first element, and keys that are digits may stand for ints.
  """
  tests = json.loads(row['input_output'] or '{}')
  entry_point = tests.get('fn_name') or ''
  cases = []
  for given, expected in zip(
      tests.get('inputs', ()), tests.get('outputs', ()), strict=True):
    if not entry_point:
      cases.append(problems.Case(_join_lines(given), (_join_lines(expected),)))
      continue
    if not isinstance(given, list):
      raise ValueError('the arguments of a test are not a list')
    answers = [expected]
    if isinstance(expected, list) and expected:
      answers.append(expected[0])
    cases.append(problems.Case(
        tuple(map(_with_int_keys, given)), tuple(map(_with_int_keys, answers))))
  return dict(
      statement=row['question'], comparison='apps', tests=cases,
      time_limit=4.0, starter_code=row['starter_code'], entry_point=entry_point,
      preamble=_CALL_PREAMBLE if entry_point else '',
      reference=_first_python(json.loads(row['solutions'] or '[]')))


def _join_lines(value: str | list[str]) -> str:
  return '\n'.join(value if isinstance(value, list) else [value])


def _with_int_keys(value: Any) -> Any:
  """Restores int keys, which JSON objects cannot have."""
  if isinstance(value, dict):
    with contextlib.suppress(ValueError):
      return {int(key): item for key, item in value.items()}
  return value


def _code_contests(row: dataset_files.Row) -> _Fields:
  """CodeContests: the public, the private and the generated tests.

  Time limits are those of the contests, or 4 s without one. A program reads
  stdin and prints to stdout, even if the contest asked for files.
  """
  cases = []
  for kind in ('public_tests', 'private_tests', 'generated_tests'):
    pairs = zip(row[kind]['input'], row[kind]['output'], strict=True)
    cases += [problems.Case(given, (expected,)) for given, expected in pairs]
  limit = row['time_limit'] or {}
  seconds = (limit.get('seconds') or 0) + (limit.get('nanos') or 0) / 1e9
  if not 0 <= seconds <= 600:
    raise ValueError(f'time_limit={limit} must be from 0 to 600 seconds')
  solutions = zip(
      row['solutions']['language'], row['solutions']['solution'], strict=True)
  return dict(
      statement=row['description'], comparison='code_contests', tests=cases,
      time_limit=seconds or 4.0, reference=_first_python(
          text for language, text in solutions if language == 3))  # Python 3.


def _livecodebench(row: dataset_files.Row) -> _Fields:
  """LiveCodeBench: the public and the private tests; no reference solutions."""
  entry_point = json.loads(row['metadata'] or '{}').get('func_name') or ''
  cases = []
  for case in (
      *json.loads(row['public_test_cases']),
      *unpack_private_cases(row['private_test_cases'])):
    given, expected = case['input'], case['output']
    if entry_point:  # One JSON value per line for each argument.
      given = tuple(map(json.loads, given.split('\n')))
      expected = json.loads(expected)
    cases.append(problems.Case(given, (expected,)))
  return dict(
      statement=row['question_content'], comparison='livecodebench',
      tests=cases, time_limit=6.0, starter_code=row['starter_code'],
      entry_point=entry_point, preamble=_CALL_PREAMBLE if entry_point else '')


def unpack_private_cases(text: str) -> list[dict[str, str]]:
  """Reads JSON, or JSON that is pickled, compressed and in base 64."""
  if text.startswith('['):
    return json.loads(text)
  data = zlib.decompressobj().decompress(
      base64.b64decode(text, validate=True), _MAX_PRIVATE_BYTES)
  return json.loads(_TextUnpickler(io.BytesIO(data)).load())


class _TextUnpickler(pickle.Unpickler):
  """Refuses pickles that name code."""

  def find_class(self, module_name: str, global_name: str) -> Any:
    raise pickle.UnpicklingError(
        f'the pickle names {module_name}.{global_name} but may only hold a '
        'string')


def _humaneval(row: dataset_files.Row) -> _Fields:
  return _check_fields(
      row['prompt'], row['test'], row['entry_point'], preamble=row['prompt'],
      reference=row['prompt'] + row['canonical_solution'])


def _humaneval_calls(row: dataset_files.Row) -> _Fields:
  cases = []
  for node in ast.walk(ast.parse(row['test'])):
    match node:
      case ast.Assert(test=ast.Compare(
          left=ast.Call(func=ast.Name('candidate'), args=args, keywords=[]),
          ops=[ast.Eq()], comparators=[expected])):
        with contextlib.suppress(ValueError):  # Not a constant.
          cases.append(problems.Case(
              tuple(map(ast.literal_eval, args)),
              (ast.literal_eval(expected),)))
  if len(cases) < _MIN_CALLS:
    raise ValueError(
        f'{len(cases)} of its asserts compare a call with a constant, fewer '
        f'than {_MIN_CALLS}')
  return dict(
      statement=row['prompt'], starter_code=row['prompt'], tests=cases,
      comparison='livecodebench', entry_point=row['entry_point'],
      preamble=_CALL_PREAMBLE, time_limit=4.0,
      reference=row['prompt'] + row['canonical_solution'])


def _coop_humaneval(row: dataset_files.Row) -> _Fields:
  """CoopHumanEval has no solutions."""
  return _check_fields(
      row['prompt'], row['test'], row['entry_point'],
      preamble=_first_python([row['prompt']]))


def _mbpp(row: dataset_files.Row) -> _Fields:
  """MBPP. The statement shows the first test; the official prompt shows all.

  Tasks whose tests use a class are skipped, because values reach a program as
  literals.
  """
  setup = '\n'.join(row['test_imports']).strip()
  tests = [ast.parse(test) for test in row['test_list']]
  names = {
      node.id for test in tests for node in ast.walk(test)
      if isinstance(node, ast.Name)}
  tested = [
      node for node in ast.parse(row['code']).body
      if isinstance(node, (ast.FunctionDef, ast.ClassDef))
      and node.name in names]
  for node in (*ast.parse(setup).body, *tested):
    if isinstance(node, ast.ClassDef):
      raise ValueError(
          f'its tests use the class {node.name}; instances cannot be sent to a '
          'program')
  if len(tested) != 1:
    raise ValueError(
        f'its tests call {len(tested)} functions of its code instead of 1')
  function, = tested
  example = row['test_list'][0].strip().replace('\n', '\n        ')
  docstring = f'{row["prompt"].strip()}\n\n>>> {example}'
  docstring = docstring.replace('\\', '\\\\').replace('"""', "'''")
  stub = (
      f'def {function.name}({ast.unparse(function.args)}):\n'
      + textwrap.indent(f'"""{docstring}\n"""\n', '    '))
  asserts = '\n'.join(map(ast.unparse, tests))
  check = f'def check({function.name}):\n' + textwrap.indent(asserts, '    ')
  return _check_fields(
      stub, f'{setup}\n{check}\n', function.name, preamble=f'{setup}\n',
      reference=row['code'].replace('\r\n', '\n'))


def _check_fields(
    stub: str, check_code: str, entry_point: str, **fields: str) -> _Fields:
  """Returns a problem whose tests are code; the stub is also the statement."""
  if not checks.soften(check_code)[1]:
    raise ValueError('its tests assert nothing')
  return dict(
      statement=stub, starter_code=stub, comparison='check', tests=check_code,
      time_limit=3.0, entry_point=entry_point, **fields)


def _first_python(programs: Iterable[str]) -> str:
  """Returns the first program that parses as Python 3, or ''."""
  return next((x for x in programs if not source.syntax_error(x)), '')


_HUMANEVAL = dict(
    hub_repo='openai/openai_humaneval', folder='humaneval',
    split_files={'test': ('openai_humaneval/test-*.parquet', '*test*.parquet')},
    fields=dict.fromkeys(
        ('prompt', 'canonical_solution', 'test', 'entry_point'), str))
_BENCHMARKS = [
    dataset_files.Files(
        name='apps', parse=_apps, hub_repo='codeparrot/apps',
        split_files={
            x: (f'{x}.jsonl', f'all/{x}-*.parquet', f'*{x}*.parquet')
            for x in ('train', 'test')},
        fields=dict.fromkeys(
            ('question', 'solutions', 'input_output', 'starter_code'), str)),
    dataset_files.Files(
        name='code_contests', parse=_code_contests,
        hub_repo='deepmind/code_contests',
        split_files={
            x: (f'data/{x}-*.parquet', f'*{x}*.parquet')
            for x in ('train', 'valid', 'test')},
        fields={
            'description': str, 'public_tests': dict, 'private_tests': dict,
            'generated_tests': dict, 'solutions': dict,
            'time_limit': dict | None}),
    dataset_files.Files(
        name='livecodebench', parse=_livecodebench,
        hub_repo='livecodebench/code_generation_lite',
        split_files={'v6': ('test6.jsonl',)},
        fields=dict.fromkeys((
            'question_content', 'starter_code', 'public_test_cases',
            'private_test_cases', 'metadata'), str)),
    dataset_files.Files(name='humaneval', parse=_humaneval, **_HUMANEVAL),
    dataset_files.Files(
        name='humaneval_calls', parse=_humaneval_calls, **_HUMANEVAL),
    dataset_files.Files(
        name='coop_humaneval', parse=_coop_humaneval,
        hub_repo='OpenMLRL/CoopHumanEval',
        split_files={'test': (  # The hub has named the split test and train.
            'data/test-*.parquet', 'data/train-*.parquet', '*.parquet',
            '*.jsonl')},
        fields=dict.fromkeys(('prompt', 'test', 'entry_point'), str)),
    dataset_files.Files(
        name='mbpp', parse=_mbpp, hub_repo='google-research-datasets/mbpp',
        split_files={
            x: (f'sanitized/{x}-*.parquet',)
            for x in ('train', 'validation', 'test', 'prompt')},
        fields={
            'prompt': str, 'code': str, 'test_imports': list,
            'test_list': list}),
]


class Builder(dataset_files.FilesBuilder):
  """Programming problems; see `environments.programming.problems.Problem`."""

  VERSION = tfds.core.Version('1.1.1')
  FEATURES = FEATURES
  BUILDER_CONFIGS = _BENCHMARKS

  def task(self, row: dataset_files.Row, task_id: str) -> _Fields:
    try:
      fields = vars(problems.Problem(**super().task(row, task_id)))
      text = fields['statement'] + fields['starter_code']
      size = len(text.encode(errors='replace'))
      if size > MAX_STATEMENT_BYTES:
        raise ValueError(
            f'its statement has {size} bytes, more than {MAX_STATEMENT_BYTES}')
      name, is_code = fields['entry_point'], fields['comparison'] == 'check'
      if (name or is_code) and not name.isidentifier():
        raise ValueError(f'entry_point={name!r} is not the name of a function')
      fields['tests'] = (
          problems.pack(fields['tests']) if is_code
          else _pack_cases(fields['tests'], task_id, is_stdin=not name))
    except _ROW_ERRORS as error:
      raise dataset_files.UnusableRowError(
          f'{type(error).__name__}: {error}') from error
    return fields


def _pack_cases(
    cases: Sequence[problems.Case], task_id: str, is_stdin: bool) -> str:
  """Packs distinct cases, without those that are too many or too large.

  Raises:
    ValueError: no case is left, or one cannot be sent to a program.
  """
  encoded = {}
  for case in cases:
    if is_stdin and not all(
        isinstance(text, str) for text in (case.input, *case.answers)):
      raise ValueError('an input or output is not a string')
    encoded.setdefault(literals.encode((case.input, case.answers)), case)
  max_tests = MAX_TRAIN_TESTS if '/train/' in task_id else None
  encoded = dict(itertools.islice(encoded.items(), max_tests))
  kept, total = [], 0
  for text, case in encoded.items():
    if len(text) <= MAX_TEST_BYTES and total + len(text) <= MAX_TASK_BYTES:
      kept.append(case)
      total += len(text)
  if len(kept) < len(encoded):
    logging.warning(
        '%s: %d of %d tests are dropped: they exceed %d bytes, or %d together',
        task_id, len(encoded) - len(kept), len(encoded), MAX_TEST_BYTES,
        MAX_TASK_BYTES)
  if not kept:
    raise ValueError('it has no tests')
  return problems.pack_cases(kept)
