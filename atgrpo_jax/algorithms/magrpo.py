"""MAGRPO: joint actions of agents that act at once, with a joint reward.

Multi-agent GRPO on a Dec-POMDP (arXiv 2508.04652). In every turn each agent
samples G candidates from its own history; candidates of all agents make joint
actions, each with one reward of the team and a branch of its own. The return of
a joint action is its reward and the discounted mean return of those that follow
it. All agents compare the returns of one state.

Deviations from the paper: a role's local reward, if the environment has one,
is added to the return of its candidate; roles that act one after another (a
phase each) branch one after another.

Deviations from the authors' code, CoMLRL 1.4.3 (each has a test): the discount
is not ignored; the return of a candidate in several joint actions is their mean
(`cross_credit='sum'` restores their sum); a joint action whose reward is not
known leaves its group.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.algorithms import play
from atgrpo_jax.algorithms import selection
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api


def play_task(
    runner: runner_lib.EpisodeRunner, task: env_api.Task,
    spec: spec_lib.RolloutSpec) -> runner_lib.EpisodeCoroutine:
  """All branches of one task; returns its `Tree`."""
  nodes, team_returns = yield from _expand(
      runner, task['task_id'], runner.environment.reset(task),
      play.positions(runner.environment), spec, branch=0)
  selection.check_any_known(nodes[0], team_returns)
  return tree_lib.Tree(task['task_id'], tuple(nodes))


def _expand(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    positions: Sequence[tuple[int, int]], spec: spec_lib.RolloutSpec, *,
    branch: int) -> runner_lib.EpisodeCoroutine:
  """Plays what may follow a state.

  Returns:
    nodes: of the subtree, parents first.
    team_returns: [J] float64, unweighted, of the joint actions of its root.
  """
  position, *later = positions
  node = yield from play.sample_and_step(
      runner, task_id, state, position, group_size=spec.group_size,
      branch=branch, cross=spec.joint_actions == 'cross')
  weighted = spec.alpha * node.team_rewards
  going_on = range(len(weighted))
  if spec.selection != 'all':
    selection.check_any_known(node, weighted)
    chosen = selection.select(
        weighted, weighted, spec,
        rng=selection.rng(runner, node.groups[0].key))
    node, going_on = dataclasses.replace(node, chosen=chosen), [chosen]
  going_on = [j for j in going_on if not node.is_leaf(j)]
  if spec.stop_above is not None and going_on:
    if np.nanmean(weighted) > spec.stop_above:
      going_on = []
  subtrees = yield [
      _expand(
          runner, task_id, node.steps[j].state, later, spec,
          # One state of a turn has the branch 0, as that of a spine.
          branch=branch * len(weighted) + j if spec.selection == 'all' else 0)
      for j in going_on]
  nodes = [node]
  continuations = np.zeros(len(node.steps))
  for j, (subtree, following) in zip(going_on, subtrees):
    if spec.return_type == 'return_to_go':
      continuations[j] = returns_lib.continuation(following, spec.discount)
    nodes += _below(subtree, j, len(nodes))
  nodes[0] = node.with_returns([
      returns_lib.candidate_returns(
          returns_lib.add_continuations(
              node.rewards(role, spec.alpha), continuations, spec.alpha),
          np.array(node.joint_actions)[:, index], spec.group_size,
          spec.cross_credit).astype(np.float32)
      for index, role in enumerate(runner.environment.phases[node.phase])])
  return nodes, returns_lib.add_continuations(
      node.team_rewards, continuations, alpha=1.0)


def _below(
    subtree: Sequence[tree_lib.Node], joint_action: int,
    first: int) -> list[tree_lib.Node]:
  """A subtree behind a joint action of node 0, from node `first` on."""
  root, *others = subtree
  return [
      dataclasses.replace(root, parent=0, joint_action=joint_action),
      *(dataclasses.replace(node, parent=node.parent + first)
        for node in others)]


def check(
    environment: env_api.Environment, spec: spec_lib.RolloutSpec) -> None:
  """Raises UserError if the rollout is too large, or stops in vain."""
  num = spec.num_joint_actions(environment.phases, environment.max_turns)
  if num > spec.max_joint_actions:
    raise errors.UserError(
        f'A task may have {num} joint actions (group_size={spec.group_size}, '
        f'joint_actions={spec.joint_actions!r}, selection={spec.selection!r}, '
        f'phases {environment.phases}, {environment.max_turns} turns), but '
        f'rollout.max_joint_actions={spec.max_joint_actions}. Lower the group '
        'size or the turns, let one joint action go on, or raise the limit.')
  low, high = (spec.alpha * x for x in environment.team_reward_range)
  if spec.stop_above is not None and not low <= spec.stop_above < high:
    when = 'always' if spec.stop_above < low else 'never'
    raise errors.UserError(
        f'rollout.stop_above={spec.stop_above} would {when} stop a branch: the '
        f'team reward times alpha is from {low} to {high}. Give a number '
        'between them, or leave it out.')
