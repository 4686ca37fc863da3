"""Sokoban's demonstrations; see `environments.boards.demonstrations`.

Programs: `right` searches all states breadth first; `greedy` gives up after 80
of them; `wrong` walks straight to the goal as if there were no box, or to the
box. Moves: `ignore` walks straight to the goal.
"""

import numpy as np

from environments.boards import demonstrations
from environments.boards.sokoban import env as sokoban
from environments.boards.sokoban import room

_HEADER = '''\
import json, sys
room = json.load(sys.stdin)
rows = enumerate(room["grid"])
free = {(r, c) for r, row in rows for c, x in enumerate(row) if x == "."}
player = tuple(room["player"])
boxes = tuple(map(tuple, room["boxes"]))
goals = sorted(map(tuple, room["goals"]))
moves = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
'''

_SEARCH = '''\
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

_GREEDY = _SEARCH.replace(
    'sorted(boxes) == goals:', 'sorted(boxes) == goals or len(queue) > 80:')

_STRAIGHT = '''\
down = goals[0][0] - player[0]
right = goals[0][1] - player[1]
path = ["D"] * down + ["U"] * -down
path += ["R"] * right + ["L"] * -right
print(json.dumps(path))
'''

# (kind, first line of the answer, program)
PROGRAMS = (
    ('right', 'I search all states.', _HEADER + _SEARCH),
    ('greedy', 'I search some states.', _HEADER + _GREEDY),
    ('wrong', 'I walk to the goal.', _HEADER + _STRAIGHT),
    ('wrong', 'I walk to the box.',
     _HEADER + _STRAIGHT.replace('goals', 'boxes')),
    ('broken', 'I search the room.', _HEADER + _SEARCH.replace(
        'paths[player, boxes]))', 'path))')),
    ('broken', 'I look for states.', _HEADER + _GREEDY.replace(
        'paths = {(player, boxes): []}\n', '')),
    ('broken', 'I print the walk.', _HEADER + _STRAIGHT.replace(
        'print(json.dumps(path))', 'print("path", path)')),
)

_LINES = {
    'ignore': 'I walk straight to the goal.',
    'invent': 'I try some moves.',
}


def _random_board(rng: np.random.Generator) -> sokoban.Board:
  return sokoban.Sokoban().start(room.random_task(rng))


def _failed(
    rng: np.random.Generator, board: sokoban.Board,
    program: str) -> tuple[str, str]:
  del board
  if 'print("path"' in program:
    return f'path {list(demonstrations.random_moves(rng, 4, 10))}\n', ''
  name = 'path' if 'dumps(path)' in program else 'paths'
  return '', f"NameError: name '{name}' is not defined"


REPERTOIRE = demonstrations.Repertoire(
    game=sokoban.Sokoban(), programs=PROGRAMS, lines=_LINES,
    random_board=_random_board,
    ignored=lambda board: demonstrations.straight_moves(
        board.player, board.goals[0]),
    invented=lambda rng, board: demonstrations.random_moves(rng, 4, 12),
    proposed=lambda rng, board: demonstrations.random_moves(rng, 1, 30),
    failed=_failed)
