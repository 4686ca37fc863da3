"""Sudoku: how a grid is written onto the clues."""

import pytest

from environments import env_api
from environments.boards.sudoku import grid
from tests.environments.boards import games

CASE = games.CASES['sudoku']
CLUES = ('1.3.', '..12', '2.4.', '...1')
TASK = {'task_id': 'grid 7', 'board': CLUES}


def rows(board):
  return [[int(cell) if cell != '.' else 0 for cell in row] for row in board]


def fill(environment, board, state=None):
  """The step of a single agent that writes a grid."""
  state = state or environment.reset(TASK)
  _, (step,) = games.play(environment, state, [rows(board)])
  return step


def test_a_grid_is_written_onto_the_clues():
  environment = CASE.make('solo', max_turns=3)
  step = fill(environment, ('1234', '....', '....', '....'))
  assert step.state.board.filled == ('1234', '..12', '2.4.', '...1')
  assert step.reward_terms['progress'] == pytest.approx(2 / 9)
  # The next grid replaces it, so progress may fall.
  step = fill(environment, ('....', '....', '....', '4...'), step.state)
  assert step.state.board.filled == ('1.3.', '..12', '2.4.', '4..1')
  assert step.reward_terms['progress'] == pytest.approx(-1 / 9)


@pytest.mark.parametrize('board, filled, illegal', [
    # A clue is not changed.
    (('2...', '....', '....', '....'), CLUES, 1),
    # Twice in a row, a column, a box.
    (('.1..', '....', '....', '....'), CLUES, 1),
    (('....', '1...', '....', '....'), CLUES, 1),
    (('....', '.1..', '....', '....'), CLUES, 1),
    # The first of two conflicting digits stays.
    (('.2..', '.2..', '....', '....'), ('123.', '..12', '2.4.', '...1'), 1 / 2),
    # Repeated clues are legal and change nothing.
    (CLUES, CLUES, 0),
])
def test_illegal_digits_are_not_written(board, filled, illegal):
  step = fill(CASE.make('solo'), board)
  assert step.state.board.filled == filled
  assert step.reward_terms['illegal'] == pytest.approx(-illegal)
  unchanged = filled == CLUES
  assert step.reward_terms['idle'] == -unchanged
  assert step.outcomes['solo'] is (
      env_api.Outcome.NO_EFFECT if unchanged
      else env_api.Outcome.ILLEGAL_ACTION)


def test_digits_after_the_solution_are_ignored():
  for board, illegal, outcome in (
      ('1234 3412 2143 4322', 0, env_api.Outcome.OK),
      # A wrong digit before the solution counts.
      ('2234 3412 2143 4322', 1 / 10, env_api.Outcome.ILLEGAL_ACTION)):
    step = fill(CASE.make('solo'), board.split())
    assert step.success
    assert step.reward_terms['illegal'] == pytest.approx(-illegal)
    assert step.outcomes == {'solo': outcome}


def test_a_full_grid_that_contradicts_the_clues_never_wins():
  """With the authors' checker the grid of an example solved every task."""
  board = ('2143', '4321', '1234', '3412')
  assert grid.is_solution(['....'] * 4, board)
  step = fill(CASE.make('solo', max_turns=1), board)
  assert (step.success, step.truncated) == (False, True)
