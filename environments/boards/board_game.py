"""How a team plays a board game: some propose, one decides.

What Plan-Path, Sokoban and Sudoku have in common (arXiv 2510.11062, section
5). A *move* is whatever a game is played with: a list of steps, or a filled
grid.

Teams:

  solo     One agent answers with a move.
  pair     A *tool* agent writes a program that proposes a move; a *planner*
           sees the program, its output and the proposal, and decides. Tool
           first, then planner, in every turn.
  trio, quintet, septet
           One, two or three tools and as many *advisors*, who propose a move
           themselves. None sees another's proposal. Then a *judge* sees all
           proposals and decides.

A proposal is tried on a copy of the board. The move of whoever decides is
played, and is what the next turn starts from.

`rewards.py` says what a step pays.

The outcome of an action is the first of these that is true: what became of the
program, when it failed; PARSE_ERROR without a move; NO_EFFECT when the move, or
the proposal on its copy, leaves the board as it was; ILLEGAL_ACTION when a part
of it is illegal; OK.

Deviations from the authors' code: the present board is shown; success is set
by the checker only, not by the end of the episode; shaping is not discounted;
answers are parsed, never evaluated; whoever decides sees the proposals of the
same turn; a program that ends well has not failed, whatever it wrote to stderr.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
import dataclasses
import json
from typing import Any, Protocol

from environments import env_api
from environments import outcomes as outcomes_lib
from environments import sandbox as sandbox_lib
from environments import text

Board = Any  # Frozen; belongs to the game.
Move = Any  # Frozen; belongs to the game.

# A program may print 64 KiB; an agent is shown this many bytes of it, and of
# the program.
SHOWN_OUTPUT = 600
SHOWN_PROGRAM = 6000

# Team -> roles in the order they act; the last decides.
TEAMS = {
    'solo': ('solo',),
    'pair': ('tool', 'planner'),
} | {
    name: (*(f'tool_{i}' for i in range(1, num + 1)),
           *(f'advisor_{i}' for i in range(1, num + 1)), 'judge')
    for num, name in enumerate(('trio', 'quintet', 'septet'), 1)
}


@dataclasses.dataclass(frozen=True)
class Words:
  """What the prompts of a game are made of.

  Attributes:
    rules: what every player reads first.
    does: what the team does, after 'a team that'.
    alone: what the single agent does, as a sentence.
    board: what a program reads.
    schema: the form of `Game.program_input`.
    move: a move, in general.
    solution: what a program prints.
    example: of a move, as JSON; it solves no task.
    name: what a proposed move is called.
    article: before the name in a sentence.
    played: what becomes of the decision, as a sentence.
  """

  rules: str
  does: str
  alone: str
  board: str
  schema: str
  move: str
  solution: str
  example: str
  name: str
  played: str
  article: str = ''

  def system_message(self, kind: str, decides: str) -> str:
    """For a kind of role ('tool', 'planner', ...) of a team."""
    answer = (
        f'End with one line that holds #### and {self.move}, such as '
        f'#### {self.example}.')
    team = f'of a team that {self.does}.'
    named = self.article + self.name
    return {
        'tool': (
            f'You are the tool agent {team} Write one Python program in a '
            f'```python block. It reads {self.board} as JSON from stdin, '
            f'{self.schema}, and prints {self.solution}, such as '
            f'{self.example}. The {decides} sees its output.'),
        'advisor': (
            f'You are an advisor {team} Propose {named}; the {decides} '
            f'decides. {answer}'),
        'planner': (
            f'You are the planner {team} The tool agent wrote a program that '
            f'proposes {named}. Check the proposal, then take it over or '
            f'decide yourself. {self.played} {answer}'),
        'judge': (
            f'You are the judge {team} Each of the others proposed {named}. '
            f'Take over a proposal or decide yourself. {self.played} {answer}'),
        'solo': f'{self.alone} {self.played} {answer}',
    }[kind]


class Game(Protocol):
  """The rules of a game, and what its players are told."""

  words: Words

  def start(self, task: env_api.Task) -> Board:
    """The board of a task."""

  def show(self, board: Board) -> str:
    """The board as a picture of characters."""

  def describe(self, board: Board) -> str:
    """What the picture does not say, as sentences."""

  def program_input(self, board: Board) -> Any:
    """The JSON value that a program finds on stdin."""

  def parse(self, value: Any) -> Move | None:
    """A JSON value as a move, if it is one."""

  def play(self, board: Board, move: Move) -> tuple[Board, float]:
    """The board after a move, and the share of the move that is illegal.

    The share is of the parts up to the solution; what follows is not played.
    """

  def solved(self, board: Board) -> bool:
    """The checker."""

  def progress(self, before: Board, after: Board) -> float:
    """The fall of a potential, in [-1, 1]; 0 for equal boards."""

  def oracle_terms(self, board: Board) -> Mapping[str, float]:
    """Terms that see more than the players; perhaps none."""


@dataclasses.dataclass(frozen=True)
class Proposal:
  """What a tool or an advisor proposed in this turn.

  Attributes:
    role: who.
    move: the proposal, if there is one.
    program: of a tool that wrote one.
    output: what the program printed.
    error: the last line of the program's stderr, if it failed.
  """

  role: str
  move: Move | None
  program: str | None = None
  output: str = ''
  error: str = ''


@dataclasses.dataclass(frozen=True)
class State:
  """A game in progress.

  Attributes:
    task_id: the task's name in its data set.
    board: where the game stands.
    turn: turns that are over.
    proposals: of this turn, from their steps until a move is played.
  """

  task_id: str
  board: Board
  turn: int = 0
  proposals: tuple[Proposal, ...] = ()


@dataclasses.dataclass(frozen=True)
class BoardGame:
  """The environment; see `environments.env_api.Environment`."""

  game: Game
  roles: tuple[str, ...]
  weights: Mapping[str, float]
  sandbox: sandbox_lib.Sandbox | None  # None where no role writes programs.
  max_turns: int

  team_reward_range = (0.0, 1.0)

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    return tuple((role,) for role in self.roles)

  def reset(self, task: env_api.Task) -> State:
    if 'tool' in map(kind_of, self.roles):
      sandbox_lib.check_given(self.sandbox, self.roles)
    return State(task['task_id'], self.game.start(task))

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    game, kind = self.game, kind_of(role)
    turn = f'Turn {state.turn + 1} of {self.max_turns}.'
    parts = [
        game.words.rules, game.show(state.board),
        f'{turn} {game.describe(state.board)}']
    if kind == 'planner':
      parts.append(self._report(*state.proposals))
    elif kind == 'judge':
      parts.extend(map(self._proposed, state.proposals))
    return [
        {'role': 'system',
         'content': game.words.system_message(kind, self.roles[-1])},
        {'role': 'user', 'content': '\n'.join(parts)}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    (role, action), = actions.items()
    if kind_of(role) == 'tool':
      return self._propose(state, *self._run(state, role, action))
    move = self.game.parse(text.last_answer(action))
    outcome = (
        env_api.Outcome.PARSE_ERROR if move is None else env_api.Outcome.OK)
    if kind_of(role) == 'advisor':
      return self._propose(state, Proposal(role, move), outcome)
    return self._decide(state, role, move, outcome)

  def show(self, state: State) -> dict[str, str]:
    shown = {
        'board': self.game.show(state.board),
        'description': self.game.describe(state.board)}
    for proposal in state.proposals:
      for name, part, limit in (
          ('program', proposal.program, SHOWN_PROGRAM),
          ('output', proposal.output, SHOWN_OUTPUT),
          ('error', proposal.error, SHOWN_OUTPUT)):
        if part:
          shown[f'{proposal.role}: {name}'] = text.shorten(part, limit)
    return shown

  def _run(
      self, state: State, role: str,
      action: str) -> tuple[Proposal, env_api.Outcome]:
    """Runs a tool's program."""
    program = text.last_program(action)
    if program is None:
      return Proposal(role, None), env_api.Outcome.PARSE_ERROR
    result = self.sandbox.run(
        program, stdin=json.dumps(self.game.program_input(state.board)))
    outcome, move = outcomes_lib.OF_STATUS[result.status], None
    if outcome is env_api.Outcome.OK:
      move = self.game.parse(text.last_json_line(result.stdout))
      if move is None:
        outcome = env_api.Outcome.PARSE_ERROR
    error = ''
    if result.status is not sandbox_lib.Status.OK:
      error = result.stderr.strip().rsplit('\n', 1)[-1]
    return Proposal(role, move, program, result.stdout, error), outcome

  def _propose(
      self, state: State, proposal: Proposal,
      outcome: env_api.Outcome) -> env_api.Step:
    """Tries a proposal on a copy."""
    _, solved, tried, outcome = self._try(state.board, proposal.move, outcome)
    terms = {'plan_solved': float(solved)} | {
        f'plan_{name}': value for name, value in tried.items()}
    return env_api.Step(
        state=dataclasses.replace(
            state, proposals=(*state.proposals, proposal)),
        team_reward=0.0,
        local_rewards={proposal.role: self._weigh(terms)},
        reward_terms=terms, done=False, success=False, truncated=False,
        outcomes={proposal.role: outcome},
        program_runs=int(proposal.program is not None))

  def _decide(
      self, state: State, role: str, move: Move | None,
      outcome: env_api.Outcome) -> env_api.Step:
    """Plays the move of whoever decides."""
    board, success, terms, outcome = self._try(state.board, move, outcome)
    turn = state.turn + 1
    truncated = not success and turn >= self.max_turns
    return env_api.Step(
        state=State(state.task_id, board, turn),
        team_reward=float(success),
        local_rewards={role: self._weigh(terms)},
        reward_terms={'solved': float(success), **terms},
        done=success or truncated, success=success, truncated=truncated,
        outcomes={role: outcome})

  def _try(
      self, board: Board, move: Move | None, outcome: env_api.Outcome,
  ) -> tuple[Board, bool, dict[str, float], env_api.Outcome]:
    """The board after a move, if it is solved, the terms, and the outcome.

    `outcome` is what is known before a move is played; it stays when there is
    none.
    """
    after, illegal, idle = board, 0.0, False
    if move is not None:
      after, illegal = self.game.play(board, move)
      idle = after == board
      if idle:
        outcome = env_api.Outcome.NO_EFFECT
      elif illegal:
        outcome = env_api.Outcome.ILLEGAL_ACTION
    return after, self.game.solved(after), {
        'progress': self.game.progress(board, after),
        'idle': -float(idle),
        'illegal': -illegal,
        'malformed': -float(move is None),
        **self.game.oracle_terms(after)}, outcome

  def _weigh(self, terms: Mapping[str, float]) -> float:
    return sum(self.weights.get(name, 0.0) * x for name, x in terms.items())

  def _report(self, proposal: Proposal) -> str:
    """What a planner is shown of the tool's work."""
    if proposal.program is None:
      return 'The tool agent wrote no program.'
    program = text.shorten(proposal.program, SHOWN_PROGRAM)
    lines = [f'Program of the tool agent:\n```python\n{program}```']
    if proposal.error:
      lines.append(f'It failed: {text.shorten(proposal.error, SHOWN_OUTPUT)}')
    output = text.shorten(proposal.output, SHOWN_OUTPUT).rstrip()
    lines.append(f'Output:\n{output}')
    lines.append(f'Proposed {self._move_text(proposal)}')
    return '\n'.join(lines)

  def _proposed(self, proposal: Proposal) -> str:
    """What a judge is shown of a proposal."""
    return f'{proposal.role} proposed {self._move_text(proposal)}'

  def _move_text(self, proposal: Proposal) -> str:
    move = 'none' if proposal.move is None else json.dumps(proposal.move)
    return f'{self.game.words.name}: {move}'


def kind_of(role: str) -> str:
  """'tool' of 'tool_2'."""
  return role.partition('_')[0]


def parse_list(
    value: Any, words: Container[str], longest: int) -> tuple[str, ...] | None:
  """`value` if it is a list of some of `words`, no longer than `longest`."""
  if not isinstance(value, list) or len(value) > longest:
    return None
  if not all(isinstance(word, str) and word in words for word in value):
    return None
  return tuple(value)


def make_environment(
    game: Game, *, rewards: Mapping[str, Mapping[str, float]], team: str,
    max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None) -> BoardGame:
  """A team that plays a game.

  Args:
    game: its rules.
    rewards: preset -> weights of the local terms.
    team: one of `TEAMS`.
    max_turns: turns before an episode is truncated.
    reward: a preset.
    sandbox: runs the programs of teams that write some.
  """
  for name, value, known in (
      ('team', team, TEAMS), ('reward', reward, rewards)):
    if value not in known:
      raise ValueError(
          f'environment.{name}={value!r} is not one of {sorted(known)}.')
  if max_turns < 1:
    raise ValueError(
        f'environment.max_turns={max_turns}: an episode needs at least 1.')
  return BoardGame(game, TEAMS[team], rewards[reward], sandbox, max_turns)
