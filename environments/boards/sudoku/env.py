"""Sudoku: a team fills a grid of 4x4 or 9x9 cells (arXiv 2510.11062).

A grid has `size` rows of digits from 1 to `size`; no row, column or box (2x2 or
3x3 cells) may hold a digit twice. A move is a whole grid. Its digits are
written onto the clues of the task, row by row, until the grid is full; the rest
is ignored. A digit that contradicts a clue or repeats a digit of its row,
column or box is illegal and not written. A 0 keeps the cell of the clues. The
potential of `progress` is the ratio of blank cells that are filled. No reward
term sees the solution.

Deviation from the authors' code: a move never changes a clue, so a grid that
contradicts the clues does not win.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import itertools
import json
import math
import operator
from typing import Any

import numpy as np

from environments import env_api
from environments.boards import board_game

BLANK = '.'
DIGITS = '123456789'
# Size -> minimum and maximum number of blank cells of a task.
NUM_BLANKS = {4: (6, 12), 9: (30, 50)}

Digits = tuple[tuple[int, ...], ...]  # Rows; 0 is blank.
Rows = Sequence[str]  # Rows of digits, with '.' for a blank cell.


@dataclasses.dataclass(frozen=True)
class Board:
  clues: tuple[str, ...]
  filled: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Sudoku(board_game.Game):
  """The rules; `environments.boards.board_game` has rewards and teams."""

  size: int  # Number of rows and of digits: 4 or 9.

  @property
  def phrases(self) -> board_game.Phrases:
    box = math.isqrt(self.size)
    rows = [[*range(1, self.size + 1)], *[[0] * self.size] * (self.size - 1)]
    return board_game.Phrases(
        rules=(
            f'Every row, every column and every {box}x{box} box must hold each '
            f'digit from 1 to {self.size} once. A dot is a blank cell. A digit '
            'that breaks a rule or a clue is left out.'),
        activity='fills a Sudoku grid',
        solo='You fill a Sudoku grid alone.',
        board='the clues',
        schema='{"clues": [rows of digits, 0 for blank]}',
        move='a JSON list of rows, 0 for blank',
        solution='the filled grid as a JSON list of rows',
        example=json.dumps(rows),
        noun='grid',
        article='a ',
        effect='Your grid is written onto the clues.')

  def start(self, task: env_api.Task) -> Board:
    clues = tuple(task['board'])
    cells = ''.join(clues)
    digits = DIGITS[:self.size]
    if ([*map(len, clues)] != [self.size] * self.size
        or not {*cells} <= {*digits, BLANK}):
      raise ValueError(
          f'environment.options.size={self.size}, but the task has board='
          f'{clues!r:.200}: expected {self.size} rows of {self.size} digits '
          f'from {digits}, or {BLANK!r} for a blank cell')
    if _has_conflict(cells):
      raise ValueError(f'board={clues!r:.200}: two clues contradict each other')
    return Board(clues, clues)

  def show(self, board: Board) -> str:
    return '\n'.join(board.clues)

  def describe(self, board: Board) -> str:
    if board.filled == board.clues:
      return 'Nothing is filled in.'
    return 'Filled in by the last grid:\n' + '\n'.join(board.filled)

  def program_input(self, board: Board) -> dict[str, Any]:
    return {'clues': [
        [0 if cell == BLANK else int(cell) for cell in row]
        for row in board.clues]}

  def parse(self, value: Any, board: Board) -> Digits | None:
    del board  # All boards have one size.
    if (isinstance(value, list) and len(value) == self.size and all(
        isinstance(row, list) and len(row) == self.size and all(
            type(x) is int and 0 <= x <= self.size for x in row)
        for row in value)):
      return tuple(map(tuple, value))
    return None

  def play(self, board: Board, move: Digits) -> tuple[Board, float]:
    cells = list(''.join(board.clues))
    num_blanks = cells.count(BLANK)
    num_written = num_illegal = 0
    peers = _peers(self.size)
    for cell, digit in enumerate(map(str, itertools.chain(*move))):
      if num_written == num_blanks:
        break
      if digit in ('0', cells[cell]):
        continue
      if cells[cell] != BLANK or digit in [cells[i] for i in peers[cell]]:
        num_illegal += 1
      else:
        cells[cell] = digit
        num_written += 1
    return (
        dataclasses.replace(board, filled=tuple(_rows(cells))),
        num_illegal / max(num_written + num_illegal, 1))

  def solved(self, board: Board) -> bool:
    cells = ''.join(board.filled)
    return BLANK not in cells and not _has_conflict(cells) and all(
        clue in (BLANK, digit)
        for clue, digit in zip(''.join(board.clues), cells))

  def progress(self, before: Board, after: Board) -> float:
    return _ratio_filled(after) - _ratio_filled(before)


def make_environment(*, size: int, **arguments: Any) -> board_game.BoardGame:
  """As `board_game.make_environment`; `size` is a key of `NUM_BLANKS`."""
  env_api.check_options(
      arguments['max_turns'], **{'options.size': (size, NUM_BLANKS)})
  return board_game.make_environment(Sudoku(size), **arguments)


def _has_conflict(cells: str) -> bool:
  """True if a row, column or box holds a digit twice."""
  return any(
      digit != BLANK and digit in [cells[i] for i in peers]
      for digit, peers in zip(cells, _peers(math.isqrt(len(cells)))))


def _ratio_filled(board: Board) -> float:
  return 1 - ''.join(board.filled).count(BLANK) / ''.join(
      board.clues).count(BLANK)


def random_task(rng: np.random.Generator, size: int) -> dict[str, Any]:
  """Blanks cells of a random complete board while it has one completion.

  The number of blank cells is drawn from `NUM_BLANKS[size]`. Cells are tried in
  random order. If every clue is needed before that number is reached, another
  board is drawn.
  """
  min_blanks, max_blanks = NUM_BLANKS[size]
  digits, peers = DIGITS[:size], _peers(size)
  while True:
    solution = next(completions([BLANK * size] * size, rng))
    num_blanks = int(rng.integers(min_blanks, max_blanks, endpoint=True))
    cells = list(''.join(solution))
    for cell in rng.permutation(len(cells)).tolist():
      # There is one completion, so a second one has another digit here.
      taken = {cells[cell], *(cells[peer] for peer in peers[cell])}
      if any(
          any(completions(_rows([*cells[:cell], digit, *cells[cell + 1:]])))
          for digit in digits if digit not in taken):
        continue
      cells[cell] = BLANK
      if cells.count(BLANK) == num_blanks:
        return dict(
            board=_rows(cells), solution=solution,
            num_clues=len(cells) - num_blanks)


def canonical_form(board: Rows) -> str:
  """Equal for boards that differ only by the names of digits or by symmetry.

  A 4x4 board has 128 symmetries: swaps of rows within a band, of bands, of
  columns and of stacks, and the transpose. A 9x9 board has 3359232, too many to
  try, so its form ignores only the names of digits.
  """
  cells = ''.join(board)
  if len(board) != 4:
    return _rename_digits(cells)
  # Renaming is slow: rename only the copies with the smallest set of blanks.
  blanks = ''.join(min(cell, '1') for cell in cells)
  symmetries = _symmetries_4x4()
  copies = [symmetry(blanks) for symmetry in symmetries]
  smallest = min(copies)
  return min(
      _rename_digits(symmetry(cells))
      for symmetry, copy in zip(symmetries, copies) if copy == smallest)


def completions(
    board: Rows, rng: np.random.Generator | None = None
) -> Iterator[list[str]]:
  """Yields all completions; none if the board breaks a rule.

  The blank cell with the fewest possible digits is filled first. With `rng`,
  digits are tried in random order.
  """
  size = len(board)
  units = _units(size)
  cells = [0 if cell == BLANK else 1 << int(cell) for cell in ''.join(board)]
  used = [0] * (3 * size)  # Bit d of a unit is set if it holds the digit d.
  blanks = []
  for cell, digit in enumerate(cells):
    if not digit:
      blanks.append(cell)
    for unit in units[cell]:
      if used[unit] & digit:
        return
      used[unit] |= digit

  def search() -> Iterator[list[str]]:
    if not blanks:
      yield _rows([str(digit.bit_length() - 1) for digit in cells])
      return
    min_count = size + 1
    for index, cell in enumerate(blanks):
      row, column, box = units[cell]
      options = all_digits & ~(used[row] | used[column] | used[box])
      count = options.bit_count()
      if count < min_count:
        min_count, best, best_options = count, index, options
        if count < 2:
          break
    cell = blanks[best]
    blanks[best] = blanks[-1]
    blanks.pop()
    digits = [1 << d for d in range(1, size + 1) if best_options >> d & 1]
    if rng is not None:
      rng.shuffle(digits)
    for digit in digits:
      cells[cell] = digit
      for unit in units[cell]:
        used[unit] ^= digit
      yield from search()
      for unit in units[cell]:
        used[unit] ^= digit
    blanks.append(cell)
    blanks[best], blanks[-1] = blanks[-1], blanks[best]

  all_digits = (2 << size) - 2
  yield from search()


def _rows(cells: Sequence[str]) -> list[str]:
  size = math.isqrt(len(cells))
  return [''.join(cells[i:i + size]) for i in range(0, len(cells), size)]


def _rename_digits(cells: Sequence[str]) -> str:
  """Renames digits to 1, 2, ... in the order of their first occurrence."""
  names = {BLANK: BLANK}
  return ''.join(names.setdefault(cell, str(len(names))) for cell in cells)


@functools.cache
def _symmetries_4x4() -> list[operator.itemgetter]:
  """Getters that map the cells of a 4x4 board to a symmetric one."""
  lines = [
      [*first, *second]
      for a in ([0, 1], [1, 0]) for b in ([2, 3], [3, 2])
      for first, second in ((a, b), (b, a))]
  copies = [
      [4 * row + column for row in rows for column in columns]
      for rows in lines for columns in lines]
  copies += [[cell % 4 * 4 + cell // 4 for cell in copy] for copy in copies]
  return [operator.itemgetter(*copy) for copy in copies]


@functools.cache
def _units(size: int) -> list[tuple[int, int, int]]:
  """Row, column and box of each cell, numbered 0 to 3 * size - 1."""
  box = math.isqrt(size)
  return [
      (row, size + column, 2 * size + row // box * box + column // box)
      for row in range(size) for column in range(size)]


@functools.cache
def _peers(size: int) -> list[list[int]]:
  """Per cell: the other cells of its row, column and box."""
  units = _units(size)
  return [
      [peer for peer, others in enumerate(units)
       if peer != cell and set(cell_units) & set(others)]
      for cell, cell_units in enumerate(units)]
