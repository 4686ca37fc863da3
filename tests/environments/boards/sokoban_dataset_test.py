"""Sokoban's tasks: solvable, distinct up to symmetry, the same everywhere."""

from __future__ import annotations

import json

import numpy as np
import pytest

from environments import datasets
from environments.boards.sokoban import env as sokoban
from environments.boards.sokoban import room
from environments.boards.sokoban import sokoban_dataset_builder
from tests.environments import echo_sandbox
from tests.environments import other_process

_MODULE = 'environments.boards.sokoban.sokoban_dataset_builder'

# Reports name these hashes. They may change only together with VERSION and its
# release notes: old results are then about other rooms. If a new numpy changed
# them, its random streams moved; pin numpy or raise VERSION.
_SPLIT_HASHES = {
    'test': '447f4a4302d79ae8',
    'validation': '662871260e005793',
    'train': '0e77b8d77b58dfb4',
}
# Of the first 100 test tasks with two boxes; all splits take a minute to make.
_TWO_BOXES_HASH = '32c576d84b35ad46'


@pytest.fixture(scope='module')
def splits(tmp_path_factory):
  data_dir = str(tmp_path_factory.mktemp('sokoban'))
  return {
      split: datasets.load(_MODULE, split, data_dir)
      for split in ('test', 'validation', 'train')
  }


@pytest.fixture(scope='module')
def two_boxes(tmp_path_factory):
  data_dir = tmp_path_factory.mktemp('two_boxes')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sokoban_dataset_builder, 'SPLIT_SIZES', {'test': 100})
    tasks = datasets.load(_MODULE, 'test', str(data_dir), '2boxes')
  # What was written before the hash above changed is not read again.
  assert (data_dir / 'sokoban' / '2boxes' / '2.0.0').is_dir()
  return tasks


def _copies(task):
  """The room as bytes, in each of its eight orientations."""
  cells = np.array([list(row) for row in task['grid']], 'S1').view(np.uint8)
  cells = (cells == ord('#')).astype(np.uint8)
  cells[tuple(task['player'])] += 2
  for row, col in task['boxes']:
    cells[row, col] += 4
  for row, col in task['goals']:
    cells[row, col] += 8
  turned = [np.rot90(cells, times) for times in range(4)]
  return {c.tobytes() for copy in turned for c in (copy, copy.T)}


def test_sizes_and_ids(splits):
  assert {split: len(tasks) for split, tasks in splits.items()} == {
      'test': 1_000, 'validation': 200, 'train': 10_000
  }
  for split, tasks in splits.items():
    assert [t['task_id'] for t in tasks] == [
        f'sokoban/1box/{split}/{i}' for i in range(len(tasks))
    ]


def test_walls_have_their_probability(splits):
  cells = ''.join(row for t in splits['train'] for row in t['grid'])
  # A little below 0.2: dense rooms are rejected more often.
  assert 0.15 < cells.count('#') / len(cells) < 0.2


def test_least_moves_and_pushes_are_stored(splits):
  for task in splits['test'] + splits['validation']:
    position = [task[k] for k in ('grid', 'player', 'boxes', 'goals')]
    moves = room.solve(*position)
    assert len(moves) == task['moves']
    assert room.fewest_pushes(*position) == task['pushes'] >= 2
    _, boxes, _, illegal = room.walk(*position, moves)
    assert [list(box) for box in boxes] == task['goals'] and not illegal


def test_no_task_is_a_copy_of_another(splits):
  seen = set()
  for tasks in splits.values():
    for task in tasks:
      copies = _copies(task)
      assert seen.isdisjoint(copies)
      seen |= copies


def test_copies_are_dropped_within_and_across_splits(monkeypatch):
  # Real rooms hardly ever collide; these do all the time.
  def corner_room(rng, num_boxes):
    return {
        'grid': ['....'] * 4, 'player': rng.choice([0, 3], 2).tolist(),
        'boxes': [[1, 1]], 'goals': [[2, 2]],
    }

  monkeypatch.setattr(room, 'random_task', corner_room)
  splits = sokoban_dataset_builder.make_splits('1box', {'test': 1, 'train': 2})
  players = [tuple(t['player']) for tasks in splits.values() for t in tasks]
  # The two corners beside the diagonal of box and goal are mirror images.
  assert {tuple(sorted(player)) for player in players} == {
      (0, 0), (0, 3), (3, 3)
  }


def test_later_splits_do_not_change_the_test_tasks():
  make_splits = sokoban_dataset_builder.make_splits
  assert list(sokoban_dataset_builder.SPLIT_SIZES)[0] == 'test'
  alone = make_splits('1box', {'test': 5})
  assert alone['test'] == make_splits('1box', {'test': 5, 'train': 3})['test']


def test_splits_are_the_ones_that_reports_name(splits):
  hashes = {s: datasets.split_hash(tasks) for s, tasks in splits.items()}
  assert hashes == _SPLIT_HASHES


def test_rooms_with_two_boxes(two_boxes):
  assert {len(t[k]) for t in two_boxes for k in ('boxes', 'goals')} == {2}
  assert min(task['pushes'] for task in two_boxes) == 3
  assert two_boxes[-1]['task_id'] == 'sokoban/2boxes/test/99'
  assert datasets.split_hash(two_boxes) == _TWO_BOXES_HASH


def test_rows_are_what_the_environment_plays(splits, two_boxes):
  environment = sokoban.make_environment(
      team='pair', max_turns=1, reward='oracle', sandbox=echo_sandbox.Echo())
  for task in splits['test'][:100] + two_boxes:
    state = environment.reset(task)
    assert state.task_id == task['task_id']
    picture = [list(row) for row in task['grid']]
    for letter, name in (('B', 'boxes'), ('G', 'goals')):
      for row, col in task[name]:
        picture[row][col] = letter
    row, col = task['player']
    picture[row][col] = 'A'
    shown = environment.observe(state, 'tool')[1]['content']
    assert shown.endswith('\n'.join([
        '', *map(''.join, picture),
        f'Turn 1 of 1. Player: {task["player"]}. Boxes: {task["boxes"]}. '
        f'Goals: {task["goals"]}.']))
    moves = json.dumps(room.solve(
        *(task[name] for name in ('grid', 'player', 'boxes', 'goals'))))
    step = environment.step(state, {'tool': f'```python\n{moves}\n```'})
    assert step.reward_terms['plan_solved'] == 1
    assert environment.step(
        step.state, {'planner': f'#### {moves}'}).success


@pytest.mark.parametrize('hash_seed', ['0', '1'])
def test_tasks_do_not_depend_on_the_process(splits, hash_seed):
  found = other_process.split_hash(_MODULE, '1box', hash_seed=hash_seed)
  assert found == datasets.split_hash(splits['test'][:20])
