"""Playing a task: what every algorithm's tree is built from.

Each function is an `EpisodeCoroutine` of `rollout.runner`, or a part of one.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api


def positions(
    environment: env_api.Environment) -> list[tuple[int, int]]:
  """(turn, phase) of all nodes of the longest episode, in order."""
  return [
      (turn, phase) for turn in range(environment.max_turns)
      for phase in range(len(environment.phases))]


def sample_and_step(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    position: tuple[int, int], *, group_size: int, branch: int,
    cross: bool = False) -> runner_lib.EpisodeCoroutine:
  """Samples a group for each role of a phase and steps each joint action.

  Args:
    runner: plays the episode.
    task_id: of the task.
    state: that all candidates are tried from.
    position: turn and phase.
    group_size: candidates of each role (G).
    branch: see `types.GroupKey`.
    cross: joint actions are all combinations of the roles' candidates, instead
      of the candidates of one index.

  Returns:
    A `Node` whose returns are the candidates' rewards. The reward of a
    candidate in several joint actions is the mean over them.
  """
  turn, phase = position
  roles = runner.environment.phases[phase]
  keys = [types.GroupKey(task_id, role, turn, branch) for role in roles]
  sampled = yield runner.sample(
      [runner_lib.SampleRequest(key, state) for key in keys],
      group_size=group_size)
  texts = [
      [runner.text_of(role, ids) for ids in group.completions]
      for role, group in zip(roles, sampled)]
  candidates = range(group_size)
  joint_actions = tuple(
      itertools.product(candidates, repeat=len(roles)) if cross
      else ((i,) * len(roles) for i in candidates))
  steps = yield runner.step_environments(
      [state] * len(joint_actions), [
          {role: own[i] for role, own, i in zip(roles, texts, joint_action)}
          for joint_action in joint_actions])
  _check_range(runner.environment, steps)
  node = tree_lib.Node(turn, phase, state, (), joint_actions, tuple(steps))
  groups = []
  for index, (key, group) in enumerate(zip(keys, sampled)):
    rewards = node.rewards(key.role, runner.alpha)
    candidates = []
    for i, sample in enumerate(
        zip(group.completions, group.logprobs, texts[index])):
      own = [j for j, action in enumerate(joint_actions) if action[index] == i]
      candidates.append(_candidate(
          key.role, *sample, [steps[j] for j in own], rewards[own]))
    groups.append(types.Group(
        key=key, policy=runner.policy_map[key.role],
        prompt=group.request.prompt, candidates=tuple(candidates),
        messages=runner.environment.observe(state, key.role)))
  return dataclasses.replace(node, groups=tuple(groups))


def _check_range(
    environment: env_api.Environment, steps: Sequence[env_api.Step]) -> None:
  low, high = environment.team_reward_range
  for step in steps:
    if not (tree_lib.failed(step) or low <= step.team_reward <= high):
      raise errors.UserError(
          f'{type(environment).__name__} paid a team reward of '
          f'{step.team_reward}, outside of its team_reward_range '
          f'({low}, {high}).')


def _candidate(
    role: str, completion: np.ndarray, logprobs: np.ndarray, text: str,
    steps: Sequence[env_api.Step], rewards: np.ndarray) -> types.Candidate:
  """A candidate from the steps and rewards of its joint actions.

  Joint actions that failed are left out.
  """
  known = [step for step in steps if not tree_lib.failed(step)]
  reward = float(np.mean(rewards[~np.isnan(rewards)])) if known else np.nan
  first, *_ = known or steps
  return types.Candidate(
      completion=completion, behavior_logprobs=logprobs, text=text,
      reward=reward, return_=np.float32(reward), reward_terms={
          name: float(np.mean([
              step.reward_terms[name] for step in known or steps]))
          for name in first.reward_terms},
      outcome=first.outcomes[role])


def play_episode(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    later: Sequence[tuple[int, int]], *,
    branch: int) -> runner_lib.EpisodeCoroutine:
  """Plays one episode from `state`, at the positions `later`, to its end.

  Returns:
    Its nodes, with one candidate of each role.
  """
  nodes = []
  for position in later:
    node = yield from sample_and_step(
        runner, task_id, state, position, group_size=1, branch=branch)
    nodes.append(node)
    if node.is_leaf(0):
      break
    state = node.steps[0].state
  return nodes


def play_parallel(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    later: Sequence[tuple[int, int]], *, num_episodes: int,
    branch: int) -> runner_lib.EpisodeCoroutine:
  """Plays independent episodes from `state` to their ends.

  The first prompt, which is that of all, is sampled as one group; its candidate
  i goes on as the episode branch + i.

  Returns:
    root: the first node.
    chains: for each episode its later nodes.
  """
  first, *later = later
  root = yield from sample_and_step(
      runner, task_id, state, first, group_size=num_episodes, branch=branch)
  going_on = [i for i in range(num_episodes) if not root.is_leaf(i)]
  played = yield [
      play_episode(
          runner, task_id, root.steps[i].state, later, branch=branch + i)
      for i in going_on]
  chains = dict(zip(going_on, played))
  return root, [chains.get(i, []) for i in range(num_episodes)]


def path(
    root: tree_lib.Node, candidate: int,
    chain: Sequence[tree_lib.Node]) -> list[tuple[tree_lib.Node, int]]:
  """(node, joint action) of each step of an episode of `play_parallel`."""
  return [(root, candidate), *((node, 0) for node in chain)]
