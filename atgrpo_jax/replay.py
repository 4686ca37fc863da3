"""Replays a recorded step or evaluation and compares it with the record.

  python -m atgrpo_jax.main --mode replay --workdir W --step 20
  python -m atgrpo_jax.main --mode replay --workdir W --step after

A replay restores the newest checkpoint before the step and repeats the steps
after it. Every sampled token is a function of the seed, step, task, turn, role
and candidate, so on equal devices a replay equals the record.
"""

from collections.abc import Iterator, Sequence
import functools
import json
import os
import pathlib
from typing import Any

import jax

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import train as train_lib
from atgrpo_jax.algorithms import credit
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import tree as tree_lib
from environments import datasets
from environments import env_api

# Fields of a node that follow from its other fields are compared last.
_CONSEQUENCES = ('joint_action', 'chosen')
_MAX_SHOWN = 80  # Characters of a text that differs.


def replay(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path,
    step: str) -> bool:
  """Plays a step again and prints and returns whether it equals the record.

  The mesh and the sandbox may differ, and a trainer may be using the workdir.
  `step` is a training step, from 0, or the name of an evaluation. Raises
  UserError if the workdir holds another config, or not this step.
  """
  if not workdir_lib.check_config(workdir, experiment.config.to_dict()):
    raise errors.UserError(
        f'--workdir={workdir} holds no run to replay; give the workdir of a '
        'training run.')
  is_training = step.isdecimal()
  path = (tree_lib.groups_path(workdir, int(step)) if is_training
          else evaluate.transcripts_path(workdir, step))
  if not path.exists():
    names = [
        path.name.partition('.')[0] for folder in ('groups', 'evals')
        for path in sorted((workdir / folder).glob('*.jsonl.gz'))]
    raise errors.UserError(
        f'--step={step}: {path} does not exist; expected one of {names}.')
  play = _play_training_step if is_training else _play_evaluation
  # Read first: a damaged record is reported before anything is played.
  recorded = [
      tree.to_json(with_tokens=is_training) for tree in tree_lib.read(path)]
  # As they are written: rounded, with the shown texts as states.
  return _compare(recorded, [
      json.loads(json.dumps(tree.to_json(
          functools.partial(contract.show_in_report, experiment.environment),
          with_tokens=is_training)))
      for tree in play(experiment, workdir, step)])


def _play_training_step(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path,
    step: str) -> list[tree_lib.Tree]:
  tasks = experiment.tasks(experiment.config.dataset.train)
  states = _states(experiment, workdir, int(step), tasks)
  return _rollout(experiment, states, tasks, int(step))


def _play_evaluation(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path,
    name: str) -> list[tree_lib.Tree]:
  result = evaluate.read(workdir, name)
  tasks = experiment.tasks(result['split'])
  if datasets.split_hash(tasks) != result['split_hash']:
    raise errors.UserError(
        f'The split {result["split"]!r} has the hash '
        f'{datasets.split_hash(tasks)}, but evals/{name}.json was made with '
        f'{result["split_hash"]}; restore that version of the data set.')
  states = _states(
      experiment, workdir, result['step'],
      experiment.tasks(experiment.config.dataset.train))
  sampling = {
      name: value for name, value in result['sampling'].items()
      if name not in ('max_new_tokens', 'stop')}  # `runner` reads these.
  runner = experiment.runner(
      experiment_lib.params_of(states), step=result['step'],
      policy_map=result['policy_map'], **sampling)
  return [
      tree_lib.chain(task['task_id'], nodes)
      for task, nodes in zip(tasks, evaluate.play_episodes(runner, tasks))]


def _states(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path, step: int,
    tasks: Sequence[env_api.Task]) -> experiment_lib.States:
  """Returns the states before a step; repeats steps without a checkpoint."""
  checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
  saved = max((s for s in checkpoints.steps() if s <= step), default=0)
  states = (experiment.restore(checkpoints, workdir, step=saved)[0] if saved
            else experiment.initial_states())
  checkpoints.close()
  start = f'the checkpoint of step {saved}' if saved else 'the start'
  print(f'from {start} to step {step}')
  for past_step in range(saved, step):
    trees = _rollout(experiment, states, tasks, past_step)
    states, _ = train_lib.update(
        experiment, states, trees, step=past_step,
        clock=metrics_lib.StepClock())
    print(f'repeated step {past_step}')
  return states


def _rollout(
    experiment: experiment_lib.Experiment, states: experiment_lib.States,
    tasks: Sequence[env_api.Task], step: int) -> list[tree_lib.Tree]:
  """Returns the trees of a training step, with advantages."""
  trees, _ = train_lib.rollout(
      experiment, states, train_lib.draw_tasks(tasks, step, experiment),
      step=step, clock=metrics_lib.StepClock())
  return credit.assign_advantages(
      trees, experiment.advantage, experiment.rollout)


def _compare(
    recorded: Sequence[tree_lib.Json], replayed: Sequence[tree_lib.Json],
) -> bool:
  """Prints the first difference; returns True if the trees are equal."""
  differing = []
  for old, new in zip(recorded, replayed, strict=True):
    first = next(_differences(old, new, path=''), None)
    if first:
      differing.append(f'task {old["task_id"]}, {_describe(*first)}')
  if differing:
    devices = jax.devices()
    print(f'{len(differing)} of {len(recorded)} trees differ. First: '
          f'{differing[0]}\nRounding depends on the devices. This machine has '
          f'{len(devices)} x {devices[0].device_kind!r}.')
  else:
    print(f'equal to the record: {len(recorded)} trees')
  return not differing


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
