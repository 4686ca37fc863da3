"""Returns: what a step pays and what follows it.

Sums are rounded to 1e-9. Otherwise rewards that add up to 0 in one order and to
1e-17 in another would differ, and where a group has nothing but these, the
standard deviation would make advantages of 1 of it.
"""

from __future__ import annotations

from collections.abc import Sequence
import math

import numpy as np

_DECIMALS = 9


def of_episode(
    team: np.ndarray, local: np.ndarray, roles: Sequence[str], *,
    return_type: str, alpha: float, discount: float) -> np.ndarray:
  """Returns [U] float64 of the actions of one episode.

  Local rewards judge single actions and are not summed over turns: that would
  pay whoever puts off the end.

  Args:
    team: [U] float64, the team reward of each step.
    local: [U] float64, the local reward of the role that acted.
    roles: of the U actions.
    return_type: 'immediate': what the step pays. 'return_to_go': that, and the
      team rewards of what follows. 'episode_return': the team rewards of the
      whole episode, and the mean of the role's own local rewards.
    alpha: weight of the team reward.
    discount: of each later step, in 'return_to_go'.
  """
  if return_type == 'return_to_go':
    team = to_go(team, discount)
  elif return_type == 'episode_return':
    team = team.sum()
    roles = np.array(roles)
    local = np.array([local[roles == role].mean() for role in roles])
  elif return_type != 'immediate':
    raise NotImplementedError(
        f'No parallel rollout knows return_type={return_type!r}.')
  return np.round(alpha * team + local, _DECIMALS)


def to_go(rewards: np.ndarray, discount: float) -> np.ndarray:
  """Discounted sums [U] float64 of the rewards [U] from each step on."""
  sums = np.array(rewards, np.float64)
  for step in reversed(range(len(sums) - 1)):
    sums[step] += discount * sums[step + 1]
  return np.round(sums, _DECIMALS)


def of_joint_action(
    reward: float, following: np.ndarray, discount: float) -> float:
  """The return of a joint action, from the leaves of a tree upwards.

  R = r + discount * mean of R over the joint actions that follow (arXiv
  2508.04652, section 4), as far as these are known.

  Args:
    reward: of the team; NaN if it is not known.
    following: [J] float64, returns of the joint actions that follow, NaN if
      one is not known; [0] where nothing follows.
    discount: of the later step.
  """
  if not len(following):
    return reward
  known = following[np.isfinite(following)]
  return np.round(
      reward + discount * (known.mean() if len(known) else math.nan),
      _DECIMALS)


def of_candidates(
    joint_returns: np.ndarray, candidates: np.ndarray, group_size: int,
    cross_credit: str) -> np.ndarray:
  """Returns [G] float64 of a role's candidates.

  Args:
    joint_returns: [J] float64 of the joint actions; NaN, which does not count,
      if it is not known.
    candidates: [J] int, the role's candidate in each.
    group_size: G.
    cross_credit: 'mean' or 'sum' over the joint actions of a candidate.
  """
  known = np.isfinite(joint_returns)
  counts = np.bincount(candidates[known], minlength=group_size)
  sums = np.bincount(
      candidates[known], joint_returns[known], minlength=group_size)
  divisor = {'mean': counts, 'sum': counts > 0}[cross_credit]
  with np.errstate(invalid='ignore'):
    return sums / divisor  # 0 / 0 is NaN: nothing is known.
