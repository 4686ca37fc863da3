"""The switches of the algorithms; the config has their defaults."""

from __future__ import annotations

import dataclasses
import math

from atgrpo_jax import errors
from atgrpo_jax.rl import advantages

# What a candidate's return may be in each mode.
RETURN_TYPES = {
    'tree': ('immediate', 'monte_carlo'),
    'parallel': ('immediate', 'return_to_go', 'episode_return'),
}
SELECTIONS = (
    'acting_greedy', 'team_greedy', 'softmax', 'uniform', 'epsilon_greedy')


@dataclasses.dataclass(frozen=True)
class RolloutSpec:
  """The switches of the rollout.

  A step pays alpha * team reward + local reward of the role that acts.

  Attributes:
    mode: 'tree' is AT-GRPO (`at_grpo`); 'parallel' plays independent episodes
      (`grpo`).
    group_size: candidates of one prompt, or episodes of one task (G).
    selection: which candidate's state goes on in a tree. 'acting_greedy': the
      largest return (the paper); 'team_greedy': the largest team reward;
      'softmax': drawn with probability softmax(return /
      selection_temperature); 'uniform': drawn; 'epsilon_greedy': drawn with
      probability epsilon, else the largest return.
    selection_temperature: of 'softmax'.
    selection_epsilon: of 'epsilon_greedy'.
    return_type: what a candidate's return is. 'immediate': what its step pays
      (the paper).
      In a tree, 'monte_carlo': that, and alpha * the mean team reward of
      `num_continuations` episodes from its state, sampled by the same policies.
      Selection sees it too.
      Of parallel episodes, 'return_to_go' and 'episode_return' (plain GRPO,
      with advantage.group_key='env'), see `rl.returns`. All actions of a role
      in an episode have one episode return; roles without local rewards share
      one.
    num_continuations: of each candidate, for 'monte_carlo'.
    alpha: weight of the team reward; the local terms carry their own.
  """

  mode: str
  group_size: int
  selection: str
  selection_temperature: float
  selection_epsilon: float
  return_type: str
  num_continuations: int
  alpha: float

  def __post_init__(self):
    if self.mode == 'joint':
      raise errors.UserError(
          "mode='joint' is not implemented yet; use 'tree' or 'parallel'.")
    for name, value, known in (
        ('mode', self.mode, tuple(RETURN_TYPES)),
        ('selection', self.selection, SELECTIONS),
        ('return_type', self.return_type,
         tuple(dict.fromkeys(sum(RETURN_TYPES.values(), ()))))):
      if value not in known:
        raise errors.UserError(
            f'{name}={value!r} is not one of {list(known)}.')
    if self.return_type not in RETURN_TYPES[self.mode]:
      why = (
          'a candidate of a tree that is not chosen has no continuation, so '
          "its return is unknown; use return_type='monte_carlo', or "
          "mode='parallel'" if self.mode == 'tree' else
          'every candidate goes on in an episode of its own; use '
          "return_type='return_to_go', or mode='tree'")
      raise errors.UserError(
          f'return_type={self.return_type!r} with mode={self.mode!r}: {why}.')
    if self.mode == 'parallel' and self.selection != 'acting_greedy':
      raise errors.UserError(
          f"selection={self.selection!r} with mode='parallel': every "
          "candidate goes on, so none is selected; leave 'acting_greedy'.")
    if self.group_size < 2:
      raise errors.UserError(
          f'group_size={self.group_size}: an advantage compares the '
          'candidates of a group, so it must be at least 2.')
    if not 0 <= self.alpha < math.inf:
      raise errors.UserError(
          f'alpha={self.alpha}: the weight of the team reward must be a number '
          'of at least 0.')
    if not self.selection_temperature > 0:
      raise errors.UserError(
          f'selection_temperature={self.selection_temperature} must be above '
          "0; for the largest reward use selection='acting_greedy'.")
    if not 0 <= self.selection_epsilon <= 1:
      raise errors.UserError(
          f'selection_epsilon={self.selection_epsilon} is no probability; '
          'give a number from 0 to 1.')
    if self.num_continuations < 1:
      raise errors.UserError(
          f'num_continuations={self.num_continuations} must be at least 1; '
          "for no continuation use return_type='immediate'.")


# Parts of a group key as the config names them -> fields of `GroupKey`.
GROUP_KEY_PARTS = {'env': 'task_id', 'agent': 'role', 'turn': 'turn'}


@dataclasses.dataclass(frozen=True)
class AdvantageSpec:
  """Who is compared, and how.

  Attributes:
    group_key: which candidates share a baseline, as parts joined by '+':
      'env+agent+turn' is AT-GRPO, 'env' plain GRPO on a team.
    normaliser: see `rl.advantages`.
  """

  group_key: str
  normaliser: str

  def __post_init__(self):
    parts = self.group_key.split('+')
    unknown = set(parts) - GROUP_KEY_PARTS.keys()
    if unknown or len(set(parts)) < len(parts):
      raise errors.UserError(
          f'advantage.group_key={self.group_key!r}: expected some of '
          f'{list(GROUP_KEY_PARTS)}, joined by +, each at most once.')
    if self.normaliser not in advantages.NORMALISERS:
      raise errors.UserError(
          f'advantage.normaliser={self.normaliser!r} is not one of '
          f'{list(advantages.NORMALISERS)}.')

  @property
  def fields(self) -> tuple[str, ...]:
    """Of `GroupKey`, those that candidates of one baseline have in common."""
    return tuple(GROUP_KEY_PARTS[part] for part in self.group_key.split('+'))
