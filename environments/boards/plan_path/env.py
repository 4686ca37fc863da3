"""Plan-Path: a team walks through a maze (arXiv 2510.11062, section 5).

A move into a wall or off the grid does nothing and is illegal. A list with more
moves than the maze has cells is malformed. Mazes may have any size; those of
the paper are 10x10.
"""

from collections.abc import Sequence
import dataclasses
import functools
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
  grid: tuple[str, ...]  # Rows of '#' (wall) and '.' (free).
  position: board_game.Cell
  goal: board_game.Cell


@dataclasses.dataclass(frozen=True)
class PlanPath(board_game.GridGame):
  """The rules; `environments.boards.board_game` has rewards and teams."""

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
    return board

  def max_moves(self, board: Board) -> int:
    return len(board.grid) * len(board.grid[0])

  def pieces(
      self, board: Board) -> tuple[board_game.Cells, board_game.Cells]:
    return (board.position,), (board.goal,)

  def go(self, board: Board, direction: str) -> Board | None:
    cell = board_game.ahead(board.position, direction)
    if not board_game.is_free(board.grid, cell):
      return None
    return dataclasses.replace(board, position=cell)

  def show(self, board: Board) -> str:
    return board_game.draw(
        board.grid, {board.goal: 'G', board.position: 'A'})


make_environment = functools.partial(board_game.make_environment, PlanPath())


def random_task(rng: np.random.Generator) -> dict[str, Any]:
  """Draws walls, start and goal until the shortest path is long enough."""
  while True:
    grid, free = board_game.random_grid(rng, SIZE, WALL_PROBABILITY)
    start, goal = free[rng.integers(len(free), size=2)].tolist()
    length = shortest_path_length(grid, start, goal)
    if length is not None and length >= MIN_SHORTEST_PATH:
      return dict(grid=grid, start=start, goal=goal, shortest_path=length)


def shortest_path_length(
    grid: Sequence[str], start: Sequence[int], goal: Sequence[int]
) -> int | None:
  """Length of a shortest path; None if there is none."""
  lengths = {tuple(start): 0}
  queue = [*lengths]
  for cell in queue:  # Grows during the iteration.
    for direction in board_game.DELTAS:
      after = board_game.ahead(cell, direction)
      if after not in lengths and board_game.is_free(grid, after):
        lengths[after] = lengths[cell] + 1
        queue.append(after)
  return lengths.get(tuple(goal))
