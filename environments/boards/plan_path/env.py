"""Plan-Path: a team walks through a maze (arXiv 2510.11062, section 5).

Moves are made one by one until the goal is reached. The rest of the list is
ignored. A move into a wall or off the grid does nothing and is illegal. The
potential of `progress` is the Manhattan distance to the goal, divided by the
maximum. A list with more moves than the maze has cells is malformed. Mazes may
have any size; those of the paper are 10x10.
`environments.boards.board_game` describes teams and reward terms.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import json
from typing import Any

import numpy as np

from environments import env_api
from environments.boards import board_game

SIZE = 10
WALL_PROBABILITY = 0.22
# Twenty random moves reach a goal at distance 2 in 43 % of mazes, at distance 4
# in 15 % and at distance 6 in 5 %. Shorter tasks would pay a team that cannot
# plan.
MIN_SHORTEST_PATH = 6


@dataclasses.dataclass(frozen=True)
class Board:
  """A walker in a maze."""

  grid: tuple[str, ...]  # Rows of '#' (wall) and '.' (free).
  position: board_game.Cell  # Row and column of the walker, from the top left.
  goal: board_game.Cell  # Row and column of the goal.


@dataclasses.dataclass(frozen=True)
class PlanPath(board_game.GridGame):
  """The rules; see `environments.boards.board_game.Game`."""

  phrases = board_game.Phrases(
      rules=(
          'U is one row up, D down, L one column left, R right. # is a wall, A '
          'is you, G is the goal. A move into a wall or off the grid does '
          'nothing.'),
      activity='walks through a maze',
      solo='You walk through a maze alone.',
      board='the maze',
      schema=(
          '{"grid": [rows], "position": [row, column], "goal": [row, column]}'),
      move='a JSON list of moves',
      solution='a JSON list of moves that leads to the goal',
      example='["U", "R"]',
      noun='moves',
      effect='Your moves are walked.')

  def start(self, task: env_api.Task) -> Board:
    board = Board(
        tuple(task['grid']), tuple(task['start']), tuple(task['goal']))
    board_game.check_grid(
        board.grid, {'start': [board.position], 'goal': [board.goal]})
    board_game.check_unsolved(self, board)
    return board

  def max_moves(self, board: Board) -> int:
    return len(board.grid) * len(board.grid[0])

  def show(self, board: Board) -> str:
    rows = [list(row) for row in board.grid]
    rows[board.goal[0]][board.goal[1]] = 'G'
    rows[board.position[0]][board.position[1]] = 'A'
    return '\n'.join(map(''.join, rows))

  def describe(self, board: Board) -> str:
    return (
        f'Position: {json.dumps(board.position)}. '
        f'Goal: {json.dumps(board.goal)}.')

  def play(self, board: Board, move: Sequence[str]) -> tuple[Board, float]:
    position = board.position
    num_moves = num_illegal = 0
    for direction in move:
      if position == board.goal:
        break
      num_moves += 1
      down, right = board_game.DELTAS[direction]
      cell = (position[0] + down, position[1] + right)
      if board_game.is_free(board.grid, cell):
        position = cell
      else:
        num_illegal += 1
    return (
        dataclasses.replace(board, position=position),
        num_illegal / max(num_moves, 1))

  def solved(self, board: Board) -> bool:
    return board.position == board.goal

  def progress(self, before: Board, after: Board) -> float:
    max_distance = len(before.grid) + len(before.grid[0]) - 2
    return (_distance(before) - _distance(after)) / max_distance


make_environment = functools.partial(board_game.make_environment, PlanPath())


def random_task(rng: np.random.Generator) -> dict[str, Any]:
  """Draws whole mazes until the shortest path is long enough.

  Walls are independent. Start and goal are uniform over the free cells.
  """
  while True:
    grid, free = board_game.random_grid(rng, SIZE, WALL_PROBABILITY)
    start, goal = free[rng.integers(len(free), size=2)].tolist()
    length = shortest_path_length(grid, start, goal)
    if length is not None and length >= MIN_SHORTEST_PATH:
      return dict(grid=grid, start=start, goal=goal, shortest_path=length)


def shortest_path_length(
    grid: Sequence[str], start: Sequence[int], goal: Sequence[int]
) -> int | None:
  """Length of a shortest path between free cells; None if there is none."""
  queue = [tuple(start)]
  lengths = {tuple(start): 0}
  for row, column in queue:
    if (row, column) == tuple(goal):
      return lengths[row, column]
    for down, right in board_game.DELTAS.values():
      cell = (row + down, column + right)
      if cell not in lengths and board_game.is_free(grid, cell):
        lengths[cell] = lengths[row, column] + 1
        queue.append(cell)
  return None


def _distance(board: Board) -> int:
  return (abs(board.position[0] - board.goal[0])
          + abs(board.position[1] - board.goal[1]))
