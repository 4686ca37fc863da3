"""Selection rules: which candidate, or joint action, continues.

A rule is a function (returns, team_returns, spec, rng) -> index:

  returns: [J] float, finite, of the acting agent or the team.
  team_returns: [J] float, the team part of `returns`, up to a factor.
  spec: the `spec.RolloutSpec`, for rules with a parameter.
  rng: numpy Generator, for random rules.
"""

import numpy as np

from atgrpo_jax.rl import advantages


def _greedy(returns, team_returns, spec, rng):
  return np.argmax(advantages.are_largest(returns))


def _team_greedy(returns, team_returns, spec, rng):
  return _greedy(team_returns, team_returns, spec, rng)


def _softmax(returns, team_returns, spec, rng):
  scaled = returns / spec.selection_temperature
  weights = np.exp(scaled - scaled.max())
  return rng.choice(len(returns), p=weights / weights.sum())


def _uniform(returns, team_returns, spec, rng):
  return rng.choice(len(returns))


def _epsilon_greedy(returns, team_returns, spec, rng):
  is_random = rng.random() < spec.selection_epsilon
  rule = _uniform if is_random else _greedy
  return rule(returns, team_returns, spec, rng)


def _first(returns, team_returns, spec, rng):
  return 0


RULES = {
    'greedy': _greedy, 'team_greedy': _team_greedy, 'softmax': _softmax,
    'uniform': _uniform, 'epsilon_greedy': _epsilon_greedy, 'first': _first}
