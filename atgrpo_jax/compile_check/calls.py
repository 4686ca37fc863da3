"""What a run calls: jitted functions with the shapes of their arguments.

Nothing is loaded and nothing runs. `calls` and `critic_calls` have the shapes
of the largest buckets; a `Sampler` has those of any.
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
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
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


def state_and_frozen_params(
    policy: policy_lib.Policy,
) -> tuple[policy_lib.TrainState | None, model.Params | None]:
  """Shapes of what is trained, and of the frozen model."""
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


def calls(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy) -> Iterator[Call]:
  """What the run calls for the policy, in this order; in its mesh."""
  state, frozen_params = state_and_frozen_params(policy)
  params, adapters = sampled_params(policy, state, frozen_params)
  *fewer, num_slots = buckets_of(config, policy).groups
  yield from _sampler_calls(
      config, Sampler(
          config, policy, params, adapters, config.rollout.group_size),
      num_slots, fewer)
  if state is not None:
    yield from _learner_calls(config, policy, state, frozen_params)


def sampled_params(
    policy: policy_lib.Policy, state: policy_lib.TrainState | None,
    frozen_params: model.Params | None,
) -> tuple[model.Params, model.Adapters | None]:
  """What an engine samples from."""
  if policy.trained == 'all':
    return state.params, None
  if policy.trained == 'none':
    return frozen_params, None
  return frozen_params, model.Adapters(
      state.params,
      _shape(NamedSharding(policy.mesh, PartitionSpec()), (1,), 'float32'))


def critic_calls(
    config: ml_collections.ConfigDict,
    critic: policy_lib.Policy) -> Iterator[Call]:
  """What the run calls for the critic, in this order; in its mesh."""
  rows = functools.partial(
      _shape, NamedSharding(critic.mesh, PartitionSpec(mesh_lib.ROWS)))
  state = critic.state_template()
  static = {'config': critic.config, 'spec': critic.learner}
  buckets = actor_critic.critic_buckets(
      spec_lib.CriticSpec(**config.critic), buckets_of(config, critic))
  length = buckets.prompt[-1]
  num_rows = buckets.microbatch(length)
  inputs = rows((num_rows, length), 'int32')
  numbers = rows((num_rows,), 'float32')
  lengths = rows((num_rows,), 'int32')
  held = num_bytes(state.params)
  yield Call(
      'values', gradients.values, held, (state.params, inputs, lengths),
      static)
  yield Call(
      'gradient', gradients.accumulate, held,
      (state.params, _sums(critic, state), types.ValueBatch(
          inputs, lengths, numbers, numbers)),
      {'frozen_params': None, **static})
  number = _shape(NamedSharding(critic.mesh, PartitionSpec()), (), 'float32')
  yield Call(
      'update', update_lib.apply_update, num_bytes(state),
      (state, _sums(critic, state), number, number), static)


class Sampler:
  """The programs of a policy's engine, for slots and rows of any number."""

  def __init__(
      self, config: ml_collections.ConfigDict, policy: policy_lib.Policy,
      params: model.Params, adapters: model.Adapters | None,
      group_size: int):
    """To be used in the policy's mesh; trees are of shapes.

    Args:
      config: of the run.
      policy: whose engine.
      params: that it samples from.
      adapters: over these, if there are any.
      group_size: of its groups.
    """
    self._mesh, self._config = policy.mesh, policy.config
    self._dtype = policy.learner.dtype
    self._params, self._adapters = params, adapters
    self._group_size = group_size
    self._static = {'config': policy.config, 'spec': programs.SamplerSpec(
        group_size=group_size, temperature=config.rollout.temperature,
        stop_ids=(0,), dtype=policy.learner.dtype,
        kv_cache_dtype=config.rollout.kv_cache_dtype)}
    self._prepared = mesh_lib.tree_template(
        jax.eval_shape(functools.partial(
            programs.prepare, config=policy.config, dtype=self._dtype), params),
        self._mesh, mesh_lib.decoding_rules(policy.config.tied_head))
    self.num_shards = mesh_lib.num_data_shards(self._mesh)

  def slots(self, num_slots: int, length: int) -> programs.Slots:
    """Shapes of slots for prompts of a padded length."""
    return self._shapes(
        programs.empty_slots, num_slots=num_slots, prompt_length=length)

  def rows(self, num_rows: int, capacity: int) -> model.RowCache:
    """Shapes of so many rows of all shards."""
    return self._shapes(
        programs.empty_rows, num_rows=num_rows, capacity=capacity)

  def prepare(self) -> Call:
    """Brings the parameters to where decoding reads them."""
    return Call(
        'prepare', programs.prepare, num_bytes(self._params), (self._params,),
        {'config': self._config, 'dtype': self._dtype})

  def prefill(
      self, slots: programs.Slots, past: model.RowCache | None,
      num_prompts: int, length: int, known: int = 0) -> Call:
    """Prompts, all shards together; `known` of their tokens are shared."""
    by_row = self._by_row
    each = num_prompts // self.num_shards
    keys = jax.eval_shape(
        lambda: jax.random.split(jax.random.key(0), num_prompts))
    numbers = by_row((num_prompts,), 'int32')
    shared_prefix = None
    if known:
      per_shard = by_row((self.num_shards,), 'int32')
      shared_prefix = jax.tree.map(
          lambda x: _shape(NamedSharding(self._mesh, PartitionSpec(
              *([None, mesh_lib.ROWS, 'tensor'] if x.ndim > 1
                else [mesh_lib.ROWS]))), x.shape, x.dtype),
          jax.eval_shape(
              functools.partial(
                  programs.prefill_shared_prefix, adapters=self._adapters,
                  **self._static),
              self._prepared, by_row(
                  (self.num_shards, placement.padded_size(known)), 'int32'),
              per_shard, per_shard))
    return Call(
        'prefill suffix' if known else 'prefill', programs.fill,
        num_bytes(self._adapters) - num_bytes(past),
        (self._prepared, slots, by_row((self.num_shards, each), 'int32'),
         by_row((num_prompts, length), 'int32'), numbers,
         by_row(keys.shape, keys.dtype), numbers, numbers),
        {'shared_prefix': shared_prefix, 'adapters': self._adapters,
         **self._static})

  def decode(
      self, slots: programs.Slots, past: model.RowCache,
      num_rows: int | None = None) -> Call:
    """A chunk; `num_rows` of each shard, if not all candidates have one."""
    return Call(
        'decode', programs.decode, num_bytes(self._adapters),
        (self._prepared, slots, past,
         num_rows and self._by_row((self.num_shards, num_rows), 'int32')),
        {'adapters': self._adapters, 'num_tokens': engine.CHUNK,
         **self._static})

  def more_capacity(
      self, slots: programs.Slots, num_rows: int, capacity: int) -> Call:
    """Rows, of all shards, that become twice as long."""
    return Call(
        'more capacity', programs.move_rows,
        -num_bytes((self._prepared, slots)),
        (self.rows(num_rows, capacity // 2), self._by_row(
            (self.num_shards, num_rows // self.num_shards), 'int32')),
        {'capacity': capacity})

  def more_slots(
      self, old: programs.Slots, past: model.RowCache, num_slots: int) -> Call:
    """More slots than the `old` ones."""
    return Call(
        'more slots', programs.move_slots, -num_bytes((self._prepared, past)),
        (old, self._by_row(
            (self.num_shards, num_slots // self.num_shards), 'int32')), {})

  def _by_row(self, shape, dtype):
    return _shape(
        NamedSharding(self._mesh, PartitionSpec(mesh_lib.ROWS)), shape, dtype)

  def _shapes(self, make_fn, **sizes):
    return jax.tree.map(
        lambda x: _shape(
            NamedSharding(self._mesh, PartitionSpec(*programs.axes_of(x))),
            x.shape, x.dtype),
        jax.eval_shape(functools.partial(make_fn, **sizes, **self._static)))


def _sampler_calls(config, sampler, num_slots, fewer):
  """The programs of the engine, for slots that are full."""
  length = config.buckets.prompt[-1]
  capacity = placement.padded_size(config.rollout.max_new_tokens)
  num_rows = num_slots * config.rollout.group_size
  slots = sampler.slots(num_slots, length)
  past = sampler.rows(num_rows, capacity)
  num_prompts = sampler.num_shards * placement.prefill_size(
      num_slots // sampler.num_shards)
  yield sampler.prepare()
  yield sampler.prefill(slots, past, num_prompts, length)
  known = shared_prefix_lib.MIN_LENGTH
  if known < length:
    yield sampler.prefill(
        slots, past, num_prompts,
        min(placement.padded_size(length - known), length), known)
  yield sampler.decode(slots, past)
  yield sampler.more_capacity(slots, num_rows, capacity)
  if fewer:
    yield sampler.more_slots(
        sampler.slots(fewer[-1], length), sampler.rows(
            fewer[-1] * config.rollout.group_size, capacity), num_slots)


def _learner_calls(config, policy, state, frozen_params):
  """The gradient of the longest microbatch, and the update."""
  buckets = buckets_of(config, policy)
  yield gradient(
      config, policy, state, frozen_params, buckets.prompt[-1],
      buckets.completion[-1], config.rollout.group_size)
  number = _shape(NamedSharding(policy.mesh, PartitionSpec()), (), 'float32')
  yield Call(
      'update', update_lib.apply_update, num_bytes(state),
      (state, _sums(policy, state), number, number),
      {'config': policy.config, 'spec': policy.learner})


def gradient(
    config: ml_collections.ConfigDict, policy: policy_lib.Policy,
    state: policy_lib.TrainState, frozen_params: model.Params | None,
    length: int, longest: int, size: int) -> Call:
  """A microbatch of groups of `size`, with prompts and answers of lengths."""
  rows = functools.partial(
      _shape, NamedSharding(policy.mesh, PartitionSpec(mesh_lib.ROWS)))
  num_rows = buckets_of(config, policy).microbatch(length, longest, size)
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
  return Call(
      'gradient', gradients.accumulate,
      num_bytes((state.params, frozen_params)),
      (state.params, _sums(policy, state), batch),
      {'frozen_params': frozen_params, 'config': policy.config,
       'spec': policy.learner})


def _sums(policy, state):
  """Shapes of what each shard of `data` adds up."""
  sums = jax.eval_shape(
      functools.partial(gradients.sums_of, spec=policy.learner), state.params)
  rules = policy_lib.sharding_rules(policy.config, policy.learner)
  return jax.tree.map(
      lambda x, spec: _shape(
          NamedSharding(policy.mesh, spec),
          (policy.mesh.shape['data'], *x.shape), x.dtype),
      sums, mesh_lib.data_specs(sums, rules))


def num_bytes(tree) -> int:
  """On each device, of a tree of shapes with shardings."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree))


def _shape(at, shape, dtype):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=at)
