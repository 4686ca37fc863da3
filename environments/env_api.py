"""The contract between an environment and everything that trains on it.

An environment is a set of pure functions over frozen, picklable states, so G
candidates are tried from one state without copies, and a step can run in any
worker process. The terms follow the cooperative Markov game of AT-GRPO
(arXiv 2510.11062, section 3): inside a turn the roles act phase by phase; a
phase's step is one micro-transition, and the next phase sees its result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import enum
import numbers
from typing import Any, Protocol

Message = dict[str, str]  # {'role': 'system' | 'user' | ..., 'content': text}
State = Any  # Frozen and picklable; its type belongs to the environment.
# One row of a dataset; 'task_id' names it. Where tasks may be copies of each
# other, turned or renamed, 'kind' is the same for those that are.
Task = Mapping[str, Any]


class Outcome(enum.Enum):
  """What became of one agent's action. Counted and logged per role.

  Where both are true of an action, `NO_EFFECT` goes before `ILLEGAL_ACTION`.
  """

  OK = 'ok'  # None of the others.
  PARSE_ERROR = 'parse_error'  # The text does not follow the answer grammar.
  NO_EFFECT = 'no_effect'  # Well formed, but the state is as it was.
  ILLEGAL_ACTION = 'illegal_action'  # Well formed, but the rules forbid it.
  PROGRAM_ERROR = 'program_error'  # The agent's program ended with an error.
  TIMEOUT = 'timeout'  # The agent's program, or its grading, took too long.
  RESOURCE_LIMIT = 'resource_limit'  # It hit its memory or output limit.
  # Not the agent's fault: the candidate leaves its group and is counted.
  INFRASTRUCTURE = 'infrastructure'


@dataclasses.dataclass(frozen=True)
class Step:
  """The result of one micro-transition.

  Attributes:
    state: the state after the actions.
    team_reward: the reward that all agents share.
    local_rewards: role -> weighted sum of that role's own reward terms, for
      the roles that acted.
    reward_terms: every term by name before weighting, bounded, for the log.
    done: the episode is over.
    success: the task's checker accepts the state, at the end of an episode.
      Nothing else sets it.
    truncated: the episode is over because its turns ran out.
    outcomes: role -> what became of its action, for the roles that acted.
    program_runs: programs that the step ran, for the budget.
  """

  state: State
  team_reward: float
  local_rewards: Mapping[str, float]
  reward_terms: Mapping[str, float]
  done: bool
  success: bool
  truncated: bool
  outcomes: Mapping[str, Outcome]
  program_runs: int = 0


class Environment(Protocol):
  """A task for a team of language models.

  Attributes:
    roles: the personas of the team, in the order they act.
    phases: sets of roles that act on the same state, in order. Sequential
      play is one role per phase.
    max_turns: passes over the phases before an episode is truncated.
    team_reward_range: the least and the largest team reward of a step.
  """

  roles: tuple[str, ...]
  phases: tuple[tuple[str, ...], ...]
  max_turns: int
  team_reward_range: tuple[float, float]

  def reset(self, task: Task) -> State:
    """The first state of an episode."""

  def observe(self, state: State, role: str) -> list[Message]:
    """What `role` is shown in `state`, as whole chat messages.

    Asked of a role that acts; for a central critic also of those that have
    acted in this turn.
    """

  def step(self, state: State, actions: Mapping[str, str]) -> Step:
    """Applies the texts of one phase's roles to `state`."""

  def show(self, state: State) -> Mapping[str, str]:
    """What a reader of a run is shown of `state`: name -> text.

    For the records and the report; no agent sees it.
    """


def check_options(
    max_turns: int, **choices: tuple[str, Collection[str]]) -> None:
  """Raises ValueError for a bad option of `make_environment`.

  Args:
    max_turns: at least 1.
    **choices: option of `config.environment` -> its value and all valid values.
  """
  for name, (value, valid) in choices.items():
    if value not in valid:
      raise ValueError(
          f'environment.{name}={value!r} is not one of {sorted(valid)}.')
  if max_turns < 1:
    raise ValueError(
        f'environment.max_turns={max_turns}: an episode needs at least 1.')


def step_all(
    environment: Environment, states: Sequence[State],
    actions: Sequence[Mapping[str, str]]) -> list[Step]:
  """Steps each state with its actions; for worker processes.

  Raises ContractError for a step that is none.
  """
  steps = []
  for state, texts in zip(states, actions):
    step = environment.step(state, texts)
    if problem := _problem(step, texts):
      raise ContractError(
          f'{type(environment).__name__}.step {problem}; see '
          'environments/env_api.py.')
    steps.append(step)
  return steps


class ContractError(ValueError):
  """An environment that does not do what `Environment` says."""


def _problem(step: Any, actions: Mapping[str, str]) -> str:
  """What is wrong with a step; '' for nothing."""
  if not isinstance(step, Step):
    return f'returned {step!r:.100}, which is no Step'
  for name, by_role in (
      ('local_rewards', step.local_rewards), ('outcomes', step.outcomes)):
    if by_role.keys() != actions.keys():
      return (f'returned {name} of {sorted(by_role)}, but {sorted(actions)} '
              'acted')
  for reward in (step.team_reward, *step.local_rewards.values()):
    if not isinstance(reward, numbers.Real):
      return f'paid {reward!r:.100}, which is no number'
  if step.success and not step.done:
    return 'returned success=True with done=False'
  return ''
