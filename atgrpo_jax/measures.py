"""Measures of an evaluation: episodes, intervals, pass@k, response time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import statistics
import time
from typing import Any

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.algorithms import grpo
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api

# Marks an episode in `successes` that failed for a reason outside the model.
FAILED = '-'
_NUM_BOOTSTRAP_DRAWS = 2000


def play_episodes(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    branches: Sequence[int] = (0,)) -> list[list[tree_lib.Node]]:
  """Plays one episode of each task for each branch.

  Branches differ in the random keys of their candidates. Returns the nodes of
  each episode, ordered by branch, then by task.
  """
  environment = runner.environment
  return runner.play([
      grpo.play_episode(
          runner, task['task_id'], environment.reset(task),
          runner_lib.positions(environment), branch=branch)
      for branch in branches for task in tasks])


def successes(episodes: Sequence[Sequence[tree_lib.Node]]) -> str:
  """Returns '1', '0' or `FAILED` for each episode."""
  return ''.join(
      FAILED if nodes[-1].failed(0) else '01'[nodes[-1].steps[0].success]
      for nodes in episodes)


def pass_at_k(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    first: str, clusters: Sequence[int], num_samples: int) -> dict[str, Any]:
  """Plays several episodes of each task and estimates pass@k.

  pass@k is the probability that at least one of k episodes succeeds; k = 1
  gives avg@k. The estimate is the unbiased one of arXiv 2107.03374. Tasks with
  fewer than k finished episodes are excluded.

  Args:
    runner: the runner of the evaluation.
    tasks: the tasks of the evaluation.
    first: `successes` of the first episodes, which are not played again.
    clusters: [num_tasks], equal for tasks of one kind.
    num_samples: number of episodes of each task, including the first.

  Returns:
    num_samples: as given.
    samples: `successes` of each round of episodes.
    pass_at_k: k -> estimate, for powers of 2 and num_samples.
    pass_at_k_interval: k -> 95 % interval from a bootstrap over clusters.
  """
  flat = successes(play_episodes(runner, tasks, range(1, num_samples)))
  rounds = [first, *(
      flat[start:start + len(tasks)]
      for start in range(0, len(flat), len(tasks)))]
  powers = [1 << i for i in range(num_samples.bit_length())]
  values, intervals = {}, {}
  for k in sorted({*powers, num_samples}):
    per_task = []
    for episodes in zip(*rounds):
      num_finished = len(episodes) - episodes.count(FAILED)
      num_unsolved = episodes.count('0')
      per_task.append(
          1 - math.comb(num_unsolved, k) / math.comb(num_finished, k)
          if num_finished >= k else math.nan)
    values[str(k)] = float(np.nanmean(per_task))
    intervals[str(k)] = _bootstrap(np.array(per_task), np.array(clusters))
  return {
      'num_samples': num_samples, 'samples': rounds, 'pass_at_k': values,
      'pass_at_k_interval': intervals}


def _bootstrap(values: np.ndarray, clusters: np.ndarray) -> list[float]:
  """95 % interval of the mean of [N] values, resampled by cluster.

  NaN values are excluded.
  """
  finite = np.isfinite(values)
  values = values[finite]
  names, index = np.unique(clusters[finite], return_inverse=True)
  sums = np.bincount(index, values, len(names))
  sizes = np.bincount(index, minlength=len(names))
  drawn = np.random.default_rng(0).integers(
      len(names), size=(_NUM_BOOTSTRAP_DRAWS, len(names)))
  means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
  return [float(x) for x in np.quantile(means, [0.025, 0.975])]


def print_extras(result: Mapping[str, Any]) -> None:
  """Prints pass@k and the response time, if the evaluation has them."""
  for k, value in result.get('pass_at_k', {}).items():
    low, high = result['pass_at_k_interval'][k]
    name = f'avg@{result["num_samples"]}' if k == '1' else f'pass@{k}'
    print(f'{name:8s} {100 * value:5.1f} % {100 * low:6.1f} … '
          f'{100 * high:5.1f} %')
  if 'num_timed' in result:
    print(f'response time {result["response_seconds"]:.3f} s, '
          f'{result["tokens_per_second"]:.0f} tokens/s '
          f'({result["num_timed"]} tasks, one at a time)')


def response_time(
    runner: runner_lib.EpisodeRunner,
    tasks: Sequence[env_api.Task]) -> dict[str, float]:
  """Measures the response time of a team, as in arXiv 2508.04652.

  Plays one task after another and samples one role at a time. Roles of a phase
  could act in parallel, so the phase takes as long as its slowest role.
  Environment steps are not timed. The first task is played once beforehand to
  compile the programs.

  Returns:
    response_seconds: mean over tasks.
    tokens_per_second: generated tokens of all tasks over their seconds.
    num_timed: number of tasks.
  """
  runner.play([_timed_episode(runner, tasks[0])])
  seconds, tokens = zip(*(
      timed for task in tasks
      for timed in runner.play([_timed_episode(runner, task)])))
  return {
      'response_seconds': statistics.fmean(seconds),
      'tokens_per_second': sum(tokens) / sum(seconds), 'num_timed': len(tasks)}


def _timed_episode(
    runner: runner_lib.EpisodeRunner,
    task: env_api.Task) -> runner_lib.EpisodeCoroutine:
  """Returns seconds and generated tokens of one episode."""
  environment = runner.environment
  state, seconds, tokens = environment.reset(task), 0.0, 0
  for turn, phase in runner_lib.positions(environment):
    actions, role_seconds = {}, []
    for role in environment.phases[phase]:
      key = types.GroupKey(task['task_id'], role, turn, branch=0)
      start = time.perf_counter()
      group, = yield runner.sample(
          [runner_lib.SampleRequest(key, state)], group_size=1)
      role_seconds.append(time.perf_counter() - start)
      ids, = group.completions
      tokens += len(ids)
      actions[role] = runner.text_of(role, ids)
    seconds += max(role_seconds)
    step, = yield runner.step_environments([state], [actions])
    if tree_lib.failed(step):
      raise errors.InfrastructureError(
          f'Task {task["task_id"]!r} failed for a reason outside the model. '
          'Fix the error above and run the same command again.')
    if step.done:
      break
    state = step.state
  return seconds, tokens


def wilson_interval(
    num_success: float, num_trials: int,
    z: float = 1.959964) -> tuple[float, float]:
  """Wilson score interval of a proportion, 95 % by default."""
  if not 0 <= num_success <= num_trials or not num_trials:
    raise ValueError(
        f'{num_success} successes in {num_trials} trials: expected '
        '0 <= successes <= trials and at least one trial.')
  rate = num_success / num_trials
  scale = 1 + z**2 / num_trials
  centre = rate + z**2 / (2 * num_trials)
  spread = z * math.sqrt(
      rate * (1 - rate) / num_trials + z**2 / (4 * num_trials**2))
  return (
      max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale))
