"""Advantages: hand-worked tables and invariances."""

import numpy as np
import pytest

from atgrpo_jax.rl import advantages

# Two groups of three, interleaved. Group 7: 1, 2, 6; group 3: 0, 0, 3.
REWARDS = np.array([1, 0, 2, 0, 6, 3], np.float32)
IDS = np.array([7, 3, 7, 3, 7, 3])

# (baseline, scale).
every_variant = pytest.mark.parametrize('variant', [
    (baseline, scale) for baseline in ('mean', 'leave_one_out')
    for scale in advantages.SCALES])


def _advantages(rewards, ids, valid=None, variant=('mean', 'std')):
  rewards, ids = np.array(rewards, np.float32), np.array(ids)
  valid = np.ones(rewards.shape, bool) if valid is None else np.array(valid)
  baseline, scale = variant
  return advantages.group_advantages(
      rewards, ids, valid, baseline=advantages.BASELINES[baseline],
      scale=advantages.SCALES[scale])


@pytest.mark.parametrize('variant, first, second, factor', [
    # Means 3 and 1: residuals -2, -1, 3 and -1, -1, 2.
    (('mean', 'none'), [-2, -1, 3], [-1, -1, 2], 4),
    # Variances (4 + 1 + 9) / 3 = 14 / 3 and (1 + 1 + 4) / 3 = 2.
    (('mean', 'std'), [-0.9258201, -0.4629100, 1.3887301],
     [-0.7071068, -0.7071068, 1.4142136], 1),
    # 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2;
    # 0 - (0 + 3) / 2 twice, 3 - (0 + 0) / 2.
    (('leave_one_out', 'none'), [-3, -1.5, 4.5], [-1.5, -1.5, 3], 4),
])
def test_table(variant, first, second, factor):
  found = _advantages(REWARDS, IDS, variant=variant)
  assert found.dtype == np.float32
  np.testing.assert_allclose(found[IDS == 7], first, rtol=1e-6)
  np.testing.assert_allclose(found[IDS == 3], second, rtol=1e-6)
  # Scales are invariant to a factor, all variants to a shift of a group.
  np.testing.assert_allclose(
      _advantages(4 * REWARDS, IDS, variant=variant), factor * found,
      rtol=1e-6)
  np.testing.assert_array_equal(
      _advantages(
          REWARDS + np.where(IDS == 7, 64, -8), IDS, variant=variant),
      found)
  order = np.array([3, 0, 5, 4, 1, 2])
  np.testing.assert_allclose(
      _advantages(REWARDS[order], IDS[order], variant=variant),
      found[order], rtol=1e-6)


# Returns that are equal up to rounding.
NOISE = [
    [0.7] * 8, [2.7] * 32,
    [0.0, 0.1 + 0.2 - 0.3], [0.0, -1.4e-17], [0.0, -0.0], [1e-18, 2e-18],
    [-1e-18, 1e-18, 0.0], [0.0, 9e-10], [1.0, 1 + 1e-7], [-1.0, -1 - 9e-7],
    [0.7, 0.1 * 7], [0.3, 0.1 + 0.2, 0.6 - 0.3], [1e6, 1e6 + 0.5],
    [1e30, 1e30 * (1 + 3e-7)], [0.15 - 0.08 - 0.07, 0.15 - 0.07 - 0.08],
    [2e-3, 2e-3 + 1e-9], [0.1 * 3 - 0.3, 0.0, 0.3 - 0.1 * 3]]
# Returns that differ, as little as possible.
SIGNALS = [
    [1e6, 1e6 - 1], [0.0, 1e-8], [1.0, 1 + 2e-6], [0.0, 1e-6], [2e-3, 2.01e-3],
    [-1e30, 1e30], [1e-7, 2e-7], [0.5, 0.5, 0.500002]]


@every_variant
def test_rounding_is_no_signal(variant):
  for returns in NOISE:
    found = _advantages(returns, [0] * len(returns), variant=variant)
    np.testing.assert_array_equal(found, 0, err_msg=str(returns))
    # Neither in a larger step, nor beside an invalid candidate.
    found = _advantages(
        [*returns, 0.0, 1.0, np.nan], [0] * len(returns) + [1, 1, 0],
        [True] * (len(returns) + 2) + [False], variant)
    np.testing.assert_array_equal(found[:len(returns)], 0)
    assert found[-3] == -found[-2] != 0
  for returns in SIGNALS:
    found = _advantages(returns, [0] * len(returns), variant=variant)
    assert np.all(found != 0), returns


def test_rounding_beside_a_critic_is_no_signal():
  for returns in NOISE:
    found = advantages.group_advantages(
        np.array(returns, np.float32), np.zeros(len(returns), int),
        np.ones(len(returns), bool), baseline=advantages.minus_value,
        scale=advantages.by_std,
        values=np.full(len(returns), np.float32(returns[0])))
    np.testing.assert_array_equal(found, 0, err_msg=str(returns))


@every_variant
@pytest.mark.parametrize('junk', [np.nan, np.inf, 1e6])
def test_invalid_candidates_are_ignored(variant, junk):
  # The second group has a single valid candidate, the third has none.
  found = _advantages(
      [1, junk, 2, 6, 5, junk, junk], [0, 0, 0, 0, 1, 1, 2],
      [True, False, True, True, True, False, False], variant)
  np.testing.assert_array_equal(
      found[[0, 2, 3, 4]],
      _advantages([1, 2, 6, 5], [0, 0, 0, 1], None, variant))
  np.testing.assert_array_equal(found[[1, 4, 5, 6]], 0)


def test_without_baseline_advantages_are_returns():
  found = _advantages([3, 3, 2], [0, 0, 1], variant=('none', 'none'))
  np.testing.assert_array_equal(found, [3, 3, 2])


@pytest.mark.parametrize('scale, expected', [
    # Differences 3 and -4; then 0 and 0. Returns 5 and 1 have the deviation 2.
    ('none', [3, -4, 0, 0, 0]), ('std', [1.5, -2, 0, 0, 0])])
def test_critic_is_the_baseline(scale, expected):
  found = advantages.group_advantages(
      np.array([5, 1, 2, 2, np.nan], np.float32), np.array([0, 0, 1, 1, 0]),
      np.array([True, True, True, True, False]),
      baseline=advantages.minus_value, scale=advantages.SCALES[scale],
      values=np.array([2.0, 5, 2, 2, 1]))
  np.testing.assert_allclose(found, expected, rtol=1e-6)
