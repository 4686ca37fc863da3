"""Published rows of the hub become tasks; training has no test problems."""

import logging

import pytest

from environments import datasets
from environments.math_problems import maths_dataset_builder as maths
from environments.math_problems import problems_dataset_builder as problems
from tests.environments import dataset_files_test

# Data set -> file in its repository, and a published row.
ROWS = {
    'aime24': ('data/train-00000-of-00001.parquet', {
        'id': 60, 'problem': 'Find $x+1$. ', 'answer': '025'}),
    'aime25': ('aime2025-II.jsonl', {
        'question': 'Find $x+1$.', 'answer': '025'}),
    'olympiadbench': (
        'OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet', {
            'id': 1, 'question': 'Find $x+1$.', 'final_answer': ['025'],
            'context': None, 'unit': None}),
    'gsm8k': ('main/test-00000-of-00001.parquet', {
        'question': 'Find $x+1$.', 'answer': 'It is <<24+1=25>>25.\n#### 025'}),
    'polaris': ('polaris-data-53K.jsonl', {
        'problem': 'Find $x+1$.', 'answer': '025', 'difficulty': '3/8'}),
}


def split_of(name):
  return 'train' if name == 'polaris' else 'test'


def write(root, name, rows, file=None):
  folder = root / 'downloads' / 'manual' / name
  dataset_files_test.write(folder / (file or ROWS[name][0]), rows)
  if name == 'gsm8k':  # Its builder reads both splits.
    dataset_files_test.write(
        folder / 'main/train-00000-of-00001.parquet', [ROWS[name][1]])


def load(root, name):
  return datasets.load(problems.__name__, split_of(name), str(root), name)


@pytest.mark.parametrize('name', ROWS)
def test_published_row_becomes_a_task(tmp_path, name):
  write(tmp_path, name, [ROWS[name][1]])
  assert load(tmp_path, name) == [{
      'task_id': f'{name}/{split_of(name)}/0', 'problem': 'Find $x+1$.',
      'answer': '025'}]


@pytest.mark.parametrize('name, change, words', [
    ('aime24', {'problem': ' '}, 'row 2: the problem is empty'),
    ('gsm8k', {'answer': 'It is 25.'}, "row 2: no #### in field 'answer'")])
def test_bad_row_is_named(tmp_path, name, change, words):
  row = ROWS[name][1]
  write(tmp_path, name, [row, row | change], f'{split_of(name)}.jsonl')
  with pytest.raises(ValueError, match=words):
    load(tmp_path, name)


@pytest.mark.parametrize('change, problem, answer', [
    ({'final_answer': ['1', '2']}, 'Find $x+1$.', '1,2'),
    ({'unit': '%', 'final_answer': ['4.2']}, 'Find $x+1$.', '4.2%'),
    ({'unit': '%', 'final_answer': [r'$8\%$']}, 'Find $x+1$.', r'$8\%$'),
    ({'unit': 'km'}, 'Find $x+1$.', '025'),
    ({'context': 'Let $x=24$.'}, 'Let $x=24$.\nFind $x+1$.', '025')])
def test_olympiadbench_answers_and_context(change, problem, answer):
  _, row = ROWS['olympiadbench']
  assert problems._olympiadbench(row | change) == {
      'problem': problem, 'answer': answer}


def test_joined_data_set_trains_on_no_test_problem(
    tmp_path, caplog, monkeypatch):
  monkeypatch.setattr(maths, 'NUM_VALIDATION', 2)
  for name in maths.TESTS:
    field = 'problem' if name == 'aime24' else 'question'
    text = ' '.join(f'{name}{word}' for word in range(30))
    write(tmp_path, name, [ROWS[name][1] | {field: f'Compute {text}.'}])
  rows = [
      {'problem': ' '.join(f'w{i}x{j}' for j in range(20)), 'answer': str(i)}
      for i in range(20)]
  copied = {'problem': 'compute ' + ' '.join(
      f'AIME24{word}' for word in range(30)), 'answer': '1'}
  write(tmp_path, 'polaris', [*rows[:7], copied, *rows[7:], rows[3]])

  def load_split(split):
    return datasets.load(maths.__name__, split, str(tmp_path))

  with caplog.at_level(logging.WARNING):
    train = load_split('train')
  validation = load_split('validation')
  ids = [task['task_id'] for task in train + validation]
  assert 'polaris/train/7' not in ids
  assert len(validation) == 2
  tests = load_split('+'.join(maths.TESTS))
  assert [x['task_id'] for x in tests] == [f'{x}/test/0' for x in maths.TESTS]
  builder = datasets._prepared_builder(maths, str(tmp_path), None)
  removed = builder.info.metadata['removed']
  assert removed['polaris/train/7'] == 'aime24/test/0'
  assert len(ids) + len(removed) == 22
  assert caplog.text.count('polaris/train/7: aime24/test/0') == 1
  write(tmp_path, 'polaris', rows)  # A changed file is read again.
  assert len(load_split('train+validation')) == len(rows)


# Overlaps.

TEST = (
    'Find the number of ordered pairs $(a,b)$ of positive integers such that '
    r'$\frac{a}{b} < 17$ and the sum of all digits of $a$ is at most $42$.')
CLOSING = (
    r' The answer can be written as $\frac{m}{n}$, where $m$ and $n$ are '
    'relatively prime positive integers. Find $m+n$.')
WORDS, TERMS = (
    ' '.join(f'{name}{i}x' for i in range(60)) for name in ('word', 'term'))


# `index` is that of the test which a problem overlaps, or None if it is kept.
@pytest.mark.parametrize('problem, tests, index', [
    *((copy, [TEST], 0) for copy in (
        TEST.upper(), TEST.replace('$', ' '), TEST.replace(' ', '\n'),
        TEST.replace(r'\frac', r'\displaystyle\dfrac').replace('(', r'\left('),
        f'Problem 3. {TEST} Prove it.', TEST.replace('42', '43'), TEST[:-40])),
    ('Find the number of ordered pairs of primes.', [TEST], None),
    ('', [TEST], None),
    (WORDS + CLOSING, [TERMS + CLOSING], None),
    (WORDS + CLOSING, [WORDS + CLOSING], 0),
    # Short problems overlap only if their words are the same.
    ('Solve x + 1 = 2.', ['Solve $x+1=2$'], 0),
    ('Solve x + 1 = 3.', ['Solve $x+1=2$'], None),
    # The first one is named.
    (TEST, [WORDS, TEST, TEST], 1)])
def test_overlap_needs_half_of_the_runs(problem, tests, index):
  kept, removed = maths.remove_overlaps(
      [{'task_id': 'p', 'problem': problem}],
      [{'task_id': i, 'problem': x} for i, x in enumerate(tests)])
  assert len(kept) + len(removed) == 1
  assert removed.get('p') == index
