"""Temporal differences over a tree of joint actions.

With the reward r_j of joint action j, the value V of a state and the discount
g, the one-step target and the lambda-return of j are

  r_j + g V(next_j)
  R_j = r_j + g ((1 - lambda) V(next_j) + lambda mean_k R_k)

where k are the joint actions after j. The state after a joint action is always
known, so a joint action without a branch bootstraps: R_j = r_j + g V(next_j).
At the end of an episode V(next_j) = 0. In a tree without branches R_j - V is
generalised advantage estimation (arXiv 1506.02438): lambda = 0 gives the
one-step TD error, lambda = 1 the Monte Carlo return minus the value.
"""

from __future__ import annotations

import numpy as np


def lambda_returns(
    rewards: np.ndarray, next_values: np.ndarray, next_returns: np.ndarray, *,
    discount: float, gae_lambda: float) -> np.ndarray:
  """Lambda-returns [J] float64 of the joint actions of one node.

  Args:
    rewards: [J] float64; unknown rewards are NaN and stay NaN.
    next_values: [J] float64 of the next states; 0 at the end of an episode.
    next_returns: [J] float64, means of the known lambda-returns that follow;
      NaN if there are none.
    discount: discount of one step.
    gae_lambda: see the module.
  """
  expanded = np.isfinite(next_returns)
  mixed = (1 - gae_lambda) * next_values + gae_lambda * np.where(
      expanded, next_returns, 0.0)
  return rewards + discount * np.where(expanded, mixed, next_values)


def explained_variance(values: np.ndarray, targets: np.ndarray) -> float:
  """1 - Var(targets - values) / Var(targets) of [N]; NaN if constant."""
  variance = np.var(targets, dtype=np.float64)
  if variance == 0:
    return float('nan')
  return float(1 - np.var(targets - values, dtype=np.float64) / variance)
