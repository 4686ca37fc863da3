"""The contract between environments and the code that trains on them.

An environment is a set of pure functions over frozen, picklable states, so that
G candidates can be tried from one state without copies, and a step can run in
any worker process. The terms follow the cooperative Markov game of AT-GRPO
(arXiv 2510.11062, section 3): within a turn the roles act phase by phase. Each
phase is one call of `step`, and the next phase sees its result. The module of
an environment has a function `make_environment`; see docs/environments.md.
"""

from collections.abc import Collection, Mapping
import dataclasses
import enum
import json
from typing import Any, Protocol

from environments import sandbox as sandbox_lib

# {'role': 'system' | 'user' | 'assistant' | 'tool' | ..., 'content': text}. The
# keys 'tools' and 'tool_calls' are optional and have the form of transformers:
# [{'type': 'function', 'function': {'name': text, ...}}, ...].
Message = dict[str, Any]
State = Any  # Frozen and picklable; each environment has another type.
# One row of a data set. 'task_id' is unique. If rows have the field 'kind',
# tasks that are equal up to symmetry or names share it.
Task = Mapping[str, Any]


class Outcome(enum.Enum):
  """The result of one role's action, counted and logged per role.

  An action that is illegal and without effect is `NO_EFFECT`.
  """

  OK = 'ok'  # None of the others.
  PARSE_ERROR = 'parse_error'  # The text does not follow the answer grammar.
  NO_EFFECT = 'no_effect'  # Well formed, but the state is unchanged.
  ILLEGAL_ACTION = 'illegal_action'  # Well formed, but against the rules.
  PROGRAM_ERROR = 'program_error'  # The program ended with an error.
  TIMEOUT = 'timeout'  # The program, or its grading, took too long.
  RESOURCE_LIMIT = 'resource_limit'  # The program hit a memory or output limit.
  # Not caused by the model: the candidate leaves its group and is counted.
  INFRASTRUCTURE = 'infrastructure'


STATUS_TO_OUTCOME = {
    sandbox_lib.Status.OK: Outcome.OK,
    sandbox_lib.Status.ERROR: Outcome.PROGRAM_ERROR,
    sandbox_lib.Status.TIMEOUT: Outcome.TIMEOUT,
    sandbox_lib.Status.RESOURCE_LIMIT: Outcome.RESOURCE_LIMIT,
    sandbox_lib.Status.INFRASTRUCTURE: Outcome.INFRASTRUCTURE,
}


@dataclasses.dataclass(frozen=True)
class Step:
  """The result of one phase.

  Only `state`, `team_reward` and `done` are required. Numbers and truth values
  may be those of Python, numpy or jax. Rewards in float32 are rounded to six
  decimals.

  Attributes:
    state: the state after the actions.
    team_reward: the reward that all roles share, finite as all rewards are.
    done: the episode is over.
    success: the task's checker accepts the final state; nothing else sets it.
    truncated: the episode is over because its turns ran out.
    local_rewards: role -> weighted sum of its reward terms. A role that acted
      and has no entry earns 0.
    reward_terms: name -> value before weighting, bounded; for the log.
    outcomes: role -> outcome. A role that acted and has no entry has `OK`.
    program_runs: number of programs that the step ran.
    skip: number of the following phases to leave out, so that roles can pass,
      or a role can choose who acts next.
  """

  state: State
  team_reward: float
  done: bool
  success: bool = False
  truncated: bool = False
  local_rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
  reward_terms: Mapping[str, float] = dataclasses.field(default_factory=dict)
  outcomes: Mapping[str, Outcome] = dataclasses.field(default_factory=dict)
  program_runs: int = 0
  skip: int = 0


def text_of(message: Message) -> str:
  """Returns the content of a message, followed by its tool calls as JSON."""
  calls = [json.dumps(x['function']) for x in message.get('tool_calls', ())]
  return '\n'.join([*filter(None, [message['content']]), *calls])


class Environment(Protocol):
  """A task for a team of language models.

  Attributes:
    roles: the personas of the team, in the order in which they act.
    phases: sets of roles that act on the same state, in order. Sequential play
      has one role per phase.
    max_turns: passes over the phases; the last step must return done=True.
    team_reward_range: minimum and maximum team reward of a step.
  """

  roles: tuple[str, ...]
  phases: tuple[tuple[str, ...], ...]
  max_turns: int
  team_reward_range: tuple[float, float]

  def reset(self, task: Task) -> State:
    """Returns the first state of an episode."""

  def observe(self, state: State, role: str) -> list[Message]:
    """Returns the complete prompt of `role` in `state`.

    Called for the role that acts, and for a central critic also for the roles
    of the earlier phases of this turn.
    """

  def step(self, state: State, actions: Mapping[str, str]) -> Step:
    """Applies the texts of the roles of one phase to `state`."""

  def show(self, state: State) -> Mapping[str, str]:
    """Describes `state` as name -> text, for records and the report.

    No agent sees it. Without this method, records have `str(state)`.
    """


class Sequential:
  """A base class for environments whose roles act one after another."""

  roles: tuple[str, ...]

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    return tuple((role,) for role in self.roles)


Qualities = tuple[tuple[str, float], ...]  # A role's last quality; hashable.


def pay_change(
    qualities: Qualities, role: str, quality: float,
) -> tuple[float, Qualities]:
  """Returns the change of a role's quality, and the new qualities.

  Candidates of one group share the previous quality, so their rewards compare
  the quality. Over an episode the rewards of a role add up to its last quality,
  however many turns it takes.
  """
  previous = dict(qualities)
  return (
      quality - previous.get(role, 0.0),
      tuple({**previous, role: quality}.items()))


def check_options(
    max_turns: int, **choices: tuple[Any, Collection[Any]]) -> None:
  """Raises ValueError for a bad option of `make_environment`.

  `choices` are options of `config.environment`, each with its value and all
  valid values.
  """
  for name, (value, valid) in choices.items():
    if value not in valid:
      raise ValueError(
          f'environment.{name}={value!r} is not one of {sorted(valid)}.')
  if max_turns < 1:
    raise ValueError(
        f'environment.max_turns={max_turns}: an episode needs at least 1.')
