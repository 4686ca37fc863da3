"""Checks whether a run can start on this machine.

  python -m atgrpo_jax.main --mode doctor \
      --config configs/plan_path.py:size=nano --workdir runs/x

prints one line per check, in the order in which a run would fail: devices,
mesh, sandbox, disk, tokenizer, data, one decode and one gradient. The gradient
has the largest shapes of the run, so it also shows that they fit. A check that
fails does not keep the others from running. Nothing is left in the workdir.
"""

import contextlib
import dataclasses
import pathlib
import tempfile

import jax
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.io import checkpoints
from atgrpo_jax.io import files
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib

_GIB = 2**30
_NUM_TOKENS = 8  # Decoded tokens, at most.


def examine(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path) -> None:
  """Prints a line per check; raises the first error that a run would raise."""
  config, failures = experiment.config, []

  @contextlib.contextmanager
  def checking(check):
    try:
      yield
    except errors.UserError as error:
      _report(check, f'FAILED: {error}')
      failures.append(error)

  _report('devices', (
      f'{jax.device_count()} x {jax.local_devices()[0].device_kind} in '
      f'{jax.process_count()} process(es); jax {jax.__version__}'))
  for name, policy in experiment.policies.items():
    _report('mesh', f'{name}: ' + ', '.join(
        f'{axis}={size}' for axis, size in policy.mesh.shape.items()))
  _report('sandbox', config.sandbox.level)
  with checking('disk'), files.disk_errors_as_user_errors(workdir):
    workdir_lib.check_config(workdir, config.to_dict())
    _report('disk', _check_disk(workdir, experiment.state_template()))
  for name, policy in experiment.policies.items():
    _report('tokenizer', (
        f'{name}: {policy.tokenizer.vocab_size} ids, stops at '
        f'{" or ".join(map(str, policy.tokenizer.stop_ids))}'))
  for split in dict.fromkeys((
      config.dataset.train, config.evaluation.validation,
      config.evaluation.test)):
    with checking('data'):
      _report('data', f'{split}: {len(experiment.tasks(split))} tasks')
  states = experiment.initial_states()
  with checking('decode'):
    _check_decode(experiment, experiment_lib.params_of(states))
  for name, policy in experiment.policies.items():
    if policy.trained != 'none':
      with checking('gradient'):
        _report('gradient', _check_gradient(
            experiment, states, policy, experiment.references.get(name)))
  if failures:
    raise failures[0]


def _report(check: str, result: str) -> None:
  print(f'{check:10s} {result}', flush=True)


def _check_disk(
    workdir: pathlib.Path, template: experiment_lib.States) -> str:
  """Raises unless the workdir can be written and holds a checkpoint."""
  size = checkpoints.num_bytes(template) / _GIB
  if files.is_remote(workdir):
    existing = workdir
    probe = workdir / 'doctor'
    probe.write_text('')
    probe.unlink()
  else:
    existing = next(
        x for x in (workdir, *workdir.absolute().parents) if x.exists())
    # Raises if it is read-only or a file.
    with tempfile.TemporaryFile(dir=existing):
      checkpoints.check_space(existing, template)
  return f'{existing} can be written; a checkpoint takes {size:.2f} GiB'


def _check_decode(experiment, params) -> None:
  """Decodes greedily for the roles that act first in the first test task."""
  task = experiment.tasks(experiment.config.evaluation.test)[0]
  runner = dataclasses.replace(
      experiment.runner(params, step=0, temperature=0.0), max_new_tokens=min(
          _NUM_TOKENS, experiment.config.rollout.max_new_tokens))
  state = runner.reset(task)

  def decode(role):
    key = types.GroupKey(task['task_id'], role, 0, 0)
    group, = yield runner.sample({key: state}, group_size=1)
    return group

  roles = experiment.environment.phases[0]
  for role, group in zip(roles, runner.play([decode(role) for role in roles])):
    text = runner.policy_of(role).tokenizer.decode(group.completions[0])
    _report('decode', (
        f'{role}: {text!r}, after a prompt of {len(group.request.prompt)} '
        'tokens'))


def _check_gradient(
    experiment: experiment_lib.Experiment, states: experiment_lib.States,
    policy: policy_lib.Policy, reference: object) -> str:
  """Updates a policy on one microbatch of the longest groups."""
  length, longest = (
      experiment.buckets.prompt[-1], experiment.buckets.completion[-1])
  group_size = experiment.config.rollout.group_size
  num_groups = experiment.buckets.on(
      mesh_lib.num_data_shards(policy.mesh)).microbatch(
          length, longest, group_size)
  candidate = types.Candidate(
      np.zeros(longest, np.int32), np.zeros(longest, np.float32), advantage=1.0)
  groups = [
      types.Group(
          types.GroupKey('doctor', 'any', 0, i), policy.name,
          np.zeros(length, np.int32), (candidate,) * group_size,
          temperature=experiment.config.rollout.temperature)
      for i in range(num_groups)]
  states[policy.name], updates = update_lib.update_policy(
      policy, states[policy.name], groups, num_updates=1, order='mixed',
      buckets=experiment.buckets, reference=reference,
      frozen_params=experiment.frozen_params.get(policy.name))
  updates.metrics('doctor')  # Raises if a gradient is not finite.
  return (
      f'{policy.name}: {num_groups} group(s) of {group_size} candidates, '
      f'prompts of {length} and completions of {longest} tokens')
