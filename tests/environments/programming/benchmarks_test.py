"""Published rows of the benchmarks become tasks, and bad rows are named."""

import base64
import builtins
import json
import pickle
import zlib

import pytest

from environments import datasets
from environments.programming import benchmarks_dataset_builder as benchmarks
from environments.programming import problems
from tests.environments import dataset_files_test

Case = problems.Case


def load(tmp_path, name, files, split):
  """Returns the problems of a split, from a copy of the repository."""
  folder = tmp_path / 'downloads' / 'manual' / name
  for path, rows in files.items():
    dataset_files_test.write(folder / path, rows)
  tasks = datasets.load(
      'environments.programming.benchmarks_dataset_builder', split,
      str(tmp_path), name)
  return list(map(problems.from_task, tasks))


def packed(value):
  return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def apps_row(input_output, solutions=(), **fields):
  return {
      'id': 7, 'question': 'Add.', 'starter_code': '', 'url': '',
      'difficulty': 'interview', 'input_output': json.dumps(input_output),
      'solutions': json.dumps(solutions) if solutions else ''} | fields


CODE_CONTESTS = {
    'name': 'A', 'description': 'Double.', 'source': 2, 'difficulty': 7,
    'public_tests': {'input': ['1\n'], 'output': ['2\n']},
    'private_tests': {'input': ['2\n', '1\n'], 'output': ['4\n', '2\n']},
    'generated_tests': {'input': ['3\n'], 'output': ['6\n']},
    'solutions': {'language': [2, 1, 3, 3], 'solution': [
        'int main() {}', 'print 1', 'print "no"', 'print(2*int(input()))']},
    'time_limit': {'seconds': 1, 'nanos': 500_000_000}}
STDIN = json.dumps([{'input': '2\n', 'output': '4\n', 'testtype': 'stdin'}])
LIVECODEBENCH = {
    'question_title': 'A', 'question_content': 'Double.',
    'platform': 'atcoder', 'question_id': '1', 'difficulty': 'easy',
    'starter_code': '', 'metadata': '{}', 'private_test_cases': STDIN,
    'public_test_cases': STDIN.replace('2', '1').replace('4', '2')}
HUMANEVAL = {
    'task_id': 'HumanEval/0', 'prompt': 'def f(x):\n    """Double."""\n',
    'canonical_solution': '    return 2 * x\n', 'entry_point': 'f',
    'test': 'def check(candidate):\n    assert candidate(1) == 2\n'}
MBPP = {
    'task_id': 3, 'source_file': 'a', 'prompt': 'Say """\\d""".',
    'test_imports': ['import math'], 'challenge_test_list': [],
    'code': 'import re\r\ndef g(x):\r\n  return x\r\n'
    'def f(x, y=2):\r\n  return g(x) * y',
    'test_list': ['assert f(1) == 2', 'assert f("a\\n")==("a\\na\\n")']}


def test_apps_rows_become_problems(tmp_path):
  rows = [
      apps_row({'inputs': ['1\n', '2\n'], 'outputs': ['2\n', '3\n']},
               ['print "old"', 'print(2)', 'print(3)']),
      apps_row({'inputs': [['1', '2']], 'outputs': [['3', '4']]}),
      apps_row({'fn_name': 'f', 'inputs': [[[1, 2], {'3': 'a'}], ['b']],
                'outputs': [[6], {'4': 5}]}, starter_code='def f(a, b):\n')]
  first, second, third = load(
      tmp_path, 'apps', {'train.jsonl': rows, 'test.jsonl': rows}, 'test')
  assert first == problems.Problem(
      task_id='apps/test/0', statement='Add.', comparison='apps',
      tests=first.tests, time_limit=4.0, reference='print(2)')
  assert first.cases == (Case('1\n', ('2\n',)), Case('2\n', ('3\n',)))
  assert (second.cases, second.reference) == ((Case('1\n2', ('3\n4',)),), '')
  assert third.entry_point == 'f' and third.starter_code == 'def f(a, b):\n'
  assert third.cases == (
      Case(([1, 2], {3: 'a'}), ([6], 6)), Case(('b',), ({4: 5},)))
  names = {}
  exec(third.preamble, names)
  assert {
      name for name in dir(builtins)
      if names.get(name, getattr(builtins, name)) is not getattr(builtins, name)
      } <= {'__doc__', '__name__'}  # Such as the `pow` of `math`.


def test_code_contests_rows_become_problems(tmp_path):
  rows = [
      CODE_CONTESTS, CODE_CONTESTS | {'time_limit': None, 'solutions': {
          'language': [3], 'solution': ['print(']}}]
  files = {
      f'data/{split}-00000-of-00001-abc.parquet': rows
      for split in ('train', 'valid', 'test')}
  first, second = load(tmp_path, 'code_contests', files, 'valid')
  assert first.cases == tuple(
      Case(f'{i}\n', (f'{2 * i}\n',)) for i in (1, 2, 3))
  assert (first.time_limit, first.comparison) == (1.5, 'code_contests')
  assert first.reference == 'print(2*int(input()))'
  assert (second.time_limit, second.reference) == (4.0, '')


def test_livecodebench_rows_become_problems(tmp_path):
  functional = json.dumps([
      {'input': '[1, 2]\n"a"', 'output': '[2, 4]', 'testtype': 'functional'}])
  rows = [
      LIVECODEBENCH, LIVECODEBENCH | {'private_test_cases': packed(STDIN)},
      LIVECODEBENCH | dict(
          private_test_cases=packed(functional), public_test_cases=functional,
          metadata='{"func_name": "double"}', starter_code='class Solution:\n')]
  first, second, third = load(
      tmp_path, 'livecodebench', {'test.jsonl': [], 'test6.jsonl': rows}, 'v6')
  assert first.cases == second.cases == (
      Case('1\n', ('2\n',)), Case('2\n', ('4\n',)))
  assert (first.comparison, first.time_limit, first.entry_point) == (
      'livecodebench', 6.0, '')
  assert third.entry_point == 'double'
  assert third.cases == (Case(([1, 2], 'a'), ([2, 4],)),)


def test_humaneval_and_coop_humaneval_rows_become_problems(tmp_path):
  name = 'openai_humaneval/test-00000-of-00001.parquet'
  found, = load(tmp_path, 'humaneval', {name: [HUMANEVAL]}, 'test')
  prompt = HUMANEVAL['prompt']
  assert found == problems.Problem(
      task_id='humaneval/test/0', statement=prompt, starter_code=prompt,
      entry_point='f', preamble=prompt, comparison='check', tests=found.tests,
      reference=prompt + HUMANEVAL['canonical_solution'], time_limit=3.0)
  assert found.check_code == HUMANEVAL['test']
  name = 'data/train-00000-of-00001.parquet'
  row = HUMANEVAL.copy()
  del row['canonical_solution']
  found, = load(tmp_path, 'coop_humaneval', {name: [row]}, 'test')
  assert (found.reference, found.check_code) == ('', row['test'])


def test_mbpp_rows_become_problems(tmp_path):
  files = {
      f'sanitized/{split}-00000-of-00001.parquet': [MBPP]
      for split in ('train', 'validation', 'test', 'prompt')}
  found, = load(tmp_path, 'mbpp', files, 'validation')
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


# Benchmark -> a good row, and changes that make a bad row, with the reason in
# the log.
BAD_ROWS = {
    'apps': (apps_row({'inputs': ['1'], 'outputs': ['1']}), [
        ({'input_output': ''}, 'it has no tests'),
        ({'input_output': '{"inputs": ["1"], "outputs": []}'}, 'shorter'),
        ({'input_output': '{"inputs": ["1"'}, 'JSONDecodeError'),
        ({'input_output': '{"fn_name": "f", "inputs": [1], "outputs": [1]}'},
         'the arguments of a test'),
        ({'question': 'a' * 30_000}, '30000 bytes')]),
    'code_contests': (CODE_CONTESTS, [
        ({'solutions': {'language': [3]}}, 'solution'),
        ({'time_limit': {'seconds': 10**9, 'nanos': 0}}, 'time_limit=')]),
    'livecodebench': (LIVECODEBENCH, [
        ({'private_test_cases': packed([STDIN])}, 'not list'),
        ({'private_test_cases': packed(STDIN)[:-8]}, 'Error'),
        ({'metadata': '[]'}, "'list'")]),
    'humaneval': (HUMANEVAL, [
        ({'test': 'def check(candidate):\n    assert True\n'},
         'assert nothing'),
        ({'entry_point': ''}, 'entry_point')]),
    'mbpp': (MBPP, [
        ({'test_list': ['assert h(1)']}, 'call 0 functions'),
        ({'test_list': ['assert f(1) == g(2)']}, 'call 2 functions'),
        ({'code': 'class Pair: pass\ndef f(x): return 1',
          'test_list': ['assert f(Pair()) == 1']}, 'the class Pair')]),
}


@pytest.mark.parametrize('name', BAD_ROWS)
def test_bad_rows_are_skipped_and_named(tmp_path, caplog, name):
  good, bad = BAD_ROWS[name]
  rows = [good, *(good | changes for changes, _ in bad), good]
  splits = benchmarks.Builder.builder_configs[name].split_files
  split = list(splits)[-1]
  found = load(tmp_path, name, {f'{x}.jsonl': rows for x in splits}, split)
  # Tasks are numbered by their rows.
  assert [x.task_id for x in found] == [
      f'{name}/{split}/{i}' for i in (0, len(bad) + 1)]
  for number, (_, reason) in enumerate(bad, 1):
    message, = (x for x in caplog.messages
                if f'{split}/{number} is skipped' in x)
    assert reason in message


def test_large_and_excess_tests_are_dropped(tmp_path, caplog, monkeypatch):
  monkeypatch.setattr(benchmarks, 'MAX_TEST_BYTES', 400)
  monkeypatch.setattr(benchmarks, 'MAX_TASK_BYTES', 1000)
  inputs = [letter * size for letter, size in (
      ('a', 300), ('a', 500), ('b', 300), ('c', 300), ('d', 300))]
  rows = [
      apps_row({'inputs': x, 'outputs': ['1'] * len(x)})
      for x in (inputs, list(map(str, range(20))), inputs[1:2])]
  files = {'train.jsonl': rows, 'test.jsonl': rows}
  first, second = load(tmp_path, 'apps', files, 'test')
  assert [case.input[0] for case in first.cases] == ['a', 'b', 'c']
  assert len(second.cases) == 20
  assert 'apps/test/0: 2 of 5 tests are dropped' in caplog.text
  assert 'apps/test/2: 1 of 1 tests are dropped' in caplog.text
  _, second = load(tmp_path, 'apps', {}, 'train')
  assert len(second.cases) == 16


class Evil:
  """Raises an error when it is unpickled."""

  def __reduce__(self):
    return divmod, (1, 0)


def test_pickles_run_no_code():
  with pytest.raises(ZeroDivisionError):  # The unrestricted loader runs it.
    pickle.loads(pickle.dumps(Evil()))
  with pytest.raises(pickle.UnpicklingError, match='names builtins.divmod'):
    benchmarks.unpack_private_cases(packed(Evil()))


def test_tasks_of_other_data_are_refused():
  with pytest.raises(ValueError, match="'maze' has no field 'statement'"):
    problems.from_task({'task_id': 'maze'})
