"""The cases of each benchmark; `benchmarks.run` measures them.

On a CPU the models of accelerators are tiny, and their rates say nothing about
the project.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from atgrpo_jax import api
from atgrpo_jax import model
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model import kernels
from atgrpo_jax.sampling import engine
from benchmarks import ours
from benchmarks import workload
from configs import common
from configs import pod
from configs import quickstart as quickstart_config
from configs import writing

# Configs with the loss and optimizer of a step.
_GRPO = common.game_config('plan_path', 'size=nano')
_MAGRPO = writing.get_config()
_ADAPTER = model.LoraSpec(**{
    name: value for name, value in _MAGRPO.lora.items() if name != 'folder'})
_GROUP_SIZE = 8  # Candidates of a prompt when an accelerator decodes.


@dataclasses.dataclass(frozen=True)
class Case:
  """A task that is timed."""

  name: str
  # Prepares the task and returns the function that does it. The function may
  # return seconds, if only a part of it counts.
  make: Callable[[], Callable[[], float | None]]
  # Unit -> number of units that the task produces, or that any program for it
  # must compute or move.
  counts: Mapping[str, float]
  request: Mapping[str, Any] | None = None  # To peers.


@dataclasses.dataclass(frozen=True)
class Check:
  """Numbers that are no times."""

  name: str
  measure: Callable[[], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the comparisons."""

  config: model.ModelConfig = workload.MODEL
  sampling: Sequence[workload.Load] = (
      workload.Load(8, 8, 128, 64), workload.Load(8, 8, 1024, 128))
  step: workload.Load = workload.Load(8, 8, 128, 64)
  agent: workload.Load = workload.Load(1, 8, 128, 64)  # Per agent of MAGRPO.
  scaling: Sequence[workload.Load] = (
      workload.Load(8, 1, 1024, 64), workload.Load(8, 8, 1024, 64),
      *(workload.Load(8, 8, 128, new) for new in (32, 64, 128)))
  agents: Sequence[int] = (1, 4)  # Each with the load of `step`.
  real_size: Sequence[tuple[str, model.ModelConfig, workload.Load]] = (
      ('SmolLM2-135M', workload.SMOLLM2, workload.Load(4, 8, 150, 96)),
      ('Qwen2.5-Coder-0.5B', workload.CODER, workload.Load(4, 8, 200, 128)))


SIZES = Sizes()  # Tests replace it.


# Comparisons with peers and other checkouts.


def sampling() -> Iterator[Case]:
  """Prompts to completions and log-probabilities; then decoding alone."""
  for load in SIZES.sampling:
    yield _sample(str(load), SIZES.config, load)
    yield _decode(SIZES.config, load)


def step() -> Iterator[Case]:
  """A GRPO step: rollout, reward on the host, gradient, Adam."""
  yield _step('GRPO step', SIZES.config, SIZES.step)


def magrpo_step() -> Iterator[Case]:
  """A MAGRPO step of two agents: rollout, reward, gradients, AdamW."""
  yield _step(
      'MAGRPO step of 2 agents', SIZES.config, SIZES.agent, 2, _MAGRPO)


def real_size() -> Iterator[Case]:
  """Sampling, and gradient and Adam of an adapter."""
  dtype = model.fastest_dtype(jax.default_backend())
  for name, config, load in SIZES.real_size:
    yield _sample(f'{name}, sampling, {load}', config, load, dtype)
    yield _update(
        f'{name}, update of an adapter', config, load, dtype, lora=_ADAPTER)


def scaling() -> Iterator[Case]:
  """Sampling over group size, prompt and new tokens; steps over agents.

  Agents share the devices equally, or take turns if there are fewer devices
  than agents.
  """
  for load in SIZES.scaling:
    yield _sample(str(load), SIZES.config, load)
  for agents in SIZES.agents:
    yield _step(
        f'GRPO step, agents: {agents}', SIZES.config, SIZES.step, agents)


def _sample(
    name, config, load, dtype='float32', devices=(), chunk=engine.CHUNK,
    lora=None) -> Case:
  return Case(
      name, lambda: ours.Sampling(
          ours.sampled_model(config, dtype, devices, lora), load, chunk), {
              'tokens': load.completion_tokens,
              **workload.sampling_work(config, load, dtype=dtype)},
      workload.request('sample', [load], config, dtype))


def _decode(
    config, load, dtype='float32', devices=(), chunk=engine.CHUNK,
    lora=None) -> Case:
  whole = _sample('', config, load, dtype, devices, chunk, lora)
  new = load.new_tokens - chunk
  return Case(
      f'decoding alone, the last {new} tokens of {load}' + (
          f', chunks of {chunk}' if chunk != engine.CHUNK else '') + (
              ', with an adapter' if lora else ''),
      lambda: whole.make().decode, {
          'tokens': load.num_prompts * load.group_size * new,
          **workload.sampling_work(config, load, chunk, dtype)})


def _step(
    name, config, load, num_agents=1, run_config=_GRPO,
    dtype='float32') -> Case:
  return Case(
      f'{name}, {load}',
      lambda: ours.Step(config, load, num_agents, run_config, dtype),
      {'tokens': num_agents * load.completion_tokens},
      workload.request('step', [load] * num_agents, config, dtype))


def _update(
    name, config, load, dtype='float32', devices=(), lora=None) -> Case:
  def make():
    trained = ours.Step(
        config, load, 1, _MAGRPO if lora else _GRPO, dtype, devices, lora)
    return functools.partial(trained.update, trained.made_up_groups())

  work = {} if lora else workload.update_work(config, load)
  return Case(
      f'{name}, {load}', make, {'tokens': load.completion_tokens, **work},
      workload.request('update', [load], config, dtype))


# Measurements of an accelerator, for `benchmarks.accelerator`. Only steps and
# training use more than one device.


def _pick(size: Any, *, cpu: Any) -> Any:
  """The size of a measurement, or a tiny one on a CPU."""
  return cpu if jax.default_backend() == 'cpu' else size


def _qwen3(size: str) -> model.ModelConfig:
  return model.ModelConfig(**pod.dimensions(size) | _pick({}, cpu={
      'vocab_size': 2048, 'hidden_size': 64, 'intermediate_size': 128,
      'num_layers': 1, 'num_heads': 4, 'num_kv_heads': 2, 'head_dim': 16}))


def _learner_load() -> workload.Load:
  return _pick(workload.Load(8, 4, 1024, 256), cpu=workload.Load(2, 2, 16, 8))


def _with_percentages(case: Case) -> Case:
  """Adds counts whose rates are percentages of the peak of a known chip."""
  chip, counts = fit.published_chip(jax.devices()[0]), dict(case.counts)
  for unit, limit in (('GB', 'bandwidth'), ('GFLOP', 'flops')):
    if chip and unit in counts:
      counts[f'% of {limit}'] = (
          100 * 1e9 * counts[unit] / getattr(chip, limit))
  return dataclasses.replace(case, counts=counts)


def _with_block(case: Case, block: int) -> Case:
  """Lets attention read `block` positions in one step from now on."""
  def make():
    jax.clear_caches()
    kernels.RAGGED_BLOCKS = dict.fromkeys(kernels.RAGGED_BLOCKS, block)
    return case.make()

  return dataclasses.replace(
      case, name=f'{case.name}, blocks of {block}', make=make)


def errors() -> Iterator[Check]:
  """Errors of kernels, and of sampled log-probabilities."""
  for dtype in ('bfloat16', 'float32'):
    for length in _pick((512, 8192), cpu=(16,)):
      for work, prefix_length in (('prefill', 0), ('learner', length)):
        yield Check(
            f'kernel of {work}, {length} tokens, {dtype}', functools.partial(
                kernel_errors, length, prefix_length, dtype))
    yield Check(f'log-probabilities, {dtype}', lambda dtype=dtype: ours.Step(
        _qwen3('0.6b'), _learner_load(), 1, _GRPO, dtype,
        jax.devices()[:1]).mismatch())


def kernel_errors(
    length: int, prefix_length: int, dtype: str) -> dict[str, float]:
  """Largest errors, relative to the largest number of float32 attention.

  Those of plain attention are due to rounding. There is no 'kernel' if the
  device uses plain attention.
  """
  config = _qwen3('0.6b')
  heads, width = config.num_kv_heads, config.head_dim
  candidates = 4 if prefix_length else 1
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.asarray(rng.normal(size=(2, heads, *shape)), dtype)

  prefix = prefix_mask = None
  if prefix_length:
    prefix = draw(width, prefix_length), draw(prefix_length, width)
    prefix_mask = jnp.arange(prefix_length) < np.array([[5], [prefix_length]])
  q = width**-0.5 * draw(
      candidates, length, config.num_heads // heads, width)
  inputs = q, draw(candidates, width, length), draw(
      candidates, length, width), prefix
  weights = jnp.cos(jnp.arange(width))  # Gradients must not cancel.

  def plain(q, k, v, *prefix):
    mask = jnp.tril(jnp.ones((length, length), bool))
    return attention.attend(q, k, v, mask, *prefix)

  def compute(attend, dtype):
    def total(inputs):
      mixed = attend(*inputs, prefix_mask).astype(jnp.float32)
      return jnp.sum(jnp.square(mixed) * weights), mixed

    gradient, mixed = jax.jit(jax.grad(total, has_aux=True))(
        jax.tree.map(lambda x: x.astype(dtype), inputs))
    return {'forward': mixed, 'gradient': gradient}

  def error(x, y):
    return float(jnp.max(jnp.abs(x - y)) / jnp.max(jnp.abs(y)))

  with jax.set_mesh(mesh_lib.make_meshes(['x'], jax.devices()[:1])['x']):
    results = {
        name: compute(attend, dtype) for name, attend in (
            ('plain', plain), ('kernel', kernels.find(q, prefix_length)))
        if attend}
    with jax.default_matmul_precision('highest'):
      exact = compute(plain, 'float32')
  return {
      f'{name} {direction} error': max(jax.tree.leaves(
          jax.tree.map(error, result[direction], exact[direction])))
      for name, result in results.items() for direction in exact}


def decode(size: str) -> Iterator[Case]:
  """Sampling of batches, and decoding alone."""
  setting = 'bfloat16', jax.devices()[:1]
  if size == '8b':
    for rows in _pick((8, 64, 256), cpu=(8,)):
      load = workload.Load(
          rows // _GROUP_SIZE, _GROUP_SIZE, *_pick((4096, 128), cpu=(16, 24)))
      for lora in None, _ADAPTER:
        yield _with_percentages(
            _decode(_qwen3(size), load, *setting, lora=lora))
    # A TPU reads a multiple of 128 positions.
    gpu = (64,) if jax.default_backend() == 'gpu' else ()
    for block in _pick((*gpu, 128, 256, 512), cpu=(32,)):
      yield _with_percentages(
          _with_block(_decode(_qwen3(size), load, *setting), block))
    return
  for prompt in _pick((64, 2048), cpu=(16,)):
    for batch in _pick((8, 64, 512, 2048), cpu=(8, 16)):
      load = workload.Load(
          batch // _GROUP_SIZE, _GROUP_SIZE, prompt, _pick(64, cpu=24))
      yield _with_percentages(_sample(str(load), _qwen3(size), load, *setting))
      yield _with_percentages(_decode(_qwen3(size), load, *setting))
  # Long chunks wait less often for the host, but decode for finished rows.
  load = _pick(
      workload.Load(64, _GROUP_SIZE, 64, 512),
      cpu=workload.Load(1, _GROUP_SIZE, 16, 24))
  for chunk in _pick((16, 64, 128), cpu=(8, 16)):
    yield _with_percentages(_decode(_qwen3(size), load, *setting, chunk))


def compute(size: str) -> Iterator[Case]:
  """Prefill and gradient on one device, and a step on all.

  With 8B, the gradients of adapters.
  """
  config, load, devices = _qwen3(size), _learner_load(), jax.devices()[:1]
  if size == '8b':
    for length in _pick((4096, 8192), cpu=(16,)):
      yield _update(
          'gradient of an adapter', config,
          workload.Load(1, 4, length, length), 'bfloat16', devices, _ADAPTER)
    return
  prompts = _pick(workload.Load(8, 1, 2048, 0), cpu=workload.Load(2, 1, 32, 0))
  # `forward_flops` leaves the last token of a prompt to its completions.
  flops = workload.forward_flops(config, dataclasses.replace(
      prompts, prompt_length=prompts.prompt_length + 1))
  yield _with_percentages(Case(
      f'prefill, {prompts}', lambda: ours.prefill(
          ours.sampled_model(config, 'bfloat16', devices), prompts),
      {'tokens': prompts.num_prompts * prompts.prompt_length,
       'GFLOP': flops / 1e9}))
  yield _with_percentages(
      _update('gradient and Adam', config, load, 'bfloat16', devices))
  # A prompt counts for each candidate.
  per_device = load.num_prompts * load.group_size * (
      load.prompt_length + load.new_tokens)
  load = dataclasses.replace(
      load, num_prompts=load.num_prompts * jax.device_count())
  yield dataclasses.replace(
      _step('GRPO step', config, load, dtype='bfloat16'),
      counts={'tokens/device': per_device})


def quickstart() -> Iterator[Check]:
  """The training of launch/quickstart.sh."""
  config = quickstart_config.get_config()
  config.update_from_flattened_dict(_pick({}, cpu={
      'environment.max_turns': 1, 'rollout.num_tasks': 2,
      'rollout.group_size': 2, 'rollout.max_new_tokens': 8,
      'buckets.prompt': (1904,), 'buckets.completion': (8,),
      'buckets.groups': (2,), 'train.num_steps': 2,
      'evaluation.validation': 'validation[:2]',
      'evaluation.test': 'test[:2]'}))
  yield Check('training', functools.partial(_train, config))


def _train(config: ml_collections.ConfigDict) -> dict[str, float]:
  """Seconds of a training, and what it changes."""
  start = time.monotonic()
  with (tempfile.TemporaryDirectory() as folder,
        api.Run(config, folder) as opened):
    results = opened.train()
    return {'s': time.monotonic() - start} | {
        f'{name} {when}': result[key] for when, result in results.items()
        for name, key in (('success', 'success'), ('return', 'mean_return'))}


ACCELERATOR = {
    'errors': errors,
    **{f'{make.__name__}_{size}': functools.partial(make, size)
       for size in ('8b', '0.6b') for make in (decode, compute)},
    'quickstart': quickstart}
# Name -> function that makes its cases.
BENCHMARKS = {
    'sampling': sampling, 'step': step, 'magrpo_step': magrpo_step,
    'scaling': scaling, 'real_size': real_size,
    **ACCELERATOR}
