"""Published rows of the benchmarks become tasks, and bad rows are named."""

import base64
import json
import pathlib
import pickle
import tracemalloc
import zlib

import pyarrow
from pyarrow import parquet
import pytest

from environments import dataset_files
from environments import datasets
from environments.programming import problems
from environments.programming import problems_dataset_builder as base
from environments.programming.livecodebench import livecodebench_dataset_builder

Case = problems.Case


def load(tmp_path, name, files, split, config=None):
  """Returns the problems of a split, from a copy of the repository."""
  folder = tmp_path / 'downloads' / 'manual' / name
  for path, rows in files.items():
    path = folder / path
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == '.parquet':
      parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
      path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  tasks = datasets.load(
      f'environments.programming.{name}.{name}_dataset_builder', split,
      str(tmp_path), config)
  return list(map(problems.from_task, tasks))


def apps_row(input_output, solutions=('print(1)',), **fields):
  return {
      'id': 7, 'question': 'Add.', 'starter_code': '', 'url': '',
      'difficulty': 'interview',
      'solutions': json.dumps(list(solutions)) if solutions else '',
      'input_output': input_output if isinstance(input_output, str)
      else json.dumps(input_output), **fields}


def code_contests_row(**fields):
  def tests(*pairs):
    return {'input': [i for i, _ in pairs], 'output': [o for _, o in pairs]}

  return {
      'name': 'A', 'description': 'Double.', 'source': 2, 'difficulty': 7,
      'public_tests': tests(('1\n', '2\n')),
      'private_tests': tests(('2\n', '4\n'), ('1\n', '2\n')),
      'generated_tests': tests(('3\n', '6\n')),
      'solutions': {'language': [2, 1, 3, 3], 'solution': [
          'int main() {}', 'print 1', 'print "no"', 'print(2*int(input()))']},
      'time_limit': {'seconds': 1, 'nanos': 500_000_000}, **fields}


def packed(value):
  return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


STDIN = json.dumps([{'input': '2\n', 'output': '4\n', 'testtype': 'stdin'}])


def livecodebench_row(private=STDIN, **fields):
  return {
      'question_title': 'A', 'question_content': 'Double.',
      'platform': 'atcoder', 'question_id': '1', 'difficulty': 'easy',
      'starter_code': '', 'metadata': '{}',
      'public_test_cases': json.dumps([
          {'input': '1\n', 'output': '2\n', 'testtype': 'stdin'}]),
      'private_test_cases': private, **fields}


def humaneval_row(**fields):
  return {
      'task_id': 'HumanEval/0', 'prompt': 'def f(x):\n    """Double."""\n',
      'canonical_solution': '    return 2 * x\n', 'entry_point': 'f',
      'test': 'def check(candidate):\n    assert candidate(1) == 2\n', **fields}


def test_apps(tmp_path):
  rows = [
      apps_row({'inputs': ['1\n', '2\n'], 'outputs': ['2\n', '3\n']},
               ['print "old"', 'print(2)', 'print(3)']),
      apps_row({'inputs': [['1', '2']], 'outputs': [['3', '4']]}, ()),
      apps_row({'fn_name': 'f', 'inputs': [[[1, 2], {'3': 'a'}], ['b']],
                'outputs': [[6], {'4': 5}]}, starter_code='def f(a, b):\n')]
  first, second, third = load(
      tmp_path, 'apps', {'train.jsonl': rows, 'test.jsonl': rows}, 'test')
  assert first == problems.Problem(
      'apps/test/0', 'Add.', '', '', '', 'apps', 'print(2)', 4.0,
      first.packed_tests)
  assert first.tests == (Case('1\n', ('2\n',)), Case('2\n', ('3\n',)))
  assert (second.tests, second.reference) == ((Case('1\n2', ('3\n4',)),), '')
  assert third.entry_point == 'f' and third.starter_code == 'def f(a, b):\n'
  assert third.tests == (
      Case(([1, 2], {3: 'a'}), ([6], 6)), Case(('b',), ({4: 5},)))
  exec(third.preamble, {})


def test_code_contests(tmp_path):
  rows = [
      code_contests_row(),
      code_contests_row(time_limit=None, solutions={
          'language': [3], 'solution': ['print(']})]
  files = {
      f'data/{split}-00000-of-00001-abc.parquet': rows
      for split in ('train', 'valid', 'test')}
  first, second = load(tmp_path, 'code_contests', files, 'valid')
  assert first.tests == tuple(
      Case(f'{i}\n', (f'{2 * i}\n',)) for i in (1, 2, 3))
  assert (first.time_limit, first.comparison) == (1.5, 'code_contests')
  assert first.reference == 'print(2*int(input()))'
  assert (second.time_limit, second.reference) == (4.0, '')


def test_livecodebench(tmp_path):
  functional = [
      {'input': '[1, 2]\n"a"', 'output': '[2, 4]', 'testtype': 'functional'}]
  rows = [
      livecodebench_row(STDIN), livecodebench_row(packed(STDIN)),
      livecodebench_row(
          packed(json.dumps(functional)), metadata='{"func_name": "double"}',
          starter_code='class Solution:\n',
          public_test_cases=json.dumps(functional))]
  files = {'test.jsonl': rows[:1], 'test6.jsonl': rows}
  first, second, third = load(tmp_path, 'livecodebench', files, 'v6')
  assert first.tests == second.tests == (
      Case('1\n', ('2\n',)), Case('2\n', ('4\n',)))
  assert (first.comparison, first.time_limit, first.entry_point) == (
      'livecodebench', 6.0, '')
  assert third.entry_point == 'double'
  assert third.tests == (Case(([1, 2], 'a'), ([2, 4],)),)
  with pytest.raises(ValueError, match="'v2'"):
    load(tmp_path, 'livecodebench', {}, 'v1', 'all')


def test_humaneval_and_coop_humaneval(tmp_path):
  row = humaneval_row()
  name = 'openai_humaneval/test-00000-of-00001.parquet'
  found, = load(tmp_path, 'humaneval', {name: [row]}, 'test')
  assert found == problems.Problem(
      'humaneval/test/0', row['prompt'], row['prompt'], 'f', row['prompt'],
      'check', row['prompt'] + row['canonical_solution'], 3.0,
      found.packed_tests)
  assert found.check_code == row['test']
  name = 'data/train-00000-of-00001.parquet'
  del row['canonical_solution']
  found, = load(tmp_path, 'coop_humaneval', {name: [row]}, 'test')
  assert (found.reference, found.check_code) == ('', row['test'])


MBPP = {
    'task_id': 3, 'code': 'import re\r\ndef g(x):\r\n  return x\r\n'
    'def f(x, y=2):\r\n  return g(x) * y',
    'test_list': ['assert f(1) == 2', 'assert f("a\\n")==("a\\na\\n")'],
    'challenge_test_list': []}


@pytest.mark.parametrize('config, fields', [
    ('sanitized', {'prompt': 'Say """\\d""".', 'source_file': 'a',
                   'test_imports': ['import math']}),
    ('full', {'text': 'Say """\\d""".', 'test_setup_code': 'import math'})])
def test_mbpp(tmp_path, caplog, config, fields):
  pair = {'code': 'class Pair: pass\ndef f(x): return 1',
          'test_list': ['assert f(Pair()) == 1']}
  rows = [MBPP | fields | changes for changes in (
      {}, {'test_list': ['assert h(1)']}, pair,
      {'test_list': ['assert f(1) == g(2)']})]
  files = {
      f'{config}/{split}-00000-of-00001.parquet': rows
      for split in ('train', 'validation', 'test', 'prompt')}
  found, = load(tmp_path, 'mbpp', files, 'validation', config)
  for number, reason in (
      (1, 'its tests call 0 functions'), (2, 'its tests use the class Pair'),
      (3, 'its tests call 2 functions')):
    assert f'mbpp/validation/{number} is skipped: {reason}' in caplog.text
  assert (found.task_id, found.entry_point) == ('mbpp/validation/0', 'f')
  assert found.statement == found.starter_code == (
      "def f(x, y=2):\n    \"\"\"Say '''\\\\d'''.\n\n"
      '    >>> assert f(1) == 2\n    """\n')
  names = {}
  exec(found.statement + found.check_code + found.preamble, names)
  assert names['math']
  reference = {}
  exec(found.reference, reference)
  names['check'](reference['f'])
  with pytest.raises(AssertionError):
    names['check'](lambda x: x)


APPS = {'inputs': ['1'], 'outputs': ['1']}
# Data set -> a good row, files of its splits, and bad rows with the reason.
BAD_ROWS = {
    'apps': (apps_row(APPS), ('train', 'test'), [
        (apps_row(''), 'it has no tests'),
        (apps_row({'inputs': [], 'outputs': []}), 'it has no tests'),
        (apps_row(APPS | {'outputs': []}), 'inputs and outputs'),
        (apps_row({'inputs': ['1']}), 'inputs and outputs'),
        (apps_row('[1]'), 'input_output is a JSON list'),
        (apps_row(APPS) | {'solutions': '5'}, 'solutions is a JSON int'),
        (apps_row(APPS, [1]), 'a solution'),
        (apps_row({'fn_name': 5, 'inputs': [[1]], 'outputs': [1]}),
         'fn_name=5'),
        (apps_row(APPS | {'inputs': [1]}), 'an input or output'),
        (apps_row({'fn_name': 'f', 'inputs': [1], 'outputs': [1]}),
         'the arguments of a test'),
        (apps_row('{"inputs": ["1"'), 'input_output cannot be read'),
        (apps_row('{"fn_name": "f", "outputs": [1], "inputs": [[' + '9' * 9000
                  + ']]}'), 'input_output cannot be read'),
        (apps_row(APPS, question='a' * 30_000), '30000 bytes')]),
    'code_contests': (code_contests_row(), ('train', 'valid', 'test'), [
        (code_contests_row(**fields), reason) for fields, reason in (
            ({'private_tests': {'input': ['1'], 'output': []}},
             'private_tests has 1 inputs and 0 outputs'),
            ({'public_tests': {'input': ['1']}},
             'public_tests has no list output'),
            ({'public_tests': {'input': [1], 'output': ['1']}},
             'public_tests has no list input'),
            ({'solutions': {'language': [3]}},
             'solutions has no list solution'),
            ({'time_limit': {'seconds': '2'}}, "time_limit={'seconds': '2'}"),
            ({'time_limit': {'seconds': -2, 'nanos': 0}}, 'time_limit='),
            ({'time_limit': {'seconds': 10**9, 'nanos': 0}}, 'time_limit='))]),
    'livecodebench': (livecodebench_row('[]'), ('test6',), [
        (livecodebench_row(packed([STDIN])), 'a pickled list'),
        (livecodebench_row(packed(STDIN.encode())), 'a pickled bytes'),
        (livecodebench_row(packed(len)), 'names builtins.len'),
        (livecodebench_row(base64.b64encode(
            zlib.compress(b'\x80\x04X')).decode()), 'cannot be unpacked'),
        (livecodebench_row(packed('no JSON')),
         'private_test_cases cannot be read'),
        (livecodebench_row(packed('[1]')), 'a test'),
        (livecodebench_row(packed('[{"input": 1}]')), 'a test'),
        (livecodebench_row('%%'), 'cannot be unpacked'),
        (livecodebench_row(packed(STDIN)[:-8]), 'cannot be unpacked'),
        (livecodebench_row(public_test_cases='5'), 'is a JSON int'),
        (livecodebench_row(packed('null')), 'is a JSON NoneType'),
        (livecodebench_row(metadata='[]'), 'metadata is a JSON list'),
        (livecodebench_row(metadata='{"func_name": 5}'), 'func_name=5')]),
    'humaneval': (humaneval_row(), ('test',), [
        (humaneval_row(**fields), reason) for fields, reason in (
            ({'test': ''}, 'no function check'),
            ({'test': 'x = 1'}, 'no function check'),
            ({'test': 'def check('}, 'its tests are not Python'),
            ({'test': 'def check(candidate):\n    pass\n'}, 'assert nothing'),
            ({'test': 'def check(candidate):\n    assert True\n'},
             'assert nothing'),
            ({'entry_point': ''}, 'entry_point'),
            ({'entry_point': 'a b'}, "entry_point='a b'"))]),
}


@pytest.mark.parametrize('name', BAD_ROWS)
def test_bad_rows_are_left_out_and_named(tmp_path, caplog, name):
  good, splits, bad = BAD_ROWS[name]
  rows = [good, *(row for row, _ in bad), good]
  split = 'v6' if name == 'livecodebench' else splits[-1]
  found = load(
      tmp_path, name, {f'{x}.jsonl': rows for x in splits}, split)
  # Tasks are numbered by their rows.
  assert [x.task_id for x in found] == [
      f'{name}/{split}/{i}' for i in (0, len(bad) + 1)]
  messages = {
      record.getMessage().partition(': ')[0]: record.getMessage()
      for record in caplog.records}
  for number, (_, reason) in enumerate(bad, 1):
    assert reason in messages[f'{name}/{split}/{number} is skipped']


def test_large_and_excess_tests_are_dropped(tmp_path, caplog, monkeypatch):
  monkeypatch.setattr(base, 'MAX_TEST_BYTES', 400)
  monkeypatch.setattr(base, 'MAX_TASK_BYTES', 1000)
  inputs = ['a' * 300, 'a' * 500, 'b' * 300, 'c' * 300, 'd' * 300]
  row = apps_row({'inputs': inputs, 'outputs': list('12345')})
  short = {'inputs': list(map(str, range(20))), 'outputs': ['1'] * 20}
  too_large = apps_row({'inputs': ['a' * 500], 'outputs': ['1']})
  rows = [row, apps_row(short), too_large]
  files = {'train.jsonl': rows, 'test.jsonl': rows}
  first, second = load(tmp_path, 'apps', files, 'test')
  assert [test.input[0] for test in first.tests] == ['a', 'b', 'c']
  assert len(second.tests) == 20
  assert 'apps/test/0: 2 of 5 tests are left out' in caplog.text
  assert 'apps/test/2: 1 of 1 tests are left out' in caplog.text
  first, second = load(tmp_path, 'apps', {}, 'train')
  assert [test.input for test in second.tests] == list(map(str, range(16)))


class Evil:
  """Writes a file when it is unpickled."""

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self._path,)


def test_pickles_run_no_code(tmp_path):
  path = tmp_path / 'touched'
  with pytest.raises(base.UnusableRowError, match='the pickle names'):
    livecodebench_dataset_builder.unpack_private_cases(packed(Evil(path)))
  assert not path.exists()
  pickle.loads(pickle.dumps(Evil(path)))
  assert path.exists()  # The unrestricted loader runs it.


@pytest.mark.parametrize('name', ['rows.jsonl', 'rows.parquet'])
def test_rows_are_read_in_bounded_memory(tmp_path, name):
  """Reads 30 MB from disk, 10 KB per row."""
  path = tmp_path / name
  rows = [{'id': i, 'text': f'{i} ' + 'a' * 10_000} for i in range(3_000)]
  if name.endswith('parquet'):
    parquet.write_table(
        pyarrow.Table.from_pylist(rows), path, row_group_size=1000,
        compression='none', use_dictionary=False)
  else:
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  assert path.stat().st_size > 30e6
  del rows
  held = pyarrow.total_allocated_bytes()
  tracemalloc.start()
  max_arrow = num_rows = 0
  for _ in dataset_files.read_rows(path, {'text': (str,)}):
    num_rows += 1
    max_arrow = max(max_arrow, pyarrow.total_allocated_bytes() - held)
  _, max_python = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert num_rows == 3_000
  assert max_python < 2e6
  assert max_arrow < 16e6


def test_row_of_another_data_set_is_refused():
  with pytest.raises(ValueError, match="has no field 'statement'"):
    problems.from_task({'task_id': 'posts/test/0', 'text': 'a', 'tests': ''})
