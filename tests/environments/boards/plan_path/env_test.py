"""Plan-Path: moves in a maze."""

import pytest

from environments import env_api
from tests.environments.boards import games

CASE = games.CASES['plan_path']
GRID = ['..#.......', '..#.......', *['..........'] * 8]
TASK = {
    'task_id': 'maze 7', 'grid': GRID, 'start': [0, 0], 'goal': [0, 4]}
SOLUTION = 'DDRRRRUU'


@pytest.mark.parametrize('moves, position, illegal, outcome', [
    ('RL', (0, 0), 0, 'no_effect'),
    ('RR', (0, 1), 1 / 2, 'illegal_action'),  # A wall.
    ('RRD', (1, 1), 1 / 3, 'illegal_action'),  # Not the end of the walk.
    ('U', (0, 0), 1, 'no_effect'),  # Off the grid, on all four sides.
    ('LLL', (0, 0), 1, 'no_effect'),
    ('D' * 12, (9, 0), 3 / 12, 'illegal_action'),
    ('DD' + 'R' * 12, (2, 9), 3 / 14, 'illegal_action'),
    ('DU' * 49 + 'DD', (2, 0), 0, 'ok'),  # The maximum number of moves.
    (SOLUTION + 'UUULLL', (0, 4), 0, 'ok'),  # The goal ends it.
    # Moves after the goal do not count.
    ('U' + SOLUTION + 'D' * 90, (0, 4), 1 / 9, 'illegal_action'),
])
def test_walk(moves, position, illegal, outcome):
  environment = CASE.make('solo')
  (_, end), (walked,) = games.play(
      environment, environment.reset(TASK), [moves])
  assert end.board.position == position
  assert walked.reward_terms == pytest.approx({
      'solved': float(position == (0, 4)),
      'progress': (4 - position[0] - abs(4 - position[1])) / 18,
      'idle': -(position == (0, 0)), 'illegal': -illegal, 'malformed': 0})
  assert walked.outcomes == {'solo': env_api.Outcome(outcome)}
