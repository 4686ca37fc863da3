"""Generated tasks: distinct, the same on every machine; boards are solvable."""

import dataclasses
import json

import pytest

from environments import datasets
from environments import env_api
from environments.boards.plan_path import plan_path_dataset_builder
from environments.boards.sokoban import sokoban_dataset_builder
from environments.boards.sudoku import env as sudoku
from environments.boards.sudoku import sudoku_dataset_builder
from environments.depot import depot_dataset_builder
from environments.math_problems import stories_dataset_builder
from environments.writing.posts import posts_dataset_builder
from tests.environments.boards import games

BUILDERS = {
    'plan_path': plan_path_dataset_builder, 'sokoban': sokoban_dataset_builder,
    'sudoku': sudoku_dataset_builder, 'depot': depot_dataset_builder,
    'posts': posts_dataset_builder, 'stories': stories_dataset_builder}
# Data set -> split -> number of tasks, hash. Stored results name the hashes of
# complete splits. Change them only together with VERSION. A train split has
# 10000 tasks; those of boards take a minute to make. Stories pin the first 400.
HASHES = {
    'plan_path': {
        'test': (1000, 'b336bb62659de654'),
        'validation': (200, '7df211d64516223c'),
        'train': (200, '6f953975ca921030')},
    'sokoban/1box': {
        'test': (1000, '447f4a4302d79ae8'),
        'validation': (200, '662871260e005793'),
        'train': (200, 'aa5c93e1a9e118ff')},
    'sokoban/2boxes': {'test': (100, '32c576d84b35ad46')},
    'sudoku/4x4': {
        'test': (1000, 'f2b40db5ac3ddae5'),
        'validation': (200, 'f7bb80a0c8b8c379'),
        'train': (200, '17ddd73f2cc50d40')},
    'sudoku/9x9': {
        'test': (200, 'bf26f3b1cf0a52b8'),
        'validation': (100, '9b3d85655aa8df05'),
        'train': (100, '5ffebf6b3c9f6df4')},
    'depot': {
        'test': (1000, 'cc6ea474107761ba'),
        'validation': (200, '2a92797303aaa9a0')},
    'posts': {
        'test': (1000, '914b7dfeef2952f1'),
        'validation': (200, 'f39250e40af804fb'),
        'train': (10_000, '6e2c25b431b9c0a7')},
    'stories': {
        'test': (1000, '37c2bef9836f1ae0'),
        'validation': (200, '26689dea375bc40a'),
        'train': (400, '80fb5856673bcb0e')},
}
BOARDS = [x for x in HASHES if x.partition('/')[0] in games.CASES]


@pytest.fixture(scope='module', params=HASHES)
def name(request):
  return request.param


@pytest.fixture(scope='module')
def splits(name):
  game, *config = name.split('/')
  return BUILDERS[game].make_splits(
      *config, {split: size for split, (size, _) in HASHES[name].items()})


def test_splits_have_the_published_hashes(name, splits):
  contents = set()
  for split, (size, expected) in HASHES[name].items():
    assert datasets.split_hash(splits[split]) == expected
    assert [task['task_id'] for task in splits[split]] == [
        f'{name}/{split}/{i}' for i in range(size)]
    contents |= {json.dumps(x | {'task_id': ''}) for x in splits[split]}
  assert len(contents) == sum(map(len, splits.values()))


def test_rows_survive_the_disk(name, splits, tmp_path, monkeypatch):
  game, *config = name.split('/')
  builder, tasks = BUILDERS[game], splits['test'][:3]
  monkeypatch.setattr(builder, 'make_splits', lambda *_: {'test': tasks})
  found = datasets.load(builder.__name__, 'test', str(tmp_path), *config)
  assert json.loads(json.dumps(found)) == tasks


@pytest.mark.parametrize('name', BOARDS, indirect=True)
def test_tasks_can_be_solved_and_no_example_solves_one(name, splits):
  case = games.CASES[name.partition('/')[0]]
  if name == 'sudoku/9x9':
    case = dataclasses.replace(case, options={'size': 9})
  environment = case.make('solo')
  rules = environment.game
  for task in splits['test']:
    board = rules.start(task)
    example = rules.parse(json.loads(rules.phrases.example), board)
    assert not rules.solved(rules.play(board, example)[0])
  for task in splits['test'][:5 if name == 'sokoban/2boxes' else 100]:
    move = case.solve(task)
    step = environment.step(
        environment.reset(task), {'solo': games.act('solo', move)})
    assert step.success
    assert step.outcomes == {'solo': env_api.Outcome.OK}
    # Rows name the minimum number of moves.
    assert len(move) == task.get('shortest_path', task.get('moves', len(move)))


@pytest.mark.parametrize('name', ['sudoku/4x4', 'sudoku/9x9'], indirect=True)
def test_every_board_has_one_solution(name, splits):
  # The first number is in the builder's docstring.
  num_kinds, num_clues = {
      'sudoku/4x4': (509, range(4, 11)),
      'sudoku/9x9': (200, range(31, 52))}[name]
  assert len({task['kind'] for task in splits['test']}) == num_kinds
  # No kind is in two splits.
  kinds = [{task['kind'] for task in tasks} for tasks in splits.values()]
  assert len(set().union(*kinds)) == sum(map(len, kinds))
  for task in splits['test'] + splits['validation']:
    assert task['num_clues'] in num_clues
    assert task['num_clues'] == sum(
        cell != sudoku.BLANK for cell in ''.join(task['board']))
    assert list(sudoku.completions(task['board'])) == [task['solution']]
