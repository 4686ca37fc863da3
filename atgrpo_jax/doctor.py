"""Is this machine ready for a run? What it is, what it reads, two timings.

  python -m atgrpo_jax.main --mode doctor \
      --config configs/plan_path.py:size=nano --workdir runs/x

prints a line for each thing that a run needs, in the order in which it would
fail: the devices and the mesh on them, the sandbox, the disk, the model and its
tokenizer, how those who act first begin their answer to the first test task,
how long a decoded token and an update take, beside the time that the chip would
need at least, and which settings should be changed first. The shapes are the
largest of the run, so what does not fit fails here. Nothing stays written, and
the weights in memory are thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
import os
import pathlib
import shutil
import tempfile
import time

import jax
import numpy as np

from atgrpo_jax import builders
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import meshes
from atgrpo_jax import train as train_lib
from atgrpo_jax import types
from atgrpo_jax.compile_check import calls as calls_lib
from atgrpo_jax.compile_check import program_costs
from atgrpo_jax.compile_check import work
from atgrpo_jax.distributed import chips
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.io import checkpoints
from atgrpo_jax.io import files
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import placement

_GIB = 2**30
_NUM_TOKENS = 8  # Of a greedy answer.
_REPEATS = 3  # Of a timing, of which the best counts.
_MOST_CHANGES = 3


def examine(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path) -> None:
  """Prints what there is; raises what a run would."""
  for name, line in _findings(experiment, workdir):
    print(f'{name:10s} {line}', flush=True)


def _findings(
    experiment: experiment_lib.Experiment,
    workdir: pathlib.Path) -> Iterator[tuple[str, str]]:
  """(what, what there is of it), one after another."""
  device = jax.local_devices()[0]
  chip = chips.chip_of(device)
  yield 'devices', (
      f'{jax.device_count()} x {device.device_kind}'
      + (f', {chip.memory / _GIB:.2f} GiB each' if chip else '')
      + f', in {jax.process_count()} process(es); jax {jax.__version__}')
  for name, policy in experiment.policies.items():
    yield 'mesh', f'{name}: ' + ', '.join(
        f'{axis}={size}' for axis, size in policy.mesh.shape.items())
  yield 'sandbox', experiment.config.sandbox.level
  workdir_lib.check_config(workdir, experiment.config.to_dict())
  yield 'disk', _disk(workdir, experiment.state_template())
  yield 'tasks', ', '.join(
      f'{len(experiment.tasks(split))} in {split}' for split in (
          experiment.config.dataset.train,
          experiment.config.evaluation.validation,
          experiment.config.evaluation.test))

  states = experiment.initial_states()
  params = experiment_lib.params_of(states)
  for name, policy in experiment.policies.items():
    yield 'model', _model(
        policy, params.get(name), experiment.frozen_params.get(name))
  runner = experiment.runner(
      params, step=0, temperature=0.0, policy_map=experiment.policy_map)
  yield from _answers(experiment, runner)
  for name in experiment.policies:
    yield 'decode', f'{name}: {_decode(experiment, params, name, chip)}'
  del runner, params  # An update wants their memory.
  references = train_lib.load_references(experiment)
  for name, policy in experiment.policies.items():
    if policy.trained != 'none':
      line = _update(experiment, states, policy, references.get(name), chip)
      yield 'update', f'{name}: {line}'
  for line in _changes(experiment, chip)[:_MOST_CHANGES]:
    yield 'change', line


def _disk(workdir: pathlib.Path, template: experiment_lib.States) -> str:
  """Where the run goes, and whether a checkpoint has room there."""
  needed = f'a checkpoint takes {checkpoints.num_bytes(template) / _GIB:.2f}'
  if files.is_remote(workdir):
    probe = workdir / 'doctor'
    probe.write_text('')
    probe.unlink()
    return f'{workdir} can be written to, {needed} GiB'
  there = next(x for x in (workdir, *workdir.absolute().parents) if x.exists())
  with tempfile.TemporaryFile(dir=there):  # Raises where none can be.
    checkpoints.check_space(there, template)
  free = shutil.disk_usage(there).free
  return f'{free / _GIB:.1f} GiB free in {there}, {needed}'


def _model(
    policy: policy_lib.Policy, trained: policy_lib.Params | None,
    frozen: policy_lib.Params | None) -> str:
  """Where a policy's weights are from, and which they are."""
  weights = trained if policy.trained == 'all' else frozen
  num_params = sum(x.size for x in jax.tree.leaves(weights))
  tokenizer = policy.tokenizer
  return (
      f'{policy.name}: {policy.pretrained.folder}, {num_params:,} parameters, '
      f'digest {checkpoints.digest(weights)}; {tokenizer.vocab_size} ids, '
      f'{" or ".join(map(str, tokenizer.stop_ids))} ends an answer')


def _answers(
    experiment: experiment_lib.Experiment,
    runner: runner_lib.EpisodeRunner) -> Iterator[tuple[str, str]]:
  """What those who act first are shown of a test task, and how they begin."""
  task = experiment.tasks(experiment.config.evaluation.test)[0]
  state = experiment.environment.reset(task)
  runner = dataclasses.replace(runner, max_new_tokens=_NUM_TOKENS)

  def answer(role):
    key = types.GroupKey(task['task_id'], role, 0, 0)
    group, = yield runner.sample(
        [runner_lib.SampleRequest(key, state)], group_size=1)
    return group

  roles = experiment.environment.phases[0]
  for role, group in zip(roles, runner.play([answer(role) for role in roles])):
    text = runner.policy_of(role).tokenizer.decode(group.completions[0])
    yield 'answer', (
        f'{role}: {len(group.request.prompt)} tokens of prompt, then {text!r}')


def _decode(
    experiment: experiment_lib.Experiment, params: experiment_lib.Params,
    name: str, chip: chips.Chip | None) -> str:
  """Milliseconds of a token of as many groups as the run has at once."""
  policy, config = experiment.policies[name], experiment.config
  length, size = experiment.buckets.prompt[-1], config.rollout.group_size
  num_groups = experiment.buckets.on(
      mesh_lib.num_data_shards(policy.mesh)).groups[-1]
  runner = experiment.runner(
      params, step=0, temperature=config.rollout.temperature,
      policy_map=experiment.policy_map)
  sampled = dataclasses.replace(
      runner.policies[name], tokenizer=_Endless(policy.config.vocab_size))
  engine = runner.engine(sampled, length, size)
  budget = min((1 + _REPEATS) * engine_lib.CHUNK, config.rollout.max_new_tokens)
  for _ in range(2):  # The first time compiles.
    for index in range(num_groups):
      engine.add(engine_lib.Request(
          index, np.zeros(length, np.int32), np.zeros(2, np.uint32), budget,
          adapter=sampled.adapter))
    seconds = []
    while engine.busy:
      start = time.perf_counter()
      engine.dispatch()
      engine.collect()
      seconds.append(time.perf_counter() - start)
  # The first chunk has the prompts as well, and the last one may be short.
  best = min(seconds[1:budget // engine_lib.CHUNK] or seconds)
  state, frozen = calls_lib.state_and_frozen_params(policy)
  with jax.set_mesh(policy.mesh):
    sampler = calls_lib.Sampler(
        config, policy, *calls_lib.sampled_params(policy, state, frozen), size)
    least = _least(sampler.decode(
        sampler.slots(num_groups, length),
        sampler.rows(num_groups * size, placement.padded_size(
            max(budget, engine_lib.CHUNK)))), policy, chip)
  per_token = 1000 / engine_lib.CHUNK
  return (
      f'{per_token * best:.2f} ms for a token of {num_groups} groups of {size} '
      f'behind {length} tokens of prompt' + _beside(best, least, per_token))


def _update(
    experiment: experiment_lib.Experiment, states: experiment_lib.States,
    policy: policy_lib.Policy, reference: policy_lib.Params | None,
    chip: chips.Chip | None) -> str:
  """Seconds of a microbatch and an update."""
  config = experiment.config
  shape = (
      experiment.buckets.prompt[-1], experiment.buckets.completion[-1],
      config.rollout.group_size)
  length, longest, size = shape
  num_groups = experiment.buckets.on(
      mesh_lib.num_data_shards(policy.mesh)).microbatch(*shape)
  candidates = tuple(
      types.Candidate(
          np.zeros(longest, np.int32), np.zeros(longest, np.float32),
          advantage=1.0) for _ in range(size))
  groups = [types.Group(
      types.GroupKey('doctor', 'any', 0, i), policy.name,
      np.zeros(length, np.int32), candidates) for i in range(num_groups)]
  frozen = experiment.frozen_params.get(policy.name)
  seconds = []
  for _ in range(1 + _REPEATS):
    start = time.perf_counter()
    states[policy.name], made = update_lib.update_policy(
        policy, states[policy.name], groups, num_updates=1, order='mixed',
        buckets=experiment.buckets, frozen_params=frozen,
        reference=reference)
    made.metrics('doctor')
    seconds.append(time.perf_counter() - start)
  best = min(seconds[1:])
  state, frozen = calls_lib.state_and_frozen_params(policy)
  with jax.set_mesh(policy.mesh):
    least = _least(
        calls_lib.gradient(config, policy, state, frozen, *shape), policy, chip)
  return (
      f'{best:.3f} s for a microbatch of {num_groups} groups and an update'
      + _beside(best, least, 1.0))


def _least(
    call: calls_lib.Call, policy: policy_lib.Policy,
    chip: chips.Chip | None) -> tuple[float, str]:
  """Seconds that the chip needs for a call, and for what; 0 of a CPU."""
  if chip is None:
    return 0.0, ''
  flops, traffic = work.count_work(
      call.function.trace(*call.args, **call.kwargs).jaxpr, engine_lib.CHUNK)
  return program_costs.Cost(
      flops / policy.mesh.size, traffic / policy.mesh.size).seconds(chip, 0.0)


def _beside(seconds: float, least: tuple[float, str], factor: float) -> str:
  """What is said of the least time, in the unit of `factor` a second."""
  if not least[0]:
    return ''
  return (f'; the chip needs {factor * least[0]:.2f} for its {least[1]}, '
          f'{100 * least[0] / seconds:.0f} %')


def _changes(
    experiment: experiment_lib.Experiment,
    chip: chips.Chip | None) -> list[str]:
  """Settings that should be changed first, and why."""
  config, found = experiment.config, []
  if chip is not None:
    faster = meshes.faster_settings(
        config, list(experiment.policies), jax.devices(), chip,
        functools.cache(builders.read_model))
    found += [
        f'{flags}: should sample {factor:.2f} times as fast, by the estimate'
        for flags, factor in faster.items()]
  cores = os.cpu_count()
  if chip is None and jax.device_count() < cores:
    found.append(
        f'JAX_NUM_CPU_DEVICES={cores}, in the environment: of {cores} cores '
        f'{jax.device_count()} share the groups')
  if not jax.config.jax_compilation_cache_dir:
    found.append(
        'JAX_COMPILATION_CACHE_DIR, in the environment: the next start would '
        'compile nothing again')
  if config.environment.num_workers < cores // 4:
    found.append(
        f'--config.environment.num_workers={cores // 4}: of {cores} cores '
        f'{config.environment.num_workers} step environments')
  return found


@dataclasses.dataclass(frozen=True)
class _Endless:
  """Of a tokenizer, what an engine asks: an id that is never sampled."""

  vocab_size: int

  @property
  def stop_ids(self) -> tuple[int, ...]:
    return (self.vocab_size,)
