"""Lambda-returns against generalised advantage estimation."""

import numpy as np
import pytest

from atgrpo_jax.rl import td


def test_chain_equals_generalised_advantage_estimation():
  rewards, values = np.array([1.0, 0.5, 2.0]), np.array([0.2, 3.0, -1.0])
  discount, gae_lambda = 0.9, 0.7
  next_values = np.append(values[1:], 0)
  errors = rewards + discount * next_values - values
  following = np.nan
  for step in (2, 1, 0):
    found, = td.lambda_returns(
        rewards[step:step + 1], next_values[step:step + 1],
        np.array([following]), discount=discount, gae_lambda=gae_lambda)
    following = found
    weights = (discount * gae_lambda)**np.arange(3 - step)
    assert found - values[step] == pytest.approx(weights @ errors[step:])


def test_explained_variance():
  targets = np.array([1.0, 2, 3])
  assert td.explained_variance(targets + 5, targets) == 1
  assert td.explained_variance(np.zeros(3), targets) == 0
  assert np.isnan(td.explained_variance(targets, np.ones(3)))
