"""Tasks of the board games: solvable, distinct, the same on every machine."""

import dataclasses
import json
from typing import Any

import pytest

from environments import datasets
from environments import env_api
from environments.boards.plan_path import plan_path_dataset_builder
from environments.boards.sokoban import sokoban_dataset_builder
from environments.boards.sudoku import env as sudoku
from environments.boards.sudoku import sudoku_dataset_builder
from tests.environments.boards import games


@dataclasses.dataclass(frozen=True)
class DataSet:
  """A config of a builder.

  Stored results name the hashes of complete splits. Change them only together
  with VERSION.
  """

  builder: Any
  config: tuple[str, ...]
  splits: dict[str, tuple[int, str]]  # Split -> number of tasks, hash.
  options: dict[str, int] = dataclasses.field(default_factory=dict)
  num_played: int = 100


# A train split has 10000 tasks; the rest takes a minute to make.
DATA_SETS = {
    'plan_path': DataSet(plan_path_dataset_builder, (), {
        'test': (1000, 'b336bb62659de654'),
        'validation': (200, '7df211d64516223c'),
        'train': (200, '6f953975ca921030')}),
    'sokoban/1box': DataSet(sokoban_dataset_builder, ('1box',), {
        'test': (1000, '447f4a4302d79ae8'),
        'validation': (200, '662871260e005793'),
        'train': (200, 'aa5c93e1a9e118ff')}),
    'sokoban/2boxes': DataSet(sokoban_dataset_builder, ('2boxes',), {
        'test': (100, '32c576d84b35ad46')}, num_played=5),
    'sudoku/4x4': DataSet(sudoku_dataset_builder, ('4x4',), {
        'test': (1000, 'f2b40db5ac3ddae5'),
        'validation': (200, 'f7bb80a0c8b8c379'),
        'train': (200, '17ddd73f2cc50d40')}),
    'sudoku/9x9': DataSet(sudoku_dataset_builder, ('9x9',), {
        'test': (200, 'bf26f3b1cf0a52b8'),
        'validation': (100, '9b3d85655aa8df05'),
        'train': (100, '5ffebf6b3c9f6df4')}, {'size': 9}),
}


@pytest.fixture(scope='module', params=DATA_SETS)
def name(request):
  return request.param


@pytest.fixture(scope='module')
def splits(name):
  data_set = DATA_SETS[name]
  return data_set.builder.make_splits(
      *data_set.config,
      {split: size for split, (size, _) in data_set.splits.items()})


def test_splits_have_the_published_hashes(name, splits):
  for split, (size, expected) in DATA_SETS[name].splits.items():
    assert datasets.split_hash(splits[split]) == expected
    assert [task['task_id'] for task in splits[split]] == [
        f'{name}/{split}/{i}' for i in range(size)]


def test_rows_survive_the_disk(name, splits, tmp_path, monkeypatch):
  data_set = DATA_SETS[name]
  expected = {split: tasks[:3] for split, tasks in splits.items()}
  monkeypatch.setattr(data_set.builder, 'make_splits', lambda *_: expected)
  for split, tasks in expected.items():
    found = datasets.load(
        data_set.builder.__name__, split, str(tmp_path), *data_set.config)
    assert json.loads(json.dumps(found)) == tasks


def test_tasks_can_be_solved_and_no_example_solves_one(name, splits):
  data_set = DATA_SETS[name]
  case = games.CASES[name.partition('/')[0]]
  environment = dataclasses.replace(
      case, options=case.options | data_set.options).make('solo')
  rules = environment.game
  for task in splits['test']:
    board = rules.start(task)
    example = rules.parse(json.loads(rules.phrases.example), board)
    assert not rules.solved(rules.play(board, example)[0])
  for task in splits['test'][:data_set.num_played]:
    move = case.solve(task)
    step = environment.step(
        environment.reset(task), {'solo': games.act('solo', move)})
    assert step.success
    assert step.outcomes == {'solo': env_api.Outcome.OK}
    # Rows name the minimum number of moves.
    assert len(move) == task.get('shortest_path', task.get('moves', len(move)))


@pytest.mark.parametrize('name', ['sudoku/4x4', 'sudoku/9x9'], indirect=True)
def test_every_board_has_one_solution(name, splits):
  size, num_clues, num_kinds = {
      'sudoku/4x4': (4, set(range(4, 11)), 509),
      'sudoku/9x9': (9, set(range(31, 52)), 200)}[name]
  # No kind is in two splits.
  kinds = [{task['kind'] for task in tasks} for tasks in splits.values()]
  assert len(set().union(*kinds)) == sum(map(len, kinds))
  # The number in the builder's docstring.
  assert len({task['kind'] for task in splits['test']}) == num_kinds
  assert {task['num_clues'] for task in splits['test']} <= num_clues
  for task in splits['test'] + splits['validation']:
    assert size**2 - ''.join(task['board']).count('.') == task['num_clues']
    assert list(sudoku.completions(task['board'])) == [task['solution']]
  for task in splits['train'][:100]:
    assert task['kind'] == sudoku.canonical_form(task['board'])
