"""Random mazes for Plan-Path, and the breadth-first search that checks them.

A grid is a list of SIZE strings of '#' (wall) and '.' (free). A cell is
[row, col] from the top left. A move goes one cell up, down, left or right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

SIZE = 10
WALL_PROBABILITY = 0.22
WALL, FREE = '#', '.'
# Twenty random moves reach a goal at distance 2 in 43% of mazes, at distance 4
# in 15% and at distance 6 in 5%. Shorter tasks would pay a team that cannot
# plan.
MIN_SHORTEST_PATH = 6


def shortest_path_length(
    grid: Sequence[str], start: Sequence[int], goal: Sequence[int]
) -> int | None:
  """Length of a shortest path between free cells; None if there is none."""
  goal = tuple(goal)
  frontier = [tuple(start)]
  seen = set(frontier)
  moves = 0
  while frontier:
    if goal in seen:
      return moves
    moves += 1
    next_frontier = []
    for row, col in frontier:
      for cell in (
          (row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)
      ):
        inside = 0 <= cell[0] < len(grid) and 0 <= cell[1] < len(grid[0])
        if inside and grid[cell[0]][cell[1]] == FREE and cell not in seen:
          seen.add(cell)
          next_frontier.append(cell)
    frontier = next_frontier
  return None


def random_task(rng: np.random.Generator) -> dict[str, Any]:
  """Draws whole mazes until the shortest path is long enough.

  Walls are independent; start and goal are uniform over free cells.
  """
  while True:
    walls = rng.random((SIZE, SIZE)) < WALL_PROBABILITY
    grid = [''.join(WALL if wall else FREE for wall in row) for row in walls]
    free = np.argwhere(~walls)
    start, goal = free[rng.integers(len(free), size=2)].tolist()
    length = shortest_path_length(grid, start, goal)
    if length is not None and length >= MIN_SHORTEST_PATH:
      return dict(grid=grid, start=start, goal=goal, shortest_path=length)
