"""The switches of the algorithms.

`configs/common.py` has their values and defaults.
"""

from collections.abc import Callable
import dataclasses
import itertools
from typing import Any

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import rules
from atgrpo_jax.algorithms import selection as selection_lib
from atgrpo_jax.rl import advantages
from atgrpo_jax.rl import returns as returns_lib

# Mode -> return types of a candidate.
RETURN_TYPES = {
    # No 'return_to_go': only the selected candidate has later steps.
    'tree': ('immediate', 'monte_carlo'),
    'parallel': tuple(returns_lib.EPISODE_RETURNS),
    'joint': ('immediate', 'return_to_go', 'bootstrapped'),
}
# Mode -> built-in rules for the candidate, or joint action, that continues.
# All but 'all', which selects nothing, are in `selection.RULES`.
SELECTIONS = {
    'tree': ('greedy', 'team_greedy', 'softmax', 'uniform', 'epsilon_greedy'),
    'parallel': ('all',),
    'joint': ('all', 'team_greedy', 'uniform', 'first'),
}


def check_fraction(name: str, value: float) -> None:
  """Raises UserError unless a value is from 0 to 1."""
  if not (isinstance(value, (int, float)) and 0 <= value <= 1):
    raise errors.UserError(f'{name}={value}: expected a number from 0 to 1.')


@dataclasses.dataclass(frozen=True)
class RolloutSpec:
  """The switches of the rollout; docs/algorithms.md explains them.

  A reward is alpha * team reward + local reward of the acting role.
  """

  mode: str
  group_size: int
  selection: str
  selection_temperature: float
  selection_epsilon: float
  return_type: str
  num_continuations: int
  continuation_phases: int
  alpha: float
  discount: float
  joint_actions: str
  max_joint_actions: int

  def __post_init__(self):
    errors.check_choice('rollout.mode', self.mode, [*RETURN_TYPES])
    errors.check_choice(
        'rollout.joint_actions', self.joint_actions, ('aligned', 'cross'))
    # Only parallel episodes have return types, and no selections, of the user.
    prefix = f'rollout.mode={self.mode!r} with rollout.'
    if self.mode == 'parallel':
      rules.find(
          prefix + 'return_type', self.return_type, returns_lib.EPISODE_RETURNS)
      errors.check_choice(
          prefix + 'selection', self.selection, SELECTIONS[self.mode])
    else:
      errors.check_choice(
          prefix + 'return_type', self.return_type, RETURN_TYPES[self.mode])
      rules.find(
          prefix + 'selection', self.selection, selection_lib.RULES,
          SELECTIONS[self.mode])
    if self.mode == 'joint' and self.selection != 'all':
      # Unselected actions have no continuation, so no 'return_to_go'.
      errors.check_choice(
          f'rollout.selection={self.selection!r} with rollout.return_type',
          self.return_type, ('immediate', 'bootstrapped'))
    min_size = 1 if self.return_type == 'bootstrapped' else 2
    errors.check_number(
        'rollout.group_size', self.group_size, min_value=min_size,
        advice='; a single candidate has no advantage without a critic')
    check_fraction('rollout.discount', self.discount)
    check_fraction('rollout.selection_epsilon', self.selection_epsilon)
    errors.check_number(
        'rollout.alpha', self.alpha, min_value=0, less_than=1e3)
    errors.check_number(
        'rollout.selection_temperature', self.selection_temperature,
        greater_than=0,
        advice="; for the largest return use selection='greedy'")
    errors.check_number(
        'rollout.num_continuations', self.num_continuations, min_value=1)
    errors.check_number(
        'rollout.continuation_phases', self.continuation_phases, min_value=0)

  def select(
      self, returns: np.ndarray, team_returns: np.ndarray,
      rng: np.random.Generator) -> int:
    """Index of the candidate, or joint action, whose state continues.

    Args:
      returns: [J] float, returns or rewards of the acting agent or the team;
        non-finite ones are never selected.
      team_returns: [J] float, `returns` without local rewards.
      rng: for random rules.
    """
    known = np.flatnonzero(np.isfinite(returns))
    rule = rules.find(
        'rollout.selection', self.selection, selection_lib.RULES)
    index = rule(returns[known], team_returns[known], self, rng)
    if not isinstance(index, (int, np.integer)) or isinstance(index, bool) or (
        not 0 <= index < len(known)):
      raise errors.UserError(
          f'rollout.selection={self.selection!r} returned {index!r}; expected '
          f'an index from 0 to {len(known) - 1}.')
    return int(known[index])


# Part of a group key -> function (key, prompts) -> value. Candidates with equal
# values share a baseline.
#   key: the `types.GroupKey`.
#   prompts: the prompt and the role's preceding ones in the episode, the last
#     first; each is a tuple of messages (author, text).
#   value: hashable, such as text or a number.
GROUP_KEY_PARTS = {
    'env': lambda key, prompts: key.task_id,
    'agent': lambda key, prompts: key.role,
    'turn': lambda key, prompts: key.turn,
    'branch': lambda key, prompts: key.branch,
    'state': lambda key, prompts: prompts[:1],
    'history_1': lambda key, prompts: prompts[:2],
    'history_2': lambda key, prompts: prompts[:3],
}


@dataclasses.dataclass(frozen=True)
class AdvantageSpec:
  """Which candidates are compared, and how; see `rl.advantages`."""

  group_key: tuple[str, ...]
  baseline: str
  scale: str
  # (return type, group key, weight) of each term besides the first, whose
  # weight is 1.
  extra_terms: tuple[tuple[str, tuple[str, ...], float], ...]
  combination: str

  def __post_init__(self):
    if not _is_group_key(self.group_key):
      raise errors.UserError(
          f'advantage.group_key={self.group_key!r}: expected a tuple of some '
          f"of {[*GROUP_KEY_PARTS]} and 'module:function', each at most once.")
    if not all(map(_is_term, self.extra_terms)):
      raise errors.UserError(
          f'advantage.extra_terms={self.extra_terms!r}: expected (return type, '
          'group key, weight) triples with weights of at least 0, such as '
          "(('return_to_go', ('env', 'agent', 'state'), 1.0),).")
    for part in itertools.chain(*self.group_keys):
      find_rule('group_key', part)
    errors.check_choice(
        'advantage.combination', self.combination, ('sum', 'mean'))
    find_rule('baseline', self.baseline)
    find_rule('scale', self.scale)
    if self.baseline == 'none':  # Scale 'std' would be an RMS of returns.
      errors.check_choice(
          "advantage.baseline='none' with scale", self.scale, ('none',))

  @property
  def group_keys(self) -> list[tuple[str, ...]]:
    """The group key of each term."""
    return [self.group_key, *(key for _, key, _ in self.extra_terms)]


def find_rule(key: str, name: str) -> Callable[..., Any]:
  """Returns a function that `key` of the section `advantage` names."""
  built_in = {
      'baseline': advantages.BASELINES, 'scale': advantages.SCALES,
      'group_key': GROUP_KEY_PARTS}[key]
  return rules.find(
      f'advantage.{key}', name, built_in, is_array_rule=key != 'group_key')


def _is_group_key(parts: Any) -> bool:
  return (
      isinstance(parts, tuple) and 0 < len(parts)
      and all(part in [*GROUP_KEY_PARTS] or rules.is_custom(part)
              for part in parts)
      and len(set(parts)) == len(parts))


def _is_term(term: Any) -> bool:
  return (
      isinstance(term, tuple) and len(term) == 3 and _is_group_key(term[1])
      and isinstance(term[2], (int, float)) and 0 <= term[2] < 2.0**127)


def check_terms(rollout: RolloutSpec, advantage: AdvantageSpec) -> None:
  """Raises UserError unless rollout and terms of the advantage fit."""
  if not advantage.extra_terms:
    return
  if advantage.baseline == 'critic':
    raise errors.UserError(
        "advantage.extra_terms with advantage.baseline='critic': a critic "
        'predicts only one return type; use another baseline.')
  key = (
      f'rollout.mode={rollout.mode!r} with advantage.extra_terms: return_type')
  for return_type, _, _ in advantage.extra_terms:
    if rollout.mode == 'parallel':  # Other trees have no complete episodes.
      rules.find(key, return_type, returns_lib.EPISODE_RETURNS)
    else:
      errors.check_choice(key, return_type, [rollout.return_type])


def rule_names(
    rollout: RolloutSpec, advantage: AdvantageSpec) -> list[tuple[str, str]]:
  """(key of the config, name) of all rules that the user may write."""
  return [
      ('rollout.selection', rollout.selection),
      ('advantage.baseline', advantage.baseline),
      ('advantage.scale', advantage.scale),
      *(('rollout.return_type', name) for name in (
          rollout.return_type, *(term[0] for term in advantage.extra_terms))),
      *(('advantage.group_key', part)
        for part in itertools.chain(*advantage.group_keys))]


@dataclasses.dataclass(frozen=True)
class CriticSpec:
  """The switches of actor-critic; see `actor_critic`."""

  kind: str
  learning_rate: float
  gae_lambda: float
  prompt_buckets: tuple[int, ...]

  def __post_init__(self):
    errors.check_choice(
        'critic.kind', self.kind, ('none', 'independent', 'central'))
    errors.check_number(
        'critic.learning_rate', self.learning_rate, min_value=0)
    check_fraction('critic.gae_lambda', self.gae_lambda)
    errors.check_sizes(
        'critic.prompt_buckets', self.prompt_buckets, min_count=0)


def check_critic(
    critic: CriticSpec, rollout: RolloutSpec, advantage: AdvantageSpec) -> None:
  """Raises UserError unless the critic fits the return type and baseline."""
  has_critic = critic.kind != 'none'
  if not (has_critic == (rollout.return_type == 'bootstrapped')
          == (advantage.baseline == 'critic')):
    raise errors.UserError(
        f'critic.kind={critic.kind!r}, rollout.return_type='
        f'{rollout.return_type!r}, advantage.baseline={advantage.baseline!r}: '
        "use a critic, 'bootstrapped' and 'critic' together, or not at all.")
