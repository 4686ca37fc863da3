"""The switches of the algorithms and their selection rules.

The config has the defaults. To add a selection rule, name it in `SELECTIONS`
and implement it in `RolloutSpec.select`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any

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
# Switches of mode 'joint' -> their values in the other modes.
_JOINT_ONLY = {
    'joint_actions': 'aligned', 'cross_credit': 'mean', 'stop_above': None}
_DISCOUNTED = ('return_to_go', 'bootstrapped', 'monte_carlo')


def _check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
  if value not in choices:
    raise errors.UserError(
        f'{name}={value!r} is not one of {list(choices)}.')


def _check_fraction(name: str, value: float) -> None:
  if not 0 <= value <= 1:
    raise errors.UserError(f'{name}={value} must be a number from 0 to 1.')


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
      selection_temperature); 'uniform', drawn; 'epsilon_greedy', 'uniform' with
      probability selection_epsilon, otherwise 'greedy'. For parallel episodes:
      'all'. For joint actions: 'all' (the paper), 'team_greedy', 'uniform' or
      'first'.
    selection_temperature: temperature of 'softmax'.
    selection_epsilon: probability of a uniform choice in 'epsilon_greedy'.
    return_type: 'immediate' is the reward (AT-GRPO). 'monte_carlo' (tree) adds
      alpha * the mean team return of `num_continuations` episodes sampled from
      the candidate's state. 'return_to_go' (parallel, joint) adds the later
      team rewards. 'episode_return' (parallel) is one return for all actions of
      a role in an episode (plain GRPO, with advantage.group_key=('env',)).
      'bootstrapped' (joint) adds the prediction of a critic, see `CriticSpec`.
    num_continuations: sampled episodes per candidate, for 'monte_carlo'.
    alpha: weight of the team reward; each local term has a separate weight.
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
    for name, choices in (
        ('mode', tuple(RETURN_TYPES)), ('selection', _all(SELECTIONS)),
        ('return_type', _all(RETURN_TYPES)),
        ('joint_actions', ('aligned', 'cross')),
        ('cross_credit', ('mean', 'sum'))):
      _check_choice(f'rollout.{name}', getattr(self, name), choices)
    for name, by_mode in (
        ('selection', SELECTIONS), ('return_type', RETURN_TYPES)):
      if getattr(self, name) not in by_mode[self.mode]:
        raise errors.UserError(
            f'rollout.{name}={getattr(self, name)!r} does not exist with '
            f'mode={self.mode!r}; use one of {list(by_mode[self.mode])}, or '
            'another mode.')
    if self.mode == 'joint' and self.selection != 'all' and (
        self.return_type == 'return_to_go'):
      raise errors.UserError(
          f"rollout.return_type='return_to_go' with selection="
          f'{self.selection!r}: a joint action that is not selected has no '
          "continuation; use selection='all' or return_type='immediate'.")
    for name, unused in _JOINT_ONLY.items():
      if self.mode != 'joint' and getattr(self, name) != unused:
        raise errors.UserError(
            f'rollout.{name}={getattr(self, name)!r} has no effect with '
            f"mode={self.mode!r}; leave {unused!r}, or use mode='joint'.")
    _check_fraction('rollout.discount', self.discount)
    if self.discount != 1 and self.return_type not in _DISCOUNTED:
      raise errors.UserError(
          f'rollout.discount={self.discount} has no effect with return_type='
          f'{self.return_type!r}; use one of {list(_DISCOUNTED)}, or '
          'discount=1.0.')
    min_size = 1 if self.return_type == 'bootstrapped' else 2
    if self.group_size < min_size:
      raise errors.UserError(
          f'rollout.group_size={self.group_size} must be at least {min_size}: '
          'an advantage compares the candidates of a group (or, with a critic, '
          'one candidate with the value of its prompt).')
    errors.check_number('rollout.alpha', self.alpha, min_value=0)
    errors.check_number(
        'rollout.selection_temperature', self.selection_temperature,
        greater_than=0,
        advice="; for the largest return use selection='greedy'")
    _check_fraction('rollout.selection_epsilon', self.selection_epsilon)
    if self.num_continuations < 1:
      raise errors.UserError(
          f'rollout.num_continuations={self.num_continuations} must be at '
          "least 1; for no continuation use return_type='immediate'.")

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


def _all(by_mode: Mapping[str, Sequence[str]]) -> list[str]:
  """The values of all modes."""
  return list(dict.fromkeys(itertools.chain(*by_mode.values())))


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
    _check_choice('advantage.baseline', self.baseline, (
        *advantages.BASELINES, 'critic'))
    _check_choice('advantage.scale', self.scale, advantages.SCALES)
    if self.baseline == 'none' and self.scale != 'none':
      raise errors.UserError(
          f"advantage.baseline='none' with scale={self.scale!r}: equal returns "
          "have no deviation to divide by; use scale='none'.")

  @property
  def fields(self) -> tuple[str, ...]:
    """The fields of `GroupKey` that candidates of one baseline share."""
    return tuple(GROUP_KEY_PARTS[part] for part in self.group_key)


CRITIC_KINDS = ('none', 'independent', 'central')
CRITIC_FORMS = ('v', 'q')


@dataclasses.dataclass(frozen=True)
class CriticSpec:
  """The switches of actor-critic; see `actor_critic`.

  Attributes:
    kind: 'none'; 'independent' (IAC), a critic per policy that sees the prompt
      of the acting role; 'central' (MAAC), one critic that sees the prompts of
      all roles that act or have acted in this turn.
    form: 'v' values a prompt; 'q' values a prompt with its candidate, or with
      the candidates of all acting roles for a central critic.
    learning_rate: the critic shares all other optimizer settings with the
      policy.
    gae_lambda: see `rl.td`.
    prompt_buckets: padded input lengths, ascending; () for buckets.prompt.
  """

  kind: str
  form: str
  learning_rate: float
  gae_lambda: float
  prompt_buckets: tuple[int, ...]

  def __post_init__(self):
    _check_choice('critic.kind', self.kind, CRITIC_KINDS)
    _check_choice('critic.form', self.form, CRITIC_FORMS)
    if self.kind == 'none':
      for name, unused in (
          ('form', 'v'), ('gae_lambda', 0), ('prompt_buckets', ())):
        if getattr(self, name) != unused:
          raise errors.UserError(
              f"critic.{name}={getattr(self, name)!r} with critic.kind='none' "
              f'has no effect; leave {unused!r}, or set critic.kind to '
              "'independent' or 'central'.")
    errors.check_number(
        'critic.learning_rate', self.learning_rate, min_value=0)
    _check_fraction('critic.gae_lambda', self.gae_lambda)
    batching.check_sizes('critic.prompt_buckets', self.prompt_buckets)
    if self.form == 'q' and self.gae_lambda:
      raise errors.UserError(
          f"critic.gae_lambda={self.gae_lambda} has no effect with "
          "critic.form='q', which bootstraps after one step; leave 0.0, or use "
          "form='v'.")


def check_critic(
    critic: CriticSpec, rollout: RolloutSpec, advantage: AdvantageSpec) -> None:
  """Raises UserError unless the critic fits the return type and baseline."""
  bootstrapped = rollout.return_type == 'bootstrapped'
  if critic.kind == 'none':
    if bootstrapped or advantage.baseline == 'critic':
      name, value = (
          ('rollout.return_type', 'bootstrapped') if bootstrapped
          else ('advantage.baseline', 'critic'))
      raise errors.UserError(
          f"{name}={value!r} with critic.kind='none' needs a critic; set "
          "critic.kind to 'independent' or 'central', or choose another value.")
    return
  if not bootstrapped:
    raise errors.UserError(
        f'critic.kind={critic.kind!r} with rollout.mode={rollout.mode!r} and '
        f'return_type={rollout.return_type!r} would never query the critic; '
        "use mode='joint' with return_type='bootstrapped', or "
        "critic.kind='none'.")
  if (critic.form == 'v') != (advantage.baseline == 'critic'):
    expected = "'critic'" if critic.form == 'v' else (
        "'mean', 'leave_one_out', 'max' or 'none'")
    raise errors.UserError(
        f'critic.form={critic.form!r} with advantage.baseline='
        f'{advantage.baseline!r}: form v gives the baseline of a prompt, form '
        f'q the return of a candidate; use baseline={expected}, or the other '
        'form.')
  if rollout.cross_credit != 'mean':
    raise errors.UserError(
        f'rollout.cross_credit={rollout.cross_credit!r} with critic.kind='
        f"{critic.kind!r}: critics predict means; use cross_credit='mean'.")
  if critic.form == 'q':
    for name, value, expected in (
        ('selection', rollout.selection, 'all'),
        ('stop_above', rollout.stop_above, None)):
      if value != expected:
        raise errors.UserError(
            f"rollout.{name}={value!r} with critic.form='q': a branch that "
            'stops early has no next joint action to bootstrap from; use '
            f"{name}={expected!r}, or form='v'.")
    if rollout.group_size < 2:
      raise errors.UserError(
          f"rollout.group_size={rollout.group_size} with critic.form='q': the "
          'baseline compares candidates, so it must be at least 2; or use '
          "form='v'.")
