"""The jitted functions of a run, with the shapes of their largest arguments.

Nothing is loaded and nothing runs. Each generator is used within the mesh of
its policy or critic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import functools
import math
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.sampling import engine
from atgrpo_jax.sampling import programs


class AbstractCall(NamedTuple):
  """A jitted function with shapes and shardings in place of arrays."""

  name: str
  function: Callable
  # Bytes per device of those arguments that stay allocated throughout training,
  # minus bytes that must be allocated beside the arguments.
  held: int
  num_tokens: int  # Padded tokens that the call processes.
  args: tuple
  kwargs: Mapping[str, Any]  # Includes static arguments.


def state_and_frozen_params(policy: policy_lib.Policy):
  """Shapes of the trained state and of the frozen model."""
  return (
      None if policy.trained == 'none' else policy.state_template(),
      None if policy.trained == 'all' else policy.params_template(
          policy.learner.dtype))


def buckets_of(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy) -> batching.Buckets:
  """The static shapes of the run on the mesh of the policy."""
  return batching.Buckets(**config.buckets).on(
      mesh_lib.num_data_shards(policy.mesh))


def policy_calls(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy) -> Iterator[AbstractCall]:
  """The programs that sample and train a policy."""
  state, frozen_params = state_and_frozen_params(policy)
  params, adapters = frozen_params, None
  if policy.trained == 'all':
    params = state.params
  elif policy.trained == 'lora':
    adapters = model.Adapters(state.params, _shape(
        policy.mesh, PartitionSpec(), (1,), 'float32'))
  yield from _sampler_calls(config, policy, params, adapters)
  if state is not None:
    yield from _learner_calls(config, policy, state, frozen_params)


def _sampler_calls(config, policy, params, adapters):
  """The programs of a full engine."""
  mesh, num_shards = policy.mesh, mesh_lib.num_data_shards(policy.mesh)
  group_size, length = config.rollout.group_size, config.buckets.prompt[-1]
  *fewer, num_slots = buckets_of(config, policy).groups
  num_rows = num_slots * group_size
  capacity = engine.padded_size(config.rollout.max_new_tokens)
  static = {'config': policy.config, 'spec': programs.SamplerSpec(
      group_size=group_size, temperature=config.rollout.temperature,
      stop_ids=(0,), dtype=policy.learner.dtype)}
  rows = functools.partial(_shape, mesh, PartitionSpec(mesh_lib.ROWS))

  def shapes_of(make_fn, **sizes):
    return jax.tree.map(
        lambda x: _shape(
            mesh, PartitionSpec(*programs.axes_of(x)), x.shape, x.dtype),
        jax.eval_shape(functools.partial(make_fn, **sizes, **static)))

  def make_slots(number):
    return shapes_of(
        programs.empty_slots, num_slots=number, prompt_length=length)

  def make_rows(number, capacity=capacity):
    return shapes_of(programs.empty_rows, num_rows=number, capacity=capacity)

  prepare = {'config': policy.config, 'dtype': policy.learner.dtype}
  prepared = mesh_lib.tree_template(
      jax.eval_shape(functools.partial(programs.prepare, **prepare), params),
      mesh, mesh_lib.decoding_rules(policy.config.tied_head))
  slots, past = make_slots(num_slots), make_rows(num_rows)
  yield AbstractCall(
      'prepare', programs.prepare, num_bytes(params), 0, (params,), prepare)

  prompts_per_shard = engine.prefill_size(num_slots // num_shards)
  num_prompts = num_shards * prompts_per_shard
  keys = jax.eval_shape(
      lambda: jax.random.split(jax.random.key(0), num_prompts))
  numbers = rows((num_prompts,), 'int32')
  yield AbstractCall(
      'prefill', programs.fill, num_bytes(adapters) - num_bytes(past),
      num_prompts * length,
      (prepared, slots, rows((num_shards, prompts_per_shard), 'int32'),
       rows((num_prompts, length), 'int32'), numbers,
       rows(keys.shape, keys.dtype), numbers, numbers),
      {'adapters': adapters, **static})
  yield AbstractCall(
      'decode', programs.decode, num_bytes(adapters), num_rows * engine.CHUNK,
      (prepared, slots, past, None),
      {'adapters': adapters, 'num_tokens': engine.CHUNK, **static})
  yield AbstractCall(
      'more capacity', programs.move_rows, -num_bytes((prepared, slots)), 0,
      (make_rows(num_rows, capacity // 2),
       rows((num_shards, num_rows // num_shards), 'int32')),
      {'capacity': capacity})
  if fewer:
    yield AbstractCall(
        'more slots', programs.move_slots,
        -num_bytes((prepared, make_rows(fewer[-1] * group_size))), 0,
        (make_slots(fewer[-1]),
         rows((num_shards, num_slots // num_shards), 'int32')), {})


def _learner_calls(config, policy, state, frozen_params):
  """The gradient of a microbatch of the longest groups, and the update."""
  buckets, group_size = buckets_of(config, policy), config.rollout.group_size
  length, longest = buckets.prompt[-1], buckets.completion[-1]
  num_rows = buckets.microbatch(length, longest, group_size)
  rows = functools.partial(_shape, policy.mesh, PartitionSpec(mesh_lib.ROWS))
  logprobs = rows((num_rows, group_size, longest), 'float32')
  batch = types.TrainBatch(
      prompts=rows((num_rows, length), 'int32'),
      prompt_lengths=rows((num_rows,), 'int32'),
      completions=rows((num_rows, group_size, longest), 'int32'),
      completion_lengths=rows((num_rows, group_size), 'int32'),
      behavior_logprobs=logprobs,
      advantages=rows((num_rows, group_size), 'float32'),
      old_logprobs=(
          logprobs if config.train.updates_per_rollout > 1 else None),
      reference_logprobs=(
          logprobs if config.loss.kl_estimator != 'none' else None))
  yield from _update_calls(
      policy, state, frozen_params, batch,
      num_rows * (length + group_size * longest))


def critic_calls(
    config: ml_collections.ConfigDict,
    critic: policy_lib.Policy) -> Iterator[AbstractCall]:
  """The programs that evaluate and train a critic."""
  state = critic.state_template()
  length = (config.critic.prompt_buckets or config.buckets.prompt)[-1]
  num_rows = buckets_of(config, critic).microbatch(length)
  rows = functools.partial(_shape, critic.mesh, PartitionSpec(mesh_lib.ROWS))
  inputs = rows((num_rows, length), 'int32')
  lengths = rows((num_rows,), 'int32')
  numbers = rows((num_rows,), 'float32')
  yield AbstractCall(
      'values', gradients.values, num_bytes(state.params), num_rows * length,
      (state.params, inputs, lengths),
      {'config': critic.config, 'spec': critic.learner})
  yield from _update_calls(
      critic, state, None,
      types.ValueBatch(inputs, lengths, numbers, numbers), num_rows * length)


def _update_calls(policy, state, frozen_params, batch, num_tokens):
  """The gradient of a microbatch, and the update."""
  static = {'config': policy.config, 'spec': policy.learner}
  sums = jax.eval_shape(
      functools.partial(gradients.sums_of, spec=policy.learner), state.params)
  sums = jax.tree.map(
      lambda x, spec: _shape(
          policy.mesh, spec, (policy.mesh.shape['data'], *x.shape), x.dtype),
      sums, mesh_lib.data_specs(
          sums, policy_lib.sharding_rules(policy.config, policy.learner)))
  yield AbstractCall(
      'gradient', gradients.accumulate,
      num_bytes((state.params, frozen_params)), num_tokens,
      (state.params, sums, batch), {'frozen_params': frozen_params, **static})
  number = _shape(policy.mesh, PartitionSpec(), (), 'float32')
  yield AbstractCall(
      'update', update_lib.apply_update, num_bytes(state), 0,
      (state, sums, number, number), static)


def num_bytes(tree: Any) -> int:
  """Bytes per device of a tree of shapes with shardings."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree))


def _shape(mesh, spec, shape, dtype):
  return jax.ShapeDtypeStruct(
      shape, dtype, sharding=NamedSharding(mesh, spec))
