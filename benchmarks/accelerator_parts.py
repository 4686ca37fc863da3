"""The measurements of `benchmarks.accelerator`, which runs them in children.

A part is a dict of cells. A cell is a function that returns numbers by unit,
such as {'tokens/s': 12.5}, or raises UserError if it cannot be measured here.

Kernels, log-probabilities, decoding, prefill and gradient use one device; runs
use all devices.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import ml_collections
import numpy as np

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import train as train_lib
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model import kernels
from atgrpo_jax.sampling import engine as engine_lib
from benchmarks import accelerator
from benchmarks import ours
from benchmarks import run
from benchmarks import workload
from configs import plan_path
from configs import pod
from configs import quickstart
from configs import writing

_NANO = accelerator.ROOT / 'models/nano'
_REPEATS = 3
_GROUP_SIZE = 8  # Candidates of a prompt in decoding.
# On a CPU.
_TINY_MODEL = {
    'vocab_size': 2048, 'hidden_size': 64, 'intermediate_size': 128,
    'num_layers': 1, 'num_heads': 4, 'num_kv_heads': 2, 'head_dim': 16}
_TINY_RUN = {
    'environment.max_turns': 1, 'rollout.num_tasks': 2, 'rollout.group_size': 2,
    'rollout.max_new_tokens': 8, 'buckets.prompt': (1904,),
    'buckets.completion': (8,), 'buckets.groups': (2,), 'train.num_steps': 2,
    'evaluation.validation': 'validation[:2]', 'evaluation.test': 'test[:2]'}


def make_parts(sandbox: str) -> accelerator.Parts:
  """All measurements; `sandbox` is the level of the runs."""
  bind, dtypes = functools.partial, ('bfloat16', 'float32')
  parts = {
      'kernels': {
          f'{work}, {dtype}': bind(_kernel_errors, work, dtype)
          for dtype in dtypes for work in ('prefill', 'learner', 'decoding')},
      'logprobs': {dtype: bind(_logprob_errors, dtype) for dtype in dtypes},
      'quickstart': {'training': bind(_train, _quickstart_config(), sandbox)},
      'step': {'third step': bind(_step, sandbox)},
      'smollm2': {'training': bind(_train, _smollm2_config(), sandbox)}}
  for size in ('0.6b', '1.7b'):
    parts[f'decode_{size}'] = {
        f'batch {batch}, prompt {prompt}': bind(_decode, size, batch, prompt)
        for prompt in _pick((64, 2048), cpu=(16,))
        for batch in _pick((8, 64, 512, 2048), cpu=(8, 16))}
    parts[f'compute_{size}'] = {
        'prefill': bind(_prefill, size), 'gradient': bind(_gradient, size)}
  return parts


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
      'sizes': _pick('full', cpu='tiny')}


def _pick(size: Any, *, cpu: Any) -> Any:
  """The size of a measurement, or a tiny one on a CPU."""
  return cpu if jax.default_backend() == 'cpu' else size


def _dimensions(size: str) -> model.ModelConfig:
  return model.ModelConfig(
      **pod.dimensions(size) | _pick({}, cpu=_TINY_MODEL))


# Errors.


def _kernel_errors(work: str, dtype: str) -> dict[str, float]:
  """Largest errors, relative to the largest number of float32 attention.

  Those of plain attention are due to rounding. There is no 'kernel' if the
  device uses plain attention.
  """
  config, length = _dimensions('0.6b'), _pick(512, cpu=16)
  heads, width = config.num_kv_heads, config.head_dim
  groups, candidates = 2, 1 if work == 'prefill' else 4
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.asarray(rng.normal(size=shape), dtype)

  def draw_cache(num):  # Partly padding.
    lengths = np.linspace(5, length, num).astype(int)
    return (
        (draw(num, heads, width, length), draw(num, heads, length, width)),
        jnp.arange(length) < lengths[:, None])

  prefix = prefix_mask = past = past_mask = rows = None
  if work != 'prefill':
    prefix, prefix_mask = draw_cache(groups)
  q_shape = shape = groups, heads, candidates
  queries, mask = length, jnp.tril(jnp.ones((length, length), bool))
  if work == 'decoding':
    past, past_mask = draw_cache(groups * candidates)
    shape = groups * candidates, heads
    q_shape = *shape, 1
    queries, mask = 1, jnp.arange(engine_lib.CHUNK)[None] < 3
    rows = model.Rows.of(None, groups, candidates)
  keys = mask.shape[1]
  q = width**-0.5 * draw(*q_shape, queries, config.num_heads // heads, width)
  k, v = draw(*shape, width, keys), draw(*shape, keys, width)
  weights = jnp.cos(jnp.arange(width))  # Gradients must not cancel.

  def compute(attend, dtype):
    def total(inputs):
      q, k, v, prefix, past = inputs
      if attend is attention.attend or rows:
        mixed = attend(
            q, k, v, mask, prefix, prefix_mask, past, past_mask, rows)
      else:
        mixed = attend(q, k, v, prefix, prefix_mask)
      mixed = mixed.astype(jnp.float32)
      return jnp.sum(jnp.square(mixed) * weights), mixed

    inputs = jax.tree.map(
        lambda x: x.astype(dtype), (q, k, v, prefix, past))
    if rows:
      return {'forward': jax.jit(total)(inputs)[1]}
    gradient, mixed = jax.jit(jax.grad(total, has_aux=True))(inputs)
    return {'forward': mixed, 'gradient': gradient}

  def error(x, y):
    return float(jnp.max(jnp.abs(x - y)) / jnp.max(jnp.abs(y)))

  with jax.set_mesh(mesh_lib.make_meshes(['x'], jax.devices()[:1])['x']):
    kernel = (
        kernels.find_for_rows(q, [length, length]) if rows
        else kernels.find(q, length if prefix else 0))
    results = {
        name: compute(attend, dtype)
        for name, attend in (('plain', attention.attend), ('kernel', kernel))
        if attend}
    with jax.default_matmul_precision('highest'):
      exact = compute(attention.attend, 'float32')
  return {
      f'{name} {direction} error': max(jax.tree.leaves(
          jax.tree.map(error, result[direction], exact[direction])))
      for name, result in results.items() for direction in exact}


def _logprob_errors(dtype: str) -> dict[str, float]:
  """Sampled log-probabilities minus those of the learner."""
  _, step = _learner('0.6b', dtype)
  largest, mean = step.mismatch()
  return {'largest error': largest, 'mean error': mean}


def _learner(size: str, dtype: str) -> tuple[workload.Load, ours.Step]:
  load = _pick(
      workload.Load(8, 4, 1024, 256), cpu=workload.Load(2, 2, 16, 8))
  return load, ours.Step(
      _dimensions(size), load, 1, plan_path.get_config(), dtype,
      jax.devices()[:1])


# Rates.


def _rates(
    seconds: float, num_tokens: int, limit: str,
    amount: float) -> dict[str, float]:
  """Tokens per second, and bytes or FLOPs with the percentage of the peak.

  `limit` is the attribute of `fit.Chip` that bounds `amount` per second. Chips
  that `fit` does not know have no percentage.
  """
  rate = amount / seconds
  values = {
      'tokens/s': num_tokens / seconds,
      {'bandwidth': 'GB/s', 'flops': 'GFLOP/s'}[limit]: rate / 1e9}
  if chip := fit.published_chip(jax.devices()[0]):
    values[f'% of {limit}'] = 100 * rate / getattr(chip, limit)
  return values


def _best(contestant: Callable[[], float]) -> float:
  """The shortest of some calls in seconds, after one that compiles."""
  contestant()
  return min(contestant() for _ in range(_REPEATS))


@functools.cache
def _sampled_model(size: str) -> engine_lib.SampledModel:
  return ours.sampled_model(_dimensions(size), 'bfloat16', jax.devices()[:1])


def _decode(size: str, batch: int, prompt: int) -> dict[str, float]:
  load = workload.Load(
      batch // _GROUP_SIZE, _GROUP_SIZE, prompt, new_tokens=_pick(64, cpu=24))
  sampling = ours.Sampling(_sampled_model(size), load)
  whole, seconds = _best(run.timed(sampling)), _best(sampling.decode)
  num_bytes = 1e9 * workload.sampling_work(
      _dimensions(size), load, sampling.done, itemsize=2)['GB']
  return {
      'tokens/s with prefill': load.completion_tokens / whole,
      **_rates(
          seconds, batch * (load.new_tokens - sampling.done), 'bandwidth',
          num_bytes)}


def _prefill(size: str) -> dict[str, float]:
  load = _pick(workload.Load(8, 1, 2048, 0), cpu=workload.Load(2, 1, 32, 0))
  sampled = _sampled_model(size)
  prefill = jax.jit(functools.partial(
      model.prefill, config=sampled.config, dtype=jnp.bfloat16,
      prompts=workload.prompts(load, sampled.config, seed=0),
      lengths=np.full(load.num_prompts, load.prompt_length)))
  with jax.set_mesh(sampled.mesh):
    seconds = _best(run.timed(
        lambda: jax.block_until_ready(prefill(sampled.prepared))))
  # `forward_flops` leaves the last token of a prompt to its completions.
  flops = workload.forward_flops(
      sampled.config,
      dataclasses.replace(load, prompt_length=load.prompt_length + 1))
  return _rates(seconds, load.num_prompts * load.prompt_length, 'flops', flops)


def _gradient(size: str) -> dict[str, float]:
  """Gradient and Adam; FLOPs exclude recomputation."""
  load, step = _learner(size, 'bfloat16')
  groups = step.rollout()
  return _rates(
      _best(run.timed(lambda: step.update(groups))),
      load.num_prompts * load.prompt_length + load.completion_tokens, 'flops',
      3 * workload.forward_flops(_dimensions(size), load))


# Runs.


def _step(sandbox: str) -> dict[str, float]:
  """AT-GRPO on Plan-Path with random weights; the first step compiles."""
  folder, dimensions = pathlib.Path(tempfile.mkdtemp()), _dimensions('0.6b')
  (params, _), = ours.make_models(
      dimensions, 1, 'bfloat16', jax.devices()[:1])
  shutil.copytree(  # The tokenizer.
      _NANO, folder / 'model', ignore=shutil.ignore_patterns('*.safetensors'))
  safetensors_lib.save(folder / 'model', params, dimensions, jnp.bfloat16)
  del params
  config = plan_path.get_config('size=0.6b')
  config.update_from_flattened_dict({
      'model.folder': str(folder / 'model'), 'sandbox.level': sandbox,
      'environment.max_turns': 2, 'rollout.num_tasks': 32,
      'rollout.max_new_tokens': 512, 'buckets.prompt': (1024, 2048),
      'buckets.completion': (512,), 'buckets.groups': (32,),
      # Random weights solve nothing, so a baseline would leave no gradient.
      'advantage.baseline': 'none', 'advantage.scale': 'none',
      **_pick({}, cpu=_TINY_RUN)})
  with api.Run(config, folder / 'run') as opened:
    experiment, clock = opened.experiment, metrics_lib.StepClock()
    tasks = experiment.tasks(config.dataset.train)
    states = experiment.initial_states()
    for step in range(3):
      clock.lap()
      trees, usage = train_lib.rollout(
          experiment, states, train_lib.draw_tasks(tasks, step, experiment),
          step=step, clock=clock)
      train_lib.update(
          experiment, states, trees, step=step, clock=clock)
    times = clock.lap()
  # A prompt counts for each candidate.
  num_tokens = (
      config.rollout.group_size * usage.prompt_tokens + usage.completion_tokens)
  return {
      'tokens/s/device': num_tokens / times['time/step'] / jax.device_count(),
      **{f's of {name.removeprefix("time/")}': seconds
         for name, seconds in times.items()}}


def _quickstart_config() -> ml_collections.ConfigDict:
  """The config of launch/quickstart.sh."""
  config = quickstart.get_config()
  config.update_from_flattened_dict(_pick({}, cpu=_TINY_RUN))
  return config


def _smollm2_config() -> ml_collections.ConfigDict:
  """MAGRPO with a pair of writers, an adapter per role."""
  # The passages of launch/real.sh need a package, these posts do not. Their own
  # reward would be 0 for SmolLM2, which leaves nothing to update.
  config, num_steps = (
      writing.get_config('kind=posts,size=135m'), _pick(10, cpu=1))
  config.update_from_flattened_dict({
      'model.dtype': 'bfloat16', 'environment.options.kind': 'tldr',
      'train.num_steps': num_steps, 'evaluation.test': f'test[:{num_steps}]',
      'evaluation.validation': 'validation[:2]'})
  return config


def _train(
    config: ml_collections.ConfigDict, sandbox: str) -> dict[str, float]:
  """Trains to the end."""
  if not pathlib.Path(config.model.folder).exists():
    raise errors.UserError(f'the folder {config.model.folder} does not exist')
  config.sandbox.level = sandbox
  start = time.monotonic()
  with api.Run(config, tempfile.mkdtemp()) as opened:
    results = opened.train()
  return {'s': time.monotonic() - start} | {
      f'{name} {when}': result[key] for when, result in results.items()
      for name, key in (('success', 'success'), ('return', 'mean_return'))}


if __name__ == '__main__':
  if jax.default_backend() == 'cpu':  # Compiling would take all of the time.
    jax.config.update('jax_disable_most_optimizations', True)
  accelerator.run_child(describe_machine, make_parts, sys.argv[1:])
