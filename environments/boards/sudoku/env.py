"""Sudoku: a team fills a grid of 4x4 or 9x9 cells (arXiv 2510.11062).

A move is a whole grid, which replaces the digits of earlier moves. Its digits
are written row by row onto the clues until the grid is solved, and the rest is
ignored. A digit that contradicts a clue or repeats a digit of its row, column
or box is illegal and not written. A 0 keeps the cell of the clues. The
potential of `progress` is the ratio of blank cells that are filled. Teams and
reward terms are those of `environments.boards.board_game`; no term sees the
solution.

Deviation from the authors' code: a move never changes a clue, so a grid that
contradicts the clues does not win.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from environments import env_api
from environments import sandbox as sandbox_lib
from environments.boards import board_game
from environments.boards.sudoku import grid

Digits = tuple[tuple[int, ...], ...]  # Rows; 0 is blank.


@dataclasses.dataclass(frozen=True)
class Board:
  """Rows of digits, with '.' for a blank cell."""

  clues: tuple[str, ...]
  filled: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Sudoku(board_game.Game):
  """The game; see `environments.boards.board_game.Game`."""

  size: int  # Number of rows and of digits: 4 or 9.

  @property
  def words(self) -> board_game.Words:
    box = {4: 2, 9: 3}[self.size]
    rows = [[*range(1, self.size + 1)], *[[0] * self.size] * (self.size - 1)]
    return board_game.Words(
        rules=(
            f'Every row, every column and every {box}x{box} box must hold each '
            f'digit from 1 to {self.size} once. A dot is a blank cell. A digit '
            'that breaks a rule or a clue is left out.'),
        does='fills a Sudoku grid',
        alone='You fill a Sudoku grid alone.',
        board='the clues',
        schema='{"clues": [rows of digits, 0 for blank]}',
        move='a JSON list of rows, 0 for blank',
        solution='the filled grid as a JSON list of rows',
        example=json.dumps(rows),
        name='grid',
        article='a ',
        played='Your grid is written onto the clues.')

  def start(self, task: env_api.Task) -> Board:
    clues = tuple(task['board'])
    if len(clues) != self.size:
      raise ValueError(
          f'environment.options.size={self.size}, but the task '
          f'{task["task_id"]!r} has {len(clues)} rows; make both equal.')
    return Board(clues, clues)

  def show(self, board: Board) -> str:
    return '\n'.join(board.clues)

  def describe(self, board: Board) -> str:
    if board.filled == board.clues:
      return 'Nothing is filled in.'
    return 'Filled in by the last grid:\n' + '\n'.join(board.filled)

  def program_input(self, board: Board) -> dict[str, Any]:
    return {'clues': [
        [0 if cell == grid.BLANK else int(cell) for cell in row]
        for row in board.clues]}

  def parse(self, value: Any) -> Digits | None:
    if not isinstance(value, list) or len(value) != self.size:
      return None
    for row in value:
      if not isinstance(row, list) or len(row) != self.size:
        return None
      if not all(type(x) is int and 0 <= x <= self.size for x in row):
        return None
    return tuple(map(tuple, value))

  def play(self, board: Board, move: Digits) -> tuple[Board, float]:
    filled, written, illegal = grid.write(board.clues, move)
    return (
        dataclasses.replace(board, filled=tuple(filled)),
        illegal / max(written + illegal, 1))

  def solved(self, board: Board) -> bool:
    return grid.is_solution(board.clues, board.filled)

  def progress(self, before: Board, after: Board) -> float:
    return (
        grid.progress(after.clues, after.filled)
        - grid.progress(before.clues, before.filled))


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, size: int) -> board_game.BoardGame:
  """Builds the environment of a config."""
  env_api.check_options(max_turns, **{'options.size': (size, (4, 9))})
  return board_game.make_environment(
      Sudoku(size), team=team, max_turns=max_turns, reward=reward,
      sandbox=sandbox)
