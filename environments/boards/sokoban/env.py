"""Sokoban: a team pushes boxes onto goals in a 6x6 room (arXiv 2510.11062).

Moves are made one by one until every box stands on a goal; the rest of the list
is ignored. A move into a wall, off the grid, or of a box that cannot be pushed
does nothing and counts as illegal. The potential of `progress` is the Manhattan
distance of the boxes to the goals under the best assignment. Teams and reward
terms are those of `environments.boards.board_game`, with an additional oracle:

  deadlock (plan_deadlock)   -1 if a box can never reach a goal again; sees
                             which cells are dead, which takes a search

Only the preset `oracle` weights it. There a malformed answer costs as much
more, so it still pays least.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from environments import env_api
from environments import sandbox as sandbox_lib
from environments.boards import board_game
from environments.boards.sokoban import room

MAX_MOVES = 100  # A longer list is malformed.

REWARDS = board_game.REWARDS | {
    'oracle': board_game.REWARDS['mixed'] | {
        'deadlock': 0.2, 'malformed': 0.9,
        'plan_deadlock': 0.2, 'plan_malformed': 0.9},
}

Moves = tuple[str, ...]
Cell = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Board:
  """A room with a player.

  Attributes:
    grid: rows of '#' (wall) and '.' (free).
    player: row and column, from the top left.
    boxes: sorted cells.
    goals: sorted cells, as many.
  """

  grid: tuple[str, ...]
  player: Cell
  boxes: tuple[Cell, ...]
  goals: tuple[Cell, ...]


@dataclasses.dataclass(frozen=True)
class Sokoban(board_game.Game):
  """The game; see `environments.boards.board_game.Game`."""

  words = board_game.Words(
      rules=(
          'U is one row up, D down, L one column left, R right. # is a wall, A '
          'is you, B a box, G a goal, * a box on a goal, + you on a goal. You '
          'push a box by walking into it; never two, never into a wall. A move '
          'that cannot be made does nothing.'),
      does='pushes boxes onto goals',
      alone='You push boxes onto goals alone.',
      board='the room',
      schema=(
          '{"grid": [rows], "player": [row, column], "boxes": [[row, column], '
          '...], "goals": [[row, column], ...]}'),
      move='a JSON list of moves',
      solution='a JSON list of moves that brings every box to a goal',
      example='["U", "R"]',
      name='moves',
      played='Your moves are made.')

  def start(self, task: env_api.Task) -> Board:
    def cells(name):
      return tuple(sorted(map(tuple, task[name])))

    return Board(
        tuple(task['grid']), tuple(task['player']), cells('boxes'),
        cells('goals'))

  def show(self, board: Board) -> str:
    rows = [list(row) for row in board.grid]
    for row, column in board.goals:
      rows[row][column] = 'G'
    for row, column in board.boxes:
      rows[row][column] = '*' if (row, column) in board.goals else 'B'
    row, column = board.player
    rows[row][column] = '+' if board.player in board.goals else 'A'
    return '\n'.join(map(''.join, rows))

  def describe(self, board: Board) -> str:
    return (
        f'Player: {json.dumps(board.player)}. '
        f'Boxes: {json.dumps(board.boxes)}. Goals: {json.dumps(board.goals)}.')

  def program_input(self, board: Board) -> dict[str, Any]:
    return dataclasses.asdict(board)

  def parse(self, value: Any) -> Moves | None:
    return board_game.parse_list(value, room.DELTAS, MAX_MOVES)

  def play(self, board: Board, move: Moves) -> tuple[Board, float]:
    player, boxes, walked, illegal = room.walk(
        board.grid, board.player, board.boxes, board.goals, move)
    return (
        dataclasses.replace(
            board, player=tuple(player), boxes=tuple(map(tuple, boxes))),
        illegal / max(walked, 1))

  def solved(self, board: Board) -> bool:
    return board.boxes == board.goals

  def progress(self, before: Board, after: Board) -> float:
    farthest = 2 * (room.SIZE - 1) * len(after.boxes)
    return (_distance(before) - _distance(after)) / farthest

  def oracle_terms(self, board: Board) -> Mapping[str, float]:
    return {'deadlock': -float(
        room.is_deadlocked(board.grid, board.boxes, board.goals))}


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None) -> board_game.BoardGame:
  """Builds the environment of a config."""
  return board_game.make_environment(
      Sokoban(), rewards=REWARDS, team=team, max_turns=max_turns,
      reward=reward, sandbox=sandbox)


def _distance(board: Board) -> int:
  return room.distance(board.boxes, board.goals)
