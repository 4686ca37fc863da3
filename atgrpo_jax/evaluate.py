"""Success on held-out tasks: one answer per prompt, no oracle selection."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import itertools
import json
import math
import pathlib
from typing import Any

from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax.algorithms import play
from atgrpo_jax.rollout import policy_map as policy_map_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.runtime import files
from atgrpo_jax.runtime import hosts
from atgrpo_jax.runtime import workdir as workdir_lib
from environments import datasets
from environments import env_api


def evaluate(
    runner: runner_lib.EpisodeRunner,
    tasks: Sequence[env_api.Task]) -> dict[str, Any]:
  """Plays each task once (K = 1) and reports how the team did.

  Args:
    runner: environment, policies and sampling temperature; what it has cost,
      this included, is reported as well.
    tasks: the held-out tasks.
  """
  environment = runner.environment
  # No reward is read, so the weight of the team reward does not matter.
  played = runner.play([
      play.play_episode(
          runner, task['task_id'], environment.reset(task),
          play.positions(environment), branch=0, alpha=1.0)
      for task in tasks])
  outcomes = {role: collections.Counter() for role in environment.roles}
  for node in itertools.chain(*played):
    for role, outcome in node.steps[0].outcomes.items():
      outcomes[role][outcome.value] += 1
  lasts = [nodes[-1].steps[0] for nodes in played]
  turns = [nodes[-1].turn + 1 for nodes in played]
  solved = [
      number for number, last in zip(turns, lasts) if last.success]
  num_success = len(solved)
  return {
      'num_tasks': len(tasks),
      'success': num_success / len(tasks),
      # '1' or '0' for each task in its order, to compare runs task by task.
      'successes': ''.join('01'[last.success] for last in lasts),
      'clusters': clusters(tasks),
      'interval': wilson_interval(num_success, len(tasks)),
      'mean_turns': sum(turns) / len(tasks),
      'mean_turns_to_solve': sum(solved) / len(solved) if solved else None,
      'truncated': sum(last.truncated for last in lasts) / len(tasks),
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


def clusters(tasks: Sequence[env_api.Task]) -> list[int]:
  """For each task the index of the first one of its kind, or its own."""
  first = {}
  return [
      first.setdefault(task['kind'], index) if 'kind' in task else index
      for index, task in enumerate(tasks)]


def evaluate_run(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path) -> None:
  """Evaluates the newest checkpoint of `workdir`, or the untrained team."""
  config = experiment.config
  name = config.evaluation.name
  if name in ('', 'before', 'after') or pathlib.PurePath(name).name != name:
    raise errors.UserError(
        f'evaluation.name={name!r}: give a plain file name other than before '
        'and after, which training writes.')
  tasks = experiment.tasks(config.evaluation.test)
  policy_map = experiment.policy_map
  if config.evaluation.policies:
    policy_map = policy_map_lib.make_policy_map(
        config.evaluation.policies, experiment.environment.roles)
    trained = set(experiment.policy_map.values())
    unknown = set(policy_map.values()) - trained
    if unknown:
      raise errors.UserError(
          f'evaluation.policies={config.evaluation.policies!r} names '
          f'{sorted(unknown)}, but the run trains {sorted(trained)}.')
  if not workdir_lib.check_config(workdir, config.to_dict()):
    workdir_lib.write_config(workdir, config.to_dict())
  params, step = experiment.trained_params(workdir)
  result = evaluate(
      experiment.runner(
          params, step=step, temperature=config.evaluation.temperature,
          policy_map=policy_map),
      tasks)
  result = describe(experiment) | result
  path = write(workdir, name, result)
  print_table({name: result})
  print(f'written to {path}')


def describe(experiment: experiment_lib.Experiment) -> dict[str, Any]:
  """What an evaluation file says of the run it comes from."""
  config = experiment.config
  return {
      'task': config.environment.module,
      'team': config.environment.team,
      'split': config.evaluation.test,
      'max_turns': config.environment.max_turns,
      'config_hash': workdir_lib.config_hash(config.to_dict()),
  }


def write(
    workdir: pathlib.Path, name: str,
    result: Mapping[str, Any]) -> pathlib.Path:
  """Writes `evals/<name>.json`."""
  path = workdir / 'evals' / f'{name}.json'
  if not hosts.is_first():
    return path
  path.parent.mkdir(parents=True, exist_ok=True)
  # The file says that all before it is done, so it must never be half there.
  files.write_whole(path, json.dumps(result, indent=2) + '\n')
  return path


def read(workdir: pathlib.Path, name: str) -> dict[str, Any]:
  """Reads `evals/<name>.json`; a UserError if it is not what was written."""
  path = workdir / 'evals' / f'{name}.json'
  try:
    result = json.loads(path.read_text())
    if 'clusters' not in result:
      raise ValueError('an older version wrote it, without clusters of tasks')
    for field in ('successes', 'clusters'):
      if len(result[field]) != result['num_tasks']:
        raise ValueError(f'{field} do not fit num_tasks')
  except OSError as error:
    raise errors.UserError(f'Cannot read an evaluation: {error}.') from error
  except (ValueError, KeyError, TypeError) as error:
    raise errors.UserError(
        f'{path} is no evaluation that was written here ({error}); delete '
        f'{workdir} and run it again.') from error
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


def print_table(results: Mapping[str, Mapping[str, Any]]) -> None:
  """Prints one line for each evaluation."""
  print(f'{"":12s} {"success":>8s} {"95 % interval":>16s} {"mean turns":>11s} '
        f'{"to solve":>9s} {"step":>5s}')
  for name, result in results.items():
    low, high = result['interval']
    print(f'{name:12s} {100 * result["success"]:6.1f} % '
          f'{100 * low:6.1f} … {100 * high:5.1f} % '
          f'{result["mean_turns"]:11.2f} '
          f'{result["mean_turns_to_solve"] or math.nan:9.2f} '
          f'{result["step"]:5d}')


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
