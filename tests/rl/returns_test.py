"""Hand-worked returns of one episode."""

import itertools

import numpy as np
import pytest

from atgrpo_jax.rl import returns


@pytest.mark.parametrize('return_type', ['return_to_go', 'episode_return'])
def test_rewards_that_cancel_give_exactly_zero(return_type):
  for order in itertools.permutations([-0.08, -0.07, 0.15]):
    team = np.array(order)  # Summed in float64: -7e-18 or -1e-17.
    local = team if return_type == 'episode_return' else 0.0
    found = returns.episode_returns(
        0.5 * team + local, team, ['a'] * 3, return_type=return_type, alpha=0.5,
        discount=1.0)
    assert found[0] == 0.0


def test_only_continued_returns_are_rounded():
  found = returns.add_continuations(
      np.array([1 / 3, 1 / 3, np.nan, 1.]), np.array([0, 1., 0, np.nan]), 0.5)
  np.testing.assert_array_equal(found, [1 / 3, 0.833333333, np.nan, np.nan])


def test_chain_equals_generalised_advantage_estimation():
  rewards, values = np.array([1.0, 0.5, 2.0]), np.array([0.2, 3.0, -1.0])
  discount, gae_lambda = 0.9, 0.7
  next_values = np.append(values[1:], 0)
  errors = rewards + discount * next_values - values
  following = np.nan
  for step in (2, 1, 0):
    found, = returns.lambda_returns(
        rewards[step:step + 1], next_values[step:step + 1],
        np.array([following]), discount=discount, gae_lambda=gae_lambda)
    following = found
    weights = (discount * gae_lambda)**np.arange(3 - step)
    assert found - values[step] == pytest.approx(weights @ errors[step:])
