"""Demonstrations of 4x4 Sudoku; see `environments.boards.demonstrations`.

Programs: `right` tries all digits and goes back from dead ends; `greedy` takes
the first digit that fits; `wrong` looks at rows, or at columns, alone. Moves:
`ignore` fills each row with the digits that it lacks, in their order.
"""

import numpy as np

from environments.boards import demonstrations
from environments.boards.sudoku import env as sudoku
from environments.boards.sudoku import grid as grid_lib

_SIZE = 4

_HEADER = '''\
import json, sys
grid = json.load(sys.stdin)["clues"]
size = len(grid)
box = 2 if size == 4 else 3
'''

_OPTIONS = '''\
def options(row, column):
  used = set(grid[row]) | {line[column] for line in grid}
  top, left = row // box * box, column // box * box
  for line in grid[top:top + box]:
    used |= set(line[left:left + box])
  return [digit for digit in range(1, size + 1) if digit not in used]
'''

_SEARCH = _OPTIONS + '''\
def solve():
  for row in range(size):
    for column in range(size):
      if grid[row][column] == 0:
        for digit in options(row, column):
          grid[row][column] = digit
          if solve():
            return True
        grid[row][column] = 0
        return False
  return True
solve()
print(json.dumps(grid))
'''

_GREEDY = _OPTIONS + '''\
for row in range(size):
  for column in range(size):
    if grid[row][column] == 0:
      grid[row][column] = (options(row, column) + [0])[0]
print(json.dumps(grid))
'''

_ROWS = '''\
for row in grid:
  digits = [digit for digit in range(1, size + 1) if digit not in row]
  for column in range(size):
    if row[column] == 0:
      row[column] = digits.pop(0)
print(json.dumps(grid))
'''

_COLUMNS = '''\
for column in range(size):
  line = [row[column] for row in grid]
  digits = [digit for digit in range(1, size + 1) if digit not in line]
  for row in grid:
    if row[column] == 0:
      row[column] = digits.pop(0)
print(json.dumps(grid))
'''

# (kind, first line of the answer, program)
PROGRAMS = (
    ('right', 'I try all digits.', _HEADER + _SEARCH),
    ('greedy', 'I take what fits first.', _HEADER + _GREEDY),
    ('wrong', 'I fill the rows.', _HEADER + _ROWS),
    ('wrong', 'I fill the columns.', _HEADER + _COLUMNS),
    ('broken', 'I solve the grid.', _HEADER + _SEARCH.replace(
        'dumps(grid)', 'dumps(solution)')),
    ('broken', 'I take digits.', _HEADER + _GREEDY.replace(_OPTIONS, '')),
    ('broken', 'I print the rows.', _HEADER + _ROWS.replace(
        'print(json.dumps(grid))', 'print("grid", grid)')),
)

_LINES = {
    'ignore': 'I fill the rows.',
    'invent': 'I try a grid.',
}


def _random_board(rng: np.random.Generator) -> sudoku.Board:
  return sudoku.Sudoku(_SIZE).start(
      {'task_id': '', **grid_lib.random_task(rng, _SIZE)})


def _random_digits(
    rng: np.random.Generator, board: sudoku.Board) -> sudoku.Digits:
  del board
  digits = rng.integers(1, _SIZE, size=(_SIZE, _SIZE), endpoint=True)
  return tuple(map(tuple, digits.tolist()))


def _fill_rows(board: sudoku.Board) -> sudoku.Digits:
  rows = []
  for clues in board.clues:
    digits = [x for x in range(1, _SIZE + 1) if str(x) not in clues]
    rows.append(tuple(
        digits.pop(0) if cell == grid_lib.BLANK else int(cell)
        for cell in clues))
  return tuple(rows)


def _failed(
    rng: np.random.Generator, board: sudoku.Board,
    program: str) -> tuple[str, str]:
  del rng
  if 'print("grid"' in program:
    return f'grid {list(map(list, _fill_rows(board)))}\n', ''
  name = 'solution' if 'dumps(solution)' in program else 'options'
  return '', f"NameError: name '{name}' is not defined"


REPERTOIRE = demonstrations.Repertoire(
    game=sudoku.Sudoku(_SIZE), programs=PROGRAMS, lines=_LINES,
    random_board=_random_board, ignored=_fill_rows, invented=_random_digits,
    proposed=_random_digits, failed=_failed,
    nothing=((0,) * _SIZE,) * _SIZE)
