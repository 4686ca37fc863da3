"""Intervals and tests: calibrated by simulation, sensible where nothing varies.

The simulation is of a model that the method does not know: seeds differ by a
normal success, tasks by a normal difficulty, and outcomes are drawn.
"""

import numpy as np
import pytest
from scipy import stats

from atgrpo_jax import measures
from paper import statistics

ALONE = {num: np.arange(num) for num in (200, 1000)}


def _sudoku_clusters():
  """1000 tasks of 509 kinds, some of which have many."""
  rng = np.random.default_rng(0)
  weights = rng.gamma(1.0, size=509)
  more = rng.choice(509, size=1000 - 509, p=weights / weights.sum())
  return np.concatenate([np.arange(509), more])


# Name -> clusters, seeds of both rows, the weight of what a seed alone finds
# hard in a cluster, and of what a row alone does.
SETTINGS = {
    '200 tasks': (ALONE[200], (3, 3), 0.0, 0.0),
    '1000 tasks': (ALONE[1000], (3, 3), 0.0, 0.0),
    '1000 tasks in 509 clusters': (_sudoku_clusters(), (3, 3), 0.5, 0.0),
    'each row fails in other clusters': (
        np.arange(1000) % 100, (3, 3), 0.0, 1.0),
    '3 and 5 seeds': (ALONE[1000], (3, 5), 0.0, 0.0),
}


def simulate(rng, means, setting, *, spreads=(0.02, 0.02)):
  """Outcomes of two rows on the same tasks.

  Args:
    rng: where all is drawn from.
    means: success of each row, in the mean over seeds and tasks.
    setting: see SETTINGS.
    spreads: standard deviation of the success of the seeds of each row.
  """
  clusters, nums_seeds, of_seed, of_row = setting
  difficulty = rng.normal(size=clusters.max() + 1)
  scale = np.sqrt(2 + of_seed**2 + of_row**2)
  rows = []
  for mean, spread, num in zip(means, spreads, nums_seeds):
    success = np.clip(mean + spread * rng.normal(size=(num, 1)), 0.001, 0.999)
    hard = (
        difficulty + of_seed * rng.normal(size=(num, len(difficulty)))
        + of_row * rng.normal(size=len(difficulty)))
    luck = rng.normal(size=(num, len(clusters)))
    # What is added has the variance scale**2, so `success` are solved.
    ease = scale * stats.norm.ppf(success)
    rows.append(ease - hard[:, clusters] + luck > 0)
  return rows


def _share_found(means, setting, num):
  rng = np.random.default_rng(0)
  return np.mean([
      statistics.p_value(*simulate(rng, means, setting), setting[0]) < 0.05
      for _ in range(num)])


@pytest.mark.parametrize('name', SETTINGS)
def test_the_same_algorithm_twice_seldom_differs(name):
  assert 0.03 <= _share_found((0.93, 0.93), SETTINGS[name], 500) <= 0.08


def test_six_points_are_mostly_found():
  assert _share_found((0.93, 0.87), SETTINGS['1000 tasks'], 300) > 0.6


@pytest.mark.parametrize('name, mean, spread, least', [
    *((name, 0.93, 0.02, 0.92) for name in SETTINGS),
    ('1000 tasks', 0.5, 0.02, 0.92),
    # A hundred clusters with few failures tell little.
    ('each row fails in other clusters', 0.99, 0.005, 0.9)])
def test_intervals_cover_the_truth(name, mean, spread, least):
  rng = np.random.default_rng(0)
  setting = SETTINGS[name]
  covered = []
  for _ in range(500):
    row, _ = simulate(rng, (mean, mean), setting, spreads=(spread, spread))
    low, high = statistics.success_interval(row, setting[0])
    covered.append(low <= mean <= high)
  assert least <= np.mean(covered) <= 0.985


def _row(*nums_solved, num_tasks=200):
  return np.arange(num_tasks) < np.array(nums_solved)[:, None]


def test_variance_by_hand():
  """Two seeds, three tasks, the last two of one kind."""
  row = np.array([[1, 1, 0], [1, 0, 0]], bool)
  # Seeds: means 2/3 and 1/3. Tasks less the mean 1/2: 1/2, 0, -1/2; so the
  # clusters' sums are 1/2 and -1/2. What is left is -1/6, 1/3, -1/6 and its
  # negative; in clusters 1/6 each.
  seeds = (2 * (1 / 6)**2 / 1) / 2
  clusters = 2 * (2 * (1 / 2)**2 / 1) / 3**2
  both = 2 * (4 * (1 / 6)**2 / 1) / 3**2 / 2
  variance = seeds + clusters - both
  freedom = variance**2 / (seeds**2 + clusters**2 + both**2)
  t = stats.t.ppf(0.975, freedom)
  assert statistics.success_interval(row, [7, 4, 4]) == pytest.approx(
      measures.wilson_interval(0.125 / variance, 0.25 / variance, t))
  # Returns have no bounds that the interval would know.
  spread = 3 * t * variance**0.5
  assert statistics.mean_interval(3.0 * row, [7, 4, 4]) == pytest.approx(
      (1.5 - spread, 1.5 + spread))
  # Against a row that solves nothing and varies in nothing, the seeds' part is
  # the mean of 2 * (1 / 6)**2 and 0, for twice as many seeds.
  none = np.zeros((2, 3), bool)
  freedom = variance**2 / (seeds**2 / 2 + clusters**2 + both**2 / 2)
  error = max(variance**0.5, 1 / 2)
  assert statistics.p_value(row, none, [7, 4, 4]) == pytest.approx(
      2 * stats.t.sf(0.5 / error, freedom))


def test_where_nothing_varies():
  """Perfect seeds are no proof of certainty, and copies are none either."""
  solved = np.ones((3, 1000), bool)
  clusters = np.arange(1000) % 50
  t = stats.t.ppf(0.975, 49)
  for row, num in ((solved, 50), (~solved, 0)):
    low, high = statistics.success_interval(row, clusters)
    assert (low, high) == pytest.approx(measures.wilson_interval(num, 50, t))
    assert high - low > 0.05
  assert statistics.p_value(solved, solved[:2], clusters) == 1
  assert statistics.p_value(solved, ~solved, clusters) < 1e-10
  one_kind = np.zeros(1000, int)
  low, high = statistics.success_interval(solved, one_kind)
  assert 0 <= low < 0.1 and high == 1
  assert statistics.p_value(solved, ~solved, one_kind) > 0.2


def test_the_pairs_are_used():
  """The same two shares: on the same tasks, and on unlike ones."""
  one, alone = _row(120, 124, 122), np.arange(200)
  other = _row(98, 102, 100)
  p_same = statistics.p_value(one, other, alone)
  p_unlike = statistics.p_value(one, other[:, ::-1], alone)
  assert p_same < 0.01 < 0.02 < p_unlike


def test_one_seed_tells_nothing():
  one, other, alone = _row(180), _row(170, 175), np.arange(200)
  with pytest.raises(ValueError, match=r'\[2, 1\] seeds: one seed'):
    statistics.p_value(other, one, alone)


# Over games.


def test_interquartile_mean_by_hand():
  games = [np.array([0.1, 0.9, 0.5]), np.array([0.2, 0.6, 0.7]),
           np.array([0.0, 1.0, 0.3])]
  # Of nine scores rliable leaves out two on either side.
  assert statistics.interquartile_mean(games) == pytest.approx(
      (0.2 + 0.3 + 0.5 + 0.6 + 0.7) / 5)
  assert statistics.mean_over_games(games) == pytest.approx(4.3 / 9)
  # A game counts once, however many seeds it has.
  assert statistics.mean_over_games(
      [np.array([0.0, 0.0, 0.0]), np.array([1.0])]) == 0.5


def test_the_bootstrap_draws_within_each_game():
  """Games that differ do not make the interval wide, seeds do."""
  sure = [np.full(3, 0.2), np.full(3, 0.9)]
  for statistic in (statistics.mean_over_games,
                    statistics.interquartile_mean):
    assert statistics.bootstrap_interval(sure, statistic) == (
        pytest.approx((0.55, 0.55)))
  # Two seeds: the means of a game are 0, 1/2, 1/2 and 1.
  low, high = statistics.bootstrap_interval(
      [np.array([0.0, 1.0])], statistics.mean_over_games)
  assert (low, high) == (0, 1)
  spread = np.array([0.90, 0.92, 0.97])
  low, high = statistics.bootstrap_interval(
      [spread, spread + 0.01], statistics.mean_over_games)
  assert 0.90 < low < 0.92 and 0.95 < high < 0.98
