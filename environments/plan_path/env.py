"""Plan-Path: a team walks through a 10x10 maze (arXiv 2510.11062, section 5).

Teams:
  pair  A *tool* agent writes a program that proposes moves; a *planner* sees
        the program, its output and the parsed moves, and decides which moves
        are walked. Tool first, then planner, in every turn.
  solo  One agent answers with moves.

Moves are walked one by one until the goal is reached. A move into a wall or
off the grid does nothing and counts as illegal.

Reward terms, all in [-1, 1] (`reward_terms` logs them before weighting):

  name             role     value                               sees
  solved           team     1 when the walker is at the goal    the checker
  progress         walker   fall of the Manhattan distance / 18 the grid
  illegal          walker   -1 x share of illegal moves         the grid
  malformed        walker   -1 when no move list is found       the text
  plan_solved      tool     1 when the proposal leads to the    the checker
                            goal, tried on a copy
  plan_progress    tool     as progress, on the copy            the grid
  plan_illegal     tool     as illegal, on the copy             the grid
  plan_malformed   tool     -1 when the program fails or prints the run
                            no move list

The walker is the planner or the solo agent. No term is an oracle: none uses
shortest paths. Progress is undiscounted potential shaping, so it telescopes:
standing still and walking in circles pay nothing. The preset `outcome` keeps
`solved` and `plan_solved` alone.

Deviations from the authors' code: the current position is shown; success is
set by the checker only, not by the end of the episode; shaping is not
discounted; answers are parsed, never evaluated; the planner sees the tool's
output of the same turn.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json

from environments import base
from environments import sandbox as sandbox_lib
from environments import text
from environments.plan_path import prompts

DELTAS = {'U': (-1, 0), 'D': (1, 0), 'L': (0, -1), 'R': (0, 1)}
MAX_MOVES = 100  # A longer list is malformed; the grid has 100 cells.

TEAMS = {'pair': (('tool',), ('planner',)), 'solo': (('solo',),)}

# Weights of the local terms. The team's term has the weight alpha, which
# belongs to the algorithm.
REWARDS = {
    'mixed': {
        'progress': 0.5, 'illegal': 0.2, 'malformed': 0.2,
        'plan_solved': 1.0, 'plan_progress': 0.5, 'plan_illegal': 0.2,
        'plan_malformed': 0.2,
    },
    'outcome': {'plan_solved': 1.0},
}

_OUTCOMES = {
    sandbox_lib.Status.OK: base.Outcome.OK,
    sandbox_lib.Status.ERROR: base.Outcome.PROGRAM_ERROR,
    sandbox_lib.Status.TIMEOUT: base.Outcome.TIMEOUT,
    sandbox_lib.Status.RESOURCE_LIMIT: base.Outcome.RESOURCE_LIMIT,
    sandbox_lib.Status.INFRASTRUCTURE: base.Outcome.INFRASTRUCTURE,
}

Cell = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Report:
  """The tool agent's program of this turn and what came of it."""

  program: str | None
  output: str
  error: str  # The last line of the program's stderr.
  moves: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class State:
  """A walker in a maze.

  Attributes:
    task_id: the maze's name in its data set.
    grid: rows of '#' (wall) and '.' (free).
    position: row and column of the walker, from the top left.
    goal: row and column of the goal.
    turn: turns that are over.
    report: the tool agent's report, from its step to the planner's.
  """

  task_id: str
  grid: tuple[str, ...]
  position: Cell
  goal: Cell
  turn: int = 0
  report: Report | None = None


@dataclasses.dataclass(frozen=True)
class PlanPath:
  """The environment; see `environments.base.Environment`."""

  phases: tuple[tuple[str, ...], ...]
  weights: Mapping[str, float]
  sandbox: sandbox_lib.Sandbox | None  # None where no role writes programs.
  max_turns: int

  @property
  def roles(self) -> tuple[str, ...]:
    return tuple(role for phase in self.phases for role in phase)

  def reset(self, task: base.Task) -> State:
    return State(
        task_id=task['task_id'], grid=tuple(task['grid']),
        position=tuple(task['start']), goal=tuple(task['goal']))

  def observe(self, state: State, role: str) -> list[base.Message]:
    return prompts.messages(state, role, self.max_turns)

  def step(self, state: State, actions: Mapping[str, str]) -> base.Step:
    (role, action), = actions.items()
    if role == 'tool':
      return self._propose(state, action)
    return self._walk(state, role, action)

  def _propose(self, state: State, action: str) -> base.Step:
    """Runs the tool agent's program and tries its moves on a copy."""
    program = text.last_program(action)
    if program is None:
      report = Report(None, '', '', None)
      outcome = base.Outcome.PARSE_ERROR
    else:
      result = self.sandbox.run(program, stdin=program_input(state))
      moves = parse_moves(text.last_json_line(result.stdout))
      error = result.stderr.strip().rsplit('\n', 1)[-1]
      outcome = _OUTCOMES[result.status]
      if outcome is not base.Outcome.OK:
        moves = None
      elif moves is None:
        outcome = base.Outcome.PARSE_ERROR
      report = Report(program, result.stdout, error, moves)

    moves = report.moves or ()
    position, illegal = walk(state.grid, state.position, state.goal, moves)
    terms = {
        'plan_solved': float(position == state.goal),
        'plan_progress': progress(state.position, position, state.goal),
        'plan_illegal': -illegal / max(len(moves), 1),
        'plan_malformed': -float(report.moves is None),
    }
    return base.Step(
        state=dataclasses.replace(state, report=report),
        team_reward=0.0, local_rewards={'tool': self._weigh(terms)},
        reward_terms=terms, done=False, success=False, truncated=False,
        outcomes={'tool': outcome})

  def _walk(self, state: State, role: str, action: str) -> base.Step:
    """Walks the moves of the planner or the solo agent."""
    moves = parse_moves(text.last_answer(action))
    outcome = base.Outcome.OK if moves is not None else base.Outcome.PARSE_ERROR
    position, illegal = walk(
        state.grid, state.position, state.goal, moves or ())
    if illegal:
      outcome = base.Outcome.ILLEGAL_ACTION
    local_terms = {
        'progress': progress(state.position, position, state.goal),
        'illegal': -illegal / max(len(moves or ()), 1),
        'malformed': -float(moves is None),
    }
    success = position == state.goal
    turn = state.turn + 1
    truncated = not success and turn >= self.max_turns
    return base.Step(
        state=dataclasses.replace(
            state, position=position, turn=turn, report=None),
        team_reward=float(success),
        local_rewards={role: self._weigh(local_terms)},
        reward_terms={'solved': float(success), **local_terms},
        done=success or truncated, success=success, truncated=truncated,
        outcomes={role: outcome})

  def _weigh(self, terms: Mapping[str, float]) -> float:
    return sum(self.weights.get(name, 0.0) * x for name, x in terms.items())


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None) -> PlanPath:
  """The environment that a config describes."""
  for name, value, known in (
      ('team', team, TEAMS), ('reward', reward, REWARDS)):
    if value not in known:
      raise ValueError(
          f'environment.{name}={value!r} is not one of {sorted(known)}.')
  if max_turns < 1:
    raise ValueError(
        f'environment.max_turns={max_turns}: an episode needs at least 1.')
  return PlanPath(TEAMS[team], REWARDS[reward], sandbox, max_turns)


def program_input(state: State) -> str:
  """The JSON text that the tool agent's program finds on stdin."""
  return json.dumps({
      'grid': state.grid, 'position': state.position, 'goal': state.goal})


def parse_moves(value) -> tuple[str, ...] | None:
  """`value` as moves if it is a list of at most `MAX_MOVES` of U, D, L, R."""
  if not isinstance(value, list) or len(value) > MAX_MOVES:
    return None
  if not all(isinstance(move, str) and move in DELTAS for move in value):
    return None
  return tuple(value)


def walk(
    grid: tuple[str, ...], position: Cell, goal: Cell, moves: tuple[str, ...],
) -> tuple[Cell, int]:
  """Walks `moves` up to the goal; the last position, and the illegal moves."""
  illegal = 0
  for move in moves:
    if position == goal:
      break
    row = position[0] + DELTAS[move][0]
    column = position[1] + DELTAS[move][1]
    inside = 0 <= row < len(grid) and 0 <= column < len(grid[0])
    if inside and grid[row][column] != '#':
      position = (row, column)
    else:
      illegal += 1
  return position, illegal


def progress(before: Cell, after: Cell, goal: Cell) -> float:
  """Fall of the Manhattan distance to `goal`, as a share of the largest."""
  return (_distance(before, goal) - _distance(after, goal)) / 18


def _distance(a: Cell, b: Cell) -> int:
  return abs(a[0] - b[0]) + abs(a[1] - b[1])
