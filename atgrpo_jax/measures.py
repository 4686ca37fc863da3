"""Measures of an evaluation beyond success: pass@k, intervals, response time.

  python -m atgrpo_jax.measures --k=1,4 RUN/groups/*.jsonl.gz

prints pass@k, accuracy@k and maxcoop@k for every role and turn of a training
run on programming problems, over the groups that the run has written.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable, Mapping, Sequence
import math
import pathlib
import statistics
import sys
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

# Measure -> the reward terms it reads, and the value of one candidate.
_TEST_TERMS = ('golden', 'correct', 'tests')
_GROUP_MEASURES = {
    'pass': (_TEST_TERMS, lambda value: float(value >= 1)),
    'accuracy': (_TEST_TERMS, float),
    'maxcoop': (('cooperation',), float),
}


def play_episodes(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    branches: Sequence[int] = (0,)) -> list[list[tree_lib.Node]]:
  """Plays one episode of each task for each branch; returns their nodes.

  The result is ordered by branch, then by task. Branches differ in the random
  keys of their candidates.
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


def best_at_k(values: Sequence[float], k: int) -> float:
  """Expected maximum of k values, drawn without replacement.

  For values of 0 and 1 this is the unbiased pass@k of arXiv 2107.03374.
  """
  n = len(values)
  if not 1 <= k <= n:
    raise ValueError(f'k={k} must be from 1 to {n}, the number of candidates.')
  # The value of rank i is the maximum of comb(i, k - 1) of the subsets.
  return sum(
      value * math.comb(i, k - 1) for i, value in enumerate(sorted(values))
  ) / math.comb(n, k)


def pass_at_k(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    first: str, clusters: Sequence[int], num_samples: int) -> dict[str, Any]:
  """Plays several episodes of each task and estimates pass@k.

  Args:
    runner: the runner of the evaluation.
    tasks: the tasks of the evaluation.
    first: `successes` of the first episodes, which are not played again.
    clusters: [num_tasks], equal for tasks of one kind.
    num_samples: number of episodes of each task, the first included.

  Returns:
    num_samples: as given.
    samples: `successes` of each round of episodes.
    pass_at_k: k -> unbiased estimate of the probability that at least one of
      k episodes succeeds (arXiv 2107.03374), for powers of 2 and num_samples.
      k = 1 is avg@k. Tasks with fewer than k finished episodes are excluded.
    pass_at_k_interval: k -> 95 % interval from a bootstrap over clusters.
  """
  flat = successes(play_episodes(runner, tasks, range(1, num_samples)))
  rounds = [first, *(
      flat[start:start + len(tasks)]
      for start in range(0, len(flat), len(tasks)))]
  powers = {
      1 << i for i in range(num_samples.bit_length()) if 1 << i <= num_samples}
  values, intervals = {}, {}
  for k in sorted(powers | {num_samples}):
    per_task = []
    for episodes in zip(*rounds):
      finished = [x for x in episodes if x != FAILED]
      per_task.append(
          best_at_k([float(x) for x in finished], k)
          if len(finished) >= k else math.nan)
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


def group_measures(
    trees: Iterable[tree_lib.Tree],
    k: int) -> dict[tuple[str, int, str], float]:
  """PassOrNot@k, Accuracy@k and MaxCoop@k of arXiv 2508.04652.

  pass@k is the fraction of prompts whose tests one of k candidates passes; for
  a tester, whose list of cases is correct as a whole. accuracy@k is the largest
  fraction of passed tests or correct cases among k candidates, and maxcoop@k
  their largest cooperation term.

  Args:
    trees: of training steps.
    k: candidates of a prompt. Prompts with fewer are excluded.

  Returns:
    (role, turn, measure) -> mean over prompts.
  """
  values = collections.defaultdict(list)
  for node in (node for tree in trees for node in tree.nodes):
    for index, group in enumerate(node.groups):
      candidates = [
          terms for candidate in range(len(group.candidates))
          if (terms := _mean_terms(node, index, candidate)) is not None]
      for measure, (names, value_fn) in _GROUP_MEASURES.items():
        found = [
            value_fn(terms[name]) for terms in candidates for name in names
            if name in terms]
        if len(found) >= k:
          values[group.key.role, node.turn, measure].append(
              best_at_k(found, k))
  return {key: statistics.fmean(x) for key, x in values.items()}


def _mean_terms(
    node: tree_lib.Node, group: int, candidate: int) -> dict[str, float] | None:
  """Mean reward terms over a candidate's steps; None if all steps failed."""
  known = [
      step.reward_terms for joint_action, step in zip(
          node.joint_actions, node.steps)
      if joint_action[group] == candidate and not tree_lib.failed(step)]
  if not known:
    return None
  return {
      name: statistics.fmean(terms[name] for terms in known)
      for name in known[0]}


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
  """Measures the response time of a team on an idle machine (2508.04652).

  Plays one task after another and samples one role at a time. Roles of one
  phase would act in parallel, so a phase takes as long as its slowest role;
  environment steps are not timed. The first task is played twice, because the
  first time may include compilation.

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
          f'Task {task["task_id"]!r} failed for a reason outside the model, so '
          'its response time is unknown. See the reason above, fix it, and run '
          'the same command again.')
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


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(prog='python -m atgrpo_jax.measures')
  parser.add_argument('--k', default='1', help='for example 1,5,10')
  parser.add_argument('files', nargs='+', type=pathlib.Path)
  return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
  """Runs the command of the module docstring and returns its exit status."""
  args = parse(arguments)
  try:
    for k in map(int, args.k.split(',')):
      trees = (tree for path in args.files for tree in tree_lib.read(path))
      for key, value in sorted(group_measures(trees, k).items()):
        role, turn, measure = key
        print(f'{role}, turn {turn + 1}: {measure}@{k} {value:.3f}')
  except ValueError as error:
    print(error, file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
