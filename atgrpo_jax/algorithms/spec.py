"""The switches of the algorithms and their selection rules.

The config has the defaults. To add a selection rule, name it in `SELECTIONS`
and implement it in `RolloutSpec.select`.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.learner import batching
from atgrpo_jax.rl import advantages

# Mode -> return types of a candidate.
RETURN_TYPES = {
    # Candidates that are not selected have no continuation.
    'tree': ('immediate', 'monte_carlo'),
    'parallel': ('immediate', 'return_to_go', 'episode_return'),
    'joint': ('immediate', 'return_to_go', 'bootstrapped'),
}
# Mode -> rules for the candidate, or joint action, that continues.
SELECTIONS = {
    'tree': ('greedy', 'team_greedy', 'softmax', 'uniform', 'epsilon_greedy'),
    'parallel': ('all',),
    'joint': ('all', 'team_greedy', 'uniform', 'first'),
}


def _check_fraction(name: str, value: float) -> None:
  if not 0 <= value <= 1:
    raise errors.UserError(f'{name}={value}: expected a number from 0 to 1.')


@dataclasses.dataclass(frozen=True)
class RolloutSpec:
  """The switches of the rollout.

  A reward is alpha * team reward + local reward of the acting role.

  Attributes:
    mode: 'tree' is AT-GRPO (`at_grpo`); 'parallel' plays independent episodes
      (`grpo`); 'joint' is MAGRPO (`magrpo`).
    group_size: candidates of one prompt, or episodes of one task (G).
    selection: which candidate's state continues. In a tree: 'greedy', the
      largest return (the paper); 'team_greedy', the largest team part of it;
      'softmax', drawn with probability softmax(return /
      selection_temperature); 'uniform', drawn with equal probability;
      'epsilon_greedy', like 'uniform' in a fraction selection_epsilon of the
      cases, otherwise like 'greedy'. For parallel episodes: 'all'. For joint
      actions: 'all' (the paper), 'team_greedy', 'uniform' or 'first'.
    selection_temperature: temperature of 'softmax'.
    selection_epsilon: probability of a uniform choice in 'epsilon_greedy'.
    return_type: 'immediate' is the reward (AT-GRPO). 'monte_carlo' (tree) adds
      alpha * the mean team return of `num_continuations` episodes sampled from
      the candidate's state. 'return_to_go' (parallel, joint) adds the later
      team rewards. 'episode_return' (parallel) is one return for all actions of
      a role in an episode (plain GRPO, with advantage.group_key=('env',)).
      'bootstrapped' (joint) adds the prediction of a critic, see `CriticSpec`.
    num_continuations: sampled episodes per candidate, for 'monte_carlo'.
    alpha: weight of the team reward; the environment weights local terms.
    discount: factor per later step, for 'return_to_go', 'bootstrapped' and
      'monte_carlo'.
    joint_actions: combinations of the candidates of several roles. 'aligned':
      candidates of equal index; 'cross': all combinations.
    cross_credit: the return of a candidate is the 'mean' or the 'sum' over its
      joint actions.
    max_joint_actions: limit per task; larger rollouts raise an error.
    stop_above: a state is not continued if the mean alpha * team reward of its
      joint actions exceeds this; None continues every state.
  """

  mode: str
  group_size: int
  selection: str
  selection_temperature: float
  selection_epsilon: float
  return_type: str
  num_continuations: int
  alpha: float
  discount: float
  joint_actions: str
  cross_credit: str
  max_joint_actions: int
  stop_above: float | None

  def __post_init__(self):
    errors.check_choice('rollout.mode', self.mode, [*RETURN_TYPES])
    for name, choices in (
        ('selection', SELECTIONS[self.mode]),
        ('return_type', RETURN_TYPES[self.mode]),
        ('joint_actions', ('aligned', 'cross')),
        ('cross_credit', ('mean', 'sum'))):
      errors.check_choice(
          f'rollout.mode={self.mode!r} with rollout.{name}',
          getattr(self, name), choices)
    if self.mode == 'joint' and self.selection != 'all' and (
        self.return_type == 'return_to_go'):
      raise errors.UserError(
          f"rollout.return_type='return_to_go' with selection="
          f'{self.selection!r}: a joint action that is not selected has no '
          "continuation; use selection='all' or return_type='immediate'.")
    min_size = 1 if self.return_type == 'bootstrapped' else 2
    errors.check_number(
        'rollout.group_size', self.group_size, min_value=min_size,
        advice='; a single candidate has no advantage without a critic')
    _check_fraction('rollout.discount', self.discount)
    _check_fraction('rollout.selection_epsilon', self.selection_epsilon)
    errors.check_number('rollout.alpha', self.alpha, min_value=0)
    errors.check_number(
        'rollout.selection_temperature', self.selection_temperature,
        greater_than=0,
        advice="; for the largest return use selection='greedy'")
    errors.check_number(
        'rollout.num_continuations', self.num_continuations, min_value=1)

  def select(
      self, returns: np.ndarray, team_returns: np.ndarray,
      rng: np.random.Generator) -> int:
    """Index of the candidate, or joint action, whose state continues.

    Args:
      returns: [J] float, returns of the acting agent or the team; non-finite
        ones are never selected.
      team_returns: [J] float, the team part of `returns`.
      rng: for random rules.
    """
    known = np.flatnonzero(np.isfinite(returns))
    if self.selection == 'first':
      return int(known[0])
    if self.selection == 'team_greedy':
      return int(known[np.argmax(team_returns[known])])
    if self.selection == 'uniform' or (
        self.selection == 'epsilon_greedy'
        and rng.random() < self.selection_epsilon):
      return int(rng.choice(known))
    if self.selection == 'softmax':
      scaled = returns[known] / self.selection_temperature
      weights = np.exp(scaled - scaled.max())
      return int(rng.choice(known, p=weights / weights.sum()))
    if self.selection in ('greedy', 'epsilon_greedy'):
      return int(known[np.argmax(returns[known])])
    raise NotImplementedError(f'No rule for selection={self.selection!r}.')

  def num_joint_actions(
      self, phases: Sequence[Sequence[str]], turns: int) -> int:
    """The maximum number of joint actions of a task in mode 'joint'."""
    total, num_states = 0, 1
    for _ in range(turns):
      for roles in phases:
        per_state = self.group_size**(
            len(roles) if self.joint_actions == 'cross' else 1)
        total += num_states * per_state
        num_states *= per_state if self.selection == 'all' else 1
    return total


# Part of a group key in the config -> field of `GroupKey`.
GROUP_KEY_PARTS = {
    'env': 'task_id', 'agent': 'role', 'turn': 'turn', 'branch': 'branch'}


@dataclasses.dataclass(frozen=True)
class AdvantageSpec:
  """Which candidates are compared, and how.

  Attributes:
    group_key: candidates that agree in these parts share a baseline.
      ('env', 'agent', 'turn') is AT-GRPO, ('env',) plain GRPO on a team, and
      ('env', 'agent', 'turn', 'branch') MAGRPO.
    baseline: see `rl.advantages`; 'critic' is the value of the prompt.
    scale: see `rl.advantages`.
  """

  group_key: tuple[str, ...]
  baseline: str
  scale: str

  def __post_init__(self):
    parts = self.group_key
    if (not parts or any(part not in [*GROUP_KEY_PARTS] for part in parts)
        or len(set(parts)) < len(parts)):
      raise errors.UserError(
          f'advantage.group_key={parts!r}: expected a tuple of some of '
          f'{list(GROUP_KEY_PARTS)}, each at most once.')
    errors.check_choice(
        'advantage.baseline', self.baseline, (*advantages.BASELINES, 'critic'))
    errors.check_choice('advantage.scale', self.scale, advantages.SCALES)
    if self.baseline == 'none' and self.scale != 'none':
      raise errors.UserError(
          f"advantage.baseline='none' with scale={self.scale!r}: equal returns "
          "have no deviation to divide by; use scale='none'.")

  @property
  def fields(self) -> tuple[str, ...]:
    """The fields of `GroupKey` that candidates of one baseline share."""
    return tuple(GROUP_KEY_PARTS[part] for part in self.group_key)


@dataclasses.dataclass(frozen=True)
class CriticSpec:
  """The switches of actor-critic; see `actor_critic`.

  Attributes:
    kind: 'none'; 'independent' (IAC), a critic per policy that sees the prompt
      of the acting role; 'central' (MAAC), one critic that sees the prompts of
      all roles that act or have acted in this turn.
    learning_rate: the critic shares all other optimizer settings with the
      policy.
    gae_lambda: see `returns.lambda_returns`.
    prompt_buckets: padded input lengths, ascending; () for buckets.prompt.
  """

  kind: str
  learning_rate: float
  gae_lambda: float
  prompt_buckets: tuple[int, ...]

  def __post_init__(self):
    errors.check_choice(
        'critic.kind', self.kind, ('none', 'independent', 'central'))
    errors.check_number(
        'critic.learning_rate', self.learning_rate, min_value=0)
    _check_fraction('critic.gae_lambda', self.gae_lambda)
    batching.check_sizes('critic.prompt_buckets', self.prompt_buckets)


def check_critic(
    critic: CriticSpec, rollout: RolloutSpec, advantage: AdvantageSpec) -> None:
  """Raises UserError unless the critic fits the return type and baseline."""
  has_critic = critic.kind != 'none'
  if not (has_critic == (rollout.return_type == 'bootstrapped')
          == (advantage.baseline == 'critic')):
    raise errors.UserError(
        f'critic.kind={critic.kind!r} with rollout.return_type='
        f'{rollout.return_type!r} and advantage.baseline='
        f"{advantage.baseline!r}: a critic needs return_type='bootstrapped' "
        "(with rollout.mode='joint') and baseline='critic', which need a "
        'critic; set all three or none.')
  if has_critic and rollout.cross_credit != 'mean':
    raise errors.UserError(
        f'rollout.cross_credit={rollout.cross_credit!r} with critic.kind='
        f"{critic.kind!r}: critics predict means; use cross_credit='mean'.")
