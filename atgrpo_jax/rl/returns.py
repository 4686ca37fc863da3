"""Returns of the actions of an episode. Nothing is discounted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def of_episode(
    team: np.ndarray, local: np.ndarray, roles: Sequence[str], *,
    return_type: str, alpha: float) -> np.ndarray:
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
  """
  if return_type == 'return_to_go':
    team = np.cumsum(team[::-1])[::-1]
  elif return_type == 'episode_return':
    team = team.sum()
    roles = np.array(roles)
    local = np.array([local[roles == role].mean() for role in roles])
  elif return_type != 'immediate':
    raise NotImplementedError(
        f'No parallel rollout knows return_type={return_type!r}.')
  return alpha * team + local
