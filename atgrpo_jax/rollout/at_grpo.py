"""AT-GRPO's rollout: agent- and turn-wise groups on a greedy spine.

Algorithm 1 of arXiv 2510.11062. For every environment, turn and agent in
order: G candidates are sampled from one prompt; each is stepped from the same
state; their rewards make one group under the key (task, role, turn); the
candidate with the largest reward is the one whose state goes on. The next
agent acts on that state in the same turn.

Deviations from the paper: ties go to the first candidate; a candidate that
failed for a reason that is not the model's own leaves its group.

Deviations from the authors' code (each has a test): a group never holds
candidates of two tasks or roles; agents act one after another within a turn;
every candidate is scored from the same state, and the chosen one's state is
the one that goes on; the other agents of a turn keep their samples when one
agent ends the episode; nothing is filtered or duplicated before the group
statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import zlib

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.rollout import interaction as interaction_lib
from environments import base

ROLLOUTS = ('tree', 'parallel', 'joint')
SELECTIONS = (
    'acting_greedy', 'team_greedy', 'softmax', 'uniform', 'epsilon_greedy')
TARGETS = ('immediate', 'return_to_go', 'monte_carlo')


@dataclasses.dataclass(frozen=True)
class RolloutSpec:
  """The switches of the rollout.

  Attributes:
    rollout: 'tree' is AT-GRPO.
    group_size: candidates of one prompt (G).
    selection: which candidate's state goes on. 'acting_greedy': the largest
      reward (the paper); 'team_greedy': the largest team reward; 'softmax':
      drawn with probability softmax(reward / selection_temperature);
      'uniform': drawn; 'epsilon_greedy': drawn with probability epsilon, else
      the largest reward.
    selection_temperature: of 'softmax'.
    selection_epsilon: of 'epsilon_greedy'.
    target: what a candidate's reward is. 'immediate' is the paper's.
    alpha: weight of the team reward; the local terms carry their own.
  """

  rollout: str = 'tree'
  group_size: int = 8
  selection: str = 'acting_greedy'
  selection_temperature: float = 1.0
  selection_epsilon: float = 0.1
  target: str = 'immediate'
  alpha: float = 1.0

  def __post_init__(self):
    for name, value, known, built in (
        ('rollout', self.rollout, ROLLOUTS, ('tree',)),
        ('selection', self.selection, SELECTIONS, SELECTIONS),
        ('target', self.target, TARGETS, ('immediate',))):
      if value not in known:
        raise errors.UserError(
            f'{name}={value!r} is not one of {list(known)}.')
      if value not in built:
        raise errors.UserError(
            f'{name}={value!r} is not implemented yet; use '
            f'{" or ".join(map(repr, built))}.')
    if self.group_size < 2:
      raise errors.UserError(
          f'group_size={self.group_size}: an advantage compares the '
          'candidates of a group, so it must be at least 2.')
    if not self.selection_temperature > 0:
      raise errors.UserError(
          f'selection_temperature={self.selection_temperature} must be above '
          "0; for the largest reward use selection='acting_greedy'.")
    if not 0 <= self.selection_epsilon <= 1:
      raise errors.UserError(
          f'selection_epsilon={self.selection_epsilon} is no probability; '
          'give a number from 0 to 1.')


@dataclasses.dataclass(frozen=True)
class Episode:
  """How the spine of one task went."""

  task_id: str
  turns: int
  success: bool
  truncated: bool


@dataclasses.dataclass(frozen=True)
class Rollout:
  """What one training step collected."""

  groups: list[types.Group]
  episodes: list[Episode]


@dataclasses.dataclass
class _Spine:
  """An episode in progress."""

  task_id: str
  state: base.State
  turns: int = 0
  last: base.Step | None = None

  @property
  def done(self) -> bool:
    return self.last is not None and self.last.done


def collect(
    interaction: interaction_lib.Interaction, tasks: Sequence[base.Task], *,
    step: int, spec: RolloutSpec) -> Rollout:
  """Plays one episode of each task and returns all its groups.

  Args:
    interaction: environment and policies.
    tasks: distinct tasks, one spine each.
    step: the training step, which enters the sampling keys.
    spec: the switches.
  """
  environment = interaction.environment
  task_ids = [task['task_id'] for task in tasks]
  if len(set(task_ids)) != len(task_ids):
    raise ValueError('Two tasks of a rollout have the same task_id.')
  for phase in environment.phases:
    if len(phase) != 1:
      raise errors.UserError(
          f'The roles {phase} act at once; AT-GRPO compares the candidates '
          'of one role at a time, so give each a phase of its own.')
  spines = [
      _Spine(task['task_id'], environment.reset(task)) for task in tasks]
  groups = []
  interaction.play([
      _play(interaction, spine, groups, step, spec) for spine in spines])
  # Whoever came first.
  order = [role for role, in environment.phases]
  groups.sort(key=lambda group: (
      group.key.turn, order.index(group.key.role),
      task_ids.index(group.key.task_id)))
  episodes = [
      Episode(s.task_id, s.turns, s.last.success, s.last.truncated)
      for s in spines]
  return Rollout(groups, episodes)


def _play(
    interaction: interaction_lib.Interaction, spine: _Spine,
    groups: list[types.Group], step: int,
    spec: RolloutSpec) -> interaction_lib.Episode:
  """Plays one spine to its end and adds its groups to `groups`."""
  environment = interaction.environment
  for turn in range(environment.max_turns):
    spine.turns += 1
    for role, in environment.phases:
      key = types.GroupKey(spine.task_id, role, turn, 0)
      answer, = yield interaction.ask(
          [interaction_lib.Ask(key, spine.state)], step=step,
          group_size=spec.group_size)
      # Every candidate is tried from the one state of the spine.
      tried = yield interaction.act(
          [spine.state] * spec.group_size,
          [{role: text} for text in answer.texts])
      groups.append(_micro_transition(
          interaction, spine, key, answer, tried, step, spec))
      if spine.done:
        return


def _micro_transition(
    interaction: interaction_lib.Interaction, spine: _Spine,
    key: types.GroupKey, answer: interaction_lib.Answer,
    tried: Sequence[base.Step], step: int, spec: RolloutSpec) -> types.Group:
  """One role has acted in a spine, which moves to the chosen state."""
  role = key.role
  outcomes = tuple(step.outcomes[role] for step in tried)
  rewards = np.array([
      spec.alpha * s.team_reward + s.local_rewards[role] for s in tried],
      np.float32)
  # A non-finite reward, too, is a fault of the environment.
  valid = np.isfinite(rewards) & np.array(
      [outcome is not base.Outcome.INFRASTRUCTURE for outcome in outcomes])
  if not valid.any():
    raise RuntimeError(
        f'All {spec.group_size} candidates of {key} failed for reasons that '
        f'are not the model\'s own: {[o.value for o in outcomes]}.')
  team = np.array([s.team_reward for s in tried], np.float32)
  chosen = select(
      rewards, team, valid, spec,
      np.random.default_rng([
          interaction.seed, step, key.turn, zlib.crc32(key.task_id.encode()),
          zlib.crc32(role.encode())]))
  spine.state = tried[chosen].state
  spine.last = tried[chosen]
  return types.Group(
      key=key, policy=interaction.policy_map[role], prompt=answer.prompt,
      completions=answer.completions, texts=answer.texts,
      behavior_logprobs=answer.logprobs,
      rewards=np.where(valid, rewards, np.nan), valid=valid,
      reward_terms=tuple(dict(s.reward_terms) for s in tried),
      outcomes=outcomes, chosen=chosen)


def select(
    rewards: np.ndarray, team_rewards: np.ndarray, valid: np.ndarray,
    spec: RolloutSpec, rng: np.random.Generator) -> int:
  """The index of the candidate whose state goes on.

  Args:
    rewards: [G] float32, the acting agent's.
    team_rewards: [G] float32.
    valid: [G] bool; the others are never chosen.
    spec: `selection` and its parameters.
    rng: for the rules that draw.
  """
  candidates = np.flatnonzero(valid)
  if spec.selection == 'team_greedy':
    return int(candidates[np.argmax(team_rewards[candidates])])
  if spec.selection == 'uniform' or (
      spec.selection == 'epsilon_greedy'
      and rng.random() < spec.selection_epsilon):
    return int(rng.choice(candidates))
  if spec.selection == 'softmax':
    scaled = rewards[candidates] / spec.selection_temperature
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(candidates, p=weights / weights.sum()))
  return int(candidates[np.argmax(rewards[candidates])])
