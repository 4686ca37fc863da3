"""Random Sokoban rooms, their solver, and the rules of the game.

A grid is a list of strings of '#' (wall) and '.' (free); outside of it is wall
as well. A cell is [row, col] from the top left. A move, 'U', 'D', 'L' or 'R',
takes the player one cell further and pushes a box that stands there one cell
further too. The room is solved when every box is on a goal; there are as many
goals as boxes.

The solver handles all states of a room at once: a set of states is one integer
with a bit for each state, and a move of all of them is a shift. The number of
a state is a number in base `cells`, with the player's cell as its last digit
and a box's cell as each digit before. Cells are numbered row by row, with one
column of wall right of the grid and one row below it, so that what leaves the
grid on any side lands on a wall. Time and memory grow with
cells**(boxes + 1): a 6x6 room with 1 box takes 0.2 ms, with 2 boxes 2 ms, with
3 boxes 0.2 s.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

# All 36 cells may be free. Were the border walled, 16 would be left: 44% of the
# rooms with a solution would need a single push (now 18%), and some would be
# drawn twice.
SIZE = 6
WALL_PROBABILITY = 0.2
WALL, FREE = '#', '.'
DELTAS = {'U': (-1, 0), 'D': (1, 0), 'L': (0, -1), 'R': (0, 1)}

Cell = tuple[int, int]


def random_task(rng: np.random.Generator, num_boxes: int = 1) -> dict[str, Any]:
  """Draws rooms until one can be solved, and with more pushes than boxes.

  So the example in the prompts, which pushes no box twice, solves no task.
  A rejected room is drawn anew as a whole, so the tasks follow the plain
  distribution (independent walls, uniform free cells for player, boxes and
  goals) given that they pass.
  """
  while True:
    walls = rng.random((SIZE, SIZE)) < WALL_PROBABILITY
    grid = [''.join(WALL if wall else FREE for wall in row) for row in walls]
    free = np.argwhere(~walls)
    player, *others = rng.permutation(free)[:2 * num_boxes + 1].tolist()
    boxes, goals = sorted(others[:num_boxes]), sorted(others[num_boxes:])
    if is_deadlocked(grid, boxes, goals):
      continue
    pushes = fewest_pushes(grid, player, boxes, goals)
    # Twenty random moves solve 0.8% of what is left with one box (2.5% of those
    # with 2 pushes) and 0.04% with two boxes; a hundred moves 4.2% and 0.5%.
    if pushes is not None and pushes > num_boxes:
      return dict(
          grid=grid, player=player, boxes=boxes, goals=goals, pushes=pushes,
          moves=len(solve(grid, player, boxes, goals)))


def solve(
    grid: Sequence[str], player: Sequence[int],
    boxes: Sequence[Sequence[int]], goals: Sequence[Sequence[int]],
) -> list[str] | None:
  """A shortest list of moves that solves the room; None if there is none."""
  room, start, solved = _search(grid, player, boxes, goals)
  reached = frontier = solved
  layers = []  # Of states that are 0, 1, ... moves away from being solved.
  while not frontier & start:
    layers.append(frontier)
    frontier = _before(room, frontier, room.pushing) & ~reached
    reached |= frontier
    if not frontier:
      return None
  moves = []
  for layer in reversed(layers):
    for move in DELTAS:
      after = _move(grid, player, boxes, move)
      if after is not None and layer & _state(room, *after):
        player, boxes = after
        moves.append(move)
        break
  return moves


def fewest_pushes(
    grid: Sequence[str], player: Sequence[int],
    boxes: Sequence[Sequence[int]], goals: Sequence[Sequence[int]],
) -> int | None:
  """Pushes of a solution with the fewest pushes; None if there is none."""
  room, start, frontier = _search(grid, player, boxes, goals)
  reached = pushes = 0
  while frontier:
    while frontier:
      reached |= frontier
      frontier = _before(room, frontier, ()) & ~reached
    if reached & start:
      return pushes
    pushes += 1
    frontier = _before(room, reached, room.pushing) & ~reached
  return None


def walk(
    grid: Sequence[str], player: Sequence[int],
    boxes: Sequence[Sequence[int]], goals: Sequence[Sequence[int]],
    moves: Sequence[str],
) -> tuple[Cell, tuple[Cell, ...], int, int]:
  """Plays `moves` one by one until the room is solved.

  A move of the player or of a box onto a wall, of a box onto another box, or
  off the grid does nothing and counts as illegal.

  Returns:
    the player's cell, the sorted cells of the boxes, the number of moves until
    then, and of the illegal ones among them.
  """
  player = tuple(player)
  boxes = tuple(sorted(map(tuple, boxes)))
  solved = tuple(sorted(map(tuple, goals)))
  walked = illegal = 0
  for move in moves:
    if boxes == solved:
      break
    walked += 1
    after = _move(grid, player, boxes, move)
    if after is None:
      illegal += 1
    else:
      player, boxes = after
  return player, boxes, walked, illegal


def is_deadlocked(
    grid: Sequence[str], boxes: Sequence[Sequence[int]],
    goals: Sequence[Sequence[int]],
) -> bool:
  """Whether some box cannot reach any goal, were it alone in the room.

  True means that the room cannot be solved any more; False need not mean that
  it can be, for boxes may block one another.
  """
  alive = [tuple(goal) for goal in goals]
  for row, col in alive:  # Grows while it is walked through.
    for down, right in DELTAS.values():
      # A push from `cell` needs the player on the cell behind it.
      cell = (row - down, col - right)
      behind = (row - 2 * down, col - 2 * right)
      if (
          cell not in alive and _is_free(grid, cell) and _is_free(grid, behind)
      ):
        alive.append(cell)
  return any(tuple(box) not in alive for box in boxes)


def distance(
    boxes: Sequence[Sequence[int]], goals: Sequence[Sequence[int]]
) -> int:
  """Sum of the boxes' Manhattan distances to goals, one box to each goal.

  Of all ways to pair them, the least sum. At most one push closes one unit.
  """
  return min(
      sum(
          abs(box[0] - goal[0]) + abs(box[1] - goal[1])
          for box, goal in zip(boxes, order))
      for order in itertools.permutations(goals)
  )


def canonical_form(task: dict[str, Any]) -> str:
  """One text for a room and its copies turned or mirrored.

  Of a `random_task` it reads grid, player, boxes and goals.
  """
  rows = [list(row) for row in task['grid']]
  for row, col in task['goals']:
    rows[row][col] = 'g'
  for row, col in task['boxes']:
    rows[row][col] = 'B' if rows[row][col] == 'g' else 'b'
  row, col = task['player']
  rows[row][col] = 'P' if rows[row][col] == 'g' else 'p'
  copies = []
  for _ in range(4):
    rows = list(zip(*rows[::-1]))  # A quarter turn.
    copies += [rows, rows[::-1]]
  return min('/'.join(map(''.join, copy)) for copy in copies)


def _is_free(grid: Sequence[str], cell: Cell) -> bool:
  row, col = cell
  inside = 0 <= row < len(grid) and 0 <= col < len(grid[0])
  return inside and grid[row][col] == FREE


def _move(
    grid: Sequence[str], player: Sequence[int],
    boxes: Sequence[Sequence[int]], move: str,
) -> tuple[Cell, tuple[Cell, ...]] | None:
  """The player and the boxes, sorted, after a move; None if it is illegal."""
  down, right = DELTAS[move]
  target = (player[0] + down, player[1] + right)
  boxes = [tuple(box) for box in boxes]
  if not _is_free(grid, target):
    return None
  if target in boxes:
    pushed = (target[0] + down, target[1] + right)
    if not _is_free(grid, pushed) or pushed in boxes:
      return None
    boxes[boxes.index(target)] = pushed
  return target, tuple(sorted(boxes))


class _Room(NamedTuple):
  """What the solver knows of a grid with some number of boxes.

  Attributes:
    width: cells of a row, the wall on the right included.
    cells: number of cells, the walls on the right and below included.
    places: value of each digit of a state's number; places[0] is the player's.
    possible: the states in which player and boxes are on different free cells.
    pushing: for each box, the numbers whose player stands where that box does.
  """

  width: int
  cells: int
  places: tuple[int, ...]
  possible: int
  pushing: tuple[int, ...]


def _room(grid: Sequence[str], num_boxes: int) -> _Room:
  height, width = len(grid), len(grid[0]) + 1
  cells = (height + 1) * width
  places = tuple(cells**i for i in range(num_boxes + 1))
  free = [
      row * width + col for row in range(height) for col in range(width - 1)
      if grid[row][col] == FREE]

  def possible(left: int, boxes: int) -> int:
    """The states of the player and the first `boxes` boxes on cells `left`."""
    if not boxes:
      return left
    return sum(
        possible(left ^ 1 << cell, boxes - 1) << cell * places[boxes]
        for cell in free if left >> cell & 1)

  return _Room(
      width, cells, places,
      possible(sum(1 << cell for cell in free), num_boxes),
      _pushing(height, width, num_boxes))


@functools.cache
def _pushing(height: int, width: int, num_boxes: int) -> tuple[int, ...]:
  """`_Room.pushing`, without the numbers that mean a wall outside the grid."""
  cells = (height + 1) * width
  inside = [
      row * width + col for row in range(height) for col in range(width - 1)]
  places = [cells**i for i in range(num_boxes + 1)]
  anywhere = [sum(1 << cell * place for cell in inside) for place in places]
  return tuple(
      sum(1 << cell * (1 + place) for cell in inside)
      * math.prod(anywhere[1:box] + anywhere[box + 1:])
      for box, place in enumerate(places[1:], 1)
  )


def _search(
    grid: Sequence[str], player: Sequence[int],
    boxes: Sequence[Sequence[int]], goals: Sequence[Sequence[int]],
) -> tuple[_Room, int, int]:
  """What a search needs: the room, its present state, and the solved states."""
  if len(boxes) != len(goals):
    raise ValueError(
        f'{len(boxes)} boxes and {len(goals)} goals; a room has as many goals '
        'as boxes')
  room = _room(grid, len(boxes))
  anywhere = (1 << room.cells) - 1
  solved = 0
  for order in itertools.permutations(goals):
    solved |= _states(room, anywhere, order)
  return room, _state(room, player, boxes), solved & room.possible


def _states(room: _Room, players: int, boxes: Sequence[Sequence[int]]) -> int:
  """The states with these boxes, in this order, and a player in `players`."""
  shift = sum(
      place * (row * room.width + col)
      for place, (row, col) in zip(room.places[1:], boxes))
  return players << shift


def _state(
    room: _Room, player: Sequence[int], boxes: Sequence[Sequence[int]]
) -> int:
  return _states(room, 1 << player[0] * room.width + player[1], boxes)


def _shift(states: int, distance: int) -> int:
  return states << distance if distance > 0 else states >> -distance


def _before(room: _Room, states: int, pushing: Sequence[int]) -> int:
  """The states that one move takes into `states`, by a walk or by a push.

  With room.pushing for `pushing` both count, with () only walks do.
  """
  before = 0
  for delta in (room.width, -room.width, 1, -1):
    pulled = states
    for place, here in zip(room.places[1:], pushing):
      # The box goes back to where the player stands ...
      pulled |= _shift(states, delta * place) & here
    before |= _shift(pulled, delta)  # ... and the player one cell further.
  return before & room.possible
