"""Advantages: return minus baseline, optionally scaled.

AT-GRPO compares the G candidates of one prompt (arXiv 2510.11062, Algorithm
1): A_c = (R_c - mean R) / F_norm(R). Baseline ids say which candidates share a
baseline; plain GRPO on a team has one id per task.

Deviations from the authors' code:
1. Returns that differ by rounding only (`rounding_noise`) give advantages of
   exactly 0. Otherwise the scale 'std' would turn 1e-17 into 1.
2. The standard deviation divides by N, not N - 1.
3. A single candidate has advantage 0 instead of its return.

A baseline is a function of the candidates of one baseline,
(returns, weights, episodes, values) -> differences:

  returns: [N] float64.
  weights, episodes, values: [N], see `group_advantages`; `values` is None
    without a critic.
  differences: [N], return minus baseline.

A scale is a function of all valid candidates of the step,
(differences, deviations, baseline_ids, weights) -> advantages:

  differences: [M] float64, from the baseline; not all are 0.
  deviations: [M] float64, the same, but return minus mean for 'leave_one_out'.
  baseline_ids: [M] int, equal for candidates with a common baseline.
  weights: [M] float64.
  advantages: [M].
"""

from __future__ import annotations

import numpy as np

from atgrpo_jax import rules


def rounding_noise(returns: np.ndarray) -> float:
  """Returns [N] that differ by less than this are equal up to rounding.

  Rewards are sums of decimals, so 0.1 + 0.2 - 0.3 is 6e-17. The noise is 1e-6
  of the largest absolute return, and at least 1e-9.
  """
  return max(1e-9, 1e-6 * float(np.max(np.abs(returns))))


def are_largest(returns: np.ndarray) -> np.ndarray:
  """Which returns [N] are the largest up to rounding; [N] bool."""
  returns = returns.astype(np.float64)
  return returns > returns.max() - rounding_noise(returns)


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
    baseline: one of `BASELINES`, or a function of the user.
    scale: one of `SCALES`, or a function of the user.
    weights: [N] float weights from `return_weights`; None for 1.
    episodes: [N] int, equal for candidates of one episode; 'leave_one_out'
      leaves out the whole episode, because an action affects all its returns.
      None for one episode per candidate.
    values: [N] float, the critic's values of the prompts for 'critic'.
  """
  assert returns.shape == baseline_ids.shape == valid.shape
  if weights is None:
    weights = np.ones(returns.shape)
  if episodes is None:
    episodes = np.arange(len(returns))
  differences, deviations = np.zeros((2, *returns.shape))
  for baseline_id in np.unique(baseline_ids[valid]):
    compared = valid & (baseline_ids == baseline_id)
    group_returns = returns[compared].astype(np.float64)
    group = (
        group_returns, weights[compared], episodes[compared],
        None if values is None else values[compared])
    found = rules.call_array(
        'advantage.baseline', baseline, BASELINES, *group,
        shape=group_returns.shape)
    noise = rounding_noise(group_returns)
    if baseline in ('mean', 'leave_one_out'):
      if np.ptp(group_returns) < noise:
        continue
    elif np.abs(found).max() < noise:
      continue
    differences[compared] = deviations[compared] = found
    if baseline == 'leave_one_out':
      deviations[compared] = _minus_mean(*group)
  advantages = np.zeros(returns.shape, np.float32)
  if np.any(differences):
    advantages[valid] = rules.call_array(
        'advantage.scale', scale, SCALES, differences[valid],
        deviations[valid], baseline_ids[valid], weights[valid],
        shape=differences[valid].shape)
  return advantages


def _minus_mean(returns, weights, episodes, values):
  del episodes, values
  return returns - np.average(returns, weights=weights)


def _minus_mean_of_others(returns, weights, episodes, values):
  centred = _minus_mean(returns, weights, episodes, values)
  return centred - _mean_of_others(centred, weights, episodes)


def _minus_nothing(returns, weights, episodes, values):
  del weights, episodes, values
  return returns


def _minus_value(returns, weights, episodes, values):
  del weights, episodes
  return (returns - values).astype(np.float32).astype(np.float64)


BASELINES = {
    'mean': _minus_mean, 'leave_one_out': _minus_mean_of_others,
    'none': _minus_nothing, 'critic': _minus_value}


def _by_std(differences, deviations, baseline_ids, weights):
  """Divides by the root mean square over the candidates of a baseline."""
  advantages = np.zeros(differences.shape)
  for baseline_id in np.unique(baseline_ids):
    compared = baseline_ids == baseline_id
    square = np.sum(weights[compared] * deviations[compared]**2)
    deviation = np.sqrt(square / np.sum(weights[compared])) or 1.0
    advantages[compared] = differences[compared] / deviation
  return advantages


def _by_batch_std(differences, deviations, baseline_ids, weights):
  """Divides by the root mean square over all valid candidates."""
  square = 0.0
  for baseline_id in np.unique(baseline_ids):
    compared = baseline_ids == baseline_id
    square += np.sum(weights[compared] * deviations[compared]**2)
  # Differences are rounded first, as advantages are.
  return differences.astype(np.float32) / np.sqrt(square / np.sum(weights))


def _by_one(differences, deviations, baseline_ids, weights):
  del deviations, baseline_ids, weights
  return differences


SCALES = {'std': _by_std, 'batch_std': _by_batch_std, 'none': _by_one}


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
