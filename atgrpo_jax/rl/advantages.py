"""Advantages: return minus baseline, perhaps scaled.

AT-GRPO compares the G candidates of one prompt (arXiv 2510.11062, Algorithm
1): A_c = (R_c - mean R) / F_norm(R). Which candidates share a baseline is
given by a baseline id, so that plain GRPO on a team (one id per task) is the
same code.

Deviations from the authors' code: a group whose returns are all equal has the
advantage 0 exactly, decided by max == min (rounding alone can invent an
advantage near 1 otherwise); the standard deviation is the population's; a
single candidate has the advantage 0 instead of its raw return.
"""

from __future__ import annotations

import numpy as np

BASELINES = ('mean', 'leave_one_out', 'max', 'none')
SCALES = ('std', 'none')


def group_advantages(
    returns: np.ndarray, baseline_ids: np.ndarray, valid: np.ndarray,
    *, baseline: str, scale: str, weights: np.ndarray | None = None,
    episodes: np.ndarray | None = None) -> np.ndarray:
  """Advantages [N] float32.

  Runs on the host: which groups carry a signal decides the shape of the batch.

  Args:
    returns: [N] float32.
    baseline_ids: [N] int, equal for candidates that are compared.
    valid: [N] bool; the others neither count nor get an advantage.
    baseline: 'mean' of the group (GRPO); 'leave_one_out', the mean of the
      others (RLOO, arXiv 2402.14740); its 'max' (no advantage is above 0); or
      'none' (REINFORCE).
    scale: 'std' divides by the group's standard deviation (GRPO), 'none' does
      not (Dr. GRPO, arXiv 2503.20783; MAGRPO).
    weights: [N] float, how much each counts in the mean and the deviation, as
      from `return_weights`; None for 1.
    episodes: [N] int, equal for candidates of one episode. The others of
      'leave_one_out' are those of other episodes, since an action has a part in
      all returns of its own. None for an episode each.
  """
  if not returns.shape == baseline_ids.shape == valid.shape:
    raise ValueError(
        f'returns {returns.shape}, baseline_ids {baseline_ids.shape} and valid '
        f'{valid.shape} differ in shape.')
  if weights is None:
    weights = np.ones(returns.shape)
  if episodes is None:
    episodes = np.arange(len(returns))
  advantages = np.zeros(returns.shape, np.float32)
  for baseline_id in np.unique(baseline_ids[valid]):
    compared = valid & (baseline_ids == baseline_id)
    group = returns[compared].astype(np.float64)
    if baseline == 'none':
      advantages[compared] = group
    if baseline == 'none' or group.max() == group.min():
      continue
    counts = weights[compared]
    centred = group - np.average(group, weights=counts)
    deviation = {
        'std': lambda: np.sqrt(np.average(centred**2, weights=counts)),
        'none': lambda: 1.0}[scale]()
    centred -= {
        'mean': lambda: 0.0,
        'leave_one_out': lambda: _mean_of_others(
            centred, counts, episodes[compared]),
        'max': lambda: centred.max()}[baseline]()
    advantages[compared] = centred / deviation
  return advantages


def critic_advantages(
    returns: np.ndarray, values: np.ndarray, baseline_ids: np.ndarray,
    valid: np.ndarray, *, scale: str) -> np.ndarray:
  """Returns less the values of their prompts, [N] float32.

  Args:
    returns: [N] float32.
    values: [N] float, what a critic says of each prompt.
    baseline_ids: [N] int, equal for candidates that are scaled alike.
    valid: [N] bool; the others neither count nor get an advantage.
    scale: 'std' divides by the deviation from the values, which is the root
      mean square of return minus value; 'none' does not. No mean is subtracted.
  """
  advantages = np.zeros(returns.shape, np.float32)
  advantages[valid] = (returns.astype(np.float64) - values)[valid]
  if scale == 'std':
    for baseline_id in np.unique(baseline_ids[valid]):
      compared = valid & (baseline_ids == baseline_id)
      deviation = np.sqrt(np.mean(np.square(
          advantages[compared], dtype=np.float64)))
      if deviation > 0:
        advantages[compared] /= deviation
  return advantages


def _mean_of_others(
    returns: np.ndarray, weights: np.ndarray,
    episodes: np.ndarray) -> np.ndarray:
  """For each [N], the mean of other episodes; its own return without any."""
  _, owners = np.unique(episodes, return_inverse=True)

  def others(x):
    return x.sum() - np.bincount(owners, x)[owners]

  alone = owners.max() == 0
  return returns if alone else others(weights * returns) / others(weights)


def return_weights(baseline_ids: np.ndarray, returns: np.ndarray) -> np.ndarray:
  """Weights [N] float64 by which a return counts once in each group.

  For returns that several actions share: without them the baseline would be
  that of the longer episodes.

  Args:
    baseline_ids: [N] int, equal for candidates that are compared.
    returns: [N] int, equal for candidates that share a return.
  """
  _, owners, counts = np.unique(
      np.stack([baseline_ids, returns]), axis=1, return_inverse=True,
      return_counts=True)
  return 1 / counts[owners.ravel()]
