"""Sokoban: a team pushes boxes onto goals in a room (arXiv 2510.11062).

A move into a wall, off the grid, or of a box that cannot be pushed does nothing
and is illegal. Rooms may have any size; the generated ones have 6x6 cells.
"""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np

from environments import env_api
from environments.boards import board_game

# All 36 cells may be free. With a walled border only 16 would be: 44 % of the
# solvable rooms would need a single push (now 18 %), and some would repeat.
SIZE = 6
WALL_PROBABILITY = 0.2


@dataclasses.dataclass(frozen=True)
class Board:
  grid: tuple[str, ...]  # Rows of '#' (wall) and '.' (free).
  player: board_game.Cell
  boxes: board_game.Cells  # Sorted.
  goals: board_game.Cells  # Sorted, one per box.


@dataclasses.dataclass(frozen=True)
class Sokoban(board_game.GridGame):
  """The rules; `environments.boards.board_game` has rewards and teams."""

  phrases = board_game.Phrases(
      rules=(
          'U is one row up, D down, L one column left, R right. # is a wall, A '
          'is you, B a box, G a goal, * a box on a goal, + you on a goal. You '
          'push a box by walking into it; never two, never into a wall. A move '
          'that cannot be made does nothing.'),
      activity='pushes boxes onto goals',
      solo='You push boxes onto goals alone.',
      board='the room',
      schema=(
          '{"grid": [rows], "player": [row, column], "boxes": [[row, column], '
          '...], "goals": [[row, column], ...]}'),
      move='a JSON list of moves',
      solution='a JSON list of moves that brings every box to a goal',
      example='["U", "R"]',
      noun='moves',
      effect='Your moves are made.')

  def start(self, task: env_api.Task) -> Board:
    boxes, goals = (
        tuple(sorted(map(tuple, task[name]))) for name in ('boxes', 'goals'))
    board = Board(tuple(task['grid']), tuple(task['player']), boxes, goals)
    board_game.check_grid(board.grid, {
        'player and boxes': (board.player, *boxes), 'goals': goals})
    if len(boxes) != len(goals):
      raise ValueError(
          f'{len(boxes)} boxes and {len(goals)} goals; expected as many goals '
          'as boxes')
    return board

  def max_moves(self, board: Board) -> int:
    # A push may need a walk through the room, so the limit is quadratic.
    return max(100, (len(board.grid) * len(board.grid[0]))**2 // 16)

  def pieces(
      self, board: Board) -> tuple[board_game.Cells, board_game.Cells]:
    return board.boxes, board.goals

  def go(self, board: Board, direction: str) -> Board | None:
    cell = board_game.ahead(board.player, direction)
    beyond = board_game.ahead(cell, direction)
    if not board_game.is_free(board.grid, cell):
      return None
    if cell not in board.boxes:
      return dataclasses.replace(board, player=cell)
    if not board_game.is_free(board.grid, beyond) or beyond in board.boxes:
      return None
    boxes = [beyond if box == cell else box for box in board.boxes]
    return dataclasses.replace(board, player=cell, boxes=tuple(sorted(boxes)))

  def show(self, board: Board) -> str:
    return board_game.draw(board.grid, {
        **dict.fromkeys(board.goals, 'G'),
        **{box: '*' if box in board.goals else 'B' for box in board.boxes},
        board.player: '+' if board.player in board.goals else 'A'})


make_environment = functools.partial(board_game.make_environment, Sokoban())


def random_task(rng: np.random.Generator, num_boxes: int = 1) -> dict[str, Any]:
  """Draws whole rooms until a solution needs more pushes than boxes.

  The example in the prompts pushes no box twice, so it solves no task.
  """
  while True:
    grid, free = board_game.random_grid(rng, SIZE, WALL_PROBABILITY)
    player, *others = rng.permutation(free)[:2 * num_boxes + 1].tolist()
    task = dict(
        grid=grid, player=player, boxes=sorted(others[:num_boxes]),
        goals=sorted(others[num_boxes:]))
    if _has_dead_box(task):
      continue  # Two thirds of all rooms; the search would take longer.
    pushes = min_cost(task, walks_are_free=True)
    # Twenty random moves solve 0.8 % of the remaining rooms with one box (2.5 %
    # if 2 pushes suffice) and 0.04 % with two boxes. A hundred moves solve
    # 4.2 % and 0.5 %.
    if pushes is not None and pushes > num_boxes:
      return task | dict(
          pushes=pushes, moves=min_cost(task, walks_are_free=False))


def canonical_form(task: env_api.Task) -> str:
  """Equal for rooms that differ only by rotation and reflection."""
  rules = Sokoban()
  rows = rules.show(rules.start(task)).split('\n')
  copies = []
  for _ in range(4):
    rows = list(zip(*rows[::-1]))  # A quarter turn.
    copies += [rows, rows[::-1]]
  return min('/'.join(map(''.join, copy)) for copy in copies)


def _has_dead_box(task: env_api.Task) -> bool:
  """True if a box could not reach any goal even if it were alone."""
  grid, alive = task['grid'], [tuple(goal) for goal in task['goals']]
  for after in alive:  # Grows during the iteration.
    for direction in board_game.DELTAS:
      cell = board_game.ahead(after, direction)
      player = board_game.ahead(cell, direction)
      if (cell not in alive and board_game.is_free(grid, cell)
          and board_game.is_free(grid, player)):
        alive.append(cell)
  return any(tuple(box) not in alive for box in task['boxes'])


def min_cost(task: env_api.Task, walks_are_free: bool) -> int | None:
  """Minimum number of moves or pushes that solve a room; None without any.

  All states are searched together, backwards from the solved ones. A set of
  states is an integer with one bit per state, and a shift moves all of them. A
  state is a number whose first digit is the player's cell and whose other
  digits are the cells of the boxes. Cells are numbered row by row, with a
  column of wall to the right of the grid and a row of wall below, so a state
  that leaves the grid on any side lands on a wall. Time and memory grow with
  cells**(boxes + 1): a 6x6 room takes 0.2 ms with 1 box and 2 ms with 2 boxes.
  """
  grid = task['grid']
  width = len(grid[0]) + 1
  num_cells = (len(grid) + 1) * width
  digits = range(len(task['boxes']) + 1)
  strides = [num_cells**digit for digit in digits]
  free = [
      row * width + column for row, line in enumerate(grid)
      for column, content in enumerate(line) if content == board_game.FREE]
  # Distinct states have distinct numbers, so products of sets never carry.
  on_any_cell = [sum(1 << cell * stride for cell in free) for stride in strides]

  def on_same_cell(first: int, second: int) -> int:
    """States in which two digits are equal."""
    stride = strides[first] + strides[second]
    others = [x for x in digits if x not in (first, second)]
    return sum(1 << cell * stride for cell in free) * math.prod(
        on_any_cell[digit] for digit in others)

  def number(*cells: Sequence[int]) -> int:
    """The number of a state, given the cells of the player and the boxes."""
    return sum(
        stride * (row * width + column)
        for stride, (row, column) in zip(strides, cells))

  def before(states: int, pushes: bool) -> int:
    """States that a walk, or with `pushes` also a push, takes into `states`."""
    found = 0
    for delta in (width, -width, 1, -1):
      pulled = states
      if pushes:
        for stride, on_box in zip(strides[1:], pushing):
          # The box goes back to the player's cell ...
          pulled |= _shift(states, delta * stride) & on_box
      found |= _shift(pulled, delta)  # ... and the player to the cell behind.
    return found & possible

  possible = math.prod(on_any_cell)
  for first, second in itertools.combinations(digits, 2):
    possible &= ~on_same_cell(first, second)
  pushing = [on_same_cell(0, digit) for digit in digits[1:]]
  start = 1 << number(task['player'], *task['boxes'])
  solved = 0
  for order in itertools.permutations(task['goals']):
    solved |= on_any_cell[0] << number((0, 0), *order)
  reached = frontier = solved & possible
  cost = 0
  while frontier:
    while walks_are_free and frontier:  # Walk to all reachable cells.
      frontier = before(frontier, pushes=False) & ~reached
      reached |= frontier
    if reached & start:
      return cost
    frontier = before(
        reached if walks_are_free else frontier, pushes=True) & ~reached
    reached |= frontier
    cost += 1
  return None


def _shift(states: int, distance: int) -> int:
  return states << distance if distance > 0 else states >> -distance
