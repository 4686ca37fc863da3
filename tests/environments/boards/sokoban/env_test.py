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


@pytest.mark.parametrize('moves, player, boxes, illegal', [
    ('', (1, 1), ((2, 2),), 0),
    ('U', (1, 1), ((2, 2),), 1),  # A wall.
    ('RD', (2, 2), ((3, 2),), 0),  # A push.
    ('DR', (2, 2), ((2, 3),), 0),
    ('DRRR', (2, 3), ((2, 4),), 1 / 4),  # Into a wall.
    ('RDDDDUUU', (3, 2), ((4, 2),), 0),  # Moves after the solution.
    ('URDDUUUU', (3, 2), ((4, 2),), 1 / 4),  # Four moves were made.
])
def test_moves(moves, player, boxes, illegal):
  environment = CASE.make('pair')
  start = environment.reset(TASK)
  (_, state, end), (tried, made) = games.play(environment, start, [moves] * 2)
  assert (end.board.player, end.board.boxes) == (player, boxes)
  assert made.success == (boxes == ((4, 2),))
  assert made.reward_terms == pytest.approx({
      'solved': float(made.success),
      'progress': (2 - abs(4 - boxes[0][0]) - abs(2 - boxes[0][1])) / 10,
      'idle': -(moves in ('', 'U')), 'illegal': -illegal, 'malformed': 0,
      # A box at the right wall never comes back.
      'deadlock': -(boxes == ((2, 4),))})
  # The proposal is tried in the same way, on a copy.
  assert state.board == start.board
  assert tried.reward_terms == {
      f'plan_{name}': value for name, value in made.reward_terms.items()}


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
