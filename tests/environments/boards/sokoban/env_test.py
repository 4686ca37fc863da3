"""Sokoban: moves, pictures and the oracle term."""

import dataclasses

import pytest

from environments import env_api
from environments.boards.sokoban import env as sokoban
from tests.environments.boards import games

CASE = games.CASES['sokoban']
GRID = ('######', '#....#', '#....#', '#..#.#', '#....#', '######')
TASK = {
    'task_id': 'room 7', 'grid': GRID, 'player': [1, 1], 'boxes': [[2, 2]],
    'goals': [[4, 2]]}


def test_two_boxes_cannot_be_pushed_and_goals_are_interchangeable():
  environment = CASE.make('solo')
  state = environment.reset(TASK | {
      'player': [4, 1], 'boxes': [[4, 2], [4, 3]], 'goals': [[1, 2], [1, 1]]})
  _, (step,) = games.play(environment, state, ['R'])
  assert step.state.board == state.board
  assert step.outcomes == {'solo': env_api.Outcome.NO_EFFECT}
  assert step.reward_terms['illegal'] == -1
  solved = dataclasses.replace(state.board, boxes=((1, 1), (1, 2)))
  assert environment.game.solved(solved)
  # Each box was 4 of at most 10 cells away.
  assert environment.game.progress(state.board, solved) == 8 / 20


def test_pictures_show_boxes_and_player_on_goals():
  environment = CASE.make('solo')
  board = environment.reset(TASK | {
      'player': [4, 2], 'boxes': [[2, 2], [3, 1]],
      'goals': [[4, 2], [3, 1]]}).board
  assert environment.game.show(board) == (
      '######\n#....#\n#.B..#\n#*.#.#\n#.+..#\n######')


def test_only_the_preset_oracle_pays_the_oracle_term():
  # The box is pushed into a corner.
  task = TASK | {'boxes': [[1, 3]], 'player': [1, 2]}
  for index, name in enumerate(('plan_deadlock', 'deadlock')):
    paid = {}
    for reward in sokoban.REWARDS:
      environment = CASE.make('pair', reward=reward)
      _, steps = games.play(environment, environment.reset(task), ['R'] * 2)
      assert steps[index].reward_terms[name] == -1
      paid[reward], = steps[index].local_rewards.values()
    assert paid['outcome'] == 0
    assert paid['oracle'] == pytest.approx(paid['mixed'] - 0.2)
