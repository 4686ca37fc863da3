"""Advantages from rewards: reward minus baseline, perhaps scaled.

AT-GRPO compares the G candidates of one prompt (arXiv 2510.11062, Algorithm
1): A_c = (R_c - mean R) / F_norm(R). Which candidates share a baseline is
given by a group id, so that plain GRPO on a team (one id per task) is the same
code.

Deviations from the authors' code: a group whose rewards are all equal has the
advantage 0 exactly, decided by max == min (rounding alone can invent an
advantage near 1 otherwise); the standard deviation is the population's; a
single candidate has the advantage 0 instead of its raw reward.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types

NORMALISERS = ('std', 'none', 'leave_one_out')

# Parts of a group key as the config names them -> fields of `GroupKey`.
GROUP_KEY_PARTS = {'env': 'task_id', 'agent': 'role', 'turn': 'turn'}


def group_advantages(
    rewards: np.ndarray, group_ids: np.ndarray, valid: np.ndarray,
    *, normaliser: str, weights: np.ndarray | None = None,
    episodes: np.ndarray | None = None) -> np.ndarray:
  """Advantages [N] float32.

  Runs on the host: which groups carry a signal decides the shape of the batch.

  Args:
    rewards: [N] float32.
    group_ids: [N] int, equal for candidates that are compared.
    valid: [N] bool; the others neither count nor get an advantage.
    normaliser: 'std' divides by the group's standard deviation (GRPO), 'none'
      does not (Dr. GRPO, arXiv 2503.20783), 'leave_one_out' takes the mean of
      the others as the baseline (RLOO, arXiv 2402.14740).
    weights: [N] float, how much each counts in the mean and the deviation, as
      from `return_weights`; None for 1.
    episodes: [N] int, equal for candidates of one episode. The others of
      'leave_one_out' are those of other episodes, since an action has a part in
      all returns of its own. None for an episode each.
  """
  if not rewards.shape == group_ids.shape == valid.shape:
    raise ValueError(
        f'rewards {rewards.shape}, group_ids {group_ids.shape} and valid '
        f'{valid.shape} differ in shape.')
  if normaliser not in NORMALISERS:
    raise ValueError(
        f'normaliser={normaliser!r} is not one of {list(NORMALISERS)}.')
  if weights is None:
    weights = np.ones(rewards.shape)
  if episodes is None:
    episodes = np.arange(len(rewards))
  advantages = np.zeros(rewards.shape, np.float32)
  for group_id in np.unique(group_ids[valid]):
    members = valid & (group_ids == group_id)
    group = rewards[members].astype(np.float64)
    if group.max() == group.min():
      continue
    counts = weights[members]
    centred = group - np.average(group, weights=counts)
    if normaliser == 'std':
      centred /= np.sqrt(np.average(centred**2, weights=counts))
    elif normaliser == 'leave_one_out':
      centred -= _mean_of_others(centred, counts, episodes[members])
    elif normaliser != 'none':
      raise NotImplementedError(f'No rule for normaliser={normaliser!r}.')
    advantages[members] = centred
  return advantages


def _mean_of_others(
    rewards: np.ndarray, weights: np.ndarray,
    episodes: np.ndarray) -> np.ndarray:
  """For each [N], the mean of other episodes; its own reward without any."""
  _, owners = np.unique(episodes, return_inverse=True)

  def others(x):
    return x.sum() - np.bincount(owners, x)[owners]

  alone = owners.max() == 0
  return rewards if alone else others(weights * rewards) / others(weights)


def return_weights(group_ids: np.ndarray, returns: np.ndarray) -> np.ndarray:
  """Weights [N] float64 by which a return counts once in each group.

  For returns that several actions share: without them the baseline would be
  that of the longer episodes.

  Args:
    group_ids: [N] int, equal for candidates that are compared.
    returns: [N] int, equal for candidates that share a return.
  """
  _, owners, counts = np.unique(
      np.stack([group_ids, returns]), axis=1, return_inverse=True,
      return_counts=True)
  return 1 / counts[owners.ravel()]


def of_groups(
    groups: Sequence[types.Group], *, group_key: str, normaliser: str,
    of_episodes: bool) -> list[np.ndarray]:
  """Advantages [G] of each group of a rollout.

  Args:
    groups: of one step.
    group_key: who is compared, see `group_ids`.
    normaliser: see `group_advantages`.
    of_episodes: whether all actions of a role in an episode share its return,
      which then counts once in each baseline: with 'env' an episode counts once
      for each of its roles, with 'env+agent' once.
  """
  sizes = [group.size for group in groups]
  ids = np.repeat(group_ids([group.key for group in groups], group_key), sizes)
  weights = episodes = None
  if of_episodes:
    owners = [
        (group.key.task_id, group.key.branch + i, group.key.role)
        for group in groups for i in range(group.size)]
    weights = return_weights(ids, _numbers(owners))
    episodes = _numbers([owner[:2] for owner in owners])
  flat = group_advantages(
      np.concatenate([group.rewards for group in groups]), ids,
      np.concatenate([group.valid for group in groups]),
      normaliser=normaliser, weights=weights, episodes=episodes)
  return np.split(flat, np.cumsum(sizes)[:-1])


def group_ids(keys: Sequence[types.GroupKey], group_key: str) -> np.ndarray:
  """For each key, the number [N] int of those it is compared with.

  `group_key` names parts of the key, joined by '+': 'env+agent+turn' is
  AT-GRPO, 'env' plain GRPO on a team.

  Without 'agent' the returns of all roles have one baseline, so a role that is
  paid more than the others has the larger advantages.

  With episode returns some keys give the same advantages. Those with and
  without 'agent': for a single agent, and without local rewards, where all
  roles share one return (of an episode that ends inside a turn, not all have
  acted, and the keys differ). Those with and without 'turn': where all episodes
  of a task end in the same turn and with the same role.
  """
  parts = group_key.split('+')
  unknown = set(parts) - GROUP_KEY_PARTS.keys()
  if unknown or len(set(parts)) < len(parts):
    raise errors.UserError(
        f'advantage.group_key={group_key!r}: expected some of '
        f'{list(GROUP_KEY_PARTS)}, joined by +, each at most once.')
  return _numbers([
      tuple(getattr(key, GROUP_KEY_PARTS[part]) for part in parts)
      for key in keys])


def _numbers(items: Sequence[Hashable]) -> np.ndarray:
  """[N] int, equal for equal items; from 0, in the order they come."""
  numbers = {}
  return np.array([numbers.setdefault(item, len(numbers)) for item in items])
