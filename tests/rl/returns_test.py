"""returns.py: hand-worked tables of one episode."""

import itertools

import numpy as np
import pytest

from atgrpo_jax.rl import returns


def _returns(team, local, roles, return_type, discount=1.0):
  team = np.array(team)
  return returns.episode_returns(
      0.5 * team + np.array(local), team, list(roles), return_type=return_type,
      alpha=0.5, discount=discount)


@pytest.mark.parametrize('return_type, expected', [
    ('immediate', [.2, .2 + .5, .2, .4 + .5, .4 + 1]),
    # Team rewards from each action on: 4, 4, 3, 3, 2.
    ('return_to_go', [.2 + 2, .2 + 2, .2 + 1.5, .4 + 1.5, .4 + 1]),
    # Half of 4, and a's mean (.2 + .2 + .4) / 3 or b's (.2 + .4) / 2.
    ('episode_return', [2 + .8 / 3, 2.3, 2 + .8 / 3, 2.3, 2 + .8 / 3]),
])
def test_table(return_type, expected):
  found = _returns(
      [0., 1, 0, 1, 2], [.2, .2, .2, .4, .4], 'ababa', return_type)
  np.testing.assert_allclose(found, expected)
  assert found.dtype == np.float64


@pytest.mark.parametrize('return_type, known', [
    ('immediate', [1, 1, 0]), ('return_to_go', [0, 0, 0]),
    ('episode_return', [0, 0, 0])])
def test_what_a_failure_follows_is_unknown(return_type, known):
  found = _returns(
      [0., 1, np.nan], [.1, .2, np.nan], 'aba', return_type)
  np.testing.assert_array_equal(np.isfinite(found), np.array(known, bool))


@pytest.mark.parametrize('return_type', ['return_to_go', 'episode_return'])
def test_putting_off_the_end_pays_nothing(return_type):
  # Both reach the goal: at once, or by way of another turn that pays its
  # agents as much as the first did.
  early, = _returns([1.], [.4], 'a', return_type)
  late, *_ = _returns([0., 0, 1], [.2, 0, .2], 'aba', return_type)
  assert early > late


@pytest.mark.parametrize('return_type', ['return_to_go', 'episode_return'])
def test_rewards_that_add_up_to_nothing_are_nothing(return_type):
  rewards = [-0.08, -0.07, 0.15]  # As they stand, -7e-18 or -1e-17.
  assert sum(rewards) != 0
  found = {
      _returns(order, order, 'aaa', 'episode_return')[0]
      if return_type == 'episode_return'
      else _returns(order, [0.] * 3, 'aaa', return_type)[0]
      for order in itertools.permutations(rewards)}
  assert found == {0.0}


def test_discount():
  np.testing.assert_allclose(
      _returns([4., 0, 2], [.1, .2, .3], 'aba', 'return_to_go', 0.5),
      # 4 + 0 / 2 + 2 / 4, 0 + 2 / 2 and 2, of which alpha is a half.
      [2.25 + .1, .5 + .2, 1 + .3])


def test_continuation_is_the_discounted_mean_of_what_is_known():
  assert returns.continuation(np.array([1., np.nan, 3]), 0.5) == 1.0
  assert np.isnan(returns.continuation(np.array([np.nan]), 0.5))


def test_returns_are_rounded_only_where_something_follows():
  found = returns.add_continuations(
      np.array([1 / 3, 1 / 3, np.nan, 1.]), np.array([0, 1., 0, np.nan]), 0.5)
  np.testing.assert_array_equal(found, [1 / 3, 0.833333333, np.nan, np.nan])


@pytest.mark.parametrize('credit, expected', [
    ('mean', [2, 4, np.nan]), ('sum', [4, 4, np.nan])])
def test_candidates_of_joint_actions(credit, expected):
  np.testing.assert_array_equal(
      returns.candidate_returns(
          np.array([1., 3, 4, np.nan, np.nan]), np.array([0, 0, 1, 1, 2]), 3,
          credit), expected)


def test_every_return_type_has_a_rule():
  with pytest.raises(NotImplementedError, match="return_type='last'"):
    _returns([0.], [0.], 'a', 'last')
