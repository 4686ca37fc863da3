"""Advantages: return minus baseline, optionally scaled.

AT-GRPO compares the G candidates of one prompt (arXiv 2510.11062, Algorithm
1): A_c = (R_c - mean R) / F_norm(R). Baseline ids say which candidates share a
baseline; plain GRPO on a team has one id per task.

Deviations from the authors' code:
1. Returns that differ by rounding only (`rounding_noise`) count as equal.
   Otherwise the scale 'std' would turn 1e-17 into 1.
2. The standard deviation divides by N, not N - 1.
3. A single candidate has advantage 0 instead of its return.

`advantage.baseline` names a function, of `BASELINES` or 'module:function', that
subtracts a baseline from the returns of the N candidates that are compared:

  (returns [N], weights [N], episodes [N], values [N]) -> differences [N]

All are float64 except `episodes`; see `group_advantages`. `values` is None
without a critic. `advantage.scale` names a function (differences [N], returns
[N], weights [N]) -> advantages [N] of the same candidates. It is not called if
all differences are 0.
"""

from collections.abc import Callable

import numpy as np

Baseline = Callable[..., np.ndarray]
Scale = Callable[..., np.ndarray]


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
    *, baseline: Baseline, scale: Scale, weights: np.ndarray | None = None,
    episodes: np.ndarray | None = None,
    values: np.ndarray | None = None) -> np.ndarray:
  """Advantages [N] float32.

  Runs on the host, because nonzero advantages determine the batch shapes.

  Args:
    returns: [N] float32.
    baseline_ids: [N] int, equal for candidates with a common baseline.
    valid: [N] bool; invalid candidates are ignored and have advantage 0.
    baseline: such as those of `BASELINES`.
    scale: such as those of `SCALES`.
    weights: [N] float weights from `return_weights`; None for 1.
    episodes: [N] int, equal for candidates of one episode; `minus_others`
      leaves out the whole episode, because an action affects all its returns.
      None for one episode per candidate.
    values: [N] float, the critic's values of the prompts for `minus_value`.
  """
  assert returns.shape == baseline_ids.shape == valid.shape
  if weights is None:
    weights = np.ones(returns.shape)
  if episodes is None:
    episodes = np.arange(len(returns))
  advantages = np.zeros(returns.shape, np.float32)
  for baseline_id in np.unique(baseline_ids[valid]):
    compared = valid & (baseline_ids == baseline_id)
    group_returns = returns[compared].astype(np.float64)
    if np.ptp(group_returns) < rounding_noise(group_returns):
      group_returns[:] = group_returns[0]
    differences = baseline(
        group_returns, weights[compared], episodes[compared],
        None if values is None else values[compared])
    if np.any(differences):
      advantages[compared] = scale(
          differences, group_returns, weights[compared])
  return advantages


def minus_mean(returns, weights, episodes, values):
  shifted = returns - returns[0]  # So equal returns have differences of 0.
  return shifted - np.average(shifted, weights=weights)


def minus_others(returns, weights, episodes, values):
  """Leave one out: return minus the mean of the other episodes."""
  centred = minus_mean(returns, weights, episodes, values)
  return centred - _mean_of_others(centred, weights, episodes)


def minus_nothing(returns, weights, episodes, values):
  return returns


def minus_value(returns, weights, episodes, values):
  return (returns - values).astype(np.float32).astype(np.float64)


BASELINES = {
    'mean': minus_mean, 'leave_one_out': minus_others, 'none': minus_nothing,
    'critic': minus_value}


def by_std(differences, returns, weights):
  deviations = minus_mean(returns, weights, None, None)
  variance = np.average(deviations**2, weights=weights)
  return differences / (np.sqrt(variance) or 1.0)


def by_one(differences, returns, weights):
  return differences


SCALES = {'std': by_std, 'none': by_one}


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
