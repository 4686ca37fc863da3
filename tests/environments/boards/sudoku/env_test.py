"""Sudoku: writing on clues, and a solver checked by brute force."""

import itertools

import numpy as np
import pytest

from environments import env_api
from environments.boards.sudoku import env as sudoku
from tests.environments.boards import games

CASE = games.CASES['sudoku']
CLUES, SOLVED = '1.3. ..12 2.4. ...1', '1234 3412 2143 4321'
RULES = sudoku.Sudoku(4)
# Needs far more search than a random task.
HARD = [
    '8........', '..36.....', '.7..9.2..', '.5...7...', '....457..',
    '...1...3.', '..1....68', '..85...1.', '.9....4..']
HARD_SOLVED = [
    '812753649', '943682175', '675491283', '154237896', '369845721',
    '287169534', '521974368', '438526917', '796318452']


def fill(environment, rows, state=None):
  """The step of a single agent that writes a grid."""
  move = [[*map(int, row)] for row in rows.replace('.', '0').split()]
  state = state or environment.reset(CASE.task)
  _, (step,) = games.play(environment, state, [move])
  return step


def test_the_next_grid_replaces_the_last_so_progress_may_fall():
  environment = CASE.make('solo', max_turns=3)
  step = fill(environment, '1234 .... .... ....')
  step = fill(environment, '.... .... .... 4...', step.state)
  assert step.state.board.filled == ('1.3.', '..12', '2.4.', '4..1')
  assert step.reward_terms['progress'] == pytest.approx(-1 / 9)


@pytest.mark.parametrize('rows, filled, illegal, outcome', [
    # A clue is not changed.
    ('2... .... .... ....', CLUES, 1, 'no_effect'),
    # Twice in a row, a column, a box.
    ('.1.. .... .... ....', CLUES, 1, 'no_effect'),
    ('.... 1... .... ....', CLUES, 1, 'no_effect'),
    ('.... .1.. .... ....', CLUES, 1, 'no_effect'),
    # The first of two conflicting digits stays.
    ('.2.. .2.. .... ....', '123. ..12 2.4. ...1', 1 / 2, 'illegal_action'),
    # Repeated clues are legal and change nothing.
    (CLUES, CLUES, 0, 'no_effect'),
    # Digits after the solution are ignored. A wrong digit before it counts.
    ('1234 3412 2143 4322', SOLVED, 0, 'ok'),
    ('2234 3412 2143 4322', SOLVED, 1 / 10, 'illegal_action')])
def test_only_legal_digits_are_written_onto_the_clues(
    rows, filled, illegal, outcome):
  step = fill(CASE.make('solo'), rows)
  assert ' '.join(step.state.board.filled) == filled
  assert step.reward_terms['illegal'] == pytest.approx(-illegal)
  assert step.reward_terms['idle'] == -(filled == CLUES)
  assert step.outcomes == {'solo': env_api.Outcome(outcome)}
  assert step.success == (filled == SOLVED)


@pytest.fixture(scope='module')
def all_4x4():
  """All complete 4x4 boards, as digits [288, 16]."""
  cells = np.arange(16).reshape(4, 4)
  boxes = cells.reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(4, 4)
  rows = np.array(list(itertools.permutations('1234')))
  boards = rows[np.indices([24] * 4).reshape(4, -1).T].reshape(-1, 16)
  for unit in (*boxes, *cells.T):  # Boxes leave the fewest boards.
    boards = boards[(np.sort(boards[:, unit]) == list('1234')).all(axis=1)]
  assert len(boards) == 288
  return boards


def _rows(cells):
  return [''.join(row) for row in np.reshape(cells, (4, 4))]


def test_all_completions_are_found(all_4x4):
  rng = np.random.default_rng(0)
  counts = set()
  for board in all_4x4[rng.integers(288, size=100)]:
    clues = np.where(rng.random(16) < 0.2, board, '.')
    found = list(sudoku.completions(_rows(clues)))
    agree = ((all_4x4 == clues) | (clues == '.')).all(axis=1)
    assert sorted(found) == sorted(map(_rows, all_4x4[agree]))
    counts.add(len(found))
  assert len(counts) > 10
  assert list(sudoku.completions(HARD)) == [HARD_SOLVED]
  for contradictory in (
      ['11..', '....', '....', '....'], ['123.', '...4', '....', '....']):
    assert not list(sudoku.completions(contradictory))


def test_checker_agrees_with_brute_force(all_4x4):
  # With the authors' checker any complete grid solved every task.
  clues = ['1...', '..1.', '....', '....']
  for board in all_4x4:
    filled = _rows(board)
    assert RULES.solved(sudoku.Board(clues, filled)) == (
        filled[0][0] == filled[1][2] == '1')
    swapped = [filled[1][:1] + filled[0][1:], filled[0][:1] + filled[1][1:]]
    assert not RULES.solved(sudoku.Board(['....'] * 4, swapped + filled[2:]))


def test_canonical_form_of_9x9_ignores_names_of_digits():
  names = str.maketrans('123456789', '312975864')
  renamed = [row.translate(names) for row in HARD]
  form = sudoku.canonical_form(HARD)
  assert sudoku.canonical_form(renamed) == form
  assert sudoku.canonical_form([*HARD[:8], '.9....3..']) != form


def test_canonical_form_counts_the_known_kinds(all_4x4):
  """2 kinds of complete boards and 13 kinds of puzzles with 4 clues."""
  kinds = {sudoku.canonical_form(_rows(cells)): cells for cells in all_4x4}
  assert len(kinds) == 2
  puzzles = set()
  for cells in kinds.values():
    agreeing = all_4x4 == cells
    for clues in itertools.combinations(range(16), 4):
      if agreeing[:, clues].all(axis=1).sum() == 1:
        puzzles.add(sudoku.canonical_form(_rows(
            np.where(np.isin(range(16), clues), cells, '.'))))
  assert len(puzzles) == 13
