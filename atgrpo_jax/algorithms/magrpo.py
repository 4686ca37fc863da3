"""MAGRPO: joint actions of agents that act simultaneously, with one reward.

Multi-agent GRPO on a Dec-POMDP (arXiv 2508.04652). In every turn each agent
samples G candidates from its history. Candidates of all agents form joint
actions, each with one team reward and one branch. The return of a joint action
is its reward plus the discounted mean return of the joint actions that
follow. Every agent compares the returns of joint actions from the same state.

Deviations from the paper:
1. A role's local reward, if the environment has one, is added to the return of
   its candidate.
2. If roles act in separate phases, the tree branches at every phase.
3. The configs weight the loss by the ratio to the policy before the first
   update of a step, which differs from 1 after an update of another turn. Like
   the paper, they do not clip it. They also keep AT-GRPO's importance weights
   between sampler and learner.

Deviations from the authors' code, CoMLRL 1.4.3, the first three with a test:
1. The discount is not ignored.
2. A candidate in several joint actions gets the mean of their returns, not
   the sum.
3. A joint action with an unknown reward is left out.
4. Prompts use the model's chat template instead of plain text, and candidates
   are sampled without top-p, so that the learner scores what was sampled.
5. The tasks of a step share the update of a turn. With two turns,
   configs/functions.py makes one update per node, as version 1.2.6 does.
"""

from collections.abc import Sequence
import dataclasses
import itertools
import math

import numpy as np

from atgrpo_jax import errors
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
  """All branches of one task; returns its `Tree`."""
  nodes, team_returns = yield from _expand(
      runner, task['task_id'], runner.reset(task),
      contract.Position(), spec, branch=0)
  tree_lib.check_any_known(team_returns, nodes[0])
  return tree_lib.Tree(task['task_id'], tuple(nodes))


def _expand(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    position: contract.Position, spec: spec_lib.RolloutSpec, *,
    branch: int) -> runner_lib.EpisodeCoroutine:
  """Plays everything that follows a state.

  Returns:
    nodes: the nodes of the subtree, parents first.
    team_returns: [J] float64, returns of the root's joint actions without
      `alpha`.
  """
  node = yield from node_lib.expand(
      runner, task_id, state, position, group_size=spec.group_size,
      branch=branch, cross=spec.joint_actions == 'cross')
  num_actions, weighted = len(node.steps), spec.alpha * node.team_rewards
  continued = range(num_actions)
  if spec.selection != 'all':
    tree_lib.check_any_known(weighted, node)
    chosen = spec.select(
        weighted, weighted, runner.node_rng(node.groups[0].key))
    node, continued = dataclasses.replace(node, chosen=chosen), [chosen]
  node = node_lib.truncate(runner, node, continued)
  continued = [j for j in continued if not node.is_leaf(j)]

  def branch_after(j):
    if spec.selection != 'all':
      return 0  # One state per phase continues.
    skipped = itertools.islice(
        itertools.cycle(runner.environment.phases), node.phase + 1,
        node.phase + 1 + node.steps[j].skip)
    return math.prod(
        (_num_actions(roles, spec) for roles in skipped),
        start=branch * num_actions + j)

  subtrees = yield [
      _expand(
          runner, task_id, node.steps[j].state,
          node_lib.after(runner, node, j), spec, branch=branch_after(j))
      for j in continued]
  nodes, continuations = [node], np.zeros(num_actions)
  for j, (subtree, following) in zip(continued, subtrees):
    if spec.return_type == 'return_to_go':
      continuations[j] = returns_lib.continuation(following, spec.discount)
    # The indices of the subtree's nodes begin at `first` in this tree.
    first, (root, *others) = len(nodes), subtree
    nodes.append(dataclasses.replace(root, parent=0, joint_action=j))
    nodes += [
        dataclasses.replace(other, parent=other.parent + first)
        for other in others]
  nodes[0] = node.with_returns([
      returns_lib.candidate_returns(
          node.rewards(role, spec.alpha) + spec.alpha * continuations,
          np.array(node.joint_actions)[:, index],
          spec.group_size).astype(np.float32)
      for index, role in enumerate(runner.environment.phases[node.phase])])
  return nodes, node.team_rewards + continuations


def _num_actions(roles: Sequence[str], spec: spec_lib.RolloutSpec) -> int:
  """Joint actions of a state in the phase of `roles`."""
  return spec.group_size**(len(roles) if spec.joint_actions == 'cross' else 1)


def check(
    environment: env_api.Environment, spec: spec_lib.RolloutSpec) -> None:
  """Raises UserError if a tree may become too large."""
  total, num_states = 0, 1
  for roles in environment.phases * environment.max_turns:
    per_state = _num_actions(roles, spec)
    total += num_states * per_state
    if spec.selection == 'all':
      num_states *= per_state
  if total > spec.max_joint_actions:
    raise errors.UserError(
        f'A task may have {total} joint actions, more than '
        f'rollout.max_joint_actions={spec.max_joint_actions}. Lower '
        f'rollout.group_size={spec.group_size} or the {environment.max_turns} '
        'turns, select one joint action, or raise the limit.')
