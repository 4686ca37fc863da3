"""LiveCodeBench (arXiv 2403.07974): every file of the hub is a split.

`v1+v2+v3+v4+v5+v6` is release_v6. The config `v6` has only the newest file. The
tests are the public and the private ones. There are no reference solutions.
"""

from __future__ import annotations

import base64
import binascii
import io
import pickle
from typing import Any
import zlib

import tensorflow_datasets as tfds

from environments.programming import problems
from environments.programming import problems_dataset_builder as base

TIME_LIMIT = 6.0  # Of the official grader.
MAX_PRIVATE_BYTES = 512 << 20  # Unpacked private tests of a row.

# Errors that a damaged pickle may raise.
_UNPICKLING_ERRORS = (
    pickle.UnpicklingError, EOFError, LookupError, MemoryError, OverflowError,
    TypeError, ValueError, AttributeError)


class Builder(base.TestsBuilder):
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name='v6', description='test6.jsonl'),
      tfds.core.BuilderConfig(name='all', description='All files.')]
  HUB_REPO = 'livecodebench/code_generation_lite'
  FIELDS = {
      name: (str,) for name in (
          'question_content', 'starter_code', 'public_test_cases',
          'private_test_cases', 'metadata')}

  @property
  def SPLIT_FILES(self):
    files = {f'v{i}': (f'test{i if i > 1 else ""}.jsonl',) for i in range(1, 7)}
    return files if self.builder_config.name == 'all' else {'v6': files['v6']}

  def task(self, row):
    metadata = base.parse_json('metadata', row['metadata'] or '{}', dict)
    cases = [
        *base.parse_json('public_test_cases', row['public_test_cases'], list),
        *unpack_private_cases(row['private_test_cases'])]
    if not all(
        isinstance(case, dict) and type(case.get('input')) is str
        and type(case.get('output')) is str for case in cases):
      raise base.UnusableRowError('a test has no strings input and output')
    entry_point = base.check_name('func_name', metadata.get('func_name') or '')
    make_test = _make_call_test if entry_point else _make_stdin_test
    return base.make_task(
        statement=row['question_content'], comparison='livecodebench',
        tests=base.check_tests(list(map(make_test, cases))),
        time_limit=TIME_LIMIT, starter_code=row['starter_code'],
        entry_point=entry_point,
        preamble=base.CALL_PREAMBLE if entry_point else '')


def _make_stdin_test(case: dict[str, str]) -> problems.Case:
  return problems.Case(case['input'], (case['output'],))


def _make_call_test(case: dict[str, str]) -> problems.Case:
  """Reads arguments as JSON values, one per line."""
  arguments = tuple(
      base.parse_json('an input', line) for line in case['input'].split('\n'))
  return problems.Case(
      arguments, (base.parse_json('an output', case['output']),))


def unpack_private_cases(text: str) -> list[dict[str, str]]:
  """Reads JSON, or JSON that is pickled, compressed and in base 64."""
  if text.startswith('['):
    return base.parse_json('private_test_cases', text, list)
  try:
    data = zlib.decompressobj().decompress(
        base64.b64decode(text, validate=True), MAX_PRIVATE_BYTES)
    unpickled = _TextUnpickler(io.BytesIO(data)).load()
  except (binascii.Error, zlib.error, *_UNPICKLING_ERRORS) as error:
    raise base.UnusableRowError(
        f'private_test_cases cannot be unpacked: {error}') from error
  if type(unpickled) is not str:
    raise base.UnusableRowError(
        f'private_test_cases has a pickled {type(unpickled).__name__} instead '
        'of a string')
  return base.parse_json('private_test_cases', unpickled, list)


class _TextUnpickler(pickle.Unpickler):
  """Refuses pickles that name code."""

  def find_class(self, module_name: str, global_name: str) -> Any:
    raise pickle.UnpicklingError(
        f'the pickle names {module_name}.{global_name} but may only hold a '
        'string')
