"""How a team plays a board game: some roles propose, the last one decides.

Shared by Plan-Path, Sokoban and Sudoku (arXiv 2510.11062, section 5). In the
team `solo` one agent answers with a *move*, a list of steps or a filled grid.
In `tool` it writes a program that prints the move. Otherwise tools and advisors
propose moves, each tried on a copy of the board, and do not see each other's.
Then a planner, who also sees the tool's program and its output, or a judge sees
the proposals and decides. The next turn starts from the result of its move.

Reward terms, all in [-1, 1] (`reward_terms` logs them before weighting):

  name             role      value                              sees
  solved           team      1 if the board is solved           the checker
  progress         decides   `Game.progress` of the move        the board
  idle             decides   -1 if the move leaves the board    the board
                             unchanged
  illegal          decides   -1 x ratio of illegal parts of     the board
                             the move, up to the solution
  malformed        decides   -1 without a move                  the text
  plan_solved      proposes  1 if the proposal solves a copy    the checker
  plan_progress    proposes  progress on the copy               the board
  plan_idle        proposes  idle on the copy                   the board
  plan_illegal     proposes  illegal on the copy                the board
  plan_malformed   proposes  -1 if the program fails or there   the text, or
                             is no move                         the run

No term is an oracle. Progress is undiscounted potential shaping, so it
telescopes and a loop pays nothing. A proposer is paid the change of its
weighted terms since its previous proposal, so a longer episode pays no more. A
move without effect pays less than a random one. No move pays less than a
malformed answer.

Presets of weights (`REWARDS`): `mixed` has all terms, `outcome_and_plans`
`plan_solved` alone, and `outcome` no local term. With `outcome` the step of a
proposer has no reward, so the return type `immediate` gives proposers no
signal. `monte_carlo` in a tree, and `return_to_go` and `episode_return` in
parallel episodes, include later rewards.

The outcome of an action is the first that applies: the failure of the program,
PARSE_ERROR without a move, NO_EFFECT if the board or its copy is unchanged,
ILLEGAL_ACTION if a part of the move is illegal, and OK.

Deviations from the authors' code:

1. The prompt shows the current board.
2. Only the checker sets success, not the end of the episode.
3. Shaping is not discounted.
4. Answers are parsed, never evaluated.
5. The deciding role sees the proposals of the same turn.
6. A program that exits normally has not failed, even if it wrote to stderr.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
from typing import Any, Protocol

import numpy as np
from scipy import optimize

from environments import env_api
from environments import sandbox as sandbox_lib
from environments import text

Board = Any  # Frozen; each game has another type.
Move = Any  # Frozen; each game has another type.

# A program may print 64 KiB. Proposals hold at most this many bytes of its
# output and of its source.
MAX_OUTPUT_BYTES = 600
MAX_PROGRAM_BYTES = 6000

# Team -> roles in the order in which they act; the last one decides.
TEAMS = {
    'solo': ('solo',),
    'pair': ('tool', 'planner'),
    'tool': ('tool',),
} | {
    name: (*(f'tool_{i}' for i in range(1, num + 1)),
           *(f'advisor_{i}' for i in range(1, num + 1)), 'judge')
    for num, name in enumerate(('trio', 'quintet', 'septet'), 1)
}

# Weights of the local terms; `rollout.alpha` weights the team's term. The first
# random move of an episode earns -0.14 to -0.01 on average, and a legal one
# earns more; an idle move earns less than either. A malformed answer earns as
# little as a move that loses all progress and is illegal in nearly all parts.
REWARDS = {
    'mixed': {
        'progress': 0.5, 'idle': 0.2, 'illegal': 0.2, 'malformed': 0.7,
        'plan_solved': 1.0, 'plan_progress': 0.5, 'plan_idle': 0.2,
        'plan_illegal': 0.2, 'plan_malformed': 0.7,
    },
    'outcome_and_plans': {'plan_solved': 1.0},
    'outcome': {},
}


@dataclasses.dataclass(frozen=True)
class Phrases:
  """The phrases of a game's prompts."""

  rules: str  # First line of every prompt.
  activity: str  # Follows 'a team that'.
  solo: str  # The task of a single agent, as a sentence.
  board: str  # The input of a program.
  schema: str  # The form of `Game.program_input`.
  move: str  # The form of a move.
  solution: str  # The output of a program.
  example: str  # A move as JSON that solves no task.
  noun: str  # A proposed move.
  effect: str  # How the decision is used, as a sentence.
  article: str = ''  # Precedes the noun in a sentence.

  def system_message(self, kind: str, deciding_role: str) -> str:
    """The system message of a kind of role ('tool', 'planner', ...)."""
    answer = (
        f'End with one line that holds #### and {self.move}, such as '
        f'#### {self.example}.')
    team = f'of a team that {self.activity}.'
    proposal = self.article + self.noun
    return {
        'tool': (
            f'You are the tool agent {team} Write one Python program in a '
            f'```python block. It reads {self.board} as JSON from stdin, '
            f'{self.schema}, and prints {self.solution}, such as '
            f'{self.example}. ' + (
                self.effect if deciding_role == 'tool'
                else f'The {deciding_role} sees its output.')),
        'advisor': (
            f'You are an advisor {team} Propose {proposal}; the '
            f'{deciding_role} decides. {answer}'),
        'planner': (
            f'You are the planner {team} The tool agent wrote a program that '
            f'proposes {proposal}. Check the proposal, then take it over or '
            f'decide yourself. {self.effect} {answer}'),
        'judge': (
            f'You are the judge {team} Each of the others proposed {proposal}. '
            f'Take over a proposal or decide yourself. {self.effect} {answer}'),
        'solo': f'{self.solo} {self.effect} {answer}',
    }[kind]


class Game(Protocol):
  """The rules of a game and the phrases of its prompts; inherit from it."""

  phrases: Phrases

  def start(self, task: env_api.Task) -> Board:
    """The board of a task; raises ValueError if it is malformed."""

  def show(self, board: Board) -> str:
    """The board as a picture of characters."""

  def describe(self, board: Board) -> str:
    """Sentences about the board that complete the picture."""

  def program_input(self, board: Board) -> Any:
    """The JSON value that a program reads from stdin."""

  def parse(self, value: Any, board: Board) -> Move | None:
    """Converts a JSON value to a move on a board; None if it is not one."""

  def play(self, board: Board, move: Move) -> tuple[Board, float]:
    """Returns the board after a move and the ratio of illegal parts.

    Parts after the solution are neither played nor counted.
    """

  def solved(self, board: Board) -> bool:
    """The checker."""

  def progress(self, before: Board, after: Board) -> float:
    """The decrease of a potential, in [-1, 1]; 0 for equal boards."""


Cell = tuple[int, int]  # Row and column, from the top left.
Cells = tuple[Cell, ...]
WALL, FREE = '#', '.'
# Direction -> change of row and column.
DELTAS = {'U': (-1, 0), 'D': (1, 0), 'L': (0, -1), 'R': (0, 1)}


class GridGame(Game):
  """Pieces move to goals on a grid; a move is a list of directions.

  Directions are followed one by one until the board is solved; the rest of the
  list is ignored. The potential of `progress` is the Manhattan distance of the
  pieces to the goals under the best assignment, divided by its maximum.
  """

  def max_moves(self, board: Board) -> int:
    """Maximum length of a move; a long random walk would solve any board."""

  def pieces(self, board: Board) -> tuple[Cells, Cells]:
    """The sorted cells of the pieces, and those of as many goals."""

  def go(self, board: Board, direction: str) -> Board | None:
    """The board after one direction; None if it is illegal."""

  def program_input(self, board: Board) -> dict[str, Any]:
    return dataclasses.asdict(board)

  def describe(self, board: Board) -> str:
    return ' '.join(
        f'{name.capitalize()}: {json.dumps(value)}.'
        for name, value in self.program_input(board).items()
        if name != 'grid')

  def parse(self, value: Any, board: Board) -> tuple[str, ...] | None:
    if (isinstance(value, list) and len(value) <= self.max_moves(board)
        and all(isinstance(name, str) and name in DELTAS for name in value)):
      return tuple(value)
    return None

  def play(self, board: Board, move: Sequence[str]) -> tuple[Board, float]:
    num_played = num_illegal = 0
    for direction in move:
      if self.solved(board):
        break
      num_played += 1
      after = self.go(board, direction)
      if after is None:
        num_illegal += 1
      else:
        board = after
    return board, num_illegal / max(num_played, 1)

  def solved(self, board: Board) -> bool:
    pieces, goals = self.pieces(board)
    return pieces == goals

  def progress(self, before: Board, after: Board) -> float:
    max_distance = len(before.grid) + len(before.grid[0]) - 2
    return (self._distance(before) - self._distance(after)) / (
        max_distance * len(self.pieces(before)[0]))

  def _distance(self, board: Board) -> int:
    pieces, goals = map(np.array, self.pieces(board))
    distances = np.abs(pieces[:, None] - goals).sum(axis=2)
    return int(distances[optimize.linear_sum_assignment(distances)].sum())


def ahead(cell: Cell, direction: str) -> Cell:
  down, right = DELTAS[direction]
  return cell[0] + down, cell[1] + right


def draw(grid: Sequence[str], marks: Mapping[Cell, str]) -> str:
  """A picture of a grid with a character on each marked cell."""
  rows = [list(row) for row in grid]
  for (row, column), mark in marks.items():
    rows[row][column] = mark
  return '\n'.join(map(''.join, rows))


def check_grid(
    grid: Sequence[str], cells: Mapping[str, Sequence[Cell]]) -> None:
  """Raises ValueError for a bad grid, or for cells that no piece can be on.

  `cells` maps a field of the task to cells, which must be free and differ.
  """
  if len({*map(len, grid)}) != 1 or not {*''.join(grid)} <= {WALL, FREE}:
    raise ValueError(
        f'grid={grid!r:.100}: expected rows of equal length that consist of '
        f'{WALL!r} (wall) and {FREE!r} (free)')
  for name, named in cells.items():
    if len({*named}) < len(named) or not all(
        is_free(grid, cell) for cell in named):
      raise ValueError(
          f'{name}={named!r:.100}: expected different free cells of the '
          f'{len(grid)}x{len(grid[0])} grid, as [row, column] from 0')


def is_free(grid: Sequence[str], cell: Cell) -> bool:
  row, column = cell
  return (0 <= row < len(grid) and 0 <= column < len(grid[0])
          and grid[row][column] == FREE)


def random_grid(
    rng: np.random.Generator, size: int, wall_probability: float
) -> tuple[list[str], np.ndarray]:
  """Draws independent walls; returns the rows and the free cells [N, 2]."""
  walls = rng.random((size, size)) < wall_probability
  rows = [''.join(WALL if wall else FREE for wall in row) for row in walls]
  return rows, np.argwhere(~walls)


@dataclasses.dataclass(frozen=True)
class Proposal:
  """The proposal of a tool or an advisor in this turn."""

  role: str
  move: Move | None
  program: str | None = None  # The source, for a tool that wrote one.
  output: str = ''  # Stdout of the program.
  error: str = ''  # Last line of its stderr if it failed.


@dataclasses.dataclass(frozen=True)
class State:
  """A game in progress."""

  task_id: str
  board: Board
  turn: int = 0  # Completed turns.
  # Proposals of this turn, until a move is played.
  proposals: tuple[Proposal, ...] = ()
  # Proposing role -> weighted terms of its last proposal.
  qualities: env_api.Qualities = ()


@dataclasses.dataclass(frozen=True)
class BoardGame(env_api.Sequential):
  """The environment; see `environments.env_api.Environment`."""

  game: Game
  roles: tuple[str, ...]
  weights: Mapping[str, float]
  sandbox: sandbox_lib.Sandbox | None  # None if no role writes programs.
  max_turns: int

  team_reward_range = (0.0, 1.0)

  def reset(self, task: env_api.Task) -> State:
    if 'tool' in map(kind_of, self.roles):
      sandbox_lib.check_given(self.sandbox, self.roles)
    board = self.game.start(task)
    if self.game.solved(board):  # It would pay any answer.
      raise ValueError(f'the board {board!r:.200} is already solved')
    return State(task['task_id'], board)

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    game, kind = self.game, kind_of(role)
    turn = f'Turn {state.turn + 1} of {self.max_turns}.'
    parts = [
        game.phrases.rules, game.show(state.board),
        f'{turn} {game.describe(state.board)}']
    if kind == 'planner':
      parts.append(self._report(*state.proposals))
    elif kind == 'judge':
      parts.extend(
          f'{proposal.role} proposed {self._move_text(proposal)}'
          for proposal in state.proposals)
    return [
        {'role': 'system',
         'content': game.phrases.system_message(kind, self.roles[-1])},
        {'role': 'user', 'content': '\n'.join(parts)}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    (role, action), = actions.items()
    if kind_of(role) == 'tool':
      proposal, outcome = self._run_program(state, role, action)
    else:
      proposal = Proposal(
          role, self.game.parse(text.last_answer(action), state.board))
      outcome = env_api.Outcome.OK
    after, terms, outcome = self._try_move(state.board, proposal.move, outcome)
    solved = self.game.solved(after)
    if role != self.roles[-1]:
      terms = {'plan_solved': float(solved)} | {
          f'plan_{name}': value for name, value in terms.items()}
      reward, qualities = env_api.pay_change(
          state.qualities, role, self._weigh(terms))
      state = dataclasses.replace(
          state, proposals=(*state.proposals, proposal), qualities=qualities)
      success = truncated = False
    else:
      state = State(
          state.task_id, after, state.turn + 1, qualities=state.qualities)
      success = solved
      truncated = not success and state.turn >= self.max_turns
      terms = {'solved': float(success)} | terms
      reward = self._weigh(terms)
    return env_api.Step(
        state=state, team_reward=float(success), local_rewards={role: reward},
        reward_terms=terms, done=success or truncated, success=success,
        truncated=truncated, outcomes={role: outcome},
        program_runs=int(proposal.program is not None))

  def show(self, state: State) -> dict[str, str]:
    shown = {
        'board': self.game.show(state.board),
        'description': self.game.describe(state.board)}
    for proposal in state.proposals:
      for name in ('program', 'output', 'error'):
        if content := getattr(proposal, name):
          shown[f'{proposal.role}: {name}'] = content
    return shown

  def _weigh(self, terms: Mapping[str, float]) -> float:
    return sum(
        self.weights.get(name, 0.0) * value for name, value in terms.items())

  def _run_program(
      self, state: State, role: str, action: str
  ) -> tuple[Proposal, env_api.Outcome]:
    program = text.last_program(action)
    if program is None:
      return Proposal(role, None), env_api.Outcome.OK
    result = self.sandbox.run(
        program, stdin=json.dumps(self.game.program_input(state.board)))
    move, error = None, ''
    if result.status is sandbox_lib.Status.OK:
      move = self.game.parse(
          text.last_json_line(result.stdout), state.board)
    else:
      error = result.stderr.strip().rsplit('\n', 1)[-1]
    proposal = Proposal(
        role, move, text.shorten(program, MAX_PROGRAM_BYTES),
        text.shorten(result.stdout, MAX_OUTPUT_BYTES),
        text.shorten(error, MAX_OUTPUT_BYTES))
    return proposal, env_api.STATUS_TO_OUTCOME[result.status]

  def _try_move(
      self, board: Board, move: Move | None, outcome: env_api.Outcome,
  ) -> tuple[Board, dict[str, float], env_api.Outcome]:
    """Returns the board after a move, the reward terms and the outcome."""
    after, illegal = (
        (board, 0.0) if move is None else self.game.play(board, move))
    idle = move is not None and after == board
    if outcome is env_api.Outcome.OK:
      if move is None:
        outcome = env_api.Outcome.PARSE_ERROR
      elif idle:
        outcome = env_api.Outcome.NO_EFFECT
      elif illegal:
        outcome = env_api.Outcome.ILLEGAL_ACTION
    return after, {
        'progress': self.game.progress(board, after),
        'idle': -float(idle),
        'illegal': -illegal,
        'malformed': -float(move is None)}, outcome

  def _report(self, proposal: Proposal) -> str:
    """Describes the tool's program to the planner."""
    if proposal.program is None:
      return 'The tool agent wrote no program.'
    failure = f'It failed: {proposal.error}\n' if proposal.error else ''
    return (
        f'Program of the tool agent:\n```python\n{proposal.program}```\n'
        f'{failure}Output:\n{proposal.output.rstrip()}\n'
        f'Proposed {self._move_text(proposal)}')

  def _move_text(self, proposal: Proposal) -> str:
    move = 'none' if proposal.move is None else json.dumps(proposal.move)
    return f'{self.game.phrases.noun}: {move}'


def kind_of(role: str) -> str:
  """'tool' for 'tool_2'."""
  return role.partition('_')[0]


def make_environment(
    game: Game, *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None) -> BoardGame:
  """Builds the environment; `team` is in `TEAMS`, `reward` in `REWARDS`."""
  env_api.check_options(
      max_turns, team=(team, TEAMS), reward=(reward, REWARDS))
  return BoardGame(game, TEAMS[team], REWARDS[reward], sandbox, max_turns)
