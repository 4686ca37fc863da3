"""Sudoku's tasks: one solution, no kind in two splits, the same everywhere."""

from __future__ import annotations

import itertools

import pytest

from environments import datasets
from environments.boards.sudoku import env as sudoku
from environments.boards.sudoku import grid
from environments.boards.sudoku import sudoku_dataset_builder
from tests.environments import echo_sandbox
from tests.environments import other_process

_MODULE = 'environments.boards.sudoku.sudoku_dataset_builder'

# Reports name these hashes. They may change only together with VERSION and its
# release notes: old results are then about other boards. If a new numpy changed
# them, its random streams moved; pin numpy or raise VERSION.
_SPLIT_HASHES = {
    '4x4': {
        'test': 'f2b40db5ac3ddae5',
        'validation': 'f7bb80a0c8b8c379',
        'train': '7c66e97dca71a67d',
    },
    '9x9': {
        'test': 'bf26f3b1cf0a52b8',
        'validation': '9b3d85655aa8df05',
        'train': '61ba711c55928b6b',
    },
}
# Version 1.0.0 named no kinds; results on its boards stay comparable.
_HASHES_WITHOUT_KIND = {
    '4x4': {
        'test': '8025cc64a3c6ce07',
        'validation': 'cfda113ba5ea56f9',
        'train': '39dcf543820787b7',
    },
    '9x9': {
        'test': '86c0050314fe971d',
        'validation': 'f62846ffcab11d06',
        'train': 'e1b7d82e2b843afd',
    },
}


@pytest.fixture(scope='module', params=['4x4', '9x9'])
def config(request):
  return request.param


@pytest.fixture(scope='module')
def splits(config, tmp_path_factory):
  data_dir = str(tmp_path_factory.mktemp('sudoku'))
  return {
      split: datasets.load(_MODULE, split, data_dir, config)
      for split in ('test', 'validation', 'train')
  }


def test_sizes_and_ids(config, splits):
  sizes = {split: len(tasks) for split, tasks in splits.items()}
  if config == '4x4':
    assert sizes == {'test': 1_000, 'validation': 200, 'train': 10_000}
  else:
    assert sizes == {'test': 200, 'validation': 100, 'train': 2_000}
  for split, tasks in splits.items():
    assert [t['task_id'] for t in tasks] == [
        f'sudoku/{config}/{split}/{i}' for i in range(len(tasks))
    ]


def test_every_task_has_one_solution(config, splits):
  size, fewest, most = {'4x4': (4, 6, 12), '9x9': (9, 30, 50)}[config]
  for task in splits['test'] + splits['validation'] + splits['train']:
    cells = ''.join(task['board'])
    assert len(cells) == size * size
    assert len(cells) - task['num_clues'] == cells.count('.')
    assert fewest <= cells.count('.') <= most
    assert grid.is_solution(task['board'], task['solution'])
    assert grid.solutions(task['board']) == [task['solution']]


def test_every_split_has_every_number_of_clues(config, splits):
  num_clues = {'4x4': range(4, 11), '9x9': range(31, 52)}[config]
  for tasks in splits.values():
    assert {t['num_clues'] for t in tasks} == set(num_clues)


def test_no_kind_of_puzzle_is_in_two_splits(splits):
  kinds = {
      split: {grid.canonical_form(t['board']) for t in tasks}
      for split, tasks in splits.items()
  }
  for one, other in itertools.combinations(kinds.values(), 2):
    assert one.isdisjoint(other)


def test_rows_name_their_kind(config, splits):
  for task in splits['test'] + splits['validation']:
    assert task['kind'] == grid.canonical_form(task['board'])
  kinds = {task['kind'] for task in splits['test']}
  # The builder's docstring and the statistics of the tables rest on these.
  assert len(kinds) == {'4x4': 509, '9x9': 200}[config]


def test_boards_are_those_of_the_first_version(config, splits):
  without = {
      split: datasets.split_hash([
          {name: task[name] for name in task if name != 'kind'}
          for task in tasks])
      for split, tasks in splits.items()}
  assert without == _HASHES_WITHOUT_KIND[config]


def test_no_two_tasks_are_equal(splits):
  boards = [tuple(t['board']) for tasks in splits.values() for t in tasks]
  assert len(set(boards)) == len(boards)


def test_later_splits_do_not_change_the_test_tasks(config):
  make_splits = sudoku_dataset_builder.make_splits
  assert list(sudoku_dataset_builder.SPLIT_SIZES[config])[0] == 'test'
  alone = make_splits(config, {'test': 5})
  assert alone['test'] == make_splits(config, {'test': 5, 'train': 3})['test']


def test_splits_are_the_ones_that_reports_name(config, splits):
  hashes = {s: datasets.split_hash(tasks) for s, tasks in splits.items()}
  assert hashes == _SPLIT_HASHES[config]


def test_rows_are_what_the_environment_plays(config, splits):
  environment = sudoku.make_environment(
      team='pair', max_turns=1, reward='mixed', sandbox=echo_sandbox.Echo(),
      size={'4x4': 4, '9x9': 9}[config])
  for task in splits['test'][:100]:
    state = environment.reset(task)
    assert state.task_id == task['task_id']
    shown = environment.observe(state, 'tool')[1]['content']
    assert shown.endswith('\n'.join([
        '', *task['board'], 'Turn 1 of 1. Nothing is filled in.']))
    solution = [[int(digit) for digit in row] for row in task['solution']]
    step = environment.step(state, {'tool': f'```python\n{solution}\n```'})
    assert step.reward_terms['plan_solved'] == 1
    assert environment.step(
        step.state, {'planner': f'#### {solution}'}).success


def test_4x4_is_the_default(tmp_path, monkeypatch):
  monkeypatch.setattr(
      sudoku_dataset_builder, 'SPLIT_SIZES', {'4x4': {'test': 1}})
  task, = datasets.load(_MODULE, 'test', str(tmp_path))
  assert task['task_id'] == 'sudoku/4x4/test/0'


@pytest.mark.parametrize('hash_seed', ['0', '1'])
def test_tasks_do_not_depend_on_the_process(config, splits, hash_seed):
  found = other_process.split_hash(_MODULE, config, hash_seed=hash_seed)
  assert found == datasets.split_hash(splits['test'][:20])
