"""Plain GRPO on a team: G independent episodes of each task.

The baseline of arXiv 2510.11062, section 5.1. Only the first prompt of the
episodes is the same, and sampled as one group; each later prompt is a group of
one. Who is compared is up to `algorithms.credit`.

Deviation from the authors' code (it has a test): episodes that end early are
trained on to their last action.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.algorithms import play
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api


def play_task(
    runner: runner_lib.EpisodeRunner, task: env_api.Task,
    spec: spec_lib.RolloutSpec) -> runner_lib.EpisodeCoroutine:
  """G episodes of one task; returns their `Tree`, a root with G chains."""
  environment = runner.environment
  root, chains = yield from play.play_parallel(
      runner, task['task_id'], environment.reset(task),
      play.positions(environment), num_episodes=spec.group_size, branch=0)
  _check_any_succeeded(root, chains)
  root_returns, nodes = [], []
  for i, chain in enumerate(chains):
    first, *later = _returns(root, i, chain, spec)
    root_returns.append(first)
    for node, value in zip(chain, later):
      is_second = node is chain[0]
      nodes.append(dataclasses.replace(
          node.with_returns([[value]]),
          parent=0 if is_second else len(nodes),
          joint_action=i if is_second else 0))
  root = root.with_returns([root_returns])
  return tree_lib.Tree(task['task_id'], (root, *nodes))


def _returns(
    root: tree_lib.Node, candidate: int, chain: list[tree_lib.Node],
    spec: spec_lib.RolloutSpec) -> np.ndarray:
  """[U] float32 of the actions of one episode."""
  path = play.path(root, candidate, chain)
  return returns_lib.episode_returns(
      np.array([node.groups[0].rewards[i] for node, i in path]),
      np.array([node.team_rewards[i] for node, i in path]),
      [node.groups[0].key.role for node, _ in path],
      return_type=spec.return_type,
      alpha=spec.alpha, discount=spec.discount).astype(np.float32)


def _check_any_succeeded(
    root: tree_lib.Node, chains: list[list[tree_lib.Node]]) -> None:
  lasts = [play.path(root, i, chain)[-1] for i, chain in enumerate(chains)]
  if all(node.failed(i) for node, i in lasts):
    raise errors.InfrastructureError(
        f'All {len(chains)} episodes of task {root.groups[0].key.task_id!r} '
        'failed for reasons that are not the model\'s own: '
        f'{[node.groups[0].candidates[i].outcome.value for node, i in lasts]}.')
