"""Intervals and tests that treat both seeds and tasks as random.

A row holds outcomes y[s, t] of seed s on task t: 0, 1 or a return. Tasks of one
kind form a cluster. The variance of a row's mean is the two-way cluster
variance (Cameron, Gelbach and Miller, 2011):

  V = V(seeds) + V(clusters) - V(both), at least V(seeds) and V(clusters)

V(seeds) is estimated from the means of the seeds, V(clusters) from the sums of
the clusters, and V(both) from the residuals. V is at least (1 / clusters)^2.
The degrees of freedom are Satterthwaite's, at most clusters - 1.

  interval  Wilson's, with t instead of z, for mean (1 - mean) / V trials. It
            never leaves 0 ... 1. Near these bounds mean (1 - mean) is taken as
            at least 1 / clusters, so if everything is solved, each cluster is
            one trial.
  p         two-sided t test of the difference of two rows on the same tasks.
            V is the variance of the difference, so tasks that are hard for
            both rows cancel. As in Welch's test, each row has its own V(seeds)
            and V(both).
  Holm      p adjusted for the number of comparisons in a table (Holm, 1979)

Values that are one number per seed, such as the area under a learning curve,
are compared by an exact permutation test. At deviations of 5.3 and 0.3 points
it rejects 10 % with five seeds and 7 % with ten, and 5 % at equal deviations.

Simulations (tests/statistics_test.py has smaller ones; 200 and 1000
tasks; 3 and 3, 5 and 5, or 3 and 5 seeds) compare an algorithm with itself:

  deviations of seeds     p < 0.05        coverage of 95 % intervals
  2 and 2 points          3.3 to 4.8 %    92.8 to 95.8 %
  1 and 3 points          4.2 to 5.2 %    95.0 to 95.5 %
  5.3 and 0.3 points      4.5 to 6.6 %    93.3 to 94.5 %
  a third of the seeds    1.7 to 4.0 %    66 to 73 % with 3 seeds,
  has 23 instead of 82 %                  85 to 86 % with 5

If every third run collapses, three seeds show no collapse in 30 % of cases. No
interval of three seeds can then cover the truth, so rows with fewer than
`MIN_SEEDS` seeds are called pilots.

Alternatives are worse. Pooled deviations reject 11 % (3 and 3 seeds) and 21 %
(3 and 5) at 5.3 and 0.3 points. An exact permutation test over seeds cannot
give p < 0.1 with three seeds per row. A t interval cut off at the bounds covers
the truth in 88 % where seeds deviate by 10 points around 90 %, Wilson's in 93
to 94 %.
"""

from collections.abc import Sequence
import functools
import itertools
import math

import numpy as np
from scipy import special

MIN_SEEDS = 5  # A row with fewer is a pilot.


def interval(
    values: np.ndarray,
    clusters: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
  """95 % interval of the mean of new seeds on new tasks, within 0 and 1.

  Args:
    values: [..., seeds, tasks], from 0 to 1; at least two seeds.
    clusters: [tasks], the same number for tasks of one kind.

  Returns:
    Lower and upper bounds [...].
  """
  mean = values.mean(axis=(-2, -1))
  return _wilson(mean, *_variance([values], clusters))


def interval_of_seeds(
    values: np.ndarray, num_tasks: int) -> tuple[np.ndarray, np.ndarray]:
  """As `interval`, for one value [seeds] each, from `num_tasks` tasks."""
  variance = max(values.var(ddof=1) / len(values), num_tasks**-2)
  return _wilson(values.mean(), variance, len(values) - 1, num_tasks)


def _wilson(
    mean: np.ndarray, variance: np.ndarray, freedom: np.ndarray,
    num_clusters: int) -> tuple[np.ndarray, np.ndarray]:
  num_trials = np.maximum(mean * (1 - mean), 1 / num_clusters) / variance
  return wilson_interval(mean, num_trials, special.stdtrit(freedom, 0.975))


def wilson_interval(
    mean: np.ndarray, num_trials: np.ndarray,
    z: np.ndarray | float = 1.959964) -> tuple[np.ndarray, np.ndarray]:
  """Wilson score interval of a proportion, 95 % by default.

  The arguments broadcast; returns the lower and upper bounds in their shape.
  """
  centre = mean + z**2 / (2 * num_trials)
  spread = z * np.sqrt(
      mean * (1 - mean) / num_trials + z**2 / (4 * num_trials**2))
  scale = 1 + z**2 / num_trials
  return (
      np.maximum((centre - spread) / scale, 0),
      np.minimum((centre + spread) / scale, 1))


def p_value(
    first: np.ndarray, second: np.ndarray,
    clusters: Sequence[int]) -> np.ndarray:
  """p [...] of the difference of two rows [..., seeds, tasks] of equal tasks.

  The rows may have different numbers of seeds, at least two each.
  """
  variance, freedom, _ = _variance([first, second], clusters)
  difference = first.mean(axis=(-2, -1)) - second.mean(axis=(-2, -1))
  return 2 * special.stdtr(
      freedom, -abs(difference) / np.sqrt(variance))


def p_value_of_seeds(first: np.ndarray, second: np.ndarray) -> float:
  """p of the exact permutation test of two rows of one value [seeds] each.

  For values such as the area under a curve, which have no value for each task.
  It is the share of all divisions of the seeds into two such rows whose means
  differ at least as much. Tasks do not count as random.
  """
  seeds = np.concatenate([first, second])
  firsts = _divisions(len(first), len(seeds)) @ seeds
  differences = firsts / len(first) - (seeds.sum() - firsts) / len(second)
  observed = abs(first.mean() - second.mean())
  return float(np.mean(abs(differences) >= observed - 1e-9))


def smallest_p(num_first: int, num_second: int) -> float:
  """The smallest p that `p_value_of_seeds` can give."""
  return (1 + (num_first == num_second)) / math.comb(
      num_first + num_second, num_first)


@functools.cache
def _divisions(num_first: int, num_seeds: int) -> np.ndarray:
  """[ways, seeds], 1 for each seed in the first row."""
  chosen = np.array([*itertools.combinations(range(num_seeds), num_first)])
  divisions = np.zeros((len(chosen), num_seeds))
  np.put_along_axis(divisions, chosen, 1, axis=1)
  return divisions


def holm(p_values: Sequence[float]) -> np.ndarray:
  """p adjusted for the number of comparisons (Holm, 1979)."""
  p_values = np.asarray(p_values, float)
  order = np.argsort(p_values)
  weighted = p_values[order] * np.arange(len(order), 0, -1)
  adjusted = np.empty_like(p_values)
  adjusted[order] = np.minimum(np.maximum.accumulate(weighted), 1)
  return adjusted


def _variance(
    rows: Sequence[np.ndarray],
    clusters: Sequence[int]) -> tuple[np.ndarray, np.ndarray, int]:
  """V of a mean or difference, its degrees of freedom, number of clusters."""
  if min(row.shape[-2] for row in rows) < 2:
    raise ValueError(
        f'got {[row.shape[-2] for row in rows]} seeds, expected at least 2 per '
        'row: a variance needs two.')
  order = np.argsort(clusters)
  _, starts = np.unique(np.asarray(clusters)[order], return_index=True)
  num_clusters = len(starts)
  cluster_freedom = max(num_clusters - 1, 1)
  per_cluster = num_clusters / cluster_freedom / len(order)**2

  def over_clusters(deviations: np.ndarray) -> np.ndarray:
    """Variance [...] of the mean of [..., tasks]."""
    sums = np.add.reduceat(deviations[..., order], starts, axis=-1)
    return per_cluster * np.square(sums).sum(axis=-1)

  seeds = both = noise = task_means = 0.0
  for sign, row in zip((1, -1), rows):
    num_seeds = row.shape[-2]
    mean = row.mean(axis=(-2, -1), keepdims=True)
    seed_mean = row.mean(axis=-1, keepdims=True)
    task_mean = row.mean(axis=-2, keepdims=True)
    task_means = task_means + sign * (task_mean - mean)[..., 0, :]
    row_seeds = seed_mean[..., 0].var(axis=-1, ddof=1) / num_seeds
    row_both = over_clusters(row - seed_mean - task_mean + mean).sum(
        axis=-1) / (num_seeds - 1) / num_seeds
    seeds, both = seeds + row_seeds, both + row_both
    noise = noise + (
        row_seeds**2 + row_both**2 / cluster_freedom) / (num_seeds - 1)
  tasks = over_clusters(task_means)
  noise = noise + tasks**2 / cluster_freedom
  variance = np.maximum(seeds + tasks - both, np.maximum(seeds, tasks))
  variance = np.maximum(variance, num_clusters**-2)
  freedom = variance**2 / np.maximum(noise, variance**2 / cluster_freedom)
  return variance, freedom, num_clusters
