"""Published rows of the hub become tasks; training has no test problems."""

import logging
import random

import pytest

from environments import datasets
from environments.math_problems.dapo import dapo_dataset_builder as dapo
from environments.math_problems.maths import maths_dataset_builder as maths
from tests.environments.math_problems import published


@pytest.mark.parametrize('name', published.ROWS)
def test_published_row_becomes_a_task(tmp_path, name):
  published.write(tmp_path, name, [published.ROWS[name][1]])
  task, = published.load(tmp_path, name)
  split = 'train' if name in ('polaris', 'dapo') else 'test'
  assert task == {
      'task_id': f'{name}/{split}/0', 'problem': 'Find $x+1$.',
      'answer': '025'}


@pytest.mark.parametrize('name, change, words', [
    ('aime24', {'problem': ' '}, 'row 2: the problem is empty'),
    ('aime25', {'answer': ''}, 'row 2: the answer is empty'),
    ('aime25', {'answer': None}, "row 2: .*'answer'"),
    ('polaris', {'problem': 'x' * 70_000}, "row 2: .*'problem'.*70000"),
    ('gsm8k', {'answer': 'It is 25.'}, "row 2: no #### in field 'answer'"),
    ('dapo', {'prompt': [{'content': 'Find it.', 'role': 'user'}]},
     'row 2: expected a prompt'),
    ('dapo', {'prompt': []}, 'row 2: expected prompt'),
    ('dapo', {'reward_model': {'ground_truth': 25}}, 'row 2: .*=25'),
])
def test_bad_row_is_named(tmp_path, name, change, words):
  row = published.ROWS[name][1]
  published.write(tmp_path, name, [row, row | change], 'all.jsonl')
  split = 'train' if name in ('polaris', 'dapo') else 'test'
  folder = tmp_path / 'downloads' / 'manual' / name
  (folder / 'all.jsonl').rename(folder / f'{split}.jsonl')
  with pytest.raises(ValueError, match=words):
    published.load(tmp_path, name)


@pytest.mark.parametrize('change, problem, answer', [
    ({'final_answer': ['1', '2']}, 'Find $x+1$.', '1,2'),
    ({'unit': '%', 'final_answer': ['4.2']}, 'Find $x+1$.', '4.2%'),
    ({'unit': '%', 'final_answer': [r'$8\%$']}, 'Find $x+1$.', r'$8\%$'),
    ({'unit': 'km'}, 'Find $x+1$.', '025'),
    ({'context': 'Let $x=24$.'}, 'Let $x=24$.\nFind $x+1$.', '025')])
def test_olympiadbench_answers_and_context(tmp_path, change, problem, answer):
  row = published.ROWS['olympiadbench'][1]
  published.write(tmp_path, 'olympiadbench', [row | change])
  task, = published.load(tmp_path, 'olympiadbench')
  assert (task['problem'], task['answer']) == (problem, answer)


def test_dapo_drops_and_counts_repeated_rows(tmp_path):
  row = published.ROWS['dapo'][1]
  other = row | {'reward_model': {'ground_truth': '26', 'style': 'rule'}}
  published.write(tmp_path, 'dapo', [row, row, other, row, other])
  assert [task['task_id'] for task in published.load(tmp_path, 'dapo')] == [
      'dapo/train/0', 'dapo/train/2']
  assert dapo.Builder(data_dir=tmp_path).info.metadata['repeated_rows'] == 3


def test_joined_data_set_trains_on_no_test_problem(
    tmp_path, caplog, monkeypatch):
  monkeypatch.setattr(maths, 'NUM_VALIDATION', 2)
  for name in maths.TESTS:
    field = 'problem' if name == 'aime24' else 'question'
    texts = ' '.join(f'{name}{word}' for word in range(30))
    row = published.ROWS[name][1] | {field: f'Compute {texts}.'}
    published.write(tmp_path, name, [row])
    if name == 'gsm8k':
      published.write(
          tmp_path, name, [published.ROWS[name][1]],
          'main/train-00000-of-00001.parquet')
  rows = [
      {'problem': ' '.join(f'w{i}x{j}' for j in range(20)), 'answer': str(i)}
      for i in range(20)]
  copied = {'problem': 'compute ' + ' '.join(
      f'AIME24{word}' for word in range(30)), 'answer': '1'}
  published.write(tmp_path, 'polaris', [*rows[:7], copied, *rows[7:], rows[3]])
  module = published.module('maths')
  with caplog.at_level(logging.WARNING):
    train = datasets.load(module, 'train', str(tmp_path))
  validation = datasets.load(module, 'validation', str(tmp_path))
  ids = [task['task_id'] for task in train + validation]
  assert 'polaris/train/7' not in ids
  assert len(validation) == 2
  tests = datasets.load(module, '+'.join(maths.TESTS), str(tmp_path))
  assert [x['task_id'] for x in tests] == [f'{x}/test/0' for x in maths.TESTS]
  removed = maths.Builder(
      data_dir=tmp_path, config='polaris').info.metadata['removed']
  assert removed[0] == {
      'task_id': 'polaris/train/7', 'overlaps': 'aime24/test/0', 'share': 1.0}
  assert len(ids) + len(removed) == 22
  assert caplog.text.count('polaris/train/7: aime24/test/0') == 1


# Overlaps.

TEST = (
    'Find the number of ordered pairs $(a,b)$ of positive integers such that '
    r'$\frac{a}{b} < 17$ and the sum of all digits of $a$ is at most $42$.')
CLOSING = (
    r' The answer can be written as $\frac{m}{n}$, where $m$ and $n$ are '
    'relatively prime positive integers. Find $m+n$.')
HALF = TEST[:len(TEST) // 2] + ' and so on until there is none of them left'
WORDS, TERMS = (
    ' '.join(f'{name}{i}x' for i in range(60)) for name in ('word', 'term'))


def find(*problems, tests=(TEST,)):
  """(index, name of the test) of each removed problem."""
  kept, removed = maths.remove_overlaps(
      [{'task_id': i, 'problem': x} for i, x in enumerate(problems)],
      [{'task_id': f't{i}', 'problem': x} for i, x in enumerate(tests)])
  assert len(kept) + len(removed) == len(problems)
  return [(x['task_id'], x['overlaps']) for x in removed]


@pytest.mark.parametrize('copy', [
    TEST, TEST.upper(), TEST.replace('$', ' '),
    TEST.replace(r'\frac', r'\displaystyle\dfrac').replace('(', r'\left('),
    TEST.replace(' ', '\n'), f'Problem 3. {TEST} Prove it.',
    TEST.replace('42', '43'), TEST[:-40]])
def test_copies_overlap(copy):
  assert find('Something else.', copy) == [(1, 't0')]


@pytest.mark.parametrize('problem, tests, found', [
    ('Find the number of ordered pairs of primes.', [TEST], []),
    ('', [TEST], []), ('$17$', [TEST], []),
    ('How many triangles have a perimeter of 17, if no side is longer than the '
     'sum of all digits of its area, and the area is at least 42?', [TEST], []),
    (WORDS + CLOSING, [TERMS + CLOSING], []),
    (WORDS + CLOSING, [WORDS + CLOSING], [(0, 't0')]),
    # Short problems overlap only if their words are the same.
    ('Solve x + 1 = 2.', ['Solve $x+1=2$'], [(0, 't0')]),
    ('Solve x + 1 = 3.', ['Solve $x+1=2$'], []),
    # The largest share is named, and then the first test.
    (TEST, [HALF, TEST, TEST], [(0, 't1')])])
def test_overlap_needs_half_of_the_runs(problem, tests, found):
  assert find(problem, tests=tests) == found


def test_order_of_problems_does_not_matter():
  problems = [TEST, 'Nothing.', TEST.replace('17', '19')]
  random.Random(0).shuffle(problems)
  assert len(find(*problems)) == 2
