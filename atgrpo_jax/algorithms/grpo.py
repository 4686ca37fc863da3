"""Plain GRPO on a team: G independent episodes of each task.

The baseline of arXiv 2510.11062, section 5.1. The episodes of a task share only
the first prompt, which is sampled as one group. Every later prompt has one
candidate. `algorithms.credit` decides which candidates are compared.

Deviation from the authors' code, with a test: episodes that end early are
trained on up to their last action.
"""

import dataclasses
import math

import numpy as np

from atgrpo_jax import rules
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import node as node_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api

Episode = list[tuple[tree_lib.Node, int]]  # (node, joint action) of each step.


def play_task(
    runner: runner_lib.EpisodeRunner, task: env_api.Task,
    spec: spec_lib.RolloutSpec) -> runner_lib.EpisodeCoroutine:
  """G episodes of one task; returns their `Tree`, a root with G chains."""
  episodes = yield from play_episodes(
      runner, task['task_id'], runner.reset(task),
      contract.Position(), num_episodes=spec.group_size, branch=0)
  root = episodes[0][0][0]
  tree_lib.check_any_known(
      [np.nan if node.failed(j) else 0.0
       for node, j in (episode[-1] for episode in episodes)], root)
  nodes = [root]
  for i, episode in enumerate(episodes):
    parent, joint_action = 0, i
    for node, _ in episode[1:]:
      nodes.append(dataclasses.replace(
          node, parent=parent, joint_action=joint_action))
      parent, joint_action = len(nodes) - 1, 0
  return with_returns(
      tree_lib.Tree(task['task_id'], tuple(nodes)), spec, spec.return_type)


def with_returns(
    tree: tree_lib.Tree, spec: spec_lib.RolloutSpec,
    return_type: str) -> tree_lib.Tree:
  """Replaces the returns of a tree of independent episodes."""
  return_fn = rules.find(
      'rollout.return_type', return_type, returns_lib.EPISODE_RETURNS,
      is_array_rule=True)
  root, *later = tree.nodes
  episodes = [[(0, i)] for i in range(len(root.steps))]
  for index, node in enumerate(later, 1):
    episodes[node.groups[0].key.branch].append((index, 0))
  returns = [np.zeros(len(node.steps)) for node in tree.nodes]
  for episode in episodes:
    nodes = [(tree.nodes[index], j) for index, j in episode]
    values = np.full(len(nodes), np.nan)
    # Built-in rules leave NaN where a return is unknown.
    if not (rules.is_custom(return_type)
            and any(node.failed(j) for node, j in nodes)):
      values = return_fn(
          np.array([node.groups[0].candidates[j].reward for node, j in nodes]),
          np.array([node.team_rewards[j] for node, j in nodes]),
          [node.groups[0].key.role for node, _ in nodes], spec.alpha,
          spec.discount)
    for (index, j), value in zip(episode, values, strict=True):
      returns[index][j] = value
  return dataclasses.replace(tree, nodes=tuple(
      node.with_returns([values.astype(np.float32)])
      for node, values in zip(tree.nodes, returns)))


def play_episodes(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    position: contract.Position, *, num_episodes: int, branch: int,
    max_phases: float = math.inf) -> runner_lib.EpisodeCoroutine:
  """Plays independent episodes from `state` for at most `max_phases`.

  All episodes share the first prompt, so it is sampled as one group; its
  candidate i continues as episode branch + i. Returns a list of `Episode`s.
  """
  root = yield from node_lib.expand(
      runner, task_id, state, position, group_size=num_episodes, branch=branch)
  root = node_lib.truncate(runner, root, range(num_episodes))
  unfinished = [i for i in range(num_episodes) if not root.is_leaf(i)]
  chains = yield [
      play_episode(
          runner, task_id, root.steps[i].state, node_lib.after(runner, root, i),
          branch=branch + i, max_phases=max_phases - 1)
      for i in unfinished]
  continued = dict(zip(unfinished, chains))
  return [
      [(root, i), *((node, 0) for node in continued.get(i, ()))]
      for i in range(num_episodes)]


def play_episode(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    position: contract.Position, *, branch: int,
    max_phases: float = math.inf) -> runner_lib.EpisodeCoroutine:
  """Plays one episode; returns its nodes, with one candidate of each role."""
  nodes = []
  while len(nodes) < max_phases:
    node = yield from node_lib.expand(
        runner, task_id, state, position, group_size=1, branch=branch)
    node = node_lib.truncate(runner, node, [0])
    nodes.append(node)
    if node.is_leaf(0):
      break
    state, position = node.steps[0].state, node_lib.after(runner, node, 0)
  return nodes
