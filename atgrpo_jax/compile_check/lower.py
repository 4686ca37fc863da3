"""Which programs a run has, and what each needs on a device of a topology.

The programs of a policy (sampler, gradient of a microbatch, update) and of a
critic (values and gradient of a microbatch, update) are lowered from shapes
alone and compiled ahead of time; nothing is loaded and nothing runs. Their
arguments have the shapes of the largest buckets.

Memory is XLA's own account of each compiled program, plus what the run keeps on
the devices meanwhile. Of what several engines hold at the same time, for other
prompt lengths or for groups of one, only the largest part is counted: that of
the longest prompts and of groups of rollout.group_size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import math
import pathlib
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections

from atgrpo_jax import experiment
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.algorithms import critics as critics_lib
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.compile_check import collectives as collectives_lib
from atgrpo_jax.compile_check import work
from atgrpo_jax.learner import critic as critic_lib
from atgrpo_jax.learner import critic_step
from atgrpo_jax.learner import policies as policies_lib
from atgrpo_jax.learner import train_state
from atgrpo_jax.learner import train_step
from atgrpo_jax.rollout import policy_map
from atgrpo_jax.runtime import buckets as buckets_lib
from atgrpo_jax.runtime import sharding
from atgrpo_jax.sampling import engine
from atgrpo_jax.sampling import placement
from atgrpo_jax.sampling import programs
from atgrpo_jax.sampling import shared_prefix as shared_prefix_lib


class Call(NamedTuple):
  """A jitted function with its arguments, as a run calls it.

  Attributes:
    name: of the program.
    function: that is jitted.
    held: bytes of the arguments that the run keeps anyway, less what it needs
      beside the arguments for this program alone.
    args: trees of shapes with shardings.
    kwargs: the same, and static values.
  """

  name: str
  function: Callable
  held: int
  args: tuple
  kwargs: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
  """What one compiled program needs on each device, in bytes and FLOPs.

  Attributes:
    name: of the program and its policy or critic.
    arguments: what it is given.
    peak: the most that it needs at one time, arguments and results included.
    kept: what the run keeps on the device that is no argument of it.
    flops: of all matrix products.
    traffic: bytes that these read and write.
    collectives: what the device and others tell each other.
    refusal: what the compiler said where it gave up on the program. Without a
      number of bytes in it, `peak` is what the arguments take.
  """

  name: str
  arguments: int
  peak: int
  kept: int
  flops: float
  traffic: float
  collectives: tuple[collectives_lib.Collective, ...] = ()
  refusal: str = ''

  @property
  def total(self) -> int:
    return self.peak + self.kept

  @property
  def num_sent(self) -> float:
    """Bytes that a device sends to others, at least."""
    return sum(found.num_sent for found in self.collectives)


def build_policies(
    config: ml_collections.ConfigDict,
    devices: Sequence[jax.Device]) -> dict[str, policies_lib.Policy]:
  """The policies of the run, with the dimensions that the config gives."""
  dimensions = model.ModelConfig(**config.compile_check.dimensions)
  environment = experiment.make_environment(config, sandbox=None)
  names = policy_map.policies_of(
      policy_map.make_policy_map(config.policies, environment.roles))
  return experiment.build_policies(
      config, names, devices,
      lambda folder, thinking: policies_lib.Pretrained(
          pathlib.Path(folder), dimensions, tokenizer=None))


def build_critics(
    config: ml_collections.ConfigDict,
    policies: Mapping[str, policies_lib.Policy],
) -> dict[str, critic_lib.Critic]:
  """The critics of the run, with the dimensions that the config gives."""
  dimensions = model.ModelConfig(**config.compile_check.dimensions)
  return critics_lib.build(
      spec_lib.CriticSpec(**config.critic), policies,
      buckets_lib.Buckets(**config.buckets),
      lambda folder: policies_lib.Pretrained(
          pathlib.Path(folder), dimensions, tokenizer=None))


def state_and_frozen_params(
    policy: policies_lib.Policy,
) -> tuple[train_state.TrainState | None, model.Params | None]:
  """Shapes of what is trained, and of the frozen model."""
  return (
      None if policy.trained == 'none' else policy.state_template(),
      None if policy.trained == 'all' else policy.params_template(
          policy.learner.dtype))


def buckets_of(
    config: ml_collections.ConfigDict,
    policy: policies_lib.Policy) -> buckets_lib.Buckets:
  """The static shapes of the run on the mesh of the policy."""
  return buckets_lib.Buckets(**config.buckets).on(
      sharding.num_data_shards(policy.mesh))


def compile_programs(
    config: ml_collections.ConfigDict, policy: policies_lib.Policy,
    resident: int) -> list[Program]:
  """Every program of the policy, compiled for the devices of its mesh.

  Args:
    config: of the run.
    policy: whose programs.
    resident: bytes of parameters and optimisers that the run keeps on each
      device of the mesh.
  """
  with jax.set_mesh(policy.mesh):
    return [
        _compile(call, policy, resident - call.held)
        for call in calls(config, policy)]


def compile_critic(
    critic: critic_lib.Critic, policies: Mapping[str, policies_lib.Policy],
    resident: int) -> list[Program]:
  """Every program of the critic; `resident` as in `compile_programs`."""
  with jax.set_mesh(critic.mesh):
    return [
        _compile(call, critic, resident - call.held)
        for call in critic_calls(critic, policies)]


def calls(
    config: ml_collections.ConfigDict,
    policy: policies_lib.Policy) -> Iterator[Call]:
  """What the run calls for the policy, in this order; in its mesh."""
  state, frozen_params = state_and_frozen_params(policy)
  params, adapters = frozen_params, None
  if policy.trained == 'all':
    params = state.params
  elif policy.trained == 'lora':
    adapters = model.Adapters(
        state.params,
        _shape(NamedSharding(policy.mesh, PartitionSpec()), (1,), 'float32'))
  yield from _sampler_calls(config, policy, params, adapters)
  if state is not None:
    yield from _learner_calls(config, policy, state, frozen_params)


def critic_calls(
    critic: critic_lib.Critic,
    policies: Mapping[str, policies_lib.Policy]) -> Iterator[Call]:
  """What the run calls for the critic, in this order; in its mesh."""
  mesh, spec = critic.mesh, critic.learner
  rows = functools.partial(
      _shape, NamedSharding(mesh, PartitionSpec(sharding.ROWS)))
  state = critic.state_template()
  static = {'config': critic.config, 'spec': spec, 'policy_params': (
      None if spec.trains_trunk
      else policies[critic.policy].state_template().params)}
  length = critic.lengths[-1]
  num_rows = critic.num_rows(length)
  inputs = rows((num_rows, length), 'int32')
  numbers = rows((num_rows,), 'float32')
  lengths = rows((num_rows,), 'int32')
  sums = _sums_of(
      critic_step.Sums(state.params, jax.ShapeDtypeStruct((), 'float32')), mesh,
      critic_step.rules(spec))
  held = num_bytes((state.params, static['policy_params']))
  yield Call(
      'values', critic_step.values, held, (state.params, inputs, lengths),
      static)
  yield Call(
      'gradient', critic_step.accumulate, held,
      (state.params, sums, types.ValueBatch(
          inputs, lengths, numbers, numbers, numbers)), static)
  yield Call(
      'update', critic_step.apply_update, num_bytes(state),
      (state, sums, _shape(NamedSharding(mesh, PartitionSpec()), (), 'float32')
       ), {'spec': spec})


def _sums_of(sums, mesh, rules):
  """Shapes of what each shard of `data` adds up, from those of one shard."""
  return jax.tree.map(
      lambda x, spec: _shape(
          NamedSharding(mesh, spec), (mesh.shape['data'], *x.shape), x.dtype),
      sums, sharding.data_specs(sums, rules))


def _sampler_calls(config, policy, params, adapters):
  """The programs of the engine, for slots that are full."""
  mesh = policy.mesh
  rows = functools.partial(
      _shape, NamedSharding(mesh, PartitionSpec(sharding.ROWS)))
  static = {'config': policy.config, 'spec': programs.SamplerSpec(
      group_size=config.rollout.group_size,
      temperature=config.rollout.temperature, stop_ids=(0,),
      dtype=policy.learner.dtype)}
  *fewer, num_slots = buckets_of(config, policy).groups
  size = config.rollout.group_size
  length = config.buckets.prompt[-1]
  capacity = placement.padded_size(config.rollout.max_new_tokens)

  def shapes(make_fn, **sizes):
    return jax.tree.map(
        lambda x: _shape(
            NamedSharding(mesh, PartitionSpec(*programs.axes_of(x))),
            x.shape, x.dtype),
        jax.eval_shape(functools.partial(make_fn, **sizes, **static)))

  def slots_of(num_slots):
    return shapes(
        programs.empty_slots, num_slots=num_slots, prompt_length=length)

  def past_of(num_slots, capacity):
    return shapes(
        programs.empty_rows, num_rows=num_slots * size, capacity=capacity)

  slots, past = slots_of(num_slots), past_of(num_slots, capacity)
  preparing = functools.partial(
      programs.prepare, config=policy.config, dtype=policy.learner.dtype)
  yield Call(
      'prepare', programs.prepare, num_bytes(params), (params,),
      preparing.keywords)
  prepared = sharding.tree_template(
      jax.eval_shape(preparing, params), mesh,
      sharding.decoding_rules(policy.config.tied_head))
  num_shards = sharding.num_data_shards(mesh)
  each = placement.prefill_size(num_slots // num_shards)
  num_prompts = num_shards * each
  keys = jax.eval_shape(
      lambda: jax.random.split(jax.random.key(0), num_prompts))
  numbers = rows((num_prompts,), 'int32')

  def prefill(name, length, shared_prefix):
    return Call(
        name, programs.fill, num_bytes(adapters) - num_bytes(past),
        (prepared, slots, rows((num_shards, each), 'int32'),
         rows((num_prompts, length), 'int32'), numbers,
         rows(keys.shape, keys.dtype), numbers, numbers),
        {'shared_prefix': shared_prefix, 'adapters': adapters, **static})

  yield prefill('prefill', length, None)
  known = shared_prefix_lib.MIN_LENGTH
  if known < length:
    per_shard = rows((num_shards,), 'int32')
    shared_prefix = jax.tree.map(
        lambda x: _shape(NamedSharding(mesh, PartitionSpec(
            *([None, sharding.ROWS, 'tensor'] if x.ndim > 1
              else [sharding.ROWS]))), x.shape, x.dtype),
        jax.eval_shape(
            functools.partial(
                programs.prefill_shared_prefix, adapters=adapters, **static),
            prepared, rows((num_shards, placement.padded_size(known)), 'int32'),
            per_shard, per_shard))
    yield prefill(
        'prefill suffix', min(placement.padded_size(length - known), length),
        shared_prefix)
  yield Call(
      'decode', programs.decode, num_bytes(adapters),
      (prepared, slots, past, None),
      {'adapters': adapters, 'num_tokens': engine.CHUNK, **static})
  yield Call(
      'more capacity', programs.move_rows, -num_bytes((prepared, slots)),
      (past_of(num_slots, capacity // 2),
       rows((num_shards, num_slots * size // num_shards), 'int32')),
      {'capacity': capacity})
  if fewer:
    yield Call(
        'more slots', programs.move_slots,
        -num_bytes((prepared, past_of(fewer[-1], capacity))),
        (slots_of(fewer[-1]),
         rows((num_shards, num_slots // num_shards), 'int32')), {})


def _learner_calls(config, policy, state, frozen_params):
  """The gradient of the longest microbatch, and the update."""
  mesh = policy.mesh
  rows = functools.partial(
      _shape, NamedSharding(mesh, PartitionSpec(sharding.ROWS)))
  buckets = buckets_of(config, policy)
  size = config.rollout.group_size
  length, longest = buckets.prompt[-1], buckets.completion[-1]
  num_rows = buckets.microbatch(length, longest, size)
  logprobs = rows((num_rows, size, longest), 'float32')
  batch = types.TrainBatch(
      prompts=rows((num_rows, length), 'int32'),
      prompt_lengths=rows((num_rows,), 'int32'),
      completions=rows((num_rows, size, longest), 'int32'),
      completion_lengths=rows((num_rows, size), 'int32'),
      behavior_logprobs=logprobs,
      advantages=rows((num_rows, size), 'float32'),
      old_logprobs=(
          logprobs if config.train.updates_per_rollout > 1 else None),
      reference_logprobs=(
          logprobs if config.loss.kl_estimator != 'none' else None))
  static = {'config': policy.config, 'spec': policy.learner}
  sums = _sums_of(
      jax.eval_shape(
          functools.partial(train_step.sums_of, spec=policy.learner),
          state.params), mesh, train_step.rules(policy.config, policy.learner))
  number = _shape(NamedSharding(mesh, PartitionSpec()), (), 'float32')
  yield Call(
      'gradient', train_step.accumulate,
      num_bytes((state.params, frozen_params)),
      (state.params, sums, batch), {'frozen_params': frozen_params, **static})
  yield Call(
      'update', train_step.apply_update, num_bytes(state),
      (state, sums, number, number), static)


def _compile(call, learner, kept):
  traced = call.function.trace(*call.args, **call.kwargs)
  flops, traffic = work.count_work(traced.jaxpr, engine.CHUNK)
  num_devices = learner.mesh.size
  program = Program(
      name=f'{call.name} {learner.name}', arguments=num_bytes([
          leaf for leaf in jax.tree.leaves((call.args, call.kwargs))
          if isinstance(leaf, jax.ShapeDtypeStruct)]),
      peak=0, kept=kept, flops=flops / num_devices,
      traffic=traffic / num_devices)
  try:
    compiled = traced.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    # The compiler gives up on a program that by itself is too large.
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    return dataclasses.replace(
        program, peak=max(program.arguments, work.needed_bytes(str(error))),
        refusal=str(error).splitlines()[0])
  memory = compiled.memory_analysis()
  return dataclasses.replace(
      program, arguments=memory.argument_size_in_bytes,
      peak=memory.peak_memory_in_bytes, collectives=tuple(
          collectives_lib.find(compiled.as_text(), engine.CHUNK)))


def num_bytes(tree) -> int:
  """On each device, of a tree of shapes with shardings."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree))


def _shape(at, shape, dtype):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=at)
