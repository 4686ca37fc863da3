"""Replays a recorded step or evaluation and compares it with the record.

  python -m atgrpo_jax.main --mode replay --workdir W --step 20 --task T
  python -m atgrpo_jax.main --mode replay --workdir W --step after

A replay restores the newest checkpoint before the step and repeats the steps
after it. Every sampled token is a function of the seed, step, task, turn, role
and candidate, so on equal devices a replay equals the record. With other config
values (see `_MAY_DIFFER`) the same policies play the same tasks under other
settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import os
import pathlib
from typing import Any

import jax
import ml_collections
import numpy as np

from atgrpo_jax import config as config_lib
from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import train as train_lib
from atgrpo_jax.algorithms import credit
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import datasets
from environments import env_api

# Keys and sections of the config that a replay may change.
_MAY_DIFFER = (
    'seed', 'rollout', 'advantage', 'environment.max_turns',
    'environment.reward', 'environment.options', 'evaluation.temperature')
# Keys that do not affect the candidates on equal devices.
_MACHINE_KEYS = (
    'mesh', 'sandbox', 'environment.num_workers', 'environment.program_slots')

# A single task is computed in smaller matrix products, which round differently.
# Log-probabilities then differ by less than this.
_ROUNDING = 1e-4
# Fields of a node that follow from its other fields are compared last.
_CONSEQUENCES = ('joint_action', 'chosen')
_MAX_SHOWN = 80  # Characters of a text that differs.


def recorded_config(
    config: ml_collections.ConfigDict,
    recorded: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns the config of a run with the machine settings of its replay.

  Args:
    config: config of the replay.
    recorded: config of the run.

  Raises:
    UserError: they differ in a key that a replay cannot change.
  """
  changed = workdir_lib.changed_keys(recorded.to_dict(), config.to_dict())
  for name, (value, new_value) in changed.items():
    if not workdir_lib.is_key_of(name, _MACHINE_KEYS) and (
        not workdir_lib.is_key_of(name, _MAY_DIFFER)
        or name == 'rollout.num_tasks'):
      raise errors.UserError(
          f'--config.{name}={new_value!r}: the run had {value!r}; a replay can '
          f'only change {", ".join(_MAY_DIFFER)}.')
  merged = recorded.copy_and_resolve_references()
  merged.update_from_flattened_dict({
      name: value
      for name, value in workdir_lib.flatten(config.to_dict()).items()
      if workdir_lib.is_key_of(name, _MACHINE_KEYS)})
  return merged


def replay(
    run: config_lib.Experiment, changed: config_lib.Experiment,
    workdir: pathlib.Path, *, step: str, task_id: str | None = None) -> bool:
  """Plays a step again, prints a comparison, and writes it to `replays/`.

  Args:
    run: made from `recorded_config`.
    changed: made from the config of the replay.
    workdir: the workdir of the run; a trainer may be using it.
    step: a training step, from 0, or the name of an evaluation.
    task_id: the only task to play; None for all.

  Returns:
    False if the replay differs although nothing was changed.
  """
  is_training = step.isdecimal()
  changes = {
      name: values
      for name, values in workdir_lib.changed_keys(
          run.config.to_dict(), changed.config.to_dict()).items()
      if workdir_lib.is_key_of(name, _MAY_DIFFER)}
  path = (tree_lib.groups_path(workdir, int(step)) if is_training
          else evaluate.transcripts_path(workdir, step))
  if not path.exists():
    raise errors.UserError(
        f'--step={step}: {path} does not exist; expected one of '
        f'{_recorded_steps(workdir)}.')
  recorded = list(tree_lib.read(path))
  if task_id is not None:
    known = [tree.task_id for tree in recorded]
    recorded = [tree for tree in recorded if tree.task_id == task_id]
    if not recorded:
      raise errors.UserError(
          f'--task={task_id} is not in {path}, which has {len(known)} tasks, '
          f'such as {", ".join(known[:10])}.')
  play = _play_training_step if is_training else _play_evaluation
  trees = play(
      run, changed, workdir, step, [tree.task_id for tree in recorded])
  new = workdir / 'replays' / path.name
  tree_lib.write(
      new, trees, changed.environment.show, with_tokens=is_training)
  replayed = list(tree_lib.read(new))

  for name, (value, new_value) in changes.items():
    print(f'changed: {name} from {value!r} to {new_value!r}')
  for name, compared in (('recorded', recorded), ('replayed', replayed)):
    print(f'{name}  {_summary(compared)}')
  is_equal = _compare(
      recorded, replayed, is_alone=task_id is not None,
      is_changed=bool(changes))
  print(f'written to {new}')
  return is_equal or bool(changes)


def _recorded_steps(workdir: pathlib.Path) -> list[str]:
  """All valid values of `--step`."""
  steps = [
      str(int(path.name.partition('.')[0]))
      for path in sorted((workdir / 'groups').glob('*.jsonl.gz'))]
  evaluations = [
      path.name.partition('.')[0]
      for path in sorted((workdir / 'evals').glob('*.jsonl.gz'))]
  return steps + evaluations


def _play_training_step(
    run: config_lib.Experiment, changed: config_lib.Experiment,
    workdir: pathlib.Path, step: str,
    task_ids: Sequence[str]) -> list[tree_lib.Tree]:
  """Plays these tasks of a training step."""
  tasks = run.tasks(run.config.dataset.train)
  states = _states(run, workdir, int(step), tasks)
  params = config_lib.params_of(states)
  drawn = _find(
      train_lib.draw_tasks(tasks, int(step), run), task_ids, workdir)
  credit.check(changed.environment, changed.rollout)
  return credit.collect(
      _runner(run, changed, params, step=int(step),
              temperature=changed.config.rollout.temperature,
              policy_map=run.policy_map),
      drawn, changed.rollout, changed.advantage, run.bound_critics(params))


def _play_evaluation(
    run: config_lib.Experiment, changed: config_lib.Experiment,
    workdir: pathlib.Path, name: str,
    task_ids: Sequence[str]) -> list[tree_lib.Tree]:
  """Plays these tasks of an evaluation."""
  result = evaluate.read(workdir, name)
  tasks = run.tasks(result['split'])
  if datasets.split_hash(tasks) != result['split_hash']:
    raise errors.UserError(
        f'The split {result["split"]!r} has the hash '
        f'{datasets.split_hash(tasks)}, but evals/{name}.json was made with '
        f'{result["split_hash"]}; restore that version of the data set.')
  temperature = changed.config.evaluation.temperature
  if temperature == run.config.evaluation.temperature:
    temperature = result['sampling']['temperature']
  print(f'temperature {temperature}; recorded at '
        f'{result["sampling"]["temperature"]}')
  states = _states(
      run, workdir, result['step'], run.tasks(run.config.dataset.train))
  runner = _runner(
      run, changed, config_lib.params_of(states), step=result['step'],
      temperature=temperature, policy_map=result['policy_map'])
  drawn = _find(tasks, task_ids, workdir)
  return [
      tree_lib.chain(task['task_id'], nodes)
      for task, nodes in zip(drawn, evaluate.play_episodes(runner, drawn))]


def _states(
    run: config_lib.Experiment, workdir: pathlib.Path, step: int,
    tasks: Sequence[env_api.Task]) -> config_lib.States:
  """Returns the states before a step; repeats steps without a checkpoint."""
  checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
  saved = max((s for s in checkpoints.steps() if s <= step), default=0)
  states = (run.restore(checkpoints, workdir, step=saved)[0] if saved
            else run.initial_states())
  checkpoints.close()
  start = f'the checkpoint of step {saved}' if saved else 'the start'
  print(f'from {start} to step {step}')
  references = train_lib.load_references(run)
  clock = metrics_lib.StepClock()
  for past_step in range(saved, step):
    trees, _ = train_lib.rollout(
        run, states, train_lib.draw_tasks(tasks, past_step, run),
        step=past_step, clock=clock)
    train_lib.update(
        run, states, trees, step=past_step, references=references, clock=clock)
    print(f'repeated step {past_step}')
  return states


def _runner(
    run: config_lib.Experiment, changed: config_lib.Experiment,
    params: config_lib.Params, **kwargs: Any) -> runner_lib.EpisodeRunner:
  """Plays the changed environment with the policies of the run."""
  return dataclasses.replace(
      run.runner(params, **kwargs), environment=changed.environment,
      seed=changed.config.seed, alpha=changed.rollout.alpha,
      max_new_tokens=changed.config.rollout.max_new_tokens,
      keep_truncated=changed.config.rollout.keep_truncated)


def _find(
    tasks: Sequence[env_api.Task], task_ids: Sequence[str],
    workdir: pathlib.Path) -> list[env_api.Task]:
  """Returns the tasks with these ids, in their order."""
  by_id = {task['task_id']: task for task in tasks}
  missing = [task_id for task_id in task_ids if task_id not in by_id]
  if missing:
    raise errors.UserError(
        f'The data set lacks the task {missing[0]!r} of {workdir}; restore the '
        'version of the data set that the run used.')
  return [by_id[task_id] for task_id in task_ids]


def _summary(trees: Sequence[tree_lib.Tree]) -> str:
  episodes = [episode for tree in trees for episode in tree.episodes()]
  num_solved = sum(episode.success for episode in episodes)
  returns = np.concatenate([
      group.returns for tree in trees for group in tree.groups()])
  known = returns[np.isfinite(returns)]
  return (
      f'{num_solved} of {len(episodes)} episodes solved, mean return '
      f'{np.mean(known) if len(known) else np.nan:.3f} of {len(returns)} '
      'candidates')


def _compare(
    recorded: Sequence[tree_lib.Tree], replayed: Sequence[tree_lib.Tree], *,
    is_alone: bool, is_changed: bool) -> bool:
  """Prints the first difference; returns True if the trees are equal.

  The log-probabilities of a single task may differ by `_ROUNDING`.
  """
  different, distance = [], 0.0
  for old, new in zip(recorded, replayed):
    first = ''
    for path, x, y in _differences(
        _renumber_baselines(old).to_json(), _renumber_baselines(new).to_json(),
        path=''):
      if is_alone and '/logprobs/' in path and abs(x - y) <= _ROUNDING:
        distance = max(distance, abs(x - y))
      else:
        first = first or f'task {old.task_id}, {_describe(path, x, y)}'
    if first:
      different.append(first)
  if different:
    devices = jax.devices()
    print(f'{len(different)} of {len(recorded)} trees differ. First: '
          f'{different[0]}')
    if not is_changed:
      print('Rounding depends on the devices. This machine has '
            f'{len(devices)} x {devices[0].device_kind!r}.')
  elif distance:
    print('equal to the record; log-probabilities differ by at most '
          f'{distance:.0e}')
  else:
    print(f'equal to the record: {len(recorded)} trees')
  return not different


def _renumber_baselines(tree: tree_lib.Tree) -> tree_lib.Tree:
  """Numbers the baselines within this tree instead of within the step."""
  ids = {}
  return tree.map_groups(lambda group: dataclasses.replace(
      group, baseline_id=ids.setdefault(group.baseline_id, len(ids))))


def _differences(
    old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
  """Yields (path, recorded, replayed) of JSON leaves that differ."""
  if isinstance(old, dict) and isinstance(new, dict):
    names = dict.fromkeys([*old, *new])
    for name in sorted(names, key=lambda name: name in _CONSEQUENCES):
      yield from _differences(old.get(name), new.get(name), f'{path}/{name}')
  elif isinstance(old, list) and isinstance(new, list):
    for index, pair in enumerate(zip(old, new)):
      yield from _differences(*pair, f'{path}/{index}')
    if len(old) != len(new):
      yield f'{path}/length', len(old), len(new)
  elif old != new:
    yield path, old, new


def _describe(path: str, old: Any, new: Any) -> str:
  """Describes a difference; long texts are shown from where they differ."""
  if isinstance(old, str) and isinstance(new, str):
    start = len(os.path.commonprefix([old, new]))
    old, new = (text[start:start + _MAX_SHOWN] for text in (old, new))
  return f'{path}: recorded {old!r}, replayed {new!r}'
