"""Sudoku boards of 4x4 and 9x9 cells: their rules, solver and random tasks.

A board is a list of `size` strings of `size` characters: a digit from 1 to
`size`, or '.' for a blank cell. In a complete board no row, column or box (2x2
or 3x3 cells) holds a digit twice. The clues of a task have exactly one
completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
import itertools
import math
import operator
from typing import Any

import numpy as np

BLANK = '.'
# Size -> minimum and maximum number of blank cells of a task.
NUM_BLANKS = {4: (6, 12), 9: (30, 50)}

Board = list[str]


def solutions(board: Sequence[str], limit: int = 2) -> list[Board]:
  """Returns up to `limit` completions; none if the board breaks a rule."""
  return list(itertools.islice(_completions(board), limit))


def random_task(rng: np.random.Generator, size: int) -> dict[str, Any]:
  """Blanks cells of a random complete board while it has one completion.

  The number of blank cells is drawn from `NUM_BLANKS[size]`. Cells are tried in
  random order. If every clue is needed before that number is reached, another
  board is drawn.

  Returns:
    `board` (the clues), its only `solution`, and `num_clues`.
  """
  min_blanks, max_blanks = NUM_BLANKS[size]
  digits = set(map(str, range(1, size + 1)))
  peers = _peers(math.isqrt(size))
  while True:
    solution = next(_completions([BLANK * size] * size, rng))
    num_blanks = int(rng.integers(min_blanks, max_blanks, endpoint=True))
    cells = list(''.join(solution))
    for cell in rng.permutation(len(cells)).tolist():
      before, clue, after = cells[:cell], cells[cell], cells[cell + 1:]
      others = digits - {clue} - {cells[peer] for peer in peers[cell]}
      if any(solutions(_rows([*before, other, *after]), limit=1)
             for other in others):
        continue  # Without this clue there are two completions.
      cells[cell] = BLANK
      if cells.count(BLANK) == num_blanks:
        return dict(
            board=_rows(cells), solution=solution,
            num_clues=len(cells) - num_blanks)


def is_solution(clues: Sequence[str], filled: Sequence[str]) -> bool:
  """True if `filled` is complete, keeps the clues and breaks no rule."""
  digits = set(map(str, range(1, len(clues) + 1)))
  peers = _peers(math.isqrt(len(clues)))
  cells = ''.join(filled)
  return all(
      digit in digits and clue in (BLANK, digit)
      and all(cells[peer] != digit for peer in others)
      for clue, digit, others in zip(''.join(clues), cells, peers, strict=True))


def progress(clues: Sequence[str], filled: Sequence[str]) -> float:
  """Ratio of the blank cells of `clues` that `filled` fills."""
  return 1 - ''.join(filled).count(BLANK) / ''.join(clues).count(BLANK)


def write(
    clues: Sequence[str], rows: Sequence[Sequence[int]]
) -> tuple[Board, int, int]:
  """Writes digits onto the clues, row by row, until the board is full.

  A digit that changes a clue or repeats a digit of its row, column or box is
  skipped, so a legal board stays legal and a full one is solved.

  Args:
    clues: a legal board.
    rows: digits; 0 keeps the cell of the clues.

  Returns:
    the board and the numbers of digits written and skipped.
  """
  cells = list(''.join(clues))
  written = skipped = 0
  num_blanks = cells.count(BLANK)
  peers = _peers(math.isqrt(len(clues)))
  for cell, digit in enumerate(map(str, itertools.chain(*rows))):
    if written == num_blanks:
      break
    if digit in ('0', cells[cell]):
      continue
    held = [cells[peer] for peer in peers[cell]]
    if cells[cell] != BLANK or digit in held:
      skipped += 1
    else:
      cells[cell] = digit
      written += 1
  return _rows(cells), written, skipped


def canonical_form(board: Sequence[str]) -> str:
  """Equal for boards that differ only by the names of digits or by symmetry.

  A 4x4 board has 128 symmetries: swaps of rows within a band, of bands, of
  columns and of stacks, and the transpose. A 9x9 board has 3359232, too many to
  try, so its form ignores only the names of digits.
  """
  cells = ''.join(board)
  if len(board) != 4:
    return _renamed(cells)
  # Renaming is slow: rename only the copies with the smallest set of blanks.
  blanks = ''.join(min(cell, '1') for cell in cells)
  copies = [symmetry(blanks) for symmetry in _SYMMETRIES_4X4]
  smallest = min(copies)
  return min(
      _renamed(symmetry(cells))
      for symmetry, copy in zip(_SYMMETRIES_4X4, copies) if copy == smallest
  )


def _rows(cells: Sequence[str]) -> Board:
  size = math.isqrt(len(cells))
  return [''.join(cells[i:i + size]) for i in range(0, len(cells), size)]


def _renamed(cells: Sequence[str]) -> str:
  """Renames digits to 1, 2, ... in the order of their first occurrence."""
  names = {BLANK: BLANK}
  return ''.join(names.setdefault(cell, str(len(names))) for cell in cells)


def _symmetries_4x4() -> list[operator.itemgetter]:
  """Getters that map the cells of a 4x4 board to those of a symmetric one."""
  lines = [
      [*first, *second]
      for a in ([0, 1], [1, 0]) for b in ([2, 3], [3, 2])
      for first, second in ((a, b), (b, a))
  ]
  copies = [
      [4 * row + col for row in rows for col in cols]
      for rows in lines for cols in lines
  ]
  copies += [[cell % 4 * 4 + cell // 4 for cell in copy] for copy in copies]
  return [operator.itemgetter(*copy) for copy in copies]


_SYMMETRIES_4X4 = _symmetries_4x4()


def _completions(
    board: Sequence[str], rng: np.random.Generator | None = None
) -> Iterator[Board]:
  """Yields all completions; with `rng`, tries digits in random order.

  The blank cell with the fewest possible digits is filled first.
  """
  size = len(board)
  units = _units(math.isqrt(size))
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

  def search() -> Iterator[Board]:
    if not blanks:
      yield _rows([str(digit.bit_length() - 1) for digit in cells])
      return
    fewest = size + 1
    for index, cell in enumerate(blanks):
      row, col, box = units[cell]
      options = all_digits & ~(used[row] | used[col] | used[box])
      count = options.bit_count()
      if count < fewest:
        fewest, best, best_options = count, index, options
        if count < 2:
          break
    cell = blanks[best]
    blanks[best] = blanks[-1]
    blanks.pop()
    row, col, box = units[cell]
    digits = [1 << d for d in range(1, size + 1) if best_options >> d & 1]
    if rng is not None:
      rng.shuffle(digits)
    for digit in digits:
      cells[cell] = digit
      used[row] ^= digit
      used[col] ^= digit
      used[box] ^= digit
      yield from search()
      used[row] ^= digit
      used[col] ^= digit
      used[box] ^= digit
    blanks.append(cell)
    blanks[best], blanks[-1] = blanks[-1], blanks[best]

  all_digits = (2 << size) - 2
  yield from search()


@functools.cache
def _units(box: int) -> list[tuple[int, int, int]]:
  """Row, column and box of each cell, numbered 0 to 3 * size - 1."""
  size = box * box
  return [
      (row, size + col, 2 * size + row // box * box + col // box)
      for row in range(size) for col in range(size)
  ]


@functools.cache
def _peers(box: int) -> list[list[int]]:
  """Per cell: the other cells of its row, column and box."""
  units = _units(box)
  return [
      [peer for peer, others in enumerate(units)
       if peer != cell and set(cell_units) & set(others)]
      for cell, cell_units in enumerate(units)]
