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


def test_systems_of_plain_grpo_are_paid_by_the_episode():
  for name, system in common.SYSTEMS.items():
    # These two are not.
    if system.get('rollout.mode') == 'parallel' and name not in (
        'hgpo', 'mas_grpo_immediate'):
      terms = system.get('advantage.extra_terms', ())
      assert 'episode_return' in {
          system['rollout.return_type'], *(term[0] for term in terms)}, name
