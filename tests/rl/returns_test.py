"""Hand-worked returns of one episode."""

import numpy as np
import pytest

from atgrpo_jax.rl import returns
from configs import common


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


def test_rows_of_plain_grpo_pay_the_same_total_for_an_episode():
  # Two roles act in three turns, and alpha is 2. Both get the team's 2 x (.5 +
  # 1) = 3; a also gets .1 + .3 + 0 = .4, and b .2 + .1 + .2 = .5.
  team = np.array([0, 0, .5, 0, 0, 1])
  rewards = 2 * team + [.1, .2, .3, .1, 0, .2]
  found = returns.episode_return(rewards, team, tuple('ababab'), 2.0, 0.5)
  np.testing.assert_allclose(found, [3.4, 3.5] * 3)
  for name, system in common.SYSTEMS.items():
    # These two are not paid by the episode.
    if system.get('rollout.mode') == 'parallel' and name not in (
        'hgpo', 'mas_grpo_immediate'):
      terms = system.get('advantage.extra_terms', ())
      assert 'episode_return' in {
          system['rollout.return_type'], *(term[0] for term in terms)}, name
