"""Sudoku rules, solver and random tasks, checked by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from environments.boards.sudoku import grid

# Needs far more search than a random task.
_HARD = [
    '8........', '..36.....', '.7..9.2..', '.5...7...', '....457..',
    '...1...3.', '..1....68', '..85...1.', '.9....4..']
_HARD_SOLVED = [
    '812753649', '943682175', '675491283', '154237896', '369845721',
    '287169534', '521974368', '438526917', '796318452']


def _units(size):
  """The cells of each row, column and box, numbered row by row."""
  cells = np.arange(size * size).reshape(size, size)
  box = math.isqrt(size)
  boxes = cells.reshape(box, box, box, box).swapaxes(1, 2).reshape(size, size)
  return [*cells, *cells.T, *boxes]


@pytest.fixture(scope='module')
def all_4x4():
  """All complete 4x4 boards, as digits [288, 16]."""
  rows = list(itertools.permutations('1234'))
  boards = np.array(list(itertools.product(rows, repeat=4))).reshape(-1, 16)
  for unit in _units(4):
    boards = boards[(np.sort(boards[:, unit]) == list('1234')).all(axis=1)]
  return boards


@pytest.fixture(scope='module')
def tasks_4x4():
  rng = np.random.default_rng(0)
  return [grid.random_task(rng, 4) for _ in range(200)]


def _completions(boards, clues):
  """The boards that agree with `clues`."""
  clues = np.array(list(''.join(clues)))
  return boards[((boards == clues) | (clues == '.')).all(axis=1)]


def test_4x4_tasks_have_one_completion(tasks_4x4, all_4x4):
  assert len(all_4x4) == 288
  for task in tasks_4x4:
    completion, = _completions(all_4x4, task['board'])
    assert ''.join(completion) == ''.join(task['solution'])


def test_solutions_lists_all_completions(all_4x4):
  rng = np.random.default_rng(0)
  counts = set()
  for board in all_4x4[rng.integers(288, size=100)]:
    clues = np.where(rng.random(16) < 0.2, board, '.')
    clues = [''.join(row) for row in clues.reshape(4, 4)]
    found = grid.solutions(clues, limit=288)
    expected = {''.join(b) for b in _completions(all_4x4, clues)}
    assert len(found) == len(expected)
    assert {''.join(completion) for completion in found} == expected
    assert grid.solutions(clues) == found[:2]
    counts.add(len(found))
  assert len(counts) > 10
  assert grid.solutions(_HARD) == [_HARD_SOLVED]
  for contradictory in (
      ['11..', '....', '....', '....'], ['123.', '...4', '....', '....']):
    assert grid.solutions(contradictory) == []


def test_is_solution_agrees_with_brute_force(all_4x4):
  clues = ['1...', '..1.', '....', '....']
  for board in all_4x4:
    filled = [''.join(row) for row in board.reshape(4, 4)]
    assert grid.is_solution(clues, filled) == (
        filled[0][0] == filled[1][2] == '1')
    swapped = [filled[1][:1] + filled[0][1:], filled[0][:1] + filled[1][1:]]
    assert not grid.is_solution(['....'] * 4, swapped + filled[2:])
    assert grid.is_solution(['....'] * 4, filled)
    assert grid.progress(clues, filled) == 1
  # A digit above the size is wrong.
  assert not grid.is_solution(clues, ['1234', '4312', '2143', '5421'])
  assert grid.progress(clues, ['12..', '..1.', '....', '....']) == (
      pytest.approx(1 / 14))


def _shuffled_lines(rng, box):
  """A random order of rows that keeps each band's rows together."""
  return np.concatenate([
      band * box + rng.permutation(box) for band in rng.permutation(box)])


def _renamed(rng, cells):
  names = rng.permutation(list('123456789'[:len(cells)]))
  names = dict(zip('123456789', names)) | {'.': '.'}
  return [''.join(names[cell] for cell in row) for row in cells]


def test_canonical_form_ignores_symmetry_and_names_of_digits(tasks_4x4):
  rng = np.random.default_rng(0)
  for task in tasks_4x4:
    cells = np.array([list(row) for row in task['board']])
    cells = cells[_shuffled_lines(rng, 2)][:, _shuffled_lines(rng, 2)]
    copy = _renamed(rng, cells if rng.integers(2) else cells.T)
    assert grid.canonical_form(copy) == grid.canonical_form(task['board'])
  # Only names of digits are ignored in a 9x9 board.
  assert grid.canonical_form(_renamed(rng, _HARD)) == (
      grid.canonical_form(_HARD))
  other = [*_HARD[:8], '.9....3..']
  assert grid.canonical_form(other) != grid.canonical_form(_HARD)


def test_canonical_form_separates_all_kinds(all_4x4):
  # 2 kinds of complete boards and 13 kinds of puzzles with 4 clues are known.
  boards = [[''.join(r) for r in b.reshape(4, 4)] for b in all_4x4]
  kinds = {grid.canonical_form(board): board for board in boards}
  assert len(kinds) == 2
  puzzles = set()
  for board in kinds.values():
    agreeing = all_4x4 == np.array(list(''.join(board)))
    for clues in itertools.combinations(range(16), 4):
      if agreeing[:, clues].all(axis=1).sum() == 1:
        cells = ''.join(
            digit if cell in clues else '.'
            for cell, digit in enumerate(''.join(board)))
        puzzles.add(grid.canonical_form(
            [cells[i:i + 4] for i in range(0, 16, 4)]))
  assert len(puzzles) == 13
