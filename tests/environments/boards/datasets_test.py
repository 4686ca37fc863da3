"""Tasks of the board games: solvable, distinct, the same on every machine."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pytest

from environments import datasets
from environments import env_api
from environments.boards.plan_path import maze
from environments.boards.plan_path import plan_path_dataset_builder
from environments.boards.sokoban import sokoban_dataset_builder
from environments.boards.sudoku import grid
from environments.boards.sudoku import sudoku_dataset_builder
from tests.environments.boards import games


@dataclasses.dataclass(frozen=True)
class DataSet:
  """A config of a builder.

  Results name the hashes. Change them only together with VERSION.
  """

  game: str
  builder: Any
  config: tuple[str, ...]
  sizes: dict[str, int]
  hashes: dict[str, str]
  options: dict[str, int] = dataclasses.field(default_factory=dict)

  def case(self) -> games.Case:
    case = games.CASES[self.game]
    return dataclasses.replace(case, options=case.options | self.options)


_SIZES = datasets.SPLIT_SIZES
DATA_SETS = {
    'plan_path': DataSet('plan_path', plan_path_dataset_builder, (), _SIZES, {
        'test': 'b336bb62659de654', 'validation': '7df211d64516223c',
        'train': '19feb2a61c92190b'}),
    'sokoban/1box': DataSet(
        'sokoban', sokoban_dataset_builder, ('1box',), _SIZES, {
            'test': '447f4a4302d79ae8', 'validation': '662871260e005793',
            'train': '0e77b8d77b58dfb4'}),
    # All splits take a minute to make.
    'sokoban/2boxes': DataSet(
        'sokoban', sokoban_dataset_builder, ('2boxes',), {'test': 100},
        {'test': '32c576d84b35ad46'}),
    'sudoku/4x4': DataSet(
        'sudoku', sudoku_dataset_builder, ('4x4',), _SIZES, {
            'test': 'f2b40db5ac3ddae5', 'validation': 'f7bb80a0c8b8c379',
            'train': '7c66e97dca71a67d'}),
    'sudoku/9x9': DataSet(
        'sudoku', sudoku_dataset_builder, ('9x9',),
        sudoku_dataset_builder.SPLIT_SIZES['9x9'], {
            'test': 'bf26f3b1cf0a52b8', 'validation': '9b3d85655aa8df05',
            'train': '61ba711c55928b6b'}, {'size': 9}),
}


@pytest.fixture(scope='module', params=DATA_SETS)
def name(request):
  return request.param


@pytest.fixture(scope='module')
def data_set(name):
  return DATA_SETS[name]


@pytest.fixture(scope='module')
def splits(data_set):
  return data_set.builder.make_splits(*data_set.config, data_set.sizes)


def test_splits_have_the_published_hashes(name, data_set, splits):
  assert {s: datasets.split_hash(tasks) for s, tasks in splits.items()} == (
      data_set.hashes)
  for split, size in data_set.sizes.items():
    assert [task['task_id'] for task in splits[split]] == [
        f'{name}/{split}/{i}' for i in range(size)]


def test_rows_survive_the_disk(data_set, tmp_path, monkeypatch):
  expected = data_set.builder.make_splits(
      *data_set.config, {'test': 3, 'train': 2})
  monkeypatch.setattr(data_set.builder, 'make_splits', lambda *_: expected)
  for split, tasks in expected.items():
    found = datasets.load(
        data_set.builder.__name__, split, str(tmp_path), *data_set.config)
    assert json.loads(json.dumps(found)) == tasks
  if data_set.config in (('1box',), ('4x4',)):  # The default configs.
    assert datasets.load(
        data_set.builder.__name__, 'test', str(tmp_path)) == expected['test']


def test_tasks_can_be_played_and_no_example_solves_one(data_set, splits):
  case = data_set.case()
  environment = case.make('solo')
  rules = environment.game
  example = json.loads(rules.words.example)
  for task in splits['test']:
    state = environment.reset(task)
    assert state.task_id == task['task_id']
    move = rules.parse(example)
    assert move is not None
    assert not rules.solved(rules.play(state.board, move)[0])
  for task in splits['test'][:100]:
    move = case.solve(task)
    step = environment.step(
        environment.reset(task), {'solo': games.act('solo', move)})
    assert step.success
    assert step.outcomes == {'solo': env_api.Outcome.OK}
    # Rows name the minimum number of moves.
    assert len(move) == task.get('shortest_path', task.get('moves', len(move)))


@pytest.mark.parametrize('name', ['plan_path'], indirect=True)
def test_shortest_paths_agree_with_a_flood(splits):
  """Floods all mazes together, one move at a time."""
  tasks = [*itertools.chain(*splits.values())]
  free = np.array([[list(row) for row in t['grid']] for t in tasks]) == '.'
  start, goal = (
      (np.arange(len(tasks)), *np.array([t[at] for t in tasks]).T)
      for at in ('start', 'goal'))
  assert free.shape == (len(tasks), 10, 10)
  assert free[start].all() and free[goal].all()
  flooded = np.zeros((len(tasks), 12, 12), bool)  # With a border.
  flooded[:, 1:-1, 1:-1][start] = True
  lengths = np.full(len(tasks), -1)
  for moves in range(100):
    inside = flooded[:, 1:-1, 1:-1]
    lengths[(lengths < 0) & inside[goal]] = moves
    inside[:] = free & (
        inside | flooded[:, 2:, 1:-1] | flooded[:, :-2, 1:-1]
        | flooded[:, 1:-1, 2:] | flooded[:, 1:-1, :-2])
  assert lengths.tolist() == [task['shortest_path'] for task in tasks]
  assert lengths.min() == maze.MIN_SHORTEST_PATH == 6


@pytest.mark.parametrize('name', ['sudoku/4x4', 'sudoku/9x9'], indirect=True)
def test_every_board_has_one_solution(name, splits):
  size, num_clues, num_kinds = {
      'sudoku/4x4': (4, range(4, 11), 509),
      'sudoku/9x9': (9, range(31, 52), 200)}[name]
  for tasks in splits.values():
    assert {task['num_clues'] for task in tasks} == set(num_clues)
  # No kind is in two splits.
  kinds = [{task['kind'] for task in tasks} for tasks in splits.values()]
  assert len(set().union(*kinds)) == sum(map(len, kinds))
  for task in splits['train'][:300]:
    assert task['kind'] == grid.canonical_form(task['board'])
  # The number in the builder's docstring.
  assert len({task['kind'] for task in splits['test']}) == num_kinds
  for task in splits['test'] + splits['validation']:
    assert size**2 - ''.join(task['board']).count('.') == task['num_clues']
    assert grid.is_solution(task['board'], task['solution'])
    assert grid.solutions(task['board']) == [task['solution']]
