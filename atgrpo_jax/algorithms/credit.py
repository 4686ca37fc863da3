"""Who is compared with whom, and the advantages that follow.

AT-GRPO and MAGRPO compare the candidates of one prompt, plain GRPO on a team
all actions of a task (arXiv 2510.11062, sections 4.1 and 5.1).

Without 'agent' in the group key the returns of all roles have one baseline, so
a role that is paid more than the others has the larger advantages.

With episode returns some keys give the same advantages. Those with and without
'agent': for a single agent, and without local rewards, where all roles share
one return (of an episode that ends inside a turn, not all have acted, and the
keys differ). Those with and without 'turn': where all episodes of a task end in
the same turn and with the same role.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
import dataclasses

import numpy as np

from atgrpo_jax import types
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import advantages as advantages_lib
from atgrpo_jax.rollout import tree as tree_lib


def assign_advantages(
    trees: Sequence[tree_lib.Tree], spec: spec_lib.AdvantageSpec, *,
    return_type: str) -> list[tree_lib.Tree]:
  """The trees of a step with advantages, weights and baseline ids.

  With `return_type` 'episode_return' all actions of a role in an episode share
  its return, which counts once in each baseline: with the key 'env' an episode
  counts once for each of its roles, with 'env+agent' once.
  """
  groups = tree_lib.groups_of(trees)
  baseline_ids = ids_of(
      [[getattr(group.key, name) for name in spec.fields] for group in groups])
  sizes = [len(group.candidates) for group in groups]
  flat_ids = np.repeat(baseline_ids, sizes)
  weights, episodes = np.ones(len(flat_ids)), None
  if return_type == 'episode_return':
    owners = [
        (group.key.task_id, group.key.branch + i, group.key.role)
        for group in groups for i in range(len(group.candidates))]
    weights = advantages_lib.return_weights(flat_ids, ids_of(owners))
    episodes = ids_of([owner[:2] for owner in owners])
  returns = np.concatenate([group.returns for group in groups])
  valid = np.concatenate([group.valid for group in groups])
  if spec.baseline == 'critic':
    advantages = advantages_lib.critic_advantages(
        returns, np.repeat([group.value for group in groups], sizes), flat_ids,
        valid, scale=spec.scale)
  else:
    advantages = advantages_lib.group_advantages(
        returns, flat_ids, valid, baseline=spec.baseline, scale=spec.scale,
        weights=weights, episodes=episodes)
  ends = np.cumsum(sizes)[:-1]
  compared = {
      group.key: _with_credit(group, *values)
      for group, *values in zip(
          groups, baseline_ids, np.split(advantages, ends),
          np.split(weights, ends))}
  return [
      tree.map_groups(lambda group: compared[group.key]) for tree in trees]


def _with_credit(
    group: types.Group, baseline_id: int, advantages: np.ndarray,
    weights: np.ndarray) -> types.Group:
  return dataclasses.replace(
      group, baseline_id=int(baseline_id), candidates=tuple(
          dataclasses.replace(candidate, advantage=advantage, weight=weight)
          for candidate, advantage, weight in zip(
              group.candidates, advantages, weights)))


def ids_of(items: Sequence[Sequence[Hashable]]) -> np.ndarray:
  """[N] int, equal for equal items; from 0, in the order they come."""
  ids = {}
  return np.array(
      [ids.setdefault(tuple(item), len(ids)) for item in items], int)
