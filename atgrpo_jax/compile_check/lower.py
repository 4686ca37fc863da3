"""Compiles the programs of a run for devices that need not exist.

Each jitted function is lowered from the shapes of its largest arguments and
compiled ahead of time; nothing is loaded and nothing runs. Memory is XLA's
account of a compiled program plus the arrays that the run keeps on the devices.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import pathlib
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections

from atgrpo_jax import config as config_lib
from atgrpo_jax import model
from atgrpo_jax import settings
from atgrpo_jax import types
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.compile_check import costs
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.sampling import engine
from atgrpo_jax.sampling import programs


@dataclasses.dataclass(frozen=True)
class Program:
  """The cost of one compiled program on each device."""

  num_tokens: int  # Padded tokens of one call, on all devices.
  flops: float  # Of matrix products.
  traffic: float  # Bytes that matrix products read and write.
  name: str = ''  # The program and its policy or critic.
  arguments: int = 0  # Bytes.
  peak: int = 0  # Bytes, arguments and results included.
  kept: int = 0  # Bytes that the run keeps beside the arguments.
  collectives: tuple[costs.Collective, ...] = ()
  # The compiler's message if it found the program too large; `arguments` and
  # `peak` are then 0.
  refusal: str = ''

  @property
  def total(self) -> int:
    return self.peak + self.kept

  @property
  def num_collectives(self) -> int:
    return sum(collective.num_calls for collective in self.collectives)

  @property
  def bytes_sent(self) -> float:
    return sum(collective.bytes_sent for collective in self.collectives)

  def seconds(
      self, chip: fit.Chip, collective_latency: float) -> tuple[float, str]:
    """The roofline time of a call and the limit that it reaches."""
    limits = {
        'compute': self.flops / chip.flops,
        'memory': self.traffic / chip.bandwidth,
        'links': self.bytes_sent / chip.link_bandwidth}
    limit = max(limits, key=limits.get)
    return limits[limit] + self.num_collectives * collective_latency, limit


@dataclasses.dataclass(frozen=True)
class Pool:
  """The policies and critics on one mesh; bytes are per device."""

  policies: tuple[str, ...]
  num_slots: int  # Concurrent groups.
  state: int  # Bytes of all parameters and optimizers.
  cache: int  # Bytes of the keys and values that decoding may read.
  programs: tuple[Program, ...]  # Of all policies and critics.


class Run(NamedTuple):
  """A config with its mesh, policies and critics."""

  config: ml_collections.ConfigDict
  policy_map: policies_lib.PolicyMap
  policies: dict[str, policy_lib.Policy]
  critics: dict[str, policy_lib.Policy]


class AbstractCall(NamedTuple):
  """A jitted function with shapes and shardings in place of arrays."""

  name: str
  function: Callable
  # Bytes per device of the arguments that stay allocated throughout training,
  # minus bytes that must be allocated beside the arguments.
  held: int
  num_tokens: int  # Padded tokens that the call processes.
  args: tuple
  kwargs: Mapping[str, Any]  # Includes static arguments.


def build(
    config: ml_collections.ConfigDict, devices: Sequence[jax.Device],
    chip: fit.Chip | None) -> Run:
  """Builds a run with the model dimensions of the config; reads no files.

  `chip` is None for CPUs. Raises fit.DoesNotFit if no mesh fits.
  """
  dimensions = model.ModelConfig(**config.compile_check.dimensions)

  def read_model(folder, thinking):
    del thinking
    return pathlib.Path(folder), dimensions, None

  environment = settings.make_environment(config, sandbox=None)
  policy_map = settings.make_policy_map(
      config.policies, environment.roles, config.policy_map)
  config, policies = config_lib.build_policies(
      config, policy_map, devices, chip, read_model)
  critics = actor_critic.make_critics(
      spec_lib.CriticSpec(**config.critic), policies)
  return Run(config, policy_map, policies, critics)


def check(run: Run) -> list[Pool]:
  """Compiles every program of every pool."""
  meshes = dict.fromkeys(policy.mesh for policy in run.policies.values())
  compiled = {}
  return [_check_pool(run, mesh, compiled) for mesh in meshes]


def _check_pool(run, mesh, compiled):
  config = run.config
  learners = [
      learner for learner in (run.policies | run.critics).values()
      if learner.mesh == mesh]
  policies = [x for x in learners if x.name in run.policies]
  states, frozen_models = [], {}
  for learner in learners:
    state, frozen_params = state_and_frozen_params(learner)
    states.append(state)
    if frozen_params is not None:
      frozen_models[
          learner.folder, learner.learner.dtype] = frozen_params
  if config.loss.kl_estimator != 'none':
    states += [  # The reference models of the KL penalty.
        policy.params_template(policy.learner.dtype) for policy in policies
        if policy.trained == 'all']
  resident = num_bytes((states, list(frozen_models.values())))

  cache, compiled_programs = 0, []
  for learner in learners:
    for call in calls(run, learner):
      if call.name == 'decode':
        cache = max(cache, num_bytes(call.args[1:]))
      leaves, treedef = jax.tree.flatten((call.args, call.kwargs))
      key = call.function, treedef, tuple(leaves)
      if key not in compiled:  # Policies of one kind share their programs.
        with jax.set_mesh(mesh):
          compiled[key] = _cost(call, mesh.size)
      compiled_programs.append(dataclasses.replace(
          compiled[key], name=f'{call.name} {learner.name}',
          kept=resident - call.held))
  return Pool(
      tuple(policy.name for policy in policies),
      buckets_of(config, mesh).groups[-1], resident, cache,
      tuple(compiled_programs))


def _cost(call, num_devices):
  traced = call.function.trace(*call.args, **call.kwargs)
  flops, traffic = costs.count_work(traced.jaxpr, engine.CHUNK)
  program = Program(
      num_tokens=call.num_tokens, flops=flops / num_devices,
      traffic=traffic / num_devices)
  try:
    compiled = traced.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    # The compiler gives up on a program that is too large without the rest.
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    return dataclasses.replace(program, refusal=str(error).splitlines()[0])
  memory = compiled.memory_analysis()
  return dataclasses.replace(
      program, arguments=memory.argument_size_in_bytes,
      peak=memory.peak_memory_in_bytes, collectives=tuple(
          costs.find_collectives(compiled.as_text(), engine.CHUNK)))


def calls(run: Run, learner: policy_lib.Policy) -> list[AbstractCall]:
  """The programs that sample and train a policy, or evaluate a critic."""
  make_calls = (
      _critic_calls if learner.name in run.critics else _policy_calls)
  with jax.set_mesh(learner.mesh):
    return list(make_calls(run.config, learner))


def state_and_frozen_params(policy: policy_lib.Policy) -> tuple[Any, Any]:
  """Shapes of the trained state and of the frozen model, or None."""
  return (
      None if policy.trained == 'none' else policy.state_template(),
      None if policy.trained == 'all' else policy.params_template(
          policy.learner.dtype))


def buckets_of(
    config: ml_collections.ConfigDict,
    mesh: jax.sharding.Mesh) -> batching.Buckets:
  """The static shapes of the run on a mesh."""
  return batching.Buckets(**config.buckets).on(mesh_lib.num_data_shards(mesh))


def num_bytes(tree: Any) -> int:
  """Bytes per device of a tree of shapes with shardings."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree))


def _policy_calls(config, policy):
  state, frozen_params = state_and_frozen_params(policy)
  params, adapters = frozen_params, None
  if policy.trained == 'all':
    params = state.params
  elif policy.trained == 'lora':
    adapters = model.Adapters(state.params, _shape(
        policy.mesh, PartitionSpec(), (1,), 'float32'))
  yield from _sampler_calls(config, policy, params, adapters)
  if state is None:
    return
  # A microbatch of the longest groups.
  buckets, group_size = (
      buckets_of(config, policy.mesh), config.rollout.group_size)
  length, longest = buckets.prompt[-1], buckets.completion[-1]
  num_rows = buckets.microbatch(length, longest, group_size)
  rows = _row_shapes(policy.mesh)
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
          logprobs if config.loss.kl_estimator != 'none' else None),
      temperature=config.rollout.temperature)
  yield from _update_calls(
      policy, state, frozen_params, batch,
      num_rows * (length + group_size * longest))


def _sampler_calls(config, policy, params, adapters):
  """The programs of a full engine."""
  mesh, num_shards = policy.mesh, mesh_lib.num_data_shards(policy.mesh)
  group_size, length = config.rollout.group_size, config.buckets.prompt[-1]
  buckets = buckets_of(config, mesh)
  num_slots = buckets.groups[-1]
  num_rows = -(-buckets.rows // num_shards) * num_shards
  candidate_of_row = None
  if 0 < num_rows < num_slots * group_size:
    candidate_of_row = _row_shapes(mesh)(
        (num_shards, num_rows // num_shards), 'int32')
  else:
    num_rows = num_slots * group_size
  capacity = engine.row_capacity(config.rollout.max_new_tokens)
  static = {'config': policy.config, 'spec': programs.SamplerSpec(
      group_size=group_size, temperature=config.rollout.temperature,
      stop_ids=(0,), dtype=policy.learner.dtype)}
  rows = _row_shapes(mesh)

  def shapes_of(make_fn, **sizes):
    return jax.tree.map(
        lambda x: _shape(
            mesh, PartitionSpec(*programs.axes_of(x)), x.shape, x.dtype),
        jax.eval_shape(functools.partial(make_fn, **sizes, **static)))

  def make_rows(capacity):
    return shapes_of(programs.empty_rows, num_rows=num_rows, capacity=capacity)

  prepare = {'config': policy.config, 'dtype': policy.learner.dtype}
  prepared = mesh_lib.tree_template(
      jax.eval_shape(functools.partial(programs.prepare, **prepare), params),
      mesh, mesh_lib.decoding_rules(policy.config.tied_head))
  slots = shapes_of(
      programs.empty_slots, num_slots=num_slots, prompt_length=length)
  past = make_rows(capacity)
  yield AbstractCall(
      'prepare', programs.prepare, num_bytes(params), 0, (params,), prepare)

  prompts_per_shard = engine.prefill_size(num_slots // num_shards)
  num_prompts = num_shards * prompts_per_shard
  numbers = rows((num_prompts,), 'int32')
  yield AbstractCall(
      'prefill', programs.fill, num_bytes(adapters) - num_bytes(past),
      num_prompts * length,
      (prepared, slots, rows((num_shards, prompts_per_shard), 'int32'),
       rows((num_prompts, length), 'int32'), numbers,
       rows((num_prompts, runner_lib.NUM_KEY_IDS), 'uint32'), numbers, numbers),
      {'adapters': adapters, **static})
  yield AbstractCall(
      'decode', programs.decode, num_bytes(adapters), num_rows * engine.CHUNK,
      (prepared, slots, past, candidate_of_row),
      {'adapters': adapters, 'num_tokens': engine.CHUNK, **static})
  yield AbstractCall(
      'more capacity', programs.move_rows, -num_bytes((prepared, slots)), 0,
      (make_rows(capacity // 2),
       rows((num_shards, num_rows // num_shards), 'int32')),
      {'capacity': capacity})


def _critic_calls(config, critic):
  state = critic.state_template()
  length = (config.critic.prompt_buckets or config.buckets.prompt)[-1]
  num_rows = buckets_of(config, critic.mesh).microbatch(length)
  rows = _row_shapes(critic.mesh)
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


def _row_shapes(mesh):
  """Makes shapes whose first axis is sharded."""
  return functools.partial(_shape, mesh, PartitionSpec(mesh_lib.ROWS))


def _shape(mesh, spec, shape, dtype):
  return jax.ShapeDtypeStruct(
      shape, dtype, sharding=NamedSharding(mesh, spec))
