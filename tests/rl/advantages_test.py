"""advantages.py: hand-worked tables, and what the advantages must not see."""

import numpy as np
import pytest

from atgrpo_jax.rl import advantages

# Two groups of three, interleaved. Group 7: 1, 2, 6; group 3: 0, 0, 3.
REWARDS = np.array([1, 0, 2, 0, 6, 3], np.float32)
IDS = np.array([7, 3, 7, 3, 7, 3])
ALL = np.ones(6, bool)


def _advantages(rewards, ids, valid=None, normaliser='std'):
  rewards, ids = np.array(rewards, np.float32), np.array(ids)
  valid = np.ones(rewards.shape, bool) if valid is None else np.array(valid)
  return advantages.group_advantages(
      rewards, ids, valid, normaliser=normaliser)


@pytest.mark.parametrize('normaliser, first, second', [
    # Means 3 and 1: what is left is -2, -1, 3 and -1, -1, 2.
    ('none', [-2, -1, 3], [-1, -1, 2]),
    # Variances (4 + 1 + 9) / 3 and (1 + 1 + 4) / 3, so divided by the roots
    # of 14 / 3 and of 2.
    ('std', [-0.9258201, -0.4629100, 1.3887301],
     [-0.7071068, -0.7071068, 1.4142136]),
    # 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2;
    # 0 - (0 + 3) / 2 twice, 3 - (0 + 0) / 2.
    ('leave_one_out', [-3, -1.5, 4.5], [-1.5, -1.5, 3]),
])
def test_table(normaliser, first, second):
  found = advantages.group_advantages(
      REWARDS, IDS, ALL, normaliser=normaliser)
  assert found.dtype == np.float32
  np.testing.assert_allclose(found[IDS == 7], first, rtol=1e-6)
  np.testing.assert_allclose(found[IDS == 3], second, rtol=1e-6)


@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
def test_a_shift_of_a_group_changes_nothing(normaliser):
  shifted = REWARDS + np.where(IDS == 7, 64, -8).astype(np.float32)
  np.testing.assert_array_equal(
      _advantages(shifted, IDS, normaliser=normaliser),
      _advantages(REWARDS, IDS, normaliser=normaliser))


def test_std_forgets_the_scale_and_the_others_keep_it():
  for normaliser, scale in [('std', 1), ('none', 4), ('leave_one_out', 4)]:
    np.testing.assert_allclose(
        _advantages(4 * REWARDS, IDS, normaliser=normaliser),
        scale * _advantages(REWARDS, IDS, normaliser=normaliser), rtol=1e-6)


@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
def test_order_does_not_matter(normaliser):
  order = np.array([3, 0, 5, 4, 1, 2])
  np.testing.assert_allclose(
      _advantages(REWARDS[order], IDS[order], normaliser=normaliser),
      _advantages(REWARDS, IDS, normaliser=normaliser)[order], rtol=1e-6)


@pytest.mark.parametrize('size, reward', [(8, 0.7), (32, 2.7)])
@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
def test_equal_rewards_give_exactly_zero(size, reward, normaliser):
  rewards = np.full(size, reward, np.float32)
  # What the usual rule makes of them, summed one by one in float32.
  centred = rewards - np.cumsum(rewards)[-1] / np.float32(size)
  std = np.sqrt(np.mean(centred**2))
  assert np.abs(centred / (std + np.float32(1e-8))).min() > 0.8
  found = _advantages(rewards, np.zeros(size, int), normaliser=normaliser)
  np.testing.assert_array_equal(found, np.zeros(size))


@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
def test_a_candidate_without_company_has_none(normaliser):
  found = _advantages(
      [5, 1, 3, 8], [0, 1, 1, 2], [True, True, True, True], normaliser)
  assert found[0] == found[3] == 0
  assert np.all(found[1:3] != 0)
  # Nor has one whose company failed.
  found = _advantages([5, 1], [0, 0], [True, False], normaliser)
  np.testing.assert_array_equal(found, [0, 0])


@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
@pytest.mark.parametrize('junk', [np.nan, np.inf, 1e6])
def test_invalid_candidates_stay_out(normaliser, junk):
  found = _advantages(
      [1, junk, 2, 6, junk], [0, 0, 0, 0, 1],
      [True, False, True, True, False], normaliser)
  np.testing.assert_array_equal(
      found[[0, 2, 3]], _advantages([1, 2, 6], [0, 0, 0], None, normaliser))
  np.testing.assert_array_equal(found[[1, 4]], [0, 0])


@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
def test_a_return_counts_once_in_each_group(normaliser):
  """Repeats of a reward change nothing for the others, nor for itself."""
  rewards, ids, returns = zip(*(
      (1, 0, 4), (1, 0, 4), (1, 0, 4), (2, 0, 5), (6, 0, 6), (6, 0, 6),
      # Others of the same returns.
      (0, 1, 4), (3, 1, 5), (3, 1, 5)))
  ids = np.array(ids)
  weights = advantages.return_weights(ids, np.array(returns))
  np.testing.assert_allclose(
      weights, [1 / 3, 1 / 3, 1 / 3, 1, .5, .5, 1, .5, .5])
  found = advantages.group_advantages(
      np.array(rewards, np.float32), ids, np.ones(9, bool),
      normaliser=normaliser, weights=weights, episodes=np.array(returns))
  a, b, c = _advantages([1, 2, 6], [0, 0, 0], normaliser=normaliser)
  d, e = _advantages([0, 3], [0, 0], normaliser=normaliser)
  np.testing.assert_allclose(found, [a, a, a, b, c, c, d, e, e], rtol=1e-6)


def test_the_others_of_an_action_are_those_of_other_episodes():
  found = advantages.group_advantages(
      np.array([1, 2, 6, 0, 4, 5], np.float32), np.array([0, 0, 0, 0, 1, 1]),
      np.array([True, True, True, True, True, True]),
      normaliser='leave_one_out', weights=np.array([.5, .5, 1, 1, 1, 1]),
      episodes=np.array([7, 7, 8, 7, 8, 8]))
  # Against the 6 alone; and 6 against (1 / 2 + 2 / 2 + 0) / (1 / 2 + 1 / 2 + 1)
  # = .75. The second group is of one episode, so nothing is compared.
  np.testing.assert_allclose(found, [-5, -4, 5.25, -6, 0, 0], rtol=1e-6)


def test_every_normaliser_has_a_rule(monkeypatch):
  monkeypatch.setattr(
      advantages, 'NORMALISERS', (*advantages.NORMALISERS, 'range'))
  with pytest.raises(NotImplementedError, match="normaliser='range'"):
    _advantages(REWARDS, IDS, normaliser='range')


def test_wrong_arguments():
  with pytest.raises(ValueError, match=r"'mean' .*'leave_one_out'"):
    _advantages(REWARDS, IDS, normaliser='mean')
  with pytest.raises(ValueError, match=r'\(6,\).*\(5,\)'):
    _advantages(REWARDS, IDS[:5])
