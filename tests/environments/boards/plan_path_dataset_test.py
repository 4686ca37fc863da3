"""Plan-Path's tasks: solvable, far enough, distinct, the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from environments import datasets
from environments.boards.plan_path import maze
from environments.boards.plan_path import plan_path_dataset_builder
from tests.environments import other_process

_MODULE = 'environments.boards.plan_path.plan_path_dataset_builder'

# Reports name these hashes. They may change only together with VERSION and its
# release notes: old results are then about other mazes. If a new numpy changed
# them, its random streams moved; pin numpy or raise VERSION.
_SPLIT_HASHES = {
    'test': 'b336bb62659de654',
    'validation': '7df211d64516223c',
    'train': '19feb2a61c92190b',
}


@pytest.fixture(scope='module')
def splits(tmp_path_factory):
  data_dir = str(tmp_path_factory.mktemp('plan_path'))
  return {
      split: datasets.load(_MODULE, split, data_dir)
      for split in ('test', 'validation', 'train')
  }


def _distances(tasks):
  """Shortest path lengths by flooding all mazes at once; -1 if unreachable."""
  free = np.array([[list(row) for row in t['grid']] for t in tasks]) == '.'
  index = np.arange(len(tasks))
  goal = tuple(np.array([t['goal'] for t in tasks]).T)
  flooded = np.zeros_like(free)
  flooded[(index, *np.array([t['start'] for t in tasks]).T)] = True
  distances = np.where(flooded[(index, *goal)], 0, -1)
  for moves in range(1, free[0].size):
    wider = flooded.copy()
    wider[:, 1:] |= flooded[:, :-1]
    wider[:, :-1] |= flooded[:, 1:]
    wider[:, :, 1:] |= flooded[:, :, :-1]
    wider[:, :, :-1] |= flooded[:, :, 1:]
    flooded = wider & free
    distances[(distances == -1) & flooded[(index, *goal)]] = moves
  return distances.tolist()


def test_sizes_and_ids(splits):
  assert {split: len(tasks) for split, tasks in splits.items()} == {
      'test': 1_000, 'validation': 200, 'train': 10_000
  }
  for split, tasks in splits.items():
    assert [t['task_id'] for t in tasks] == [
        f'plan_path/{split}/{i}' for i in range(len(tasks))
    ]


def test_every_task_is_well_formed_and_far_enough(splits):
  for task in splits['test'] + splits['validation'] + splits['train']:
    assert len(task['grid']) == 10
    assert all(len(row) == 10 for row in task['grid'])
    assert set(''.join(task['grid'])) == {'#', '.'}
    for row, col in (task['start'], task['goal']):
      assert task['grid'][row][col] == '.'
    assert task['start'] != task['goal']
    assert task['shortest_path'] >= 6


def test_shortest_paths_agree_with_a_flood(splits):
  for tasks in splits.values():
    assert [t['shortest_path'] for t in tasks] == _distances(tasks)


def test_walls_have_their_probability(splits):
  cells = ''.join(row for t in splits['train'] for row in t['grid'])
  # A little below 0.22: dense mazes are rejected more often.
  assert 0.205 < cells.count('#') / len(cells) < 0.22


def test_no_two_tasks_are_equal(splits):
  contents = [
      (*t['grid'], *t['start'], *t['goal'])
      for tasks in splits.values() for t in tasks
  ]
  assert len(set(contents)) == len(contents)


def test_no_two_mazes_are_turned_or_mirrored_copies(splits):
  """So the tables count every task as a cluster of its own."""
  kinds = []
  for task in splits['test']:
    cells = np.array([list(row) for row in task['grid']])
    cells[tuple(task['start'])], cells[tuple(task['goal'])] = 'sg'
    turned = [np.rot90(cells, turns) for turns in range(4)]
    kinds.append(min(
        ''.join(copy.flat) for one in turned for copy in (one, one.T)))
  assert len(set(kinds)) == len(kinds) == 1_000


def test_repeated_mazes_are_dropped_within_and_across_splits(monkeypatch):
  # Real mazes never collide; these six do all the time.
  monkeypatch.setattr(
      maze, 'random_task', lambda rng: {'grid': [str(rng.integers(6))]}
  )
  splits = plan_path_dataset_builder.make_splits({'test': 2, 'train': 4})
  grids = [t['grid'][0] for tasks in splits.values() for t in tasks]
  assert sorted(grids) == list('012345')


def test_later_splits_do_not_change_the_test_tasks():
  assert list(plan_path_dataset_builder.SPLIT_SIZES)[0] == 'test'
  alone = plan_path_dataset_builder.make_splits({'test': 5})
  before_train = plan_path_dataset_builder.make_splits({'test': 5, 'train': 3})
  assert alone['test'] == before_train['test']


def test_splits_are_the_ones_that_reports_name(splits):
  hashes = {s: datasets.split_hash(tasks) for s, tasks in splits.items()}
  assert hashes == _SPLIT_HASHES


@pytest.mark.parametrize('hash_seed', ['0', '1'])
def test_tasks_do_not_depend_on_the_process(splits, hash_seed):
  found = other_process.split_hash(_MODULE, hash_seed=hash_seed)
  assert found == datasets.split_hash(splits['test'][:20])


@pytest.mark.parametrize(
    'grid, start, goal, expected',
    [
        (['..', '..'], [0, 0], [0, 0], 0),
        (['..', '..'], [0, 0], [1, 1], 2),
        (['.#', '#.'], [0, 0], [1, 1], None),
        (['.#.', '.#.', '...'], [0, 0], [0, 2], 6),
        (['...'], [0, 0], [0, 2], 2),
    ],
)
def test_shortest_path_length(grid, start, goal, expected):
  assert maze.shortest_path_length(grid, start, goal) == expected
