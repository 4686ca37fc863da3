"""How a team does on held-out tasks: one answer per prompt, no oracle."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import itertools
import json
import math
import pathlib
import statistics
from typing import Any

from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import measures
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import files
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rollout import policy_map as policy_map_lib
from atgrpo_jax.rollout import records
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import datasets
from environments import env_api

# A task whose episode failed through no fault of the team is left out, as its
# answer is not known. Above this share of tasks the rest would no longer stand
# for all, and there is no result.
MAX_SHARE_LEFT_OUT = 0.01


def evaluate(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    transcripts: pathlib.Path | None = None) -> dict[str, Any]:
  """Plays each task once (K = 1) and reports how the team did.

  Args:
    runner: environment, policies and sampling temperature; what it has cost,
      this included, is reported as well.
    tasks: the held-out tasks.
    transcripts: where all episodes are written, if anywhere; see
      `rollout.records.write_trees`.

  Raises:
    InfrastructureError: more than `MAX_SHARE_LEFT_OUT` of the tasks failed
      through no fault of the team.
  """
  environment = runner.environment
  played = measures.play_episodes(runner, tasks)
  outcomes = {role: collections.Counter() for role in environment.roles}
  for node in itertools.chain(*played):
    for role, outcome in node.steps[0].outcomes.items():
      outcomes[role][outcome.value] += 1
  known = [nodes for nodes in played if not nodes[-1].failed(0)]
  num_left_out = len(tasks) - len(known)
  _check_left_out(num_left_out, len(tasks))
  if transcripts is not None:
    records.write_trees(
        transcripts, [
            tree_lib.chain(task['task_id'], nodes)
            for task, nodes in zip(tasks, played)],
        environment, with_tokens=False)
  lasts = [nodes[-1].steps[0] for nodes in known]
  turns = [nodes[-1].turn + 1 for nodes in known]
  solved = [
      number for number, last in zip(turns, lasts) if last.success]
  num_success = len(solved)
  returns = [
      float(sum(node.team_rewards[0] for node in nodes)) for nodes in played]
  terms = collections.defaultdict(list)
  for last in lasts:
    for name, value in last.reward_terms.items():
      terms[name].append(value)
  return {
      'num_tasks': len(tasks),
      # Through no fault of the team; all means and shares are of the others.
      'num_left_out': num_left_out,
      'success': num_success / len(known),
      # '1' or '0' for each task in its order, to compare runs task by task.
      'successes': measures.successes(played),
      'clusters': clusters(tasks),
      'interval': measures.wilson_interval(num_success, len(known)),
      # Of the team, undiscounted; None of a task that is left out. The terms
      # are those of the last step.
      'mean_return': statistics.fmean(filter(math.isfinite, returns)),
      'returns': [x if math.isfinite(x) else None for x in returns],
      'reward_terms': {
          name: statistics.fmean(x) for name, x in terms.items()},
      'mean_turns': sum(turns) / len(known),
      'mean_turns_to_solve': sum(solved) / len(solved) if solved else None,
      'truncated': sum(last.truncated for last in lasts) / len(known),
      'outcomes': {role: dict(count) for role, count in outcomes.items()},
      'budget': runner.counters.ledger(),
      'policy_map': dict(runner.policy_map),
      'split_hash': datasets.split_hash(tasks),
      'seed': runner.seed,
      'step': runner.train_step,
      'sampling': {
          'temperature': runner.temperature,
          'max_new_tokens': runner.max_new_tokens,
      },
  }


def _check_left_out(
    num_left_out: int, num_played: int, what: str = 'tasks') -> None:
  """Says how many are left out; InfrastructureError if too many are."""
  if not num_left_out:
    return
  found = (
      f'{num_left_out} of {num_played} {what} failed through no fault of the '
      'team')
  if num_left_out > MAX_SHARE_LEFT_OUT * num_played:
    raise errors.InfrastructureError(
        f'{found}, more than the {MAX_SHARE_LEFT_OUT:.0%} that an evaluation '
        'may leave out: the sandbox or a worker broke, as is said above, or '
        'the environment paid a reward that is not finite. Mend it, then run '
        'the same command again.')
  print(f'{found} and are left out')


def clusters(tasks: Sequence[env_api.Task]) -> list[int]:
  """For each task the index of the first one of its kind, or its own."""
  first = {}
  return [
      first.setdefault(task['kind'], index) if 'kind' in task else index
      for index, task in enumerate(tasks)]


def evaluate_run(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path,
    checkpoint: str = checkpoints_lib.LATEST) -> None:
  """Evaluates a checkpoint of `workdir`, or the untrained team.

  `checkpoint` is as in `Experiment.trained_params`.
  """
  config = experiment.config
  name = config.evaluation.name
  if name in ('', 'before', 'after') or pathlib.PurePath(name).name != name:
    raise errors.UserError(
        f'evaluation.name={name!r}: give a plain file name other than before '
        'and after, which training writes.')
  num_samples = config.evaluation.num_samples
  if num_samples > 1 and not config.evaluation.temperature:
    raise errors.UserError(
        'evaluation.temperature=0 would play '
        f'evaluation.num_samples={num_samples} equal episodes of each task; '
        'raise the temperature.')
  tasks = experiment.tasks(config.evaluation.test)
  policy_map = experiment.policy_map
  if config.evaluation.policies:
    policy_map = policy_map_lib.make_policy_map(
        config.evaluation.policies, experiment.environment.roles,
        'evaluation.policies')
    trained = set(experiment.policy_map.values())
    unknown = set(policy_map.values()) - trained
    if unknown:
      raise errors.UserError(
          f'evaluation.policies={config.evaluation.policies!r} names '
          f'{sorted(unknown)}, but the run trains {sorted(trained)}.')
  if not workdir_lib.check_config(workdir, config.to_dict()):
    workdir_lib.write_config(workdir, config.to_dict())
  workdir_lib.check_checkpoints(workdir, config.train.checkpoint_every)
  params, step = experiment.trained_params(workdir, checkpoint)
  print(f'sandbox level {config.sandbox.level}')

  def make_runner():
    return experiment.runner(
        params, step=step, temperature=config.evaluation.temperature,
        policy_map=policy_map)

  result = describe(experiment) | evaluate(
      make_runner(), tasks, transcripts_path(workdir, name))
  if num_samples > 1:
    result |= measures.pass_at_k(
        make_runner(), tasks, result['successes'], result['clusters'],
        num_samples)
    _check_left_out(
        sum(x.count(measures.LEFT_OUT) for x in result['samples']),
        num_samples * len(tasks), 'episodes')
  if config.evaluation.num_timed:
    result |= measures.response_time(
        make_runner(), tasks[:config.evaluation.num_timed])
  path = write(workdir, name, result)
  print_table({name: result})
  for line in measures.lines(result):
    print(line)
  print(f'written to {path}')


def describe(experiment: experiment_lib.Experiment) -> dict[str, Any]:
  """What an evaluation file says of the run it comes from."""
  config = experiment.config
  return {
      'task': config.environment.module,
      'team': config.environment.team,
      'split': config.evaluation.test,
      'max_turns': config.environment.max_turns,
      'sandbox': config.sandbox.level,
      'config_hash': workdir_lib.config_hash(config.to_dict()),
  }


def transcripts_path(workdir: pathlib.Path, name: str) -> pathlib.Path:
  """Where the episodes of an evaluation are; see `rollout.records`."""
  return workdir / 'evals' / f'{name}.jsonl.gz'


def write(
    workdir: pathlib.Path, name: str,
    result: Mapping[str, Any]) -> pathlib.Path:
  """Writes `evals/<name>.json`."""
  path = workdir / 'evals' / f'{name}.json'
  if not hosts.is_first():
    return path
  path.parent.mkdir(exist_ok=True)  # Not the workdir, if that has vanished.
  # The file says that all before it is done, so it must never be half there.
  files.write_whole(path, json.dumps(result, indent=2) + '\n')
  return path


def read(workdir: pathlib.Path, name: str) -> dict[str, Any]:
  """Reads `evals/<name>.json`; a UserError if it is not what was written."""
  path = workdir / 'evals' / f'{name}.json'
  try:
    result = files.parse_json(path.read_text())
    if 'clusters' not in result:
      raise ValueError('it has no clusters of tasks')
    for field in ('successes', 'clusters'):
      if len(result[field]) != result['num_tasks']:
        raise ValueError(f'{field} do not fit num_tasks')
    known = result['num_tasks'] - result.get('num_left_out', 0)
    if result['successes'].count('1') != round(result['success'] * known):
      raise ValueError('successes do not fit success')
  except OSError as error:
    raise errors.UserError(f'Cannot read an evaluation: {error}.') from error
  except (ValueError, KeyError, TypeError) as error:
    raise errors.UserError(
        f'{path} is no evaluation that was written here ({error}); put it back '
        'as it was. The checkpoints beside it can be evaluated all the same, '
        'with --mode=evaluate.') from error
  return result


def check_comparable(
    before: Mapping[str, Any], tasks: Sequence[env_api.Task], *,
    temperature: float) -> None:
  """Raises UserError unless `before` is of these tasks and temperature."""
  there = before['split_hash'], before['sampling']['temperature']
  here = datasets.split_hash(tasks), temperature
  if there != here:
    raise errors.UserError(
        f'evals/before.json was made on the split {before["split"]!r} '
        f'(hash {there[0]}) at temperature {there[1]}, but evaluation.test now '
        f'has the hash {here[0]} and evaluation.temperature is {here[1]}, so '
        'what comes after could not be compared with it. Give both as they '
        'were; for other tasks use --mode=evaluate when the run is done.')


def sandbox_of(result: Mapping[str, Any]) -> str:
  """The level at which programs ran; '' if there were none.

  Evaluations that do not say are older than the levels. Limits alone were all
  that there was.
  """
  if not result['budget']['program_runs']:
    return ''
  return result.get('sandbox', 'unsafe_rlimit')


def print_comparison(
    before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
  """What training has done, if one sandbox ran the programs of both."""
  levels = {
      name: level for name, level in (
          ('before', sandbox_of(before)), ('after', sandbox_of(after)))
      if level}
  success = f'{100 * after["success"]:.1f} % ({after["num_tasks"]} tasks)'
  if len(set(levels.values())) > 1:
    print_table({'after': after})
    print(f'held-out success: after {success}. The evaluation before is left '
          f'out: programs ran at sandbox level {levels["before"]} there, and '
          f'at {levels["after"]} now.')
    return
  print_table({'before': before, 'after': after})
  print(f'held-out success: before {100 * before["success"]:.1f} %, after '
        f'{success}')


def print_table(results: Mapping[str, Mapping[str, Any]]) -> None:
  """Prints one line for each evaluation."""
  print(f'{"":12s} {"success":>8s} {"95 % interval":>16s} {"return":>7s} '
        f'{"mean turns":>11s} {"to solve":>9s} {"step":>5s}')
  for name, result in results.items():
    low, high = result['interval']
    print(f'{name:12s} {100 * result["success"]:6.1f} % '
          f'{100 * low:6.1f} … {100 * high:5.1f} % '
          f'{result["mean_return"]:7.3f} '
          f'{result["mean_turns"]:11.2f} '
          f'{_or_nan(result["mean_turns_to_solve"]):9.2f} '
          f'{result["step"]:5d}')


def _or_nan(value: float | None) -> float:
  return math.nan if value is None else value
