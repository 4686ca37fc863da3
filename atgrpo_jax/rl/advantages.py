"""Advantages: return minus baseline, optionally scaled.

AT-GRPO compares the G candidates of one prompt (arXiv 2510.11062, Algorithm
1): A_c = (R_c - mean R) / F_norm(R). Baseline ids say which candidates share a
baseline; plain GRPO on a team has one id per task.

Deviations from the authors' code:
1. Returns that differ by rounding only (`rounding_noise`) give advantages of
   exactly 0. Otherwise the scale 'std' would turn 1e-17 into 1.
2. The standard deviation divides by N, not N - 1.
3. A single candidate has advantage 0 instead of its return.
"""

from __future__ import annotations

import chex
import numpy as np

BASELINES = ('mean', 'leave_one_out', 'none', 'critic')
SCALES = ('std', 'batch_std', 'none')


def rounding_noise(returns: np.ndarray) -> float:
  """Returns [N] that differ by less than this are equal up to rounding.

  Rewards are sums of decimals, so 0.1 + 0.2 - 0.3 is 6e-17. The noise is 1e-6
  of the largest absolute return, and at least 1e-9.
  """
  return max(1e-9, 1e-6 * float(np.max(np.abs(returns))))


def group_advantages(
    returns: np.ndarray, baseline_ids: np.ndarray, valid: np.ndarray,
    *, baseline: str, scale: str, weights: np.ndarray | None = None,
    episodes: np.ndarray | None = None,
    values: np.ndarray | None = None) -> np.ndarray:
  """Advantages [N] float32.

  Runs on the host, because nonzero advantages determine the batch shapes.

  Args:
    returns: [N] float32.
    baseline_ids: [N] int, equal for candidates with a common baseline.
    valid: [N] bool; invalid candidates are ignored and have advantage 0.
    baseline: one of `BASELINES`; docs/algorithms.md defines them.
    scale: 'std', the root mean square of return minus mean, or minus the
      critic's value, over the candidates of a baseline; 'batch_std', the same
      over all valid candidates; or 'none'.
    weights: [N] float weights from `return_weights`; None for 1.
    episodes: [N] int, equal for candidates of one episode; 'leave_one_out'
      leaves out the whole episode, because an action affects all its returns.
      None for one episode per candidate.
    values: [N] float, the critic's values of the prompts for 'critic'.
  """
  chex.assert_equal_shape([returns, baseline_ids, valid])
  if weights is None:
    weights = np.ones(returns.shape)
  if episodes is None:
    episodes = np.arange(len(returns))
  advantages = np.zeros(returns.shape, np.float32)
  batch_square = 0.0
  for baseline_id in np.unique(baseline_ids[valid]):
    compared = valid & (baseline_ids == baseline_id)
    centred = returns[compared].astype(np.float64)
    group_weights = weights[compared]
    noise = rounding_noise(centred)
    if baseline == 'critic':
      centred = (centred - values[compared]).astype(np.float32)
      centred = centred.astype(np.float64)
    if baseline in ('mean', 'leave_one_out'):
      if np.ptp(centred) < noise:
        continue
      centred -= np.average(centred, weights=group_weights)
    elif np.abs(centred).max() < noise:
      continue
    deviation, square = 1.0, np.sum(group_weights * centred**2)
    batch_square += square
    if scale == 'std':
      deviation = np.sqrt(square / np.sum(group_weights)) or 1.0
    if baseline == 'leave_one_out':
      centred -= _mean_of_others(centred, group_weights, episodes[compared])
    advantages[compared] = centred / deviation
  if scale == 'batch_std' and batch_square:
    advantages /= np.sqrt(batch_square / np.sum(weights[valid]))
  return advantages


def _mean_of_others(
    returns: np.ndarray, weights: np.ndarray,
    episodes: np.ndarray) -> np.ndarray:
  """Means [N] over other episodes; the return itself if there are none."""
  _, indices = np.unique(episodes, return_inverse=True)

  def sum_of_others(x):
    return x.sum() - np.bincount(indices, x)[indices]

  if indices.max() == 0:
    return returns
  return sum_of_others(weights * returns) / sum_of_others(weights)


def return_weights(baseline_ids: np.ndarray, returns: np.ndarray) -> np.ndarray:
  """Weights [N] float64 with which each return counts once per baseline.

  Otherwise, long episodes whose actions share a return would dominate it.
  `returns` is [N] int, equal for candidates that share a return.
  """
  _, indices, counts = np.unique(
      np.stack([baseline_ids, returns]), axis=1, return_inverse=True,
      return_counts=True)
  return 1 / counts[indices.ravel()]
