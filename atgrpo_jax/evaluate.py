"""Evaluates a team on held-out tasks: one candidate per prompt, no selection.

Writes the result to `evals/<name>.json` and the trees of its episodes to
`evals/<name>.jsonl.gz`.
"""

import collections
from collections.abc import Mapping, Sequence
import functools
import itertools
import json
import math
import pathlib
import statistics
import time
from typing import Any

import ml_collections
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import settings
from atgrpo_jax import statistics as statistics_lib
from atgrpo_jax import types
from atgrpo_jax.algorithms import grpo
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import files
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import datasets
from environments import env_api

# Failed tasks are excluded from all means. Above this fraction the other tasks
# no longer represent the split, so the evaluation fails.
MAX_FAILED_FRACTION = 0.01
# From this fraction of parse errors on, a role does not follow its prompt.
MIN_PARSE_ERRORS = 0.95
# Marks a failed task in `successes`.
FAILED = '-'
_NUM_BOOTSTRAP_DRAWS = 2000


# ---- One evaluation ---------------------------------------------------------


def evaluate(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    transcripts: pathlib.Path | None = None) -> dict[str, Any]:
  """Plays each task once (K = 1) and reports success, returns and cost.

  Writes the trees of the episodes to `transcripts`. The result includes the
  whole usage of `runner`, so the runner should be new.

  Raises InfrastructureError if more than `MAX_FAILED_FRACTION` of the tasks
  failed for reasons outside the model.
  """
  environment = runner.environment
  episodes = play_episodes(runner, tasks)
  outcomes = {role: collections.Counter() for role in environment.roles}
  for node in itertools.chain(*episodes):
    for role, outcome in node.steps[0].outcomes.items():
      outcomes[role][outcome.value] += 1

  finished = [nodes for nodes in episodes if not nodes[-1].failed(0)]
  num_failed = len(tasks) - len(finished)
  _check_num_failed(num_failed, len(tasks))
  if transcripts is not None:
    tree_lib.write(
        transcripts, [
            tree_lib.chain(task['task_id'], nodes)
            for task, nodes in zip(tasks, episodes)],
        functools.partial(contract.show_in_report, environment),
        with_tokens=False)

  last_steps = [nodes[-1].steps[0] for nodes in finished]
  num_turns = [nodes[-1].turn + 1 for nodes in finished]
  turns_to_solve = [
      n for n, step in zip(num_turns, last_steps) if step.success]
  num_success = len(turns_to_solve)
  returns = [
      float(sum(node.team_rewards[0] for node in nodes)) for nodes in episodes]
  last_terms = [  # Of each episode: not every role has all terms.
      {} if nodes[-1].failed(0) else dict(itertools.chain.from_iterable(
          node.steps[0].reward_terms.items() for node in nodes))
      for nodes in episodes]
  terms = {
      name: [values.get(name) for values in last_terms]
      for name in dict.fromkeys(itertools.chain(*last_terms))}

  return {
      'num_tasks': len(tasks),
      'num_left_out': num_failed,  # Excluded from all means below.
      'success': num_success / len(finished),
      # Without a completion that was cut off at `max_new_tokens`.
      'finished_success': sum(
          nodes[-1].steps[0].success and not any(
              runner.is_cut(group.key.role, group.candidates[0].completion)
              for node in nodes for group in node.groups)
          for nodes in finished) / len(finished),
      # One character for each task, so that runs can be compared by task.
      'successes': successes(episodes),
      'clusters': clusters(tasks),
      'interval': statistics_lib.wilson_interval(
          num_success / len(finished), len(finished)),
      # Undiscounted team returns, None for failed tasks. `terms` has the last
      # value of a reward term in each episode, None without one.
      'mean_return': statistics.fmean(filter(math.isfinite, returns)),
      'returns': [x if math.isfinite(x) else None for x in returns],
      'reward_terms': {
          name: statistics.fmean(x for x in values if x is not None)
          for name, values in terms.items()},
      'terms': terms,
      'mean_turns': sum(num_turns) / len(finished),
      'mean_turns_to_solve': (
          sum(turns_to_solve) / num_success if num_success else None),
      'truncated': sum(step.truncated for step in last_steps) / len(finished),
      'outcomes': {role: dict(count) for role, count in outcomes.items()},
      'budget': runner.usage.counts(),
      'policy_map': dict(runner.policy_map),
      'split_hash': datasets.split_hash(tasks),
      'seed': runner.seed,
      'step': runner.train_step,
      'sampling': {
          'temperature': runner.temperature, 'top_k': runner.top_k,
          'top_p': runner.top_p,
          'max_new_tokens': runner.max_new_tokens,
          **{name: value for name in ('stop', 'per_policy')
             if (value := getattr(runner, name))}}}


def play_episodes(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    branches: Sequence[int] = (0,)) -> list[list[tree_lib.Node]]:
  """Plays one episode of each task for each branch.

  Branches differ in the random keys of their candidates. Returns the nodes of
  each episode, ordered by branch, then by task.
  """
  return runner.play([
      grpo.play_episode(
          runner, task['task_id'], runner.reset(task),
          contract.Position(), branch=branch)
      for branch in branches for task in tasks])


def successes(episodes: Sequence[Sequence[tree_lib.Node]]) -> str:
  """Returns '1', '0' or `FAILED` for each episode."""
  return ''.join(
      FAILED if nodes[-1].failed(0) else '01'[nodes[-1].steps[0].success]
      for nodes in episodes)


def clusters(tasks: Sequence[env_api.Task]) -> list[int]:
  """Maps each task to the first task of its `kind`, or to itself without."""
  first = {}
  return [
      index if task.get('kind') is None
      else first.setdefault(str(task['kind']), index)
      for index, task in enumerate(tasks)]


def _check_num_failed(
    num_failed: int, num_played: int, noun: str = 'tasks') -> None:
  """Reports failed episodes; InfrastructureError if there are too many."""
  if not num_failed:
    return
  message = (
      f'{num_failed} of {num_played} {noun} failed for reasons outside the '
      'model')
  if num_failed > MAX_FAILED_FRACTION * num_played:
    raise errors.InfrastructureError(
        f'{message}; an evaluation allows {MAX_FAILED_FRACTION:.0%}. The '
        'sandbox or a worker broke, as reported above. Fix it and run the same '
        'command again.')
  print(f'{message} and are excluded')


# ---- Several episodes of a task, and response time ---------------------------


def pass_at_k(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    first: str, clusters: Sequence[int], num_samples: int) -> dict[str, Any]:
  """Plays several episodes of each task and estimates pass@k.

  pass@k is the probability that at least one of k episodes succeeds; k = 1
  gives avg@k. The estimate is the unbiased one of arXiv 2107.03374. Tasks with
  fewer than k finished episodes are excluded.

  Args:
    first: `successes` of the first episodes, which are not played again.
    clusters: [num_tasks], equal for tasks of one kind.
    num_samples: number of episodes of each task, including the first.

  Returns:
    num_samples and samples: the `successes` of each round of episodes.
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


def response_time(
    runner: runner_lib.EpisodeRunner,
    tasks: Sequence[env_api.Task]) -> dict[str, float]:
  """Measures the response time of a team, as in arXiv 2508.04652.

  Plays one task after another and samples one role at a time. Roles of a phase
  could act in parallel, so the phase takes as long as its slowest role.
  Environment steps are not timed. The first task is played once beforehand to
  compile the programs.

  Returns the mean `response_seconds` of tasks, `tokens_per_second` over all
  tasks, and their number, `num_timed`.
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
  state, seconds, tokens = runner.reset(task), 0.0, 0
  position = contract.Position()
  while True:
    actions, role_seconds = {}, []
    for role in environment.phases[position.phase]:
      key = types.GroupKey(task['task_id'], role, position.turn, branch=0)
      start = time.perf_counter()
      group, = yield runner.sample({key: state}, group_size=1)
      role_seconds.append(time.perf_counter() - start)
      ids, = group.completions
      tokens += len(ids)
      actions[role] = runner.text_of(role, ids)
    seconds += max(role_seconds)
    step, = yield runner.step_environments(
        [state], [actions], task_id=task['task_id'], turn=position.turn)
    if tree_lib.failed(step):
      raise errors.InfrastructureError(
          f'Task {task["task_id"]!r} failed for a reason outside the model. '
          'Fix the error above and run the same command again.')
    if step.done:
      break
    state, position = step.state, contract.next_position(
        environment, position, step, task_id=task['task_id'])
    if not runner.has_room(task['task_id'], position, state):
      break
  return seconds, tokens


# ---- In training -------------------------------------------------------------


def warn_of_overlap(
    config: ml_collections.ConfigDict, train_tasks: Sequence[env_api.Task],
    validation_tasks: Sequence[env_api.Task],
    test_tasks: Sequence[env_api.Task]) -> None:
  """Names the splits for evaluation that hold training tasks."""
  for key, tasks in (('validation', validation_tasks), ('test', test_tasks)):
    if num_common := datasets.num_common(tasks, train_tasks):
      print(
          f'warning: {num_common} of {len(tasks)} tasks of evaluation.{key}='
          f'{config.evaluation[key]!r} are also in dataset.train='
          f'{config.dataset.train!r}, so they are not held out.')


def test(
    experiment: experiment_lib.Experiment, states: experiment_lib.States,
    tasks: Sequence[env_api.Task], step: int, workdir: pathlib.Path,
    name: str) -> dict[str, Any]:
  """Evaluates the test split, writes `evals/<name>.json`, prints problems."""
  runner = experiment.runner(
      experiment_lib.params_of(states), step=step,
      **experiment.evaluation_sampling)
  result = describe(experiment) | evaluate(
      runner, tasks, transcripts_path(workdir, name))
  write(workdir, name, result)
  print_problems(result)
  return result


def validate(
    experiment: experiment_lib.Experiment, states: experiment_lib.States,
    tasks: Sequence[env_api.Task], step: int) -> dict[str, float]:
  """Returns metrics of the validation split, sampled as in training."""
  runner = experiment.runner(
      experiment_lib.params_of(states), step=step,
      **experiment.rollout_sampling)
  result = evaluate(runner, tasks)
  values = {
      'step': step, 'success': result['success'],
      'finished_success': result['finished_success'],
      'return': result['mean_return']}
  if result['success']:
    values['turns_to_solve'] = result['mean_turns_to_solve']
  return {f'validation/{name}': value for name, value in values.items()}


# ---- The mode `evaluate` ----------------------------------------------------


def evaluate_run(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path,
    checkpoint: str = checkpoints_lib.LATEST) -> None:
  """Evaluates a checkpoint, or the untrained team if the workdir has none.

  Writes `evals/<evaluation.name>.json`; see `Experiment.trained_params`.
  """
  config = experiment.config
  name = config.evaluation.name
  if name in ('', 'before', 'after') or pathlib.PurePath(name).name != name:
    raise errors.UserError(
        f'evaluation.name={name!r}: expected a plain file name other than '
        "'before' and 'after', which training writes.")
  num_samples = config.evaluation.num_samples
  if num_samples > 1 and not config.evaluation.temperature:
    raise errors.UserError(
        f'evaluation.num_samples={num_samples} with evaluation.temperature=0 '
        'plays equal episodes; raise the temperature.')
  tasks = experiment.tasks(config.evaluation.test)
  policy_map = None
  if config.evaluation.policy_map:
    policy_map = settings.read_policy_map(
        'evaluation.policy_map', config.evaluation.policy_map,
        experiment.environment.roles)
    trained = set(experiment.policy_map.values())
    unknown = set(policy_map.values()) - trained
    if unknown:
      raise errors.UserError(
          f'evaluation.policy_map={config.evaluation.policy_map!r} names '
          f'{sorted(unknown)}, but the run trains {sorted(trained)}.')
  if not workdir_lib.check_config(workdir, config.to_dict()):
    workdir_lib.write_config(
        workdir, config.to_dict(), experiment.code_digests)
  params, step = experiment.trained_params(workdir, checkpoint)
  print(f'sandbox level {config.sandbox.level}')

  def make_runner():
    return experiment.runner(
        params, step=step, policy_map=policy_map,
        **experiment.evaluation_sampling)

  result = describe(experiment) | evaluate(
      make_runner(), tasks, transcripts_path(workdir, name))
  if num_samples > 1:
    result |= pass_at_k(
        make_runner(), tasks, result['successes'], result['clusters'],
        num_samples)
    _check_num_failed(
        sum(x.count(FAILED) for x in result['samples']),
        num_samples * len(tasks), 'episodes')
  if config.evaluation.num_timed:
    result |= response_time(make_runner(), tasks[:config.evaluation.num_timed])
  path = write(workdir, name, result)
  print_table({name: result})
  print_problems(result)
  _print_extras(result)
  print(f'written to {path}')


# ---- Files ------------------------------------------------------------------


def describe(experiment: experiment_lib.Experiment) -> dict[str, Any]:
  """Returns the fields of an evaluation that identify its run."""
  config = experiment.config
  return {
      'task': config.environment.module,
      'team': config.environment.team,
      'split': config.evaluation.test,
      'max_turns': experiment.environment.max_turns,
      'sandbox': config.sandbox.level,
      'config_hash': workdir_lib.config_hash(config.to_dict()),
      'code': experiment.code_digests}


def transcripts_path(workdir: pathlib.Path, name: str) -> pathlib.Path:
  """Returns the file with the trees of an evaluation."""
  return workdir / 'evals' / f'{name}.jsonl.gz'


def write(
    workdir: pathlib.Path, name: str,
    result: Mapping[str, Any]) -> pathlib.Path:
  """Writes `evals/<name>.json`."""
  path = workdir / 'evals' / f'{name}.json'
  if hosts.is_first():
    # Without `parents`: a workdir that was deleted is not created again.
    path.parent.mkdir(exist_ok=True)
    # The file marks everything before it as done, so it is written atomically.
    files.write_whole(path, json.dumps(result, indent=2) + '\n')
  hosts.barrier()  # Other processes may read it.
  return path


def read(workdir: pathlib.Path, name: str) -> dict[str, Any]:
  """Reads `evals/<name>.json`; UserError if it is missing or inconsistent."""
  path = workdir / 'evals' / f'{name}.json'
  with files.read_errors_as_user_errors(
      path, 'restore it, or evaluate the checkpoint again with --mode=evaluate '
      'and another evaluation.name'):
    result = json.loads(path.read_text())
    for field in ('successes', 'clusters'):
      if len(result[field]) != result['num_tasks']:
        raise ValueError(f'{field} does not have one value per task')
    num_finished = result['num_tasks'] - result.get('num_left_out', 0)
    if result['successes'].count('1') != round(
        result['success'] * num_finished):
      raise ValueError('successes do not match success')
  return result


def check_comparable(
    before: Mapping[str, Any], tasks: Sequence[env_api.Task],
    sampling: Mapping[str, Any]) -> None:
  """Raises UserError unless `before` used these tasks and this sampling."""
  sampling = json.loads(json.dumps(sampling))  # As `before` was stored.
  recorded = {name: before['sampling'].get(name) for name in sampling}
  if (before['split_hash'], recorded) != (datasets.split_hash(tasks), sampling):
    given = ', '.join(f'evaluation.{x}={y}' for x, y in sampling.items())
    raise errors.UserError(
        f'evals/before.json used the split {before["split"]!r} and {recorded}, '
        f'but evaluation.test has other tasks or {given} differs. Restore '
        'them; evaluate other tasks with --mode=evaluate after the run.')


# ---- Terminal output --------------------------------------------------------


def sandbox_of(result: Mapping[str, Any]) -> str:
  """Returns the isolation level of an evaluation; '' if no program ran."""
  if not result['budget']['program_runs']:
    return ''
  # Evaluations without the field ran under resource limits alone.
  return result.get('sandbox', 'unsafe_rlimit')


def find_problems(result: Mapping[str, Any]) -> list[str]:
  """Returns a sentence for each role whose answers can hardly be parsed.

  Others say that prompts were too long, or that most solved tasks have an
  answer that was cut off.
  """
  when = f'after step {result["step"]}' if result['step'] else 'before training'
  problems = []
  num_overlong = result['budget'].get('overlong_prompts', 0)
  if num_overlong:
    problems.append(
        f'{num_overlong} of {result["num_tasks"]} episodes {when} ended at a '
        'prompt that was too long; raise the largest of buckets.prompt.')
  all_answers = sum(sum(x.values()) for x in result['outcomes'].values())
  reason = (
      'most answers were cut off at rollout.max_new_tokens; raise it.'
      if 2 * result['budget'].get('cut_completions', 0) > all_answers else
      'the model does not answer in the form that the prompt asks for.')
  for role, outcomes in result['outcomes'].items():
    num_errors = outcomes.get(env_api.Outcome.PARSE_ERROR.value, 0)
    num_answers = sum(outcomes.values())
    if num_errors and num_errors >= MIN_PARSE_ERRORS * num_answers:
      problems.append(
          f'{num_errors} of {num_answers} answers of {role} {when} are parse '
          f'errors: {reason}')
  finished = result.get('finished_success', result['success'])
  if finished < result['success'] / 2:
    problems.append(
        f'{100 * result["success"]:.1f} % of the tasks are solved {when}, but '
        f'only {100 * finished:.1f} % without an answer that was cut off at '
        'rollout.max_new_tokens; raise it, or set rollout.keep_truncated=False '
        'to pay nothing for such answers.')
  return problems


def print_problems(result: Mapping[str, Any]) -> None:
  """Prints the problems of an evaluation as warnings."""
  for problem in find_problems(result):
    print(f'warning: {problem}')


def print_comparison(
    before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
  """Prints both evaluations, with 95 % intervals."""
  print_table({'before': before, 'after': after})
  print(f'held-out success: before {100 * before["success"]:.1f} %, after '
        f'{100 * after["success"]:.1f} % ({after["num_tasks"]} tasks)')
  for name in ('return', *before.get('terms', ())):
    print(f'held-out {name}: before {_format_mean(before, name)}, after '
          f'{_format_mean(after, name)}')


def print_table(results: Mapping[str, Mapping[str, Any]]) -> None:
  """Prints one line for each evaluation."""
  print(f'{"":12s} {"success":>8s} {"95 % interval":>16s} {"return":>7s} '
        f'{"mean turns":>11s} {"to solve":>9s} {"step":>5s}')
  for name, result in results.items():
    low, high = result['interval']
    to_solve = result['mean_turns_to_solve']
    solved = '' if to_solve is None else f'{to_solve:.2f}'
    print(f'{name:12s} {100 * result["success"]:6.1f} % '
          f'{100 * low:6.1f} … {100 * high:5.1f} % '
          f'{result["mean_return"]:7.3f} '
          f'{result["mean_turns"]:11.2f} '
          f'{solved:>9s} '
          f'{result["step"]:5d}')


def _format_mean(result: Mapping[str, Any], name: str) -> str:
  """Formats a mean over tasks with an interval from a bootstrap over clusters.

  `name` is 'return' or a reward term.
  """
  values = np.array(
      result['returns'] if name == 'return' else result['terms'].get(name),
      float)
  if np.all(np.isnan(values)):
    return 'none'
  low, high = _bootstrap(values, np.array(result['clusters']))
  return f'{np.nanmean(values):.3f} ({low:.3f} … {high:.3f})'


def _print_extras(result: Mapping[str, Any]) -> None:
  """Prints pass@k and response time, if they were measured."""
  if 'num_samples' in result:
    print('The numbers above are those of the first of '
          f'{result["num_samples"]} episodes of each task; over all of them:')
  for k, value in result.get('pass_at_k', {}).items():
    low, high = result['pass_at_k_interval'][k]
    name = f'avg@{result["num_samples"]}' if k == '1' else f'pass@{k}'
    print(f'{name:8s} {100 * value:5.1f} % {100 * low:6.1f} … '
          f'{100 * high:5.1f} %')
  if 'num_timed' in result:
    print(f'response time {result["response_seconds"]:.3f} s, '
          f'{result["tokens_per_second"]:.0f} tokens/s '
          f'({result["num_timed"]} tasks, one at a time)')
