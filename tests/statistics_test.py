"""Intervals and tests are calibrated in simulations and sane without variance.

The simulated model is not the one that the method assumes: the success of seeds
and the difficulty of tasks are normal, and outcomes are sampled.
"""

import numpy as np
import pytest
from scipy import special
from scipy import stats

from atgrpo_jax import statistics


def _normal(mean, spread):
  """Success of seeds that deviate by `spread`."""
  return lambda rng, shape: mean + spread * rng.normal(size=shape)


def _collapsing(rng, shape):
  """Every third seed has 23 instead of 82 %."""
  return np.where(rng.random(shape) < 1 / 3, 0.23, 0.82) + (
      0.01 * rng.normal(size=shape))


def _simulate(draws, nums_seeds, clusters=None, *, row_weight=0.0, num=800,
              graded=False):
  """Outcomes [num, seeds, tasks] of rows on the same tasks.

  `draws` sample the success of the seeds of each row. `row_weight` is the
  weight of a difficulty of clusters that is specific to a row. Outcomes are
  bool, or floats from 0 to 1 if `graded`.
  """
  rng = np.random.default_rng(0)
  clusters = np.arange(200) if clusters is None else clusters
  num_clusters = clusters.max() + 1
  difficulty = rng.normal(size=(num, 1, num_clusters))
  scale = np.sqrt(2 + row_weight**2 + graded)
  rows = []
  for draw, num_seeds in zip(draws, nums_seeds):
    success = np.clip(draw(rng, (num, num_seeds, 1)), 0.001, 0.999)
    hard = difficulty + row_weight * rng.normal(size=difficulty.shape)
    luck = rng.normal(size=(num, num_seeds, len(clusters)))
    # The sum has the variance scale**2, so the mean is `success`.
    ease = scale * special.ndtri(success) - hard[..., clusters] + luck
    rows.append(special.ndtr(ease) if graded else ease > 0)
  return rows


_CLUSTERS = np.random.default_rng(0).geometric(0.01, 400)
_EVEN, _WIDE, _NARROW = (
    _normal(*x) for x in ((0.93, 0.02), (0.8, 0.053), (0.8, 0.003)))


@pytest.mark.parametrize('draws, options', [
    ((_EVEN, _EVEN), {}),
    ((_EVEN, _EVEN), {'clusters': _CLUSTERS}),
    ((_EVEN, _EVEN), {'clusters': np.arange(500) % 100, 'row_weight': 1.0}),
    ((_WIDE, _NARROW), {'clusters': np.arange(500)}),
    ((_normal(0.9, 0.03), _normal(0.9, 0.01)), {})])
@pytest.mark.parametrize('nums_seeds', [(3, 3), (5, 5), (3, 5)])
def test_equal_algorithms_are_rejected_in_5_percent(
    draws, options, nums_seeds):
  first, second = _simulate(draws, nums_seeds, **options)
  clusters = options.get('clusters', np.arange(200))
  p = statistics.p_value(first, second, clusters)
  assert 0.03 <= np.mean(p < 0.05) <= 0.08


@pytest.mark.parametrize('draws, num_tasks, num_seeds, low, high', [
    # Collapsed seeds are rejected in at most 5 %, and six points are found.
    ((_collapsing, _collapsing), 200, 3, 0.01, 0.05),
    ((_collapsing, _collapsing), 200, 5, 0.01, 0.05),
    ((_EVEN, _normal(0.87, 0.02)), 500, 3, 0.5, 1),
    ((_EVEN, _normal(0.87, 0.02)), 500, 5, 0.9, 1)])
def test_rate_of_rejections(draws, num_tasks, num_seeds, low, high):
  tasks = np.arange(num_tasks)
  p = statistics.p_value(
      *_simulate(draws, (num_seeds, num_seeds), tasks, num=600), tasks)
  assert low <= np.mean(p < 0.05) <= high


@pytest.mark.parametrize('draw, mean, options, min_coverage', [
    (_EVEN, 0.93, {}, 0.92),
    (_EVEN, 0.93, {'clusters': _CLUSTERS}, 0.92),
    (_EVEN, 0.93, {'clusters': np.arange(500), 'graded': True}, 0.92),
    (_normal(0.5, 0.02), 0.5, {}, 0.92),
    (_WIDE, 0.8, {'clusters': np.arange(500)}, 0.92),
    (_normal(0.8, 0.1), 0.8, {'graded': True}, 0.92),
    # A hundred clusters have few failures.
    (_normal(0.99, 0.005), 0.99,
     {'clusters': np.arange(500) % 100, 'row_weight': 1.0}, 0.9),
    # Without a collapsed seed, nothing tells that seeds collapse.
    (_collapsing, 0.82 * 2 / 3 + 0.23 / 3, {}, 0.6)])
def test_intervals_cover_the_truth(draw, mean, options, min_coverage):
  row, = _simulate((draw,), (3,), **options)
  low, high = statistics.interval(
      row, options.get('clusters', np.arange(200)))
  assert low.min() >= 0 and high.max() <= 1
  assert min_coverage <= np.mean((low <= mean) & (mean <= high)) <= 0.985


@pytest.mark.parametrize('num_success, num_trials, low, high', [
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3.
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0, 0.1611),
    (1, 29, 0.0061, 0.1718),
    # The mirror image.
    (20, 20, 0.8389, 1.0),
])
def test_wilson_interval(num_success, num_trials, low, high):
  found = statistics.wilson_interval(num_success / num_trials, num_trials)
  assert found == pytest.approx((low, high), abs=5e-5)
  assert 0 <= found[0] <= num_success / num_trials <= found[1] <= 1


def test_variance_by_hand():
  """Two seeds, and three tasks four times, two of the three in one cluster."""
  row = np.tile(np.array([[1, 1, 0], [1, 0, 0]], bool), 4)
  kinds = [7, 4, 4, 8, 5, 5, 9, 6, 6, 1, 0, 0]
  # Seeds: means 2/3 and 1/3. Tasks less the mean 1/2: 1/2, 0, -1/2; so the
  # sums of the 8 clusters are 1/2 or -1/2. The residuals are -1/6, 1/3, -1/6
  # and their negatives, so 1/6 for each cluster.
  seeds = (2 * (1 / 6)**2 / 1) / 2
  clusters = 8 * (8 * (1 / 2)**2 / 7) / 12**2
  both = 8 * (16 * (1 / 6)**2 / 7) / 12**2 / 2
  variance = seeds + clusters - both
  noise = seeds**2 + clusters**2 / 7 + both**2 / 7
  t = stats.t.ppf(0.975, variance**2 / noise)
  assert statistics.interval(row, kinds) == pytest.approx(
      statistics.wilson_interval(0.5, 0.25 / variance, t))
  # A constant row adds neither variance nor noise.
  none = np.zeros((2, 12), bool)
  assert statistics.p_value(row, none, kinds) == pytest.approx(
      2 * stats.t.sf(0.5 / variance**0.5, variance**2 / noise))


def test_holm_by_hand():
  # The smallest of four p counts four times, the next three times, and so on,
  # but none falls below a smaller one.
  np.testing.assert_allclose(
      statistics.holm([0.5, 0.01, 0.03, 0.02]), [0.5, 0.04, 0.06, 0.06])
  np.testing.assert_allclose(statistics.holm([0.9, 0.8]), [1, 1])
  assert not statistics.holm([]).size


@pytest.mark.parametrize('value', [0.0, 1e-18, 1.0, 1 - 1e-12])
def test_equal_outcomes_are_no_proof_of_certainty(value):
  clusters = np.arange(1000) % 50
  low, high = statistics.interval(np.full((3, 1000), value), clusters)
  assert (low, high) == pytest.approx(statistics.wilson_interval(
      value, 50, stats.t.ppf(0.975, 49)))
  assert 0 <= low <= value <= high <= 1 and high - low > 0.05


def test_equal_seeds_are_no_proof_of_certainty():
  solved = np.ones((3, 1000), bool)
  clusters = np.arange(1000) % 50
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


# One value per seed.


def test_p_of_seeds_is_that_of_a_permutation_test():
  first, second = np.array([0.5, 0.6, 0.8, 0.3]), np.array([0.2, 0.7, 0.1, 0.4])
  expected = stats.permutation_test(
      (first, second), lambda x, y: x.mean() - y.mean())
  assert statistics.p_value_of_seeds(first, second) == expected.pvalue


@pytest.mark.parametrize('num_first, num_second', [(5, 5), (5, 10)])
def test_smallest_p_is_that_of_separate_rows(num_first, num_second):
  assert statistics.smallest_p(num_first, num_second) == pytest.approx(
      statistics.p_value_of_seeds(np.ones(num_first), np.zeros(num_second)))


@pytest.mark.parametrize('value', [0.0, 0.5, 1.0])
def test_equal_values_of_seeds_are_no_proof_of_certainty(value):
  seeds = np.full(5, value)
  low, high = statistics.interval_of_seeds(seeds, 100)
  assert 0 <= low <= value <= high <= 1 and high - low > 0.01
  assert statistics.p_value_of_seeds(seeds, seeds) == 1
