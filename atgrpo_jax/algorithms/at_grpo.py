"""AT-GRPO: a group per agent and turn, on the chain of chosen candidates.

The rollout of Algorithm 1 of arXiv 2510.11062; `credit.py` computes its
advantages, and `train.update` updates its policies. For every environment, turn
and agent in order, G candidates are sampled from one prompt and stepped from
the same state. Their rewards form one group of a task, role and turn. The state
of the candidate with the largest reward continues, and the next agent acts on
it in the same turn. `rollout.selection` has other rules, and the return type
'monte_carlo' adds sampled later rewards.

Ties, which the paper leaves open, go to the first candidate. Rewards that
differ by rounding only are tied.

Deviation from the paper: a candidate that failed for a reason outside the model
leaves its group.

Deviations from the authors' code, each with a test:
1. A group never holds candidates of two tasks or roles.
2. Agents act one after another within a turn.
3. Every candidate is scored from the same state, and the chosen candidate's
   state is the one that continues.
4. If an agent ends the episode, the groups of the agents that acted before it
   in that turn are kept.
5. Nothing is filtered or duplicated before the group statistics.
"""

import dataclasses
import math

import numpy as np

from atgrpo_jax.algorithms import grpo
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import node as node_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api


def play_task(
    runner: runner_lib.EpisodeRunner, task: env_api.Task,
    spec: spec_lib.RolloutSpec) -> runner_lib.EpisodeCoroutine:
  """Plays one task; returns its `Tree`, a chain of one node per action."""
  state, position, nodes = runner.reset(task), contract.Position(), []
  while True:
    # Sample G candidates and step each of them from the state of the chain.
    node = yield from node_lib.expand(
        runner, task['task_id'], state, position, group_size=spec.group_size)
    group, = node.groups
    returns, team_returns = group.returns, node.team_rewards
    if spec.return_type == 'monte_carlo':
      node = node_lib.truncate(runner, node, range(spec.group_size))
      continuations = yield from _continuations(
          runner, node, len(nodes), spec)
      team_returns = team_returns + continuations
      returns = (group.rewards + spec.alpha * continuations).astype(np.float32)
    # Select the candidate that continues.
    tree_lib.check_any_known(returns, node)
    chosen = spec.select(
        returns, team_returns.astype(np.float32), runner.node_rng(group.key))
    node = node_lib.truncate(runner, node, [chosen])
    nodes.append(
        dataclasses.replace(node.with_returns([returns]), chosen=chosen))
    step = node.steps[chosen]
    if step.done:
      break
    state, position = step.state, node_lib.after(runner, node, chosen)
  return tree_lib.chain(task['task_id'], nodes)


def _continuations(
    runner: runner_lib.EpisodeRunner, node: tree_lib.Node, index: int,
    spec: spec_lib.RolloutSpec) -> runner_lib.EpisodeCoroutine:
  """Mean discounted team return after each candidate, [G] float64.

  It is 0 where the candidate has ended the episode.
  """
  num = spec.num_continuations
  first_branch = 1 + index * spec.group_size * num  # Branch 0 is the chain.
  unfinished = [i for i in range(spec.group_size) if not node.is_leaf(i)]
  sampled = yield [
      grpo.play_episodes(
          runner, node.groups[0].key.task_id, node.steps[i].state,
          node_lib.after(runner, node, i), num_episodes=num,
          branch=first_branch + i * num,
          max_phases=spec.continuation_phases or math.inf)
      for i in unfinished]
  continuations = np.zeros(spec.group_size)
  for i, episodes in zip(unfinished, sampled):
    continuations[i] = returns_lib.continuation(np.array([
        returns_lib.returns_to_go(
            [later.team_rewards[j] for later, j in episode], spec.discount)[0]
        for episode in episodes]), spec.discount)
  return continuations
