"""The measurements of `benchmarks.accelerator`, one part per child process.

  python -m benchmarks.accelerator_parts PART OPTIONS

A part is a list of cells, which `accelerator.run_cells` measures. OPTIONS is
the JSON of `accelerator.Options`.

Kernels, log-probabilities, decoding, prefill and gradient use one device; runs
use all devices. On a CPU all sizes are tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import ml_collections
import numpy as np

from atgrpo_jax import api
from atgrpo_jax import model
from atgrpo_jax import train as train_lib
from atgrpo_jax import types
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model import kernels
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from benchmarks import accelerator
from benchmarks import ours
from benchmarks import run
from benchmarks import workload
from configs import plan_path
from configs import pod
from configs import writing

_NANO = pathlib.Path(__file__).parents[1] / 'models/nano'
_REPEATS = 3
_GROUP_SIZE = 8  # Candidates of a prompt in decoding.

Cell = tuple[str, Callable[[], dict[str, Any]]]  # Name and measurement.


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the measurements, in tokens, groups and tasks."""

  dimensions: dict[str, int]  # Replace those of Qwen3.
  batches: tuple[int, ...] = (8, 64, 512, 2048)
  prompts: tuple[int, ...] = (64, 2048)
  new_tokens: int = 64
  attention: tuple[int, int] = (512, 512)  # Queries and prefix.
  prefill: workload.Load = workload.Load(8, 1, 2048, 0)
  gradient: workload.Load = workload.Load(8, 4, 1024, 512)
  scored: workload.Load = workload.Load(4, 4, 256, 64)
  num_tasks: int = 32  # Of a step.
  step_tokens: int = 512  # Longest completion of a step.
  num_steps: int = 3
  max_turns: int = 2
  smollm2_steps: int = 10  # And test tasks.
  # Argument and overrides of the quickstart's config.
  run_arg: str = ''
  overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_FULL = Sizes({})
_TINY = Sizes(
    {'vocab_size': 2048, 'hidden_size': 64, 'intermediate_size': 128,
     'num_layers': 1, 'num_heads': 4, 'num_kv_heads': 2, 'head_dim': 16},
    batches=(8, 16), prompts=(16,), new_tokens=24, attention=(32, 16),
    prefill=workload.Load(2, 1, 32, 0), gradient=workload.Load(2, 2, 16, 8),
    scored=workload.Load(2, 2, 16, 8), num_tasks=2, step_tokens=8, num_steps=2,
    max_turns=1, smollm2_steps=1, run_arg=',debug', overrides={
        'environment.max_turns': 1, 'rollout.max_new_tokens': 16,
        'buckets.prompt': (1904,), 'buckets.completion': (16,),
        'buckets.groups': (16,)})


def _sizes() -> Sizes:
  if jax.default_backend() != 'cpu':
    return _FULL
  # Compiling would take nearly all of the time.
  jax.config.update('jax_disable_most_optimizations', True)
  return _TINY


def _dimensions(size: str) -> model.ModelConfig:
  return model.ModelConfig(**pod.dimensions(size) | _sizes().dimensions)


def describe_machine() -> dict[str, Any]:
  """Device, versions and date."""
  device = jax.devices()[0]
  driver = device.client.platform_version.splitlines()[0]
  if shutil.which('nvidia-smi'):
    driver = subprocess.run(
        ['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader'],
        check=True, text=True, stdout=subprocess.PIPE).stdout.split()[0]
  return run.describe_machine() | {
      'platform': device.platform, 'driver': driver,
      'jaxlib': jaxlib.__version__, 'python': sys.version.split()[0],
      'sizes': 'tiny' if _sizes() is _TINY else 'full'}


# Rates.


def _rates(seconds: float, num_tokens: int, **rates: float) -> dict[str, Any]:
  """Tokens per second, and shares of the chip's published limits.

  `rates` are per second; their names are attributes of `fit.Chip`.
  """
  values = {'seconds': seconds, 'tokens/s': num_tokens / seconds, **rates}
  device = jax.devices()[0]
  chip = fit.published_chip(device)
  if chip is None:
    values['reason'] = f'the limits of {device.device_kind!r} are unknown'
  return values | {
      f'{name} share': chip and rate / getattr(chip, name)
      for name, rate in rates.items()}


def _best(function: Callable[[], Any]) -> float:
  """The shortest of some calls in seconds, after one that compiles."""
  timed = run.timed(lambda: jax.block_until_ready(function()))
  timed()
  return min(timed() for _ in range(_REPEATS))


def _mesh() -> jax.sharding.Mesh:
  """A mesh of one device."""
  return mesh_lib.make_meshes(['model'], jax.devices()[:1])['model']


# The parts.


def device(options: accelerator.Options) -> Iterator[Cell]:
  """The devices and their published limits."""
  del options

  def cell():
    first = jax.devices()[0]
    chip = fit.published_chip(first)
    return {
        'devices': list(map(str, jax.devices())),
        'published': chip and dataclasses.asdict(chip),
        'memory_stats': first.memory_stats()}

  yield 'devices', cell


def attention_kernels(options: accelerator.Options) -> Iterator[Cell]:
  """Errors of the kernels, and of plain attention in the same dtype."""
  del options
  for dtype in ('bfloat16', 'float32'):
    for work in ('prefill', 'learner', 'decoding'):
      yield f'{work}, {dtype}', functools.partial(_kernel_errors, work, dtype)


def _kernel_errors(work, dtype):
  """Largest differences from float32, relative to the largest number."""
  config, (queries, prefix_length) = _dimensions('0.6b'), _sizes().attention
  groups, candidates, width = 2, 4, config.head_dim
  per_head = config.num_heads // config.num_kv_heads
  prefix = prefix_mask = past = past_mask = None
  rng = np.random.default_rng(0)

  def draw(num, *shape):
    shape = num, config.num_kv_heads, *shape
    return jnp.asarray(rng.normal(size=shape), dtype)

  def cache(num):  # Partly padding.
    lengths = np.linspace(5, prefix_length, num).astype(int)
    return (
        (draw(num, width, prefix_length), draw(num, prefix_length, width)),
        jnp.arange(prefix_length) < lengths[:, None])

  if work != 'prefill':
    prefix, prefix_mask = cache(groups)
  if work == 'decoding':
    rows, shape, queries = groups * candidates, (), 1
    past, past_mask = cache(rows)
    mask = jnp.arange(engine_lib.CHUNK)[None] < 3
  else:
    rows, shape = groups, (candidates if prefix else 1,)
    mask = jnp.tril(jnp.ones((queries, queries), bool))
  q = width**-0.5 * draw(rows, *(shape or (1,)), queries, per_head, width)
  inputs = (
      q, draw(rows, *shape, width, mask.shape[1]),
      draw(rows, *shape, mask.shape[1], width), prefix, past)
  weights = jnp.cos(jnp.arange(width))  # Gradients must not cancel.

  def compute(kernel, inputs):
    def call(inputs):
      q, k, v, prefix, past = inputs
      if work == 'decoding':
        mixed = (kernel or attention.attend)(
            q, k, v, mask, prefix, prefix_mask, past, past_mask,
            model.Rows.of(None, groups, candidates))
      elif kernel:
        mixed = kernel(q, k, v, prefix, prefix_mask)
      else:
        mixed = attention.attend(q, k, v, mask, prefix, prefix_mask)
      mixed = mixed.astype(jnp.float32)
      return jnp.sum(jnp.square(mixed) * weights), mixed

    if work == 'decoding':
      return {'forward': jax.jit(call)(inputs)[1]}
    grads, mixed = jax.jit(jax.grad(call, has_aux=True))(inputs)
    return {'forward': mixed, 'gradient': grads}

  with jax.set_mesh(_mesh()):
    kernel = (
        kernels.find_for_rows(q, [prefix_length] * 2) if work == 'decoding'
        else kernels.find(q, prefix_length if prefix else 0))
    with jax.default_matmul_precision('highest'):
      exact = compute(
          None, jax.tree.map(lambda x: x.astype(jnp.float32), inputs))
    results = {'plain': compute(None, inputs)}
    if kernel:
      results['kernel'] = compute(kernel, inputs)

  def error(x, y):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return float(np.abs(x - y).max() / np.abs(y).max())

  function = kernel
  while isinstance(function, functools.partial):
    function = function.args[0]
  return {'kernel': function.__name__ if function else 'none'} | {
      f'{name} {direction} error': max(jax.tree.leaves(jax.tree.map(
          error, result[direction], exact[direction])))
      for name, result in results.items() for direction in exact}


def logprobs(options: accelerator.Options) -> Iterator[Cell]:
  """Sampled log-probabilities minus those of the learner."""
  del options

  def cell(dtype):
    largest, mean = ours.Step(
        _dimensions('0.6b'), _sizes().scored, 1, plan_path.get_config(), dtype,
        jax.devices()[:1]).mismatch()
    return {'largest error': largest, 'mean error': mean}

  for dtype in ('bfloat16', 'float32'):
    yield dtype, functools.partial(cell, dtype)


def decode(options: accelerator.Options, size: str) -> Iterator[Cell]:
  """Decoding with random weights, from short to long prompts."""
  del options
  sizes = _sizes()
  sampled = functools.cache(lambda: ours.sampled_model(
      _dimensions(size), 'bfloat16', jax.devices()[:1]))
  for prompt in sizes.prompts:
    for batch in sizes.batches:
      yield f'batch {batch}, prompt {prompt}', functools.partial(
          _decode, sampled, workload.Load(
              batch // _GROUP_SIZE, _GROUP_SIZE, prompt, sizes.new_tokens))


def _decode(get_model, load):
  chip = fit.chip_of(jax.devices()[0])
  sampled = get_model()
  if chip is not None:
    pool = fit.Pool(1, 1, [fit.Learner(sampled.config, 'none', itemsize=2)])
    shapes = fit.Shapes(
        load.prompt_length, load.new_tokens, load.group_size, 1,
        (load.num_prompts,))
    try:
      fit.choose([pool], shapes, chip, fsdp=1, tensor=1)
    except fit.DoesNotFit as error:
      raise accelerator.Skipped(str(error)) from error
  sampling = ours.Sampling(sampled, load)
  whole = _best(sampling)
  seconds = min(sampling.decode() for _ in range(_REPEATS))
  num_bytes = 1e9 * workload.sampling_work(
      sampled.config, load, sampling.done, itemsize=2)['GB']
  num_tokens = load.num_prompts * load.group_size * (
      load.new_tokens - sampling.done)
  return {
      **_rates(seconds, num_tokens, bandwidth=num_bytes / seconds),
      'tokens/s with prefill': load.completion_tokens / whole}


def compute(options: accelerator.Options, size: str) -> Iterator[Cell]:
  """Prefill, and gradient with Adam; FLOPs exclude recomputation."""
  del options
  yield 'prefill', functools.partial(_prefill, size)
  yield 'gradient', functools.partial(_gradient, size)


def _prefill(size):
  load, config = _sizes().prefill, _dimensions(size)
  sampled = ours.sampled_model(config, 'bfloat16', jax.devices()[:1])
  num, length = load.num_prompts, load.prompt_length
  static = {'config': config, 'spec': programs.SamplerSpec(
      _GROUP_SIZE, 1.0, (), 'bfloat16')}
  args = (
      np.arange(num, dtype=np.int32)[None],
      workload.prompts(load, config, seed=0), np.full(num, length, np.int32),
      np.zeros((num, 2), np.uint32), np.ones(num, np.int32),
      np.zeros(num, np.int32))
  with jax.set_mesh(sampled.mesh):
    slots = programs.empty_slots(num_slots=num, prompt_length=length, **static)

    def fill():
      nonlocal slots
      slots = programs.fill(
          sampled.prepared, slots, *args, adapters=None, **static)
      return slots

    seconds = _best(fill)
  flops = workload.forward_flops(
      config, dataclasses.replace(load, prompt_length=length + 1))
  return _rates(seconds, num * length, flops=flops / seconds)


def _gradient(size):
  load, config = _sizes().gradient, _dimensions(size)
  trained = ours.Step(
      config, load, 1, plan_path.get_config(), 'bfloat16', jax.devices()[:1])
  ids = np.arange(load.new_tokens, dtype=np.int32)
  candidates = tuple(
      types.Candidate(ids, np.zeros(len(ids), np.float32), advantage=(-1.0)**i)
      for i in range(load.group_size))
  groups = [
      types.Group(
          types.GroupKey(str(i), 'agent0', 0, 0), 'agent0', prompt, candidates)
      for i, prompt in enumerate(workload.prompts(load, config, seed=0))]
  seconds = _best(lambda: trained.update(groups))
  num_tokens = load.num_prompts * load.prompt_length + load.completion_tokens
  return _rates(seconds, num_tokens, flops=(
      3 * workload.forward_flops(config, load) / seconds))


def step(options: accelerator.Options) -> Iterator[Cell]:
  """AT-GRPO steps of Plan-Path with random weights, on all devices."""
  yield 'step', functools.partial(_step, options)


def _step(options):
  sizes, folder = _sizes(), pathlib.Path(options.folder)
  dimensions = _dimensions('0.6b')
  (params, _), = ours.make_models(
      dimensions, 1, 'bfloat16', jax.devices()[:1])
  safetensors_lib.save(folder / 'model', params, dimensions, jnp.bfloat16)
  del params
  for path in _NANO.iterdir():  # The tokenizer.
    if path.is_file() and not (folder / 'model' / path.name).exists():
      shutil.copy(path, folder / 'model')
  config = plan_path.get_config('size=0.6b')
  # Random weights solve nothing, so a baseline would leave no gradient.
  config.update_from_flattened_dict({
      'model.folder': str(folder / 'model'), 'sandbox.level': options.sandbox,
      'environment.max_turns': sizes.max_turns,
      'rollout.num_tasks': sizes.num_tasks,
      'rollout.max_new_tokens': sizes.step_tokens,
      'buckets.prompt': (1024, 2048)[:sizes.max_turns],
      'buckets.completion': (sizes.step_tokens,),
      'buckets.groups': (sizes.num_tasks,), 'advantage.baseline': 'none',
      'advantage.scale': 'none'})
  seconds = []
  with api.Run(config, folder / 'step') as opened:
    experiment = opened.experiment
    tasks, states = (
        experiment.tasks(config.dataset.train), experiment.initial_states())
    for index in range(sizes.num_steps):
      start, clock = time.monotonic(), metrics_lib.StepClock()
      trees, usage = train_lib.rollout(
          experiment, states, train_lib.draw_tasks(tasks, index, experiment),
          step=index, clock=clock)
      metrics = train_lib.update(
          experiment, states, trees, step=index, references={}, clock=clock)
      seconds.append(time.monotonic() - start)
      print(f'step {index + 1}: {seconds[-1]:.1f} s, {metrics}', flush=True)
  num_tokens = sum(  # A prompt counts for each candidate.
      len(group.prompt) + len(candidate.completion)
      for group in tree_lib.groups_of(trees) for candidate in group.candidates)
  return {
      'tokens/s/device': num_tokens / seconds[-1] / jax.device_count(),
      'tokens': num_tokens, 'seconds of steps': seconds,
      'trained groups': (
          metrics['shared/groups'] - metrics['shared/groups_zero_advantage']),
      **usage.counts(), **clock.lap()}


def quickstart(options: accelerator.Options) -> Iterator[Cell]:
  """The training of launch/quickstart.sh."""
  sizes = _sizes()
  config = plan_path.get_config(f'size=nano{sizes.run_arg}')
  config.update_from_flattened_dict({
      'train.diagnose_every': 0, 'evaluation.validate_every': 10,
      **sizes.overrides})
  yield 'training', functools.partial(_train, config, options)


def smollm2(options: accelerator.Options) -> Iterator[Cell]:
  """MAGRPO with a pair of writers, an adapter per role."""
  sizes = _sizes()
  # The passages of launch/real.sh need a package, these posts do not. Their own
  # reward would be 0 for SmolLM2, which leaves nothing to update.
  config = writing.get_config('kind=posts,size=135m')
  config.update_from_flattened_dict({
      'model.folder': options.smollm2, 'model.dtype': 'bfloat16',
      'environment.options.kind': 'tldr',
      'train.num_steps': sizes.smollm2_steps,
      'evaluation.test': f'test[:{sizes.smollm2_steps}]',
      'evaluation.validation': 'validation[:2]',
      'evaluation.validate_every': 1000})
  yield 'training', functools.partial(
      _train, config, options, options.smollm2)


def _train(
    config: ml_collections.ConfigDict, options: accelerator.Options,
    needed: str | None = None) -> dict[str, Any]:
  """Trains to the end; skipped if the folder `needed` does not exist."""
  if needed and not pathlib.Path(needed).exists():
    raise accelerator.Skipped(f'the folder {needed} does not exist')
  config.sandbox.level = options.sandbox
  workdir = pathlib.Path(options.folder, 'run')
  start = time.monotonic()
  with api.Run(config, workdir) as opened:
    results = opened.train()
  steps = [
      json.loads(line) for line in
      (workdir / 'metrics.jsonl').read_text().splitlines()]
  return {
      'seconds': time.monotonic() - start, 'num_steps': len(steps),
      'median step seconds': float(np.median([x['time/step'] for x in steps])),
      **{f'{name} {when}': result[key] for when, result in results.items()
         for name, key in (('success', 'success'), ('return', 'mean_return'))}}


PARTS = {
    'device': device, 'kernels': attention_kernels, 'logprobs': logprobs,
    'decode_0.6b': functools.partial(decode, size='0.6b'),
    'compute_0.6b': functools.partial(compute, size='0.6b'),
    'quickstart': quickstart, 'step': step,
    'decode_1.7b': functools.partial(decode, size='1.7b'),
    'compute_1.7b': functools.partial(compute, size='1.7b'),
    'smollm2': smollm2,
}


if __name__ == '__main__':
  accelerator.run_cells(
      PARTS, sys.argv[1:], describe_machine, metrics_lib.peak_memory)
