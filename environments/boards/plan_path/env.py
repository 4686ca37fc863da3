"""Plan-Path: a team walks through a 10x10 maze (arXiv 2510.11062, section 5).

Moves are made one by one until the goal is reached; the rest of the list is
ignored. A move into a wall or off the grid does nothing and counts as illegal.
The potential of `progress` is the Manhattan distance to the goal, divided by
the maximum. Teams and reward terms are those of
`environments.boards.board_game`; none uses shortest paths.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
from typing import Any

from environments import env_api
from environments import sandbox as sandbox_lib
from environments.boards import board_game

DELTAS = {'U': (-1, 0), 'D': (1, 0), 'L': (0, -1), 'R': (0, 1)}
MAX_MOVES = 100  # A longer list is malformed. The grid has 100 cells.

Cell = tuple[int, int]
Moves = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Board:
  """A walker in a maze.

  Attributes:
    grid: rows of '#' (wall) and '.' (free).
    position: row and column of the walker, from the top left.
    goal: row and column of the goal.
  """

  grid: tuple[str, ...]
  position: Cell
  goal: Cell


@dataclasses.dataclass(frozen=True)
class PlanPath(board_game.Game):
  """The game; see `environments.boards.board_game.Game`."""

  words = board_game.Words(
      rules=(
          'U is one row up, D down, L one column left, R right. # is a wall, A '
          'is you, G is the goal. A move into a wall or off the grid does '
          'nothing.'),
      does='walks through a maze',
      alone='You walk through a maze alone.',
      board='the maze',
      schema=(
          '{"grid": [rows], "position": [row, column], "goal": [row, column]}'),
      move='a JSON list of moves',
      solution='a JSON list of moves that leads to the goal',
      example='["U", "R"]',
      name='moves',
      played='Your moves are walked.')

  def start(self, task: env_api.Task) -> Board:
    return Board(
        tuple(task['grid']), tuple(task['start']), tuple(task['goal']))

  def show(self, board: Board) -> str:
    rows = [list(row) for row in board.grid]
    rows[board.goal[0]][board.goal[1]] = 'G'
    rows[board.position[0]][board.position[1]] = 'A'
    return '\n'.join(map(''.join, rows))

  def describe(self, board: Board) -> str:
    return (
        f'Position: {json.dumps(board.position)}. '
        f'Goal: {json.dumps(board.goal)}.')

  def program_input(self, board: Board) -> dict[str, Any]:
    return dataclasses.asdict(board)

  def parse(self, value: Any) -> Moves | None:
    return board_game.parse_list(value, DELTAS, MAX_MOVES)

  def play(self, board: Board, move: Moves) -> tuple[Board, float]:
    position, walked, illegal = walk(
        board.grid, board.position, board.goal, move)
    return (
        dataclasses.replace(board, position=position), illegal / max(walked, 1))

  def solved(self, board: Board) -> bool:
    return board.position == board.goal

  def progress(self, before: Board, after: Board) -> float:
    return (_distance(before) - _distance(after)) / 18


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None) -> board_game.BoardGame:
  """Builds the environment of a config."""
  return board_game.make_environment(
      PlanPath(), team=team, max_turns=max_turns, reward=reward,
      sandbox=sandbox)


def walk(
    grid: Sequence[str], position: Cell, goal: Cell, moves: Moves,
) -> tuple[Cell, int, int]:
  """Walks `moves` up to the goal.

  Returns:
    the last position, the number of moves made, and how many were illegal.
  """
  walked = illegal = 0
  for move in moves:
    if position == goal:
      break
    walked += 1
    row = position[0] + DELTAS[move][0]
    column = position[1] + DELTAS[move][1]
    inside = 0 <= row < len(grid) and 0 <= column < len(grid[0])
    if inside and grid[row][column] != '#':
      position = (row, column)
    else:
      illegal += 1
  return position, walked, illegal


def _distance(board: Board) -> int:
  return (abs(board.position[0] - board.goal[0])
          + abs(board.position[1] - board.goal[1]))
