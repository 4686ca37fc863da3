"""Demonstrations of the board games, of mixed quality.

Tools write one of the programs of `models.nano.programs`. All other roles
write a move: `adopt` copies a proposal, `ignore` walks straight to the goal or
fills each row with its missing digits in order, and `invent` is random.
The first line of a completion announces its kind.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import json
from typing import Any

import numpy as np

from environments.boards import board_game
from environments.boards.plan_path import env as plan_path
from environments.boards.sokoban import env as sokoban
from environments.boards.sudoku import env as sudoku
from models import pretrain
from models.nano import programs as programs_lib

MAX_TURNS = (1, 2, 3, 4, 6, 8)  # The turn limit is drawn from these.
# Drill -> the role that it prepares for. Its prompt has only the proposals.
_DRILLS = {'copyist': 'planner', 'chooser': 'judge'}

_RandomMove = Callable[
    [np.random.Generator, board_game.Board], board_game.Move]


@dataclasses.dataclass(frozen=True)
class Game:
  """Draws demonstrations of one game."""

  rules: board_game.Game
  random_task: Callable[[np.random.Generator], Mapping[str, Any]]
  programs: tuple[programs_lib.Program, ...]
  ignore_line: str  # First line of completions of the kind `ignore`.
  invent_line: str
  simple_move: Callable[[board_game.Board], board_game.Move]  # For `ignore`.
  random_move: _RandomMove  # For `invent`.
  # A move to copy. It is independent of the board, because copying is learned
  # only if the prompt gives no other hint.
  random_proposal: _RandomMove
  # What a broken program prints.
  random_print: Callable[[np.random.Generator, board_game.Board], str]
  empty_move: board_game.Move = ()  # The copy of a proposal without a move.

  def random_board(self, rng: np.random.Generator) -> board_game.Board:
    return self.rules.start(self.random_task(rng))

  def demonstrate(
      self, rng: np.random.Generator, role: str, kinds: Mapping[str, float],
      group_size: int) -> pretrain.Demonstration:
    """Draws a board at any turn of an episode, and completions of `role`."""
    board, max_turns = self.random_board(rng), int(rng.choice(MAX_TURNS))
    turn = int(rng.integers(max_turns))
    if turn:
      board = self._after_turn(rng, board)
    team = next(
        name for name, roles in board_game.TEAMS.items()
        if _DRILLS.get(role, role) in roles)
    proposals = []
    if role == 'planner':
      proposals = [self._propose(rng, 'tool', board)]
    elif role == 'copyist':
      move = self.random_proposal(rng, board)
      proposals = [board_game.Proposal('tool', move, '', json.dumps(move))]
    elif role == 'chooser':
      proposals = [
          board_game.Proposal(name, self.random_move(rng, board))
          for name in board_game.TEAMS[team][:-1]]
    elif role == 'judge':
      team = str(rng.choice(['trio', 'quintet', 'septet']))
      proposals = [
          self._propose(rng, proposer, board)
          for proposer in board_game.TEAMS[team][:-1]]
    state = board_game.State('', board, turn, tuple(proposals))
    environment = board_game.BoardGame(
        self.rules, board_game.TEAMS[team], {}, None, max_turns)
    messages = environment.observe(state, _DRILLS.get(role, role))
    if role in _DRILLS:
      start = 'Output:' if role == 'copyist' else f'{proposals[0].role} '
      _, start, end = messages[1]['content'].partition(start)
      messages = [{'role': 'user', 'content': start + end}]
    return pretrain.Demonstration(state, messages, tuple(
        self._write(rng, kind, role, state)
        for kind in pretrain.draw_kinds(rng, kinds, group_size)))

  def _write(self, rng, kind, role, state) -> str:
    if board_game.kind_of(role) == 'tool':
      choices = [x for x in self.programs if x.kind == kind]
      return choices[rng.integers(len(choices))].reply
    if kind == 'adopt':
      proposal = state.proposals[rng.integers(len(state.proposals))]
      proposer = f' of {proposal.role}' if role in ('judge', 'chooser') else ''
      line = f'I take over the proposal{proposer}.'
      move = self.empty_move if proposal.move is None else proposal.move
    elif kind == 'ignore':
      line, move = self.ignore_line, self.simple_move(state.board)
    else:
      line, move = self.invent_line, self.random_move(rng, state.board)
    return f'{line}\n#### {json.dumps(move)}'

  def _after_turn(self, rng, board) -> board_game.Board:
    """Plays a poor move, or none in one case of ten, without solving."""
    drawn = rng.random()
    if drawn < 0.1:
      return board
    move = (
        self.simple_move(board) if drawn < 0.4
        else self.random_move(rng, board))
    after, _ = self.rules.play(board, move)
    return board if self.rules.solved(after) else after

  def _propose(self, rng, role, board) -> board_game.Proposal:
    """A proposal with a program and its output, without running it."""
    if board_game.kind_of(role) == 'advisor':
      return board_game.Proposal(role, self.random_move(rng, board))
    program = self.programs[rng.integers(len(self.programs))]
    if program.undefined:
      return board_game.Proposal(
          role, None, program.source, '',
          f"NameError: name '{program.undefined}' is not defined")
    if program.kind == 'broken':
      return board_game.Proposal(
          role, None, program.source, self.random_print(rng, board))
    if program.kind == 'wrong' and rng.random() < 0.5:
      move = self.simple_move(board)
    else:
      move = self.random_proposal(rng, board)
    return board_game.Proposal(
        role, move, program.source, json.dumps(move) + '\n')


def _random_walk(min_size: int, max_size: int) -> _RandomMove:
  def draw(rng, board):
    del board
    size = rng.integers(min_size, max_size + 1)
    return tuple(str(move) for move in rng.choice(list('UDLR'), size=size))
  return draw


def _print_walk(max_size: int):
  walk = _random_walk(4, max_size)
  return lambda rng, board: f'path {list(walk(rng, board))}\n'


def _straight_walk(start, goal) -> tuple[str, ...]:
  """Moves from one cell to another, ignoring walls and boxes."""
  down, right = goal[0] - start[0], goal[1] - start[1]
  return tuple('D' * down + 'U' * -down + 'R' * right + 'L' * -right)


def _random_digits(rng, board) -> sudoku.Digits:
  size = len(board.clues)
  digits = rng.integers(1, size, size=(size, size), endpoint=True)
  return tuple(map(tuple, digits.tolist()))


def _fill_rows(board: sudoku.Board) -> sudoku.Digits:
  """Fills the blanks of each row with its missing digits, in order."""
  rows = []
  for clues in board.clues:
    digits = [x for x in range(1, len(clues) + 1) if str(x) not in clues]
    rows.append(tuple(
        digits.pop(0) if cell == sudoku.BLANK else int(cell)
        for cell in clues))
  return tuple(rows)


PLAN_PATH = Game(
    rules=plan_path.PlanPath(), random_task=plan_path.random_task,
    programs=programs_lib.PLAN_PATH,
    ignore_line='I walk straight to the goal.', invent_line='I try a path.',
    simple_move=lambda board: _straight_walk(board.position, board.goal),
    random_move=_random_walk(4, 12), random_proposal=_random_walk(1, 30),
    random_print=_print_walk(16))

SOKOBAN = Game(
    rules=sokoban.Sokoban(), random_task=sokoban.random_task,
    programs=programs_lib.SOKOBAN,
    ignore_line='I walk straight to the goal.', invent_line='I try some moves.',
    simple_move=lambda board: _straight_walk(board.player, board.goals[0]),
    random_move=_random_walk(4, 12), random_proposal=_random_walk(1, 30),
    random_print=_print_walk(10))

SUDOKU = Game(
    rules=sudoku.Sudoku(4),
    random_task=functools.partial(sudoku.random_task, size=4),
    programs=programs_lib.SUDOKU,
    ignore_line='I fill the rows.', invent_line='I try a grid.',
    simple_move=_fill_rows, random_move=_random_digits,
    random_proposal=_random_digits,
    random_print=lambda rng, board: (
        f'grid {list(map(list, _fill_rows(board)))}\n'),
    empty_move=((0,) * 4,) * 4)
