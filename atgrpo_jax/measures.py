"""What an evaluation measures beside the success of one episode of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import statistics
import time
from typing import Any

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.algorithms import play
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api
from environments.programming import metrics as metrics_lib

# Of a task whose episode failed through no fault of the team, in `successes`.
LEFT_OUT = '-'
_NUM_DRAWS = 2000  # Of a bootstrap.


def play_episodes(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    branches: Sequence[int] = (0,)) -> list[list[tree_lib.Node]]:
  """The nodes of one episode of each task, for each branch.

  All tasks of the first branch come first. Branches differ in what is sampled.
  """
  environment = runner.environment
  # The team's reward is read without its weight.
  return runner.play([
      play.play_episode(
          runner, task['task_id'], environment.reset(task),
          play.positions(environment), branch=branch, alpha=1.0)
      for branch in branches for task in tasks])


def successes(played: Sequence[Sequence[tree_lib.Node]]) -> str:
  """'1' or '0' for each episode, or `LEFT_OUT`."""
  return ''.join(
      LEFT_OUT if nodes[-1].failed(0) else '01'[nodes[-1].steps[0].success]
      for nodes in played)


def best_of(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    first: str, clusters: Sequence[int], num_samples: int) -> dict[str, Any]:
  """How the team does with several episodes of each task.

  Args:
    runner: of the evaluation.
    tasks: of it.
    first: `successes` of the first episodes, which are not played again.
    clusters: [tasks], the same number for tasks of one kind.
    num_samples: episodes of each task.

  Returns:
    num_samples: as given.
    samples: `successes` of each round of episodes, the first included.
    pass_at_k: k -> share of tasks that one of k episodes solves, without bias
      (arXiv 2107.03374), for 1, 2, 4, ... and `num_samples`. That of 1 is
      avg@k, the mean over all episodes. Tasks without k known episodes do not
      count.
    pass_at_k_interval: k -> 95 % interval, of a bootstrap over clusters.
  """
  flat = successes(play_episodes(runner, tasks, range(1, num_samples)))
  rounds = [first, *(
      flat[start:start + len(tasks)]
      for start in range(0, len(flat), len(tasks)))]
  values, intervals = {}, {}
  for k in sorted({
      *(1 << i for i in range(num_samples.bit_length())
        if 1 << i <= num_samples), num_samples}):
    of_tasks = [
        metrics_lib.pass_at_k(len(known), known.count('1'), k)
        if len(known := [x for x in episodes if x != LEFT_OUT]) >= k
        else math.nan for episodes in zip(*rounds)]
    values[str(k)] = float(np.nanmean(of_tasks))
    intervals[str(k)] = _interval(np.array(of_tasks), np.array(clusters))
  return {
      'num_samples': num_samples, 'samples': rounds, 'pass_at_k': values,
      'pass_at_k_interval': intervals}


def _interval(values: np.ndarray, clusters: np.ndarray) -> list[float]:
  """95 % of the means of [N] values, NaN for none, with other clusters."""
  names, index = np.unique(clusters[np.isfinite(values)], return_inverse=True)
  known = values[np.isfinite(values)]
  sums = np.bincount(index, known, len(names))
  sizes = np.bincount(index, minlength=len(names))
  drawn = np.random.default_rng(0).integers(
      len(names), size=(_NUM_DRAWS, len(names)))
  means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
  return [float(x) for x in np.quantile(means, [0.025, 0.975])]


def lines(result: Mapping[str, Any]) -> list[str]:
  """What of the above is in the result of an evaluation, for the terminal."""
  found = []
  for k, value in result.get('pass_at_k', {}).items():
    low, high = result['pass_at_k_interval'][k]
    name = f'avg@{result["num_samples"]}' if k == '1' else f'pass@{k}'
    found.append(
        f'{name:8s} {100 * value:5.1f} % {100 * low:6.1f} … '
        f'{100 * high:5.1f} %')
  if 'num_timed' in result:
    found.append(
        f'response time {result["response_seconds"]:.3f} s, '
        f'{result["tokens_per_second"]:.0f} tokens a second '
        f'({result["num_timed"]} tasks one by one)')
  return found


def response_time(
    runner: runner_lib.EpisodeRunner,
    tasks: Sequence[env_api.Task]) -> dict[str, float]:
  """How long a team takes if nothing else runs (arXiv 2508.04652).

  Tasks are played one after another, each role by itself. Roles that act at
  once would take as long as the slowest, so a task takes the sum over its
  phases of the largest time of a role; environments are not counted. The first
  task is played once more before, since it may compile.

  Returns:
    response_seconds: mean of the tasks.
    tokens_per_second: generated tokens of all tasks over their seconds.
    num_timed: tasks.
  """
  runner.play([_timed_episode(runner, tasks[0])])
  seconds, tokens = zip(*(
      played for task in tasks
      for played in runner.play([_timed_episode(runner, task)])))
  return {
      'response_seconds': statistics.fmean(seconds),
      'tokens_per_second': sum(tokens) / sum(seconds), 'num_timed': len(tasks)}


def _timed_episode(
    runner: runner_lib.EpisodeRunner,
    task: env_api.Task) -> runner_lib.EpisodeCoroutine:
  """Returns seconds and generated tokens of one episode."""
  environment = runner.environment
  state, seconds, tokens = environment.reset(task), 0.0, 0
  for turn, phase in play.positions(environment):
    actions, of_roles = {}, []
    for role in environment.phases[phase]:
      key = types.GroupKey(task['task_id'], role, turn, branch=0)
      start = time.perf_counter()
      group, = yield runner.sample(
          [runner_lib.SampleRequest(key, state)], group_size=1)
      of_roles.append(time.perf_counter() - start)
      ids, = group.completions
      tokens += len(ids)
      actions[role] = runner.text_of(role, ids)
    seconds += max(of_roles)
    step, = yield runner.step_environments([state], [actions])
    if tree_lib.failed(step):
      raise errors.InfrastructureError(
          f'Task {task["task_id"]!r} failed through no fault of the team, so '
          'its time is not known; look for the reason above, then run the same '
          'command again.')
    if step.done:
      break
    state = step.state
  return seconds, tokens


def wilson_interval(
    num_success: float, num_trials: int,
    z: float = 1.959964) -> tuple[float, float]:
  """Wilson's score interval of a proportion (95 % by default)."""
  if not 0 <= num_success <= num_trials or not num_trials:
    raise ValueError(
        f'{num_success} successes in {num_trials} trials are no proportion.')
  share = num_success / num_trials
  scale = 1 + z**2 / num_trials
  centre = share + z**2 / (2 * num_trials)
  spread = z * math.sqrt(
      share * (1 - share) / num_trials + z**2 / (4 * num_trials**2))
  return (
      max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale))
