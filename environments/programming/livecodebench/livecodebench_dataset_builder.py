"""LiveCodeBench: livecodebench/code_generation_lite (arXiv 2403.07974)."""

from __future__ import annotations

import base64
import binascii
import io
import pickle
from typing import Any
import zlib

import tensorflow_datasets as tfds

from environments import dataset_files
from environments.programming import problems
from environments.programming import problems_dataset_builder as base

TIME_LIMIT = 6.0  # Of the official grader.
MAX_PRIVATE_BYTES = 512 << 20  # Of the private tests of a row, unpacked.


class Builder(base.TestsBuilder):
  """Each file of the hub is a split; `v1+v2+v3+v4+v5+v6` is release_v6.

  The config `v6` has the newest file alone. The tests are the public and the
  private ones. There are no reference solutions.
  """

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'Statement, starter code and tests of each row.'}
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name='v6', description='test6.jsonl'),
      tfds.core.BuilderConfig(name='all', description='All files.')]
  HUB_REPO = 'livecodebench/code_generation_lite'
  HUB_REVISION = 'main'
  FIELDS = {
      name: (str,) for name in (
          'question_content', 'starter_code', 'public_test_cases',
          'private_test_cases', 'metadata')}

  @property
  def SPLIT_FILES(self) -> dict[str, tuple[str, ...]]:
    files = {f'v{i}': (f'test{i if i > 1 else ""}.jsonl',) for i in range(1, 7)}
    return files if self.builder_config.name == 'all' else {'v6': files['v6']}

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    metadata = base.parse_json('metadata', row['metadata'] or '{}', dict)
    cases = [
        *base.parse_json(
            'public_test_cases', row['public_test_cases'], list),
        *_private_cases(row['private_test_cases'])]
    if not all(
        isinstance(case, dict) and type(case.get('input')) is str
        and type(case.get('output')) is str for case in cases):
      raise base.UnusableRowError('a test has no texts input and output')
    entry_point = metadata.get('func_name') or ''
    if entry_point:
      base.check_name('func_name', entry_point)
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
  """Arguments are JSON values, one in each line."""
  arguments = tuple(
      base.parse_json('an input', line) for line in case['input'].split('\n'))
  return problems.Case(
      arguments, (base.parse_json('an output', case['output']),))


def _private_cases(text: str) -> list[dict[str, str]]:
  """JSON; or JSON that is pickled, compressed and in base 64."""
  if text.startswith('['):
    return base.parse_json('private_test_cases', text, list)
  try:
    data = zlib.decompressobj().decompress(
        base64.b64decode(text, validate=True), MAX_PRIVATE_BYTES)
    unpickled = TextUnpickler(io.BytesIO(data)).load()
  except (binascii.Error, zlib.error, *UNPICKLING_ERRORS) as error:
    raise base.UnusableRowError(
        f'private_test_cases cannot be unpacked: {error}') from error
  if type(unpickled) is not str:
    raise base.UnusableRowError(
        'private_test_cases has a pickle of something else than a text')
  return base.parse_json('private_test_cases', unpickled, list)


# What a pickle that is damaged may raise.
UNPICKLING_ERRORS = (
    pickle.UnpicklingError, EOFError, LookupError, MemoryError, OverflowError,
    TypeError, ValueError, AttributeError)


class TextUnpickler(pickle.Unpickler):
  """Loads Python's own values; anything that names code is refused."""

  def find_class(self, module_name: str, global_name: str) -> Any:
    raise pickle.UnpicklingError(
        f'the pickle asks for {module_name}.{global_name}, but may hold a text '
        'alone')
