"""Two agents write one program: a helper and the function that uses it.

MAGRPO's coding tasks (arXiv 2508.04652): problems of HumanEval, CoopHumanEval
and MBPP, whose tests are code.

Teams:

  pair      An *aux* agent writes a function `aux` and a *main* agent writes
            the requested function, in one phase: neither sees the other's.
  pipeline  Main sees the function aux of the same turn.
  solo      One agent writes the requested function.

Every turn is paid (`rewards.py`), and feedback follows it (`prompts.py`). An
episode always has `max_turns` turns, because ending early would forgo the
rewards of further turns. `success` means that all tests pass in the last turn.

The outcome of an action is PARSE_ERROR without the function and PROGRAM_ERROR
if the function is not Python. For main and solo it is otherwise the first
failure of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses

from environments import env_api
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.programming import checks
from environments.programming import problems
from environments.programming.functions import prompts
from environments.programming.functions import rewards
from environments.programming.functions import source

# Team -> phases.
TEAMS = {
    'pair': (('aux', 'main'),), 'pipeline': (('aux',), ('main',)),
    'solo': (('solo',),)}


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps.

  Attributes:
    problem: prompts show only the tests that feedback reports.
    turn: number of finished turns.
    exchanges: of all roles in these turns.
    aux: aux's reply between the phases of a pipeline, otherwise None.
  """

  problem: problems.Problem
  turn: int = 0
  exchanges: tuple[prompts.Exchange, ...] = ()
  aux: str | None = None

  @property
  def task_id(self) -> str:
    return self.problem.task_id


@dataclasses.dataclass(frozen=True)
class Functions:
  """The environment; see `environments.env_api.Environment`."""

  team: str
  max_turns: int
  sandbox: sandbox_lib.Sandbox | None
  feedback_mode: str
  feedback_tests: int

  team_reward_range = (0.0, 1.0)

  @property
  def roles(self) -> tuple[str, ...]:
    return tuple(role for phase in self.phases for role in phase)

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    return TEAMS[self.team]

  def reset(self, task: env_api.Task) -> State:
    problem = problems.from_task(task)
    if problem.comparison != 'check':
      raise ValueError(
          f'the tests of {problem.task_id} are not code, so it cannot be '
          'played here; use environments.programming.contests.env')
    sandbox_lib.check_given(self.sandbox, 'agents')
    return State(problem)

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    aux = None
    if self.team == 'pipeline' and role == 'main' and state.aux is not None:
      aux = source.find_function(state.aux, source.AUX)
    return prompts.messages(
        role, self.team, state.problem, state.exchanges, aux)

  def show(self, state: State) -> dict[str, str]:
    shown = {'problem': state.problem.statement}
    if state.aux is not None:
      shown['aux'] = text_lib.shorten(state.aux, prompts.SHOWN_REPLY)
    for number, exchange in enumerate(state.exchanges):
      turn = number // len(self.roles) + 1
      shown[f'turn {turn}, {exchange.role}'] = exchange.reply
      shown[f'turn {turn}, {exchange.role}: feedback'] = exchange.feedback
    return shown

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    if self.team == 'pipeline' and 'aux' in actions:
      return self._pass_on(state, actions['aux'])
    return self._score(state, actions)

  def _pass_on(self, state: State, action: str) -> env_api.Step:
    """First phase of a pipeline, which pays nothing."""
    function = source.find_function(action, source.AUX)
    return env_api.Step(
        state=dataclasses.replace(state, aux=action), team_reward=0.0,
        local_rewards={'aux': 0.0}, reward_terms={}, done=False, success=False,
        truncated=False, outcomes={'aux': _text_outcome(function)})

  def _score(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    """Last phase of a turn: scores the functions and writes the feedback."""
    replies = dict(actions)
    if self.team == 'pipeline':
      replies = {'aux': state.aux, **replies}
    writer = 'solo' if self.team == 'solo' else 'main'
    problem = state.problem
    aux = source.find_function(replies.get('aux', ''), source.AUX)
    main = source.find_function(replies[writer], problem.entry_point)
    imports = source.find_imports(f'{problem.preamble}\n{problem.statement}')
    program = source.join(imports, aux, main)
    scores, verdict = rewards.score_text(aux, main, program), None
    outcomes = {
        role: _text_outcome(main if role == writer else aux)
        for role in actions}
    if not scores.stopped:
      verdict = checks.check(self.sandbox, problem, program)
      scores = rewards.score_tests(scores, aux, main, verdict)
      outcomes[writer] = env_api.STATUS_TO_OUTCOME[verdict.status]
      if verdict.failed:
        outcomes = dict.fromkeys(actions, env_api.Outcome.INFRASTRUCTURE)
    turn = state.turn + 1
    done = turn >= self.max_turns
    success = done and verdict is not None and verdict.passed
    exchanges = tuple(
        prompts.Exchange(
            role, text_lib.shorten(
                text_lib.reply(reply).strip(), prompts.SHOWN_REPLY),
            prompts.feedback(
                self.feedback_mode, self.feedback_tests, role,
                problem.entry_point, aux, main, program, scores, verdict))
        for role, reply in replies.items())
    return env_api.Step(
        state=State(problem, turn, (*state.exchanges, *exchanges)),
        team_reward=scores.total / rewards.MAX_TOTAL[self.team],
        local_rewards=dict.fromkeys(actions, 0.0), reward_terms=scores.terms,
        done=done, success=success, truncated=done and not success,
        outcomes=outcomes,
        program_runs=verdict.program_runs if verdict else 0)


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, feedback_mode: str = 'level_feedback',
    feedback_tests: int = 1) -> Functions:
  """Builds the environment from `config.environment`.

  Args:
    team: one of `TEAMS`.
    max_turns: turns of every episode.
    reward: 'outcome'.
    sandbox: runs programs.
    feedback_mode: one of `prompts.FEEDBACK_MODES`.
    feedback_tests: number of asserts that feedback reports, the first ones or,
      if negative, the last ones; 0 reports all.
  """
  env_api.check_options(max_turns, team=(team, TEAMS), **{
      'options.feedback_mode': (feedback_mode, prompts.FEEDBACK_MODES)})
  if reward != 'outcome':
    raise ValueError(
        f"environment.reward={reward!r} must be 'outcome': the team is paid as "
        'a whole, and roles have no reward terms.')
  return Functions(team, max_turns, sandbox, feedback_mode, feedback_tests)


def _text_outcome(function: str) -> env_api.Outcome:
  if not function:
    return env_api.Outcome.PARSE_ERROR
  if source.syntax_error(function):
    return env_api.Outcome.PROGRAM_ERROR
  return env_api.Outcome.OK
