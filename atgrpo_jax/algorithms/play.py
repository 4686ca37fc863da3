"""Playing a task: what every algorithm's tree is built from.

Each function is an `EpisodeCoroutine` of `rollout.runner`, or a part of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atgrpo_jax import types
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api

_LARGEST = float(np.finfo(np.float32).max)


def positions(
    environment: env_api.Environment) -> list[tuple[int, int]]:
  """(turn, phase) of all nodes of the longest episode, in order."""
  return [
      (turn, phase) for turn in range(environment.max_turns)
      for phase in range(len(environment.phases))]


def sample_and_step(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    position: tuple[int, int], *, group_size: int, branch: int,
    alpha: float) -> runner_lib.EpisodeCoroutine:
  """Samples a group for each role of a phase and steps each joint action.

  Args:
    runner: plays the episode.
    task_id: of the task.
    state: that all candidates are tried from.
    position: turn and phase.
    group_size: candidates of each role (G).
    branch: see `types.GroupKey`.
    alpha: weight of the team reward.

  Returns:
    A `Node`, whose returns are the rewards of its steps.
  """
  turn, phase = position
  roles = runner.environment.phases[phase]
  keys = [types.GroupKey(task_id, role, turn, branch) for role in roles]
  sampled = yield runner.sample(
      [runner_lib.SampleRequest(key, state) for key in keys],
      group_size=group_size)
  texts = [
      [runner.policy_of(role).tokenizer.decode(ids)
       for ids in group.completions] for role, group in zip(roles, sampled)]
  steps = yield runner.step_environments(
      [state] * group_size,
      [dict(zip(roles, joint_action)) for joint_action in zip(*texts)])
  groups = tuple(
      types.Group(
          key=key, policy=runner.policy_map[key.role],
          prompt=group.request.prompt, candidates=tuple(
              _candidate(key.role, *sample, step, alpha)
              for *sample, step in zip(
                  group.completions, group.logprobs, own_texts, steps)))
      for key, group, own_texts in zip(keys, sampled, texts))
  return tree_lib.Node(turn, phase, state, groups, tuple(steps))


def _candidate(
    role: str, completion: np.ndarray, logprobs: np.ndarray, text: str,
    step: env_api.Step, alpha: float) -> types.Candidate:
  team, local = step.team_reward, step.local_rewards[role]
  # A reward that is not finite, too, is a fault of the environment.
  failed = (
      step.outcomes[role] is env_api.Outcome.INFRASTRUCTURE
      or not all(abs(reward) <= _LARGEST for reward in (team, local)))
  reward = np.float32(np.nan if failed else alpha * team + local)
  return types.Candidate(
      completion=completion, behavior_logprobs=logprobs, text=text,
      reward=reward, return_=reward, reward_terms=dict(step.reward_terms),
      outcome=step.outcomes[role])


def play_episode(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    later: Sequence[tuple[int, int]], *, branch: int,
    alpha: float) -> runner_lib.EpisodeCoroutine:
  """Plays one episode from `state`, at the positions `later`, to its end.

  Returns:
    Its nodes, with one candidate of each role.
  """
  nodes = []
  for position in later:
    node = yield from sample_and_step(
        runner, task_id, state, position, group_size=1, branch=branch,
        alpha=alpha)
    nodes.append(node)
    if node.is_leaf(0):
      break
    state = node.steps[0].state
  return nodes


def play_parallel(
    runner: runner_lib.EpisodeRunner, task_id: str, state: env_api.State,
    later: Sequence[tuple[int, int]], *, num_episodes: int, branch: int,
    alpha: float) -> runner_lib.EpisodeCoroutine:
  """Plays independent episodes from `state` to their ends.

  The first prompt, which is that of all, is sampled as one group; its candidate
  i goes on as the episode branch + i.

  Returns:
    root: the first node.
    chains: for each episode its later nodes.
  """
  first, *later = later
  root = yield from sample_and_step(
      runner, task_id, state, first, group_size=num_episodes, branch=branch,
      alpha=alpha)
  going_on = [i for i in range(num_episodes) if not root.is_leaf(i)]
  played = yield [
      play_episode(
          runner, task_id, root.steps[i].state, later, branch=branch + i,
          alpha=alpha) for i in going_on]
  chains = dict(zip(going_on, played))
  return root, [chains.get(i, []) for i in range(num_episodes)]


def path(
    root: tree_lib.Node, candidate: int,
    chain: Sequence[tree_lib.Node]) -> list[tuple[tree_lib.Node, int]]:
  """(node, joint action) of each step of an episode of `play_parallel`."""
  return [(root, candidate), *((node, 0) for node in chain)]
