"""Intervals and tests of success that count seeds and tasks as drawn.

A row holds outcomes y[s, t], 0 or 1 or a return, of seed s on task t. Tasks of
one kind are one cluster. Seeds, clusters, and what a seed does in a cluster are
each taken as drawn at random, so the variance of a row's mean is that of
two-way clusters (Cameron, Gelbach and Miller, 2011):

  V = V(seeds) + V(clusters) - V(both), and at least V(seeds) and V(clusters)

V(seeds) is estimated from the seeds' means, V(clusters) from the clusters'
sums, V(both) from what seeds and clusters leave unexplained; V(seeds) and
V(clusters) each contain it once. The degrees of freedom are Satterthwaite's,
V^2 / (sum over the three of V(i)^2 / f(i)), with f(seeds) = seeds - 1,
f(clusters) = clusters - 1 and f(both) their product.

  Interval: Wilson's, with t instead of z, of mean (1 - mean) / V trials. If
  nothing varies, as when all is solved: of one trial for each cluster. That of
  returns is mean +- t sqrt(V).

  p: two-sided t test of the difference of two rows on the same tasks. V is that
  of the difference, so what is hard for both rows cancels. V(seeds) and V(both)
  are pooled: the seeds of both rows are assumed to vary alike, since three
  seeds say little of a variance; f(seeds) is the sum of both rows'. V is at
  least (1 / clusters)^2.

How often p < 0.05 when an algorithm is compared with itself (success 93 %,
standard deviation between seeds 2 points; the simulation and its settings are
in tests/paper/statistics_test.py; 1500 comparisons of this test, 1000 of each
other method):

                                     this   naive   seeds    sign
                                     test  bootstr.  only    flips
  200 tasks                         3.7 %   3.6 %  18.4 %  19.2 %
  1000 tasks                        4.8    11.6    19.6    50.0
  1000 tasks in 509 clusters        5.9    11.5    21.5    51.5
  each row fails in other clusters  5.3     8.4    33.3    52.8
  1000 tasks, 3 and 5 seeds         5.5     8.5    15.2    51.4

The naive hierarchical bootstrap draws seeds and clusters anew; three seeds give
it too little variance, few tasks too much, since it counts the luck of an
answer twice. "Seeds only" is a bootstrap that draws no clusters. Sign flips of
the tasks' differences take the seeds as they are. Welch's t test of the seeds'
means, which takes the tasks as they are, finds 3.2 to 5.1 %, but 9.1 % in the
fourth line.
The intervals cover the truth in 93.1 to 95.7 %, and in 92.6 to 97.0 % where the
success is 99 % and varies by half a point. With 2 seeds they are too narrow:
89.7 to 92.6 %.

A true difference of 6 points is found in 52 % (200 tasks) and 72 % (1000) with
3 seeds, and in 89 % with 3 and 5. Where the seeds of one row vary by 3 points
and those of the other by 1, p < 0.05 in 6.1 % with 3 seeds each, but in 12.1 %
where the former has 3 and the latter 5: give rows equally many seeds.

The mean and the interquartile mean over games are those of rliable (Agarwal et
al., 2021, arXiv 2108.13264), of the scores of all seeds on all games. Their
interval is the percentiles of a bootstrap that draws seeds within each game and
leaves the tasks as they are. It is too narrow for few seeds: for the mean over
three games it covers the truth in 74, 85, 89 and 93 % with 2, 3, 5 and 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math

import numpy as np
from scipy import stats

from atgrpo_jax import measures

_DRAWS = 10_000


def success_interval(
    successes: np.ndarray, clusters: Sequence[int]) -> tuple[float, float]:
  """95 % interval of the success of new seeds on new tasks.

  Args:
    successes: [seeds, tasks] bool; at least two seeds.
    clusters: [tasks], the same number for tasks of one kind.
  """
  mean = float(successes.mean())
  variance, freedom, num_clusters = _variance([successes], clusters)
  num_trials = mean * (1 - mean) / variance if variance else num_clusters
  return measures.wilson_interval(
      mean * num_trials, num_trials, z=stats.t.ppf(0.975, freedom))


def mean_interval(
    values: np.ndarray, clusters: Sequence[int]) -> tuple[float, float]:
  """95 % interval of the mean of new seeds on new tasks.

  Args:
    values: [seeds, tasks] float; at least two seeds.
    clusters: [tasks], the same number for tasks of one kind.
  """
  variance, freedom, _ = _variance([values], clusters)
  spread = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
  return float(values.mean() - spread), float(values.mean() + spread)


def p_value(
    first: np.ndarray, second: np.ndarray, clusters: Sequence[int]) -> float:
  """p that two rows differ in their mean, on the same tasks.

  Args:
    first: [seeds, tasks] bool or float; at least two seeds.
    second: the same; its seeds may be more or fewer.
    clusters: [tasks], the same number for tasks of one kind.
  """
  variance, freedom, num_clusters = _variance([first, second], clusters)
  error = math.sqrt(max(variance, num_clusters**-2))
  difference = abs(first.mean() - second.mean())
  return float(2 * stats.t.sf(difference / error, freedom))


def _variance(
    rows: Sequence[np.ndarray],
    clusters: Sequence[int]) -> tuple[float, float, int]:
  """V of a row's mean or of two rows' difference, its freedom, clusters."""
  if min(map(len, rows)) < 2:
    raise ValueError(
        f'{[len(row) for row in rows]} seeds: one seed does not tell how much '
        'seeds vary; give at least two of each row.')
  index = np.unique(clusters, return_inverse=True)[1]
  num_clusters = int(index.max()) + 1

  def squares(deviations: np.ndarray) -> float:
    """[..., tasks], summed over the tasks of a cluster, then squared."""
    return sum(
        float(np.square(np.bincount(index, line)).sum())
        for line in np.atleast_2d(deviations))

  per_seed = sum(1 / len(row) for row in rows)
  of_seeds = sum(len(row) - 1 for row in rows)
  of_clusters = max(num_clusters - 1, 1)
  per_cluster = num_clusters / of_clusters / len(index)**2

  seeds = clustered = both = 0.0
  task_means = np.zeros(len(index))
  for sign, row in zip((1, -1), rows):
    seed_mean = row.mean(axis=1, keepdims=True)
    task_mean = row.mean(axis=0)
    task_means += sign * (task_mean - row.mean())
    seeds += float(np.square(seed_mean - row.mean()).sum())
    both += squares(row - seed_mean - task_mean + row.mean())
  seeds *= per_seed / of_seeds
  both *= per_seed / of_seeds * per_cluster
  clustered = per_cluster * squares(task_means)

  variance = max(seeds + clustered - both, seeds, clustered)
  noise = (
      seeds**2 / of_seeds + clustered**2 / of_clusters
      + both**2 / (of_seeds * of_clusters))
  freedom = variance**2 / noise if noise else of_clusters
  return variance, freedom, num_clusters


def mean_over_games(games: Sequence[np.ndarray]) -> np.ndarray:
  """Of scores [..., seeds] of each game."""
  return np.mean([scores.mean(axis=-1) for scores in games], axis=0)


def interquartile_mean(games: Sequence[np.ndarray]) -> np.ndarray:
  """Of scores [..., seeds] of each game, all together."""
  return stats.trim_mean(np.concatenate(games, axis=-1), 0.25, axis=-1)


def bootstrap_interval(
    games: Sequence[np.ndarray],
    statistic: Callable[[Sequence[np.ndarray]], np.ndarray],
) -> tuple[float, float]:
  """95 % interval of a statistic of scores [seeds] of each game."""
  rng = np.random.default_rng(0)
  drawn = [
      scores[rng.integers(len(scores), size=(_DRAWS, len(scores)))]
      for scores in games]
  low, high = np.percentile(statistic(drawn), (2.5, 97.5))
  return float(low), float(high)
