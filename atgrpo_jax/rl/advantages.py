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

from collections.abc import Sequence

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types

NORMALISERS = ('std', 'none', 'leave_one_out')

# Parts of a group key as the config names them -> fields of `GroupKey`.
GROUP_KEY_PARTS = {'env': 'task_id', 'agent': 'role', 'turn': 'turn'}


def group_advantages(
    rewards: np.ndarray, group_ids: np.ndarray, valid: np.ndarray,
    *, normaliser: str, weights: np.ndarray | None = None) -> np.ndarray:
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
      from `episode_weights`; None for 1.
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
      centred *= counts.sum() / (counts.sum() - 1)
    advantages[members] = centred
  return advantages


def episode_weights(
    group_ids: np.ndarray, episodes: np.ndarray) -> np.ndarray:
  """Weights [N] float64 by which an episode counts once in each group.

  For rewards that all actions of an episode share: without them the baseline
  would be that of the longer episodes.

  Args:
    group_ids: [N] int, equal for candidates that are compared.
    episodes: [N] int, equal for candidates of one episode.
  """
  _, owners, counts = np.unique(
      np.stack([group_ids, episodes]), axis=1, return_inverse=True,
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
    of_episodes: whether all actions of an episode have one reward, so that it
      counts once.
  """
  sizes = [group.size for group in groups]
  ids = np.repeat(group_ids([group.key for group in groups], group_key), sizes)
  weights = None
  if of_episodes:
    numbers = {}
    weights = episode_weights(ids, np.array([
        numbers.setdefault(
            (group.key.task_id, group.key.branch + i), len(numbers))
        for group in groups for i in range(group.size)]))
  flat = group_advantages(
      np.concatenate([group.rewards for group in groups]), ids,
      np.concatenate([group.valid for group in groups]),
      normaliser=normaliser, weights=weights)
  return np.split(flat, np.cumsum(sizes)[:-1])


def group_ids(keys: Sequence[types.GroupKey], group_key: str) -> np.ndarray:
  """For each key, the number [N] int of those it is compared with.

  `group_key` names parts of the key, joined by '+': 'env+agent+turn' is
  AT-GRPO, 'env' plain GRPO on a team.
  """
  parts = group_key.split('+')
  unknown = set(parts) - GROUP_KEY_PARTS.keys()
  if unknown or len(set(parts)) < len(parts):
    raise errors.UserError(
        f'advantage.group_key={group_key!r}: expected some of '
        f'{list(GROUP_KEY_PARTS)}, joined by +, each at most once.')
  numbers = {}
  return np.array([
      numbers.setdefault(
          tuple(getattr(key, GROUP_KEY_PARTS[part]) for part in parts),
          len(numbers))
      for key in keys])
