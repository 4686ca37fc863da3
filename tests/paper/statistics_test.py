"""Intervals and tests are calibrated in simulations and sane without variance.

The simulated model is not the one that the method assumes: the success of seeds
and the difficulty of tasks are normal, and outcomes are sampled.
"""

import numpy as np
import pytest
from scipy import stats

from atgrpo_jax import evaluate
from paper import statistics


def _clusters_of_different_sizes():
  """1000 tasks of 509 kinds of very different frequency, as in Sudoku."""
  rng = np.random.default_rng(0)
  weights = rng.gamma(1.0, size=509)
  more = rng.choice(509, size=1000 - 509, p=weights / weights.sum())
  return np.concatenate([np.arange(509), more])


# Name -> clusters, seeds of both rows, and the weight of the difficulty of a
# cluster that is specific to a seed and to a row.
SETTINGS = {
    '200 tasks': (np.arange(200), (3, 3), 0.0, 0.0),
    '1000 tasks': (np.arange(1000), (3, 3), 0.0, 0.0),
    '1000 tasks in 509 clusters': (
        _clusters_of_different_sizes(), (3, 3), 0.5, 0.0),
    'each row fails in other clusters': (
        np.arange(1000) % 100, (3, 3), 0.0, 1.0),
    '3 and 5 seeds': (np.arange(1000), (3, 5), 0.0, 0.0),
}


def simulate(rng, means, setting, *, spread=0.02):
  """Outcomes of two rows on the same tasks.

  `means` are the mean success of each row, `spread` the standard deviation of
  the success of their seeds, and `setting` a value of SETTINGS.
  """
  clusters, nums_seeds, seed_weight, row_weight = setting
  difficulty = rng.normal(size=clusters.max() + 1)
  scale = np.sqrt(2 + seed_weight**2 + row_weight**2)
  rows = []
  for mean, num in zip(means, nums_seeds):
    success = np.clip(mean + spread * rng.normal(size=(num, 1)), 0.001, 0.999)
    hard = (
        difficulty + seed_weight * rng.normal(size=(num, len(difficulty)))
        + row_weight * rng.normal(size=len(difficulty)))
    luck = rng.normal(size=(num, len(clusters)))
    # The sum has the variance scale**2, so a fraction `success` is solved.
    ease = scale * stats.norm.ppf(success)
    rows.append(ease - hard[:, clusters] + luck > 0)
  return rows


def _rejection_rate(means, setting, num):
  rng = np.random.default_rng(0)
  return np.mean([
      statistics.p_value(*simulate(rng, means, setting), setting[0]) < 0.05
      for _ in range(num)])


@pytest.mark.parametrize('name', SETTINGS)
def test_equal_algorithms_are_rejected_in_5_percent(name):
  assert 0.03 <= _rejection_rate((0.93, 0.93), SETTINGS[name], 500) <= 0.08


def test_six_points_are_found_in_most_comparisons():
  assert _rejection_rate((0.93, 0.87), SETTINGS['1000 tasks'], 300) > 0.6


@pytest.mark.parametrize('name, mean, spread, min_coverage', [
    *((name, 0.93, 0.02, 0.92) for name in SETTINGS),
    ('1000 tasks', 0.5, 0.02, 0.92),
    # A hundred clusters have few failures.
    ('each row fails in other clusters', 0.99, 0.005, 0.9)])
def test_intervals_cover_the_truth(name, mean, spread, min_coverage):
  rng = np.random.default_rng(0)
  setting = SETTINGS[name]
  covered = []
  for _ in range(500):
    row, _ = simulate(rng, (mean, mean), setting, spread=spread)
    low, high = statistics.success_interval(row, setting[0])
    covered.append(low <= mean <= high)
  assert min_coverage <= np.mean(covered) <= 0.985


def test_variance_by_hand():
  """Two seeds, three tasks, the last two in one cluster."""
  row = np.array([[1, 1, 0], [1, 0, 0]], bool)
  # Seeds: means 2/3 and 1/3. Tasks less the mean 1/2: 1/2, 0, -1/2; so the
  # clusters' sums are 1/2 and -1/2. The residuals are -1/6, 1/3, -1/6 and their
  # negatives, so 1/6 for each cluster.
  seeds = (2 * (1 / 6)**2 / 1) / 2
  clusters = 2 * (2 * (1 / 2)**2 / 1) / 3**2
  both = 2 * (4 * (1 / 6)**2 / 1) / 3**2 / 2
  variance = seeds + clusters - both
  freedom = variance**2 / (seeds**2 + clusters**2 + both**2)
  t = stats.t.ppf(0.975, freedom)
  assert statistics.success_interval(row, [7, 4, 4]) == pytest.approx(
      evaluate.wilson_interval(0.125 / variance, 0.25 / variance, t))
  # The interval of returns is symmetric.
  spread = 3 * t * variance**0.5
  assert statistics.mean_interval(3.0 * row, [7, 4, 4]) == pytest.approx(
      (1.5 - spread, 1.5 + spread))
  # Against a constant row, V(seeds) is the mean of 2 * (1 / 6)**2 and 0, for
  # twice as many seeds.
  none = np.zeros((2, 3), bool)
  freedom = variance**2 / (seeds**2 / 2 + clusters**2 + both**2 / 2)
  error = max(variance**0.5, 1 / 2)
  assert statistics.p_value(row, none, [7, 4, 4]) == pytest.approx(
      2 * stats.t.sf(0.5 / error, freedom))


def test_equal_seeds_are_no_proof_of_certainty():
  solved = np.ones((3, 1000), bool)
  clusters = np.arange(1000) % 50
  t = stats.t.ppf(0.975, 49)
  for row, num in ((solved, 50), (~solved, 0)):
    low, high = statistics.success_interval(row, clusters)
    assert (low, high) == pytest.approx(evaluate.wilson_interval(num, 50, t))
    assert high - low > 0.05
  assert statistics.p_value(solved, solved[:2], clusters) == 1
  assert statistics.p_value(solved, ~solved, clusters) < 1e-10
  # With one cluster nothing is certain.
  assert statistics.p_value(solved, ~solved, np.zeros(1000, int)) > 0.2


def test_comparison_is_paired_by_task():
  first, second = (
      np.arange(200) < np.array(nums)[:, None]
      for nums in ([120, 124, 122], [98, 102, 100]))
  clusters = np.arange(200)
  paired = statistics.p_value(first, second, clusters)
  unpaired = statistics.p_value(first, second[:, ::-1], clusters)
  assert paired < 0.01 < 0.02 < unpaired
  with pytest.raises(ValueError, match=r'\[3, 1\] seeds'):
    statistics.p_value(first, second[:1], clusters)


# Over games.


def test_interquartile_mean_by_hand():
  games = [np.array([0.1, 0.9, 0.5]), np.array([0.2, 0.6, 0.7]),
           np.array([0.0, 1.0, 0.3])]
  # rliable drops two of nine scores on either side.
  assert statistics.interquartile_mean(games) == pytest.approx(
      (0.2 + 0.3 + 0.5 + 0.6 + 0.7) / 5)
  assert statistics.mean_over_games(games) == pytest.approx(4.3 / 9)
  # Games have equal weight, whatever their number of seeds.
  assert statistics.mean_over_games(
      [np.array([0.0, 0.0, 0.0]), np.array([1.0])]) == 0.5


def test_bootstrap_resamples_within_each_game():
  equal = [np.full(3, 0.2), np.full(3, 0.9)]
  assert statistics.bootstrap_interval(
      equal, statistics.interquartile_mean) == pytest.approx((0.55, 0.55))
  # Two seeds: the means of a game are 0, 1/2, 1/2 and 1.
  low, high = statistics.bootstrap_interval(
      [np.array([0.0, 1.0])], statistics.mean_over_games)
  assert (low, high) == (0, 1)
