"""Plan-Path's demonstrations; see `environments.boards.demonstrations`.

Programs: `right` finds a shortest path; `greedy` steps towards the goal and
stops at the first wall in its way; `wrong` prints moves that ignore the walls,
or mixes up the axes. Moves: `ignore` walks straight at the goal.
"""

import numpy as np

from environments.boards import demonstrations
from environments.boards.plan_path import env as plan_path
from environments.boards.plan_path import maze

_HEADER = '''\
import json, sys
maze = json.load(sys.stdin)
grid = maze["grid"]
start = tuple(maze["position"])
goal = tuple(maze["goal"])
moves = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
'''

_SEARCH = '''\
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

_GREEDY = '''\
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

_STRAIGHT = '''\
down = goal[0] - start[0]
right = goal[1] - start[1]
path = ["D"] * down + ["U"] * -down
path += ["R"] * right + ["L"] * -right
print(json.dumps(path))
'''

_MIXED_UP = _STRAIGHT.replace('"D"', '"X"').replace('"R"', '"D"').replace(
    '"X"', '"R"').replace('"U"', '"X"').replace('"L"', '"U"').replace(
        '"X"', '"L"')

# (kind, first line of the answer, program)
PROGRAMS = (
    ('right', 'I search breadth first.', _HEADER + _SEARCH),
    ('greedy', 'I step towards the goal.', _HEADER + _GREEDY),
    ('wrong', 'I count rows and columns.', _HEADER + _STRAIGHT),
    ('wrong', 'I count columns and rows.', _HEADER + _MIXED_UP),
    ('broken', 'I search the grid.', _HEADER + _SEARCH.replace(
        'paths[goal]', 'path')),
    ('broken', 'I follow the moves.', _HEADER + _GREEDY.replace(
        'path = []\n', '')),
    ('broken', 'I print the path.', _HEADER + _STRAIGHT.replace(
        'print(json.dumps(path))', 'print("path", path)')),
)

_LINES = {
    'ignore': 'I walk straight to the goal.',
    'invent': 'I try a path.',
}


def _random_board(rng: np.random.Generator) -> plan_path.Board:
  return plan_path.PlanPath().start(maze.random_task(rng))


def _failed(
    rng: np.random.Generator, board: plan_path.Board,
    program: str) -> tuple[str, str]:
  del board
  if 'print("path"' in program:
    return f'path {list(demonstrations.random_moves(rng, 4, 16))}\n', ''
  return '', "NameError: name 'path' is not defined"


REPERTOIRE = demonstrations.Repertoire(
    game=plan_path.PlanPath(), programs=PROGRAMS, lines=_LINES,
    random_board=_random_board,
    ignored=lambda board: demonstrations.straight_moves(
        board.position, board.goal),
    invented=lambda rng, board: demonstrations.random_moves(rng, 4, 12),
    proposed=lambda rng, board: demonstrations.random_moves(rng, 1, 30),
    failed=_failed)
