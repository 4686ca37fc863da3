"""Expands the nodes of a tree: samples groups and steps their joint actions."""

from collections.abc import Sequence
import dataclasses
import itertools

import numpy as np

from atgrpo_jax import types
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api


def expand(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    position: contract.Position, *, group_size: int, branch: int = 0,
    cross: bool = False) -> runner_lib.EpisodeCoroutine:
  """Samples a group for each role of a phase and steps each joint action.

  This is where `Node.rewards` become the rewards of candidates.

  Args:
    task_id, branch: name the groups; see `types.GroupKey`.
    group_size: candidates of each role (G).
    cross: if True, all combinations of the roles' candidates are joint
      actions; otherwise only candidates with equal index.

  Returns:
    A `Node` whose returns are the candidates' rewards.
  """
  turn, phase = position
  roles = runner.environment.phases[phase]
  keys = [types.GroupKey(task_id, role, turn, branch) for role in roles]
  sampled = yield runner.sample(
      dict.fromkeys(keys, state), group_size=group_size)
  texts = [
      [runner.text_of(role, ids) for ids in group.completions]
      for role, group in zip(roles, sampled)]
  candidates = range(group_size)
  joint_actions = tuple(
      itertools.product(candidates, repeat=len(roles)) if cross
      else ((i,) * len(roles) for i in candidates))
  actions = [
      {role: role_texts[i]
       for role, role_texts, i in zip(roles, texts, joint_action)}
      for joint_action in joint_actions]
  steps = yield runner.step_environments(
      [state] * len(actions), actions, task_id=task_id, turn=turn)
  for step in steps:
    if not step.done and not tree_lib.failed(step):  # Raises without a phase.
      contract.next_position(
          runner.environment, position, step, task_id=task_id)
  steps = contract.pay_unfinished(steps)
  node = tree_lib.Node(turn, phase, state, (), joint_actions, tuple(steps))
  groups = []
  for index, (key, group) in enumerate(zip(keys, sampled)):
    rewards = node.rewards(key.role, runner.alpha)
    messages = runner.observe(state, key)
    runner.check_repeats(key, messages, group.request.prompt)

    def candidate(i):
      own = [j for j, action in enumerate(joint_actions) if action[index] == i]
      known = [j for j in own if not node.failed(j)]
      # The mean over the joint actions that did not fail.
      reward = float(np.mean(rewards[known])) if known else np.nan
      counted = [node.steps[j] for j in known or own]
      return types.Candidate(
          completion=group.completions[i], behavior_logprobs=group.logprobs[i],
          text=texts[index][i], reward=reward, return_=np.float32(reward),
          reward_terms=tree_lib.mean_terms(x.reward_terms for x in counted),
          outcome=counted[0].outcomes[key.role])

    groups.append(types.Group(
        key=key, policy=runner.policy_map[key.role],
        prompt=group.request.prompt, messages=messages,
        temperature=runner.setting(key.role, 'temperature'),
        candidates=tuple(map(candidate, candidates))))
  return dataclasses.replace(node, groups=tuple(groups))


def truncate(
    runner: runner_lib.EpisodeRunner, node: tree_lib.Node,
    joint_actions: Sequence[int]) -> tree_lib.Node:
  """Ends the episodes of joint actions whose next prompt is too long.

  Their steps are done and truncated, and keep their rewards.
  """
  steps, task_id = list(node.steps), node.groups[0].key.task_id
  for j in joint_actions:
    if not node.is_leaf(j) and not runner.has_room(
        task_id, after(runner, node, j), steps[j].state):
      steps[j] = dataclasses.replace(steps[j], done=True, truncated=True)
      runner.usage.overlong_prompts += 1
  return dataclasses.replace(node, steps=tuple(steps))


def after(
    runner: runner_lib.EpisodeRunner, node: tree_lib.Node,
    joint_action: int) -> contract.Position:
  """The position that follows a joint action which is no leaf."""
  return contract.next_position(
      runner.environment, contract.Position(node.turn, node.phase),
      node.steps[joint_action], task_id=node.groups[0].key.task_id)
