"""Demonstrations of mixed quality of a board game.

Each answer is one *kind* of behaviour, spelled in one way; what is random is
the kind. The first line of every answer announces it, so that the choice is one
early token and not a spelling.

Program kinds (tools): `right` solves the task; `greedy` solves some; `wrong`
runs and prints a move that rarely solves it; `broken` does not run, or prints
no move. Move kinds (all others): `adopt` copies a proposal (planner, judge);
`ignore` does something simple that rarely solves the task; `invent` makes up a
move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json

import numpy as np

from environments import demonstrations
from environments import env_api
from environments import text
from environments.boards import board_game

# A drill -> the role whose skill it is.
_DRILLED = {'copyist': 'planner', 'chooser': 'judge'}


@dataclasses.dataclass(frozen=True)
class Repertoire:
  """What can be shown of a game; see `environments.demonstrations`.

  Attributes:
    game: its rules.
    programs: (kind, first line of the answer, program) of tools.
    lines: move kind -> first line of the answer; that of `adopt` is in
      `adopt_line`.
    random_board: the board of a new task.
    ignored: of a board, the move of `ignore`.
    invented: a move of `invent`.
    proposed: a move to be copied. Mostly a random one: copying is learned only
      where the prompt gives no other hint of the answer.
    failed: of a board and a broken program, its output and the last line of
      its stderr.
    nothing: the move that copies a proposal without a move.
  """

  game: board_game.Game
  programs: tuple[tuple[str, str, str], ...]
  lines: Mapping[str, str]
  random_board: Callable[[np.random.Generator], board_game.Board]
  ignored: Callable[[board_game.Board], board_game.Move]
  invented: Callable[[np.random.Generator, board_game.Board], board_game.Move]
  proposed: Callable[[np.random.Generator, board_game.Board], board_game.Move]
  failed: Callable[
      [np.random.Generator, board_game.Board, str], tuple[str, str]]
  nothing: board_game.Move = ()

  def demonstrate(
      self, rng: np.random.Generator, role: str, kinds: Mapping[str, float],
      group_size: int,
      max_turns: Sequence[int]) -> demonstrations.Demonstration:
    """Draws a board and `group_size` answers of `role` to it.

    Any turn of an episode may be shown. After the first one, the board is
    mostly one on which a poor move has been played.

    Args:
      rng: of all that is drawn.
      role: of any team, or a drill of one skill: the 'copyist' is a planner
        who is shown nothing but the proposal, and the 'chooser' a judge who is
        shown nothing but two proposals.
      kinds: kind -> its probability.
      group_size: answers.
      max_turns: limits of an episode; one is drawn, and the turn below it.
    """
    board, limit = self.random_board(rng), int(rng.choice(max_turns))
    turn = int(rng.integers(limit))
    if turn:
      board = self._after_a_turn(rng, board)
    state = board_game.State('', board, turn)
    team = 'pair'
    if role == 'planner':
      state = dataclasses.replace(
          state, proposals=(self._random_proposal(rng, 'tool', board),))
    elif role == 'copyist':
      move = self.proposed(rng, board)
      state = dataclasses.replace(state, proposals=(
          board_game.Proposal('tool', move, '', json.dumps(move)),))
    elif role == 'chooser':
      team = 'trio'
      state = dataclasses.replace(state, proposals=tuple(
          board_game.Proposal(proposer, self.invented(rng, board))
          for proposer in board_game.TEAMS[team][:-1]))
    elif role == 'judge':
      team = str(rng.choice(['trio', 'quintet', 'septet']))
      state = dataclasses.replace(state, proposals=tuple(
          self._random_proposal(rng, proposer, board)
          for proposer in board_game.TEAMS[team][:-1]))
    elif role not in board_game.TEAMS[team]:
      team = next(
          name for name, roles in board_game.TEAMS.items() if role in roles)
    drawn = tuple(
        str(kind) for kind in rng.choice(
            list(kinds), size=group_size, p=list(kinds.values())))
    return demonstrations.Demonstration(
        role, state, self._messages(state, team, role, limit),
        tuple(self._completion(rng, kind, role, state) for kind in drawn),
        drawn)

  def kind_of(
      self, demonstration: demonstrations.Demonstration,
      completion: str) -> str | None:
    """The kind of an answer to the same prompt, if it is spelled as it should.

    A copy must be exact. Another move counts as its kind when it is announced
    and can be read; whether it is what was announced is not a matter of
    spelling.
    """
    if board_game.kind_of(demonstration.role) == 'tool':
      for kind, line, program in self.programs:
        if completion == program_text(line, program):
          return kind
      return None
    line, _, answer = completion.partition('\n')
    move = self.game.parse(text.last_answer(answer))
    if move is None:
      return None
    for proposal in demonstration.state.proposals:
      if line == adopt_line(demonstration.role, proposal):
        return 'adopt' if move == self._copied(proposal) else None
    return next((kind for kind in self.lines if line == self.lines[kind]), None)

  def _messages(
      self, state: board_game.State, team: str, role: str,
      max_turns: int) -> list[env_api.Message]:
    environment = board_game.BoardGame(
        self.game, board_game.TEAMS[team], {}, None, max_turns)
    if role not in _DRILLED:
      return environment.observe(state, role)
    shown = environment.observe(state, _DRILLED[role])[1]['content']
    first = 'Output:' if role == 'copyist' else f'{state.proposals[0].role} '
    return [{'role': 'user', 'content': shown[shown.index(first):]}]

  def _completion(
      self, rng: np.random.Generator, kind: str, role: str,
      state: board_game.State) -> str:
    if board_game.kind_of(role) == 'tool':
      same_kind = [p for p in self.programs if p[0] == kind]
      _, line, program = same_kind[rng.integers(len(same_kind))]
      return program_text(line, program)
    if kind == 'adopt':
      proposals = state.proposals
      proposal = proposals[
          rng.integers(len(proposals)) if len(proposals) > 1 else 0]
      line, move = adopt_line(role, proposal), self._copied(proposal)
    elif kind == 'ignore':
      line, move = self.lines[kind], self.ignored(state.board)
    else:
      line, move = self.lines[kind], self.invented(rng, state.board)
    return f'{line}\n#### {json.dumps(move)}'

  def _copied(self, proposal: board_game.Proposal) -> board_game.Move:
    return self.nothing if proposal.move is None else proposal.move

  def _after_a_turn(
      self, rng: np.random.Generator,
      board: board_game.Board) -> board_game.Board:
    """What a turn may leave that does not solve the task.

    In one of ten no move could be read.
    """
    drawn = rng.random()
    if drawn < 0.1:
      return board
    move = self.ignored(board) if drawn < 0.4 else self.invented(rng, board)
    after, _ = self.game.play(board, move)
    return board if self.game.solved(after) else after

  def _random_proposal(
      self, rng: np.random.Generator, role: str,
      board: board_game.Board) -> board_game.Proposal:
    """What one might be shown, without running a program."""
    if board_game.kind_of(role) == 'advisor':
      return board_game.Proposal(role, self.invented(rng, board))
    kind, _, program = self.programs[rng.integers(len(self.programs))]
    if kind == 'broken':
      return board_game.Proposal(
          role, None, program, *self.failed(rng, board, program))
    if kind == 'wrong' and rng.random() < 0.5:
      move = self.ignored(board)
    else:
      move = self.proposed(rng, board)
    return board_game.Proposal(role, move, program, json.dumps(move) + '\n')


def program_text(line: str, program: str) -> str:
  """The answer of a tool."""
  return f'{line}\n```python\n{program}```'


def adopt_line(role: str, proposal: board_game.Proposal) -> str:
  """The first line of who copies a proposal."""
  if _DRILLED.get(role, role) == 'judge':
    return f'I take over the proposal of {proposal.role}.'
  return 'I take over the proposal.'


def random_moves(
    rng: np.random.Generator, low: int, high: int) -> tuple[str, ...]:
  """From `low` to `high` moves up, down, left or right."""
  size = rng.integers(low, high + 1)
  return tuple(str(move) for move in rng.choice(list('UDLR'), size=size))


def straight_moves(
    start: tuple[int, int], end: tuple[int, int]) -> tuple[str, ...]:
  """The moves from one cell to another as if nothing were in the way."""
  down, right = end[0] - start[0], end[1] - start[1]
  return tuple('D' * down + 'U' * -down + 'R' * right + 'L' * -right)
