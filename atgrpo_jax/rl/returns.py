"""Returns: the reward of a step plus discounted later rewards.

Except for 'episode_return', a return is `reward + alpha * continuation`. The
continuation is the expected discounted team reward of later steps, without
later local rewards. 'episode_return' and the lambda-returns of a critic sum the
local rewards of a role, too.
"""

import math

import numpy as np


def continuation(following: np.ndarray, discount: float) -> float:
  """The discounted mean of the team returns that may follow a step.

  For MAGRPO `following` [N] float64 are the returns of the next joint actions
  (arXiv 2508.04652, section 4), for AT-GRPO the returns of sampled episodes.
  NaN entries are unknown and left out. The result is NaN if all are.
  """
  known = following[np.isfinite(following)]
  return discount * known.mean() if len(known) else math.nan


def returns_to_go(rewards: np.ndarray, discount: float) -> np.ndarray:
  """Discounted sums [U] float64 of the rewards [U] from each step on."""
  sums = np.array(rewards, np.float64)
  for step in reversed(range(len(sums) - 1)):
    sums[step] += discount * sums[step + 1]
  return sums


# The following functions have the arguments
#   rewards: [U] float64, alpha * team reward + local reward of each step.
#   team: [U] float64, the team rewards.
#   roles: the acting role of each step.
#   alpha: weight of the team reward.
#   discount: factor per step.
# and give the returns [U] float64 of the actions of one episode.


def immediate(rewards, team, roles, alpha, discount):
  return rewards


def return_to_go(rewards, team, roles, alpha, discount):
  later = discount * returns_to_go(team, discount)[1:]
  return rewards + alpha * np.append(later, 0.0)


def episode_return(rewards, team, roles, alpha, discount):
  roles, local = np.array(roles), rewards - alpha * team
  sums = np.array([local[roles == role].sum() for role in roles])
  return alpha * team.sum() + sums


EPISODE_RETURNS = {
    'immediate': immediate, 'return_to_go': return_to_go,
    'episode_return': episode_return}


def candidate_returns(
    joint_returns: np.ndarray, candidates: np.ndarray,
    group_size: int) -> np.ndarray:
  """Returns [G] float64 of a role's candidates.

  A candidate's return is the mean over its joint actions. `joint_returns` is
  [J] float64, NaN where unknown. `candidates` [J] int is the role's candidate
  in each joint action.
  """
  known = np.isfinite(joint_returns)
  counts = np.bincount(candidates[known], minlength=group_size)
  sums = np.bincount(
      candidates[known], joint_returns[known], minlength=group_size)
  with np.errstate(invalid='ignore'):
    return sums / counts  # 0 / 0 is NaN: nothing is known.


def lambda_returns(
    rewards: np.ndarray, next_values: np.ndarray, next_returns: np.ndarray, *,
    discount: float, gae_lambda: float) -> np.ndarray:
  """Lambda-returns [J] float64 of the joint actions of one node.

  With the reward r_j of joint action j, the value V of a state, the discount g
  and the joint actions k that follow j,

    R_j = r_j + g ((1 - lambda) V(next_j) + lambda mean_k R_k)

  A joint action that is not continued bootstraps: R_j = r_j + g V(next_j). On a
  chain, R_j - V is generalised advantage estimation (arXiv 1506.02438).

  Args:
    rewards: [J] float64; unknown rewards are NaN and stay NaN.
    next_values: [J] float64 of the next states; 0 at the end of an episode.
    next_returns: [J] float64, means of the known lambda-returns that follow;
      NaN if there are none.
    discount: g.
    gae_lambda: lambda.
  """
  is_continued = np.isfinite(next_returns)
  mixed = (1 - gae_lambda) * next_values + gae_lambda * np.where(
      is_continued, next_returns, 0.0)
  return rewards + discount * np.where(is_continued, mixed, next_values)
