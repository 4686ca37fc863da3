"""The programs that demonstrations of the board games contain.

`right` solves every task and `greedy` some; `wrong` runs and seldom solves one;
`broken` raises a NameError or prints no move.
"""

from typing import NamedTuple


class Program(NamedTuple):
  """A program that a tool agent writes."""

  kind: str  # 'right', 'greedy', 'wrong' or 'broken'.
  # First line of the completion. It differs for each program of a game, so the
  # choice among them is one early token.
  line: str
  source: str  # The Python source.
  # An undefined name in a broken program; '' if the program prints something
  # other than a move instead.
  undefined: str = ''

  @property
  def reply(self) -> str:
    return f'{self.line}\n```python\n{self.source}```'


def _straight(end: str, start: str, letters: str = 'DURL') -> str:
  down, up, right, left = letters
  return f'''\
down = {end}[0] - {start}[0]
right = {end}[1] - {start}[1]
path = ["{down}"] * down + ["{up}"] * -down
path += ["{right}"] * right + ["{left}"] * -right
print(json.dumps(path))
'''


_MAZE = '''\
import json, sys
maze = json.load(sys.stdin)
grid = maze["grid"]
start = tuple(maze["position"])
goal = tuple(maze["goal"])
moves = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
'''
_MAZE_SEARCH = _MAZE + '''\
paths = {start: []}
queue = [start]
for row, column in queue:
  for move, (down, right) in moves.items():
    cell = (row + down, column + right)
    if cell in paths or min(cell) < 0 or max(cell) > 9:
      continue
    if grid[cell[0]][cell[1]] == "#":
      continue
    paths[cell] = paths[row, column] + [move]
    queue.append(cell)
print(json.dumps(paths[goal]))
'''
_MAZE_GREEDY = _MAZE + '''\
path = []
row, column = start
while (row, column) != goal:
  if row != goal[0]:
    move = "D" if goal[0] > row else "U"
  else:
    move = "R" if goal[1] > column else "L"
  row += moves[move][0]
  column += moves[move][1]
  if grid[row][column] == "#":
    break
  path.append(move)
print(json.dumps(path))
'''
_MAZE_STRAIGHT = _MAZE + _straight('goal', 'start')
# Confuses rows with columns.
_MAZE_MIXED_UP = _MAZE + _straight('goal', 'start', 'RLDU')
PLAN_PATH = (
    Program('right', 'I search breadth first.', _MAZE_SEARCH),
    Program('greedy', 'I step towards the goal.', _MAZE_GREEDY),
    Program('wrong', 'I count rows and columns.', _MAZE_STRAIGHT),
    Program('wrong', 'I count columns and rows.', _MAZE_MIXED_UP),
    Program('broken', 'I search the grid.', _MAZE_SEARCH.replace(
        'paths[goal]', 'path'), 'path'),
    Program('broken', 'I follow the moves.', _MAZE_GREEDY.replace(
        'path = []\n', ''), 'path'),
    Program('broken', 'I print the path.', _MAZE_STRAIGHT.replace(
        'print(json.dumps(path))', 'print("path", path)')),
)

_ROOM = '''\
import json, sys
room = json.load(sys.stdin)
rows = enumerate(room["grid"])
free = {(r, c) for r, row in rows for c, x in enumerate(row) if x == "."}
player = tuple(room["player"])
boxes = tuple(map(tuple, room["boxes"]))
goals = sorted(map(tuple, room["goals"]))
moves = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
'''
_ROOM_SEARCH = _ROOM + '''\
paths = {(player, boxes): []}
queue = [(player, boxes)]
for player, boxes in queue:
  if sorted(boxes) == goals:
    break
  for move, (down, right) in moves.items():
    cell = (player[0] + down, player[1] + right)
    ahead = (cell[0] + down, cell[1] + right)
    if cell not in free:
      continue
    if cell in boxes and (ahead not in free or ahead in boxes):
      continue
    moved = tuple(ahead if box == cell else box for box in boxes)
    if (cell, moved) in paths:
      continue
    paths[cell, moved] = paths[player, boxes] + [move]
    queue.append((cell, moved))
print(json.dumps(paths[player, boxes]))
'''
_ROOM_GREEDY = _ROOM_SEARCH.replace(
    'sorted(boxes) == goals:', 'sorted(boxes) == goals or len(queue) > 80:')
_ROOM_STRAIGHT = _ROOM + _straight('goals[0]', 'player')
_ROOM_TO_BOX = _ROOM + _straight('boxes[0]', 'player')
SOKOBAN = (
    Program('right', 'I search all states.', _ROOM_SEARCH),
    Program('greedy', 'I search some states.', _ROOM_GREEDY),
    Program('wrong', 'I walk to the goal.', _ROOM_STRAIGHT),
    Program('wrong', 'I walk to the box.', _ROOM_TO_BOX),
    Program('broken', 'I search the room.', _ROOM_SEARCH.replace(
        'paths[player, boxes]))', 'path))'), 'path'),
    Program('broken', 'I look for states.', _ROOM_GREEDY.replace(
        'paths = {(player, boxes): []}\n', ''), 'paths'),
    Program('broken', 'I print the walk.', _ROOM_STRAIGHT.replace(
        'print(json.dumps(path))', 'print("path", path)')),
)

_GRID = '''\
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
_GRID_SEARCH = _GRID + _OPTIONS + '''\
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
_GRID_GREEDY = _GRID + _OPTIONS + '''\
for row in range(size):
  for column in range(size):
    if grid[row][column] == 0:
      grid[row][column] = (options(row, column) + [0])[0]
print(json.dumps(grid))
'''
_GRID_ROWS = _GRID + '''\
for row in grid:
  digits = [digit for digit in range(1, size + 1) if digit not in row]
  for column in range(size):
    if row[column] == 0:
      row[column] = digits.pop(0)
print(json.dumps(grid))
'''
_GRID_COLUMNS = _GRID + '''\
for column in range(size):
  line = [row[column] for row in grid]
  digits = [digit for digit in range(1, size + 1) if digit not in line]
  for row in grid:
    if row[column] == 0:
      row[column] = digits.pop(0)
print(json.dumps(grid))
'''
SUDOKU = (
    Program('right', 'I try all digits.', _GRID_SEARCH),
    Program('greedy', 'I take what fits first.', _GRID_GREEDY),
    Program('wrong', 'I fill the rows.', _GRID_ROWS),
    Program('wrong', 'I fill the columns.', _GRID_COLUMNS),
    Program('broken', 'I solve the grid.', _GRID_SEARCH.replace(
        'dumps(grid)', 'dumps(solution)'), 'solution'),
    Program('broken', 'I take digits.', _GRID_GREEDY.replace(
        _OPTIONS, ''), 'options'),
    Program('broken', 'I print the rows.', _GRID_ROWS.replace(
        'print(json.dumps(grid))', 'print("grid", grid)')),
)
