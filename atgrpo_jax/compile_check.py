"""Whether a run fits a TPU slice, and how fast it could be, without the slice.

The programs of the run (sampler, gradient of a microbatch, update) are lowered
from shapes alone and compiled ahead of time for a named topology; nothing is
loaded and nothing runs. Compiling for a TPU needs the extra `compile`.

Memory is XLA's own account of each compiled program, plus what the run keeps on
the devices meanwhile. Of what several engines hold at the same time, for other
prompt lengths or for groups of one, only the largest part is counted: that of
the longest prompts and of groups of rollout.group_size. The programs are
compiled with the least effort, which takes a fifth of the time; for the
gradient of Qwen3-8B the account was 4 % below that of the default. Work is
counted in the traced program: the FLOPs of all matrix products, and the bytes
of what they read and write, loops included. The time it takes is at least the
larger of FLOPs over the chip's peak and bytes over its bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import math
import os
import pathlib
import re
from typing import Any

import jax
from jax.experimental import topologies
from jax.extend import core
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections

from atgrpo_jax import errors
from atgrpo_jax import experiment
from atgrpo_jax import model
from atgrpo_jax import policies as policies_lib
from atgrpo_jax import sharding
from atgrpo_jax import types
from atgrpo_jax.rl import policy_map
from atgrpo_jax.rl import train_state
from atgrpo_jax.rl import train_step
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import engine
from atgrpo_jax.rollout import sampler

_GIB = 2**30

# Two processes may use the TPU's library at once; and what it would ask a TPU's
# host for, so that it does not complain (any value will do).
_WITHOUT_TPU = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1', 'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost', 'TPU_ACCELERATOR_TYPE': 'v5e-16'}


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device, as docs.cloud.google.com/tpu/docs has it."""

  memory: int  # Bytes that the compiler lets a program use.
  flops: float  # Peak of bfloat16 products, a second.
  bandwidth: float  # Bytes of its memory, a second.


CHIPS = {
    'v5e': Chip(int(15.75 * _GIB), 197e12, 819e9),
    'v5p': Chip(int(95.74 * _GIB), 459e12, 2765e9),
    'v6e': Chip(int(31.25 * _GIB), 918e12, 1638e9),
}


@dataclasses.dataclass(frozen=True)
class Program:
  """What one compiled program needs on each device, in bytes and FLOPs.

  Attributes:
    name: of the program and its policy.
    arguments: what it is given.
    peak: the most that it needs at one time, arguments and results included.
    kept: what the run keeps on the device that is no argument of it.
    flops: of all matrix products.
    traffic: bytes that these read and write.
  """

  name: str
  arguments: int
  peak: int
  kept: int
  flops: float
  traffic: float

  @property
  def total(self) -> int:
    return self.peak + self.kept


@dataclasses.dataclass(frozen=True)
class Report:
  """One pool of devices.

  Attributes:
    policies: on the pool.
    parameters: bytes on each device, of all its policies and frozen models.
    optimiser: bytes on each device.
    cache: bytes on each device of the keys and values while sampling.
    programs: that run there.
  """

  policies: tuple[str, ...]
  parameters: int
  optimiser: int
  cache: int
  programs: tuple[Program, ...]

  @property
  def largest(self) -> Program:
    return max(self.programs, key=lambda program: program.total)


def compile_check(config: ml_collections.ConfigDict) -> bool:
  """Prints whether the run fits `compile_check.topology`."""
  spec = config.compile_check
  generation = spec.topology.partition(':')[0]
  if generation not in CHIPS:
    raise errors.UserError(
        f'compile_check.topology={spec.topology!r} is not known; name a slice '
        f'of {", ".join(CHIPS)}, such as v5e:4x4.')
  os.environ.update(_WITHOUT_TPU)
  jax.config.update('jax_exec_time_optimization_effort', -1.0)
  jax.config.update('jax_memory_fitting_effort', -1.0)
  try:
    devices = topologies.get_topology_desc(
        platform='tpu', topology_name=spec.topology).devices
  except RuntimeError as error:
    raise errors.UserError(
        f'There is no compiler for {spec.topology!r}: '
        f'{str(error).splitlines()[0]} Install the extra `compile`, in an '
        'environment of its own, and check the name.') from error
  fits = True
  for report in check(config, devices):
    print_report(report, CHIPS[generation], config)
    fits &= report.largest.total <= CHIPS[generation].memory
  return fits


def check(
    config: ml_collections.ConfigDict,
    devices: Sequence[jax.Device]) -> list[Report]:
  """Compiles the programs of every policy; a report for each pool."""
  pools = {}
  for policy in build_policies(config, devices).values():
    pools.setdefault(policy.mesh, []).append(policy)
  return [_check_pool(config, pool) for pool in pools.values()]


def build_policies(
    config: ml_collections.ConfigDict,
    devices: Sequence[jax.Device]) -> dict[str, policies_lib.Policy]:
  """The policies of the run, with the dimensions that the config gives."""
  dimensions = model.ModelConfig(**config.compile_check.dimensions)
  environment = experiment.make_environment(config, sandbox=None)
  names = policy_map.policies_of(
      policy_map.make_policy_map(config.policies, environment.roles))
  return policies_lib.build(
      config, names, devices,
      lambda folder, thinking: policies_lib.BaseModel(
          pathlib.Path(folder), dimensions, tokenizer=None))


def state_and_base(
    policy: policies_lib.Policy,
) -> tuple[train_state.TrainState | None, model.Params | None]:
  """Shapes of what is trained, and of the frozen model."""
  return (
      None if policy.trained == 'none' else policy.state_template(),
      None if policy.trained == 'all' else policy.params_template(
          policy.learner.dtype))


def _check_pool(
    config: ml_collections.ConfigDict,
    policies: Sequence[policies_lib.Policy]) -> Report:
  """What the policies on one mesh need together."""
  parameters = optimiser = 0
  loaded = set()
  for policy in policies:
    state, base = state_and_base(policy)
    if state is not None:
      parameters += _bytes(state.params)
      optimiser += _bytes((state.opt_state, state.num_updates))
    frozen = policy.base.folder, policy.learner.dtype
    if base is not None and frozen not in loaded:
      loaded.add(frozen)
      parameters += _bytes(base)
    if policy.trained == 'all' and config.loss.kl_estimator != 'none':
      # Its start, which a KL penalty needs beside it.
      parameters += _bytes(policy.params_template(policy.learner.dtype))

  compiled, seen = [], set()
  for policy in policies:
    # Policies of one kind have the same programs.
    kind = policy.config, policy.learner, policy.trained
    if kind in seen:
      continue
    seen.add(kind)
    with jax.set_mesh(policy.mesh):
      for name, function, held, args, kwargs in programs(
          config, policy, *state_and_base(policy)):
        compiled.append(_compile(
            f'{name} {policy.name}', function, policy.mesh.size,
            parameters + optimiser - held, *args, **kwargs))
  cache = max(_cache_bytes(config, policy) for policy in policies)
  return Report(
      tuple(policy.name for policy in policies), parameters, optimiser, cache,
      tuple(compiled))


def programs(
    config: ml_collections.ConfigDict, policy: policies_lib.Policy,
    state: train_state.TrainState | None, base: model.Params | None,
) -> Iterator[tuple[str, Callable, int, tuple, Mapping[str, Any]]]:
  """(name, function, held, args, kwargs) of each.

  The arguments are shapes with shardings, of the largest buckets. `held` are
  the bytes of arguments that the run keeps anyway, less what it needs beside
  the arguments for this program alone.
  """
  rows = functools.partial(
      _shape, NamedSharding(policy.mesh, PartitionSpec(sharding.ROWS)))
  buckets = _buckets(config, policy)
  size = config.rollout.group_size
  length = buckets.prompt[-1]
  params, adapters = base, None
  if policy.trained == 'all':
    params = state.params
  elif policy.trained == 'lora':
    adapters = model.Adapters(
        state.params,
        _shape(NamedSharding(policy.mesh, PartitionSpec()), (1,), 'float32'))
  yield from _sampling(config, policy, params, adapters)
  if state is None:
    return
  static = {'config': policy.config, 'spec': policy.learner}
  longest = buckets.completion[-1]
  num_rows = buckets.microbatch(length, longest, size)
  batch = types.TrainBatch(
      prompts=rows((num_rows, length), 'int32'),
      prompt_lengths=rows((num_rows,), 'int32'),
      completions=rows((num_rows, size, longest), 'int32'),
      completion_lengths=rows((num_rows, size), 'int32'),
      behavior_logprobs=rows((num_rows, size, longest), 'float32'),
      advantages=rows((num_rows, size), 'float32'),
      old_logprobs=(
          rows((num_rows, size, longest), 'float32')
          if config.train.updates_per_rollout > 1 else None),
      reference_logprobs=(
          rows((num_rows, size, longest), 'float32')
          if config.loss.kl_estimator != 'none' else None))
  mesh, rules = policy.mesh, train_step.rules(policy.config, policy.learner)
  one = jax.eval_shape(
      functools.partial(train_step.sums_of, spec=policy.learner), state.params)
  sums = jax.tree.map(
      lambda x, spec: _shape(
          NamedSharding(mesh, spec), (mesh.shape['data'], *x.shape), x.dtype),
      one, sharding.data_specs(one, rules))
  number = _shape(NamedSharding(mesh, PartitionSpec()), (), 'float32')
  yield (
      'gradient', train_step.accumulate, _bytes((state.params, base)),
      (state.params, sums, batch), {'base': base, **static})
  yield (
      'update', train_step.apply_update,
      _bytes(state), (state, sums, number, number), static)


def _sampling(config, policy, params, adapters):
  """The programs of the engine, for slots that are full."""
  mesh = policy.mesh
  rows = functools.partial(
      _shape, NamedSharding(mesh, PartitionSpec(sharding.ROWS)))
  static = {'config': policy.config, 'spec': sampler.SamplerSpec(
      group_size=config.rollout.group_size,
      temperature=config.rollout.temperature, stop_ids=(0,),
      dtype=policy.learner.dtype)}
  *fewer, num_slots = _buckets(config, policy).groups
  size = config.rollout.group_size
  length = config.buckets.prompt[-1]
  room = engine.padded_size(config.rollout.max_new_tokens)

  def shapes(make, **sizes):
    return jax.tree.map(
        lambda x: _shape(
            NamedSharding(mesh, PartitionSpec(*sampler.axes_of(x))),
            x.shape, x.dtype),
        jax.eval_shape(functools.partial(make, **sizes, **static)))

  def slots_of(num_slots):
    return shapes(
        sampler.empty_slots, num_slots=num_slots, prompt_length=length)

  def past_of(num_slots, room):
    return shapes(
        sampler.empty_rows, num_rows=num_slots * size, room=room)

  slots, past = slots_of(num_slots), past_of(num_slots, room)
  preparing = functools.partial(
      sampler.prepare, config=policy.config, dtype=policy.learner.dtype)
  yield (
      'prepare', sampler.prepare, _bytes(params), (params,), preparing.keywords)
  prepared = jax.eval_shape(preparing, params)
  prepared = jax.tree.map(
      lambda x, at: _shape(at, x.shape, x.dtype), prepared,
      sharding.tree_shardings(
          prepared, mesh, sharding.decoding_rules(policy.config.tied_head)))
  num_parts = sharding.num_row_parts(mesh)
  each = engine.prefill_size(num_slots // num_parts)
  count = num_parts * each
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), count))
  numbers = rows((count,), 'int32')

  def fill(length, preamble):
    return (
        sampler.fill, _bytes(adapters) - _bytes(past),
        (prepared, slots, rows((num_parts, each), 'int32'),
         rows((count, length), 'int32'), numbers,
         rows(keys.shape, keys.dtype), numbers, numbers),
        {'preamble': preamble, 'adapters': adapters, **static})

  yield 'prefill', *fill(length, None)
  known = engine.SHORTEST_PREAMBLE
  if known < length:
    one = rows((num_parts,), 'int32')
    preamble = jax.tree.map(
        lambda x: _shape(NamedSharding(mesh, PartitionSpec(
            *([None, sharding.ROWS, 'tensor'] if x.ndim > 1
              else [sharding.ROWS]))), x.shape, x.dtype),
        jax.eval_shape(
            functools.partial(
                sampler.prefill_preamble, adapters=adapters, **static),
            prepared, rows((num_parts, engine.padded_size(known)), 'int32'),
            one, one))
    yield 'prefill the rest', *fill(
        min(engine.padded_size(length - known), length), preamble)
  yield (
      'decode', sampler.decode, _bytes(adapters),
      (prepared, slots, past, None),
      {'adapters': adapters, 'num_tokens': engine.CHUNK, **static})
  yield (
      'more room', sampler.move_rows, -_bytes((prepared, slots)),
      (past_of(num_slots, room // 2),
       rows((num_parts, num_slots * size // num_parts), 'int32')),
      {'room': room})
  if fewer:
    yield (
        'more slots', sampler.move_slots,
        -_bytes((prepared, past_of(fewer[-1], room))),
        (slots_of(fewer[-1]),
         rows((num_parts, num_slots // num_parts), 'int32')), {})


def _compile(name, function, num_devices, kept, *args, **kwargs):
  traced = function.trace(*args, **kwargs)
  flops, traffic = count_work(traced.jaxpr, engine.CHUNK)
  try:
    memory = traced.lower().compile().memory_analysis()
    arguments = memory.argument_size_in_bytes
    peak = memory.peak_memory_in_bytes
  except jax.errors.JaxRuntimeError as error:
    # The compiler gives up on a program that by itself is too large.
    used = re.search(r'Used ([\d.]+)([GM]) of', str(error))
    if used is None:
      raise
    arguments = _bytes([
        leaf for leaf in jax.tree.leaves((args, kwargs))
        if isinstance(leaf, jax.ShapeDtypeStruct)])
    peak = int(float(used[1]) * {'G': 2**30, 'M': 2**20}[used[2]])
  return Program(
      name=name, arguments=arguments, peak=peak, kept=kept,
      flops=flops / num_devices, traffic=traffic / num_devices)


def count_work(
    jaxpr: core.ClosedJaxpr, while_length: int) -> tuple[float, float]:
  """FLOPs, and bytes read and written, of all matrix products of a program.

  A `while` loop, such as that of decoding, is taken to run `while_length`
  times. A kernel reads its operands and writes its results once; blocks that
  its mask leaves out are counted where its grid has them.
  """
  return _count(jaxpr.jaxpr, while_length)


def _count(jaxpr, while_length):
  flops = traffic = 0
  for equation in jaxpr.eqns:
    name = equation.primitive.name
    kernel = name == 'pallas_call'
    if name == 'dot_general':
      (contracted, _), _ = equation.params['dimension_numbers']
      left = equation.invars[0].aval
      flops += 2 * equation.outvars[0].aval.size * math.prod(
          left.shape[i] for i in contracted)
    if name == 'dot_general' or kernel:
      traffic += sum(
          x.aval.size * x.aval.dtype.itemsize
          for x in (*equation.invars, *equation.outvars))
    repeats = {
        'scan': equation.params.get('length'), 'while': while_length,
    }.get(name, 1)
    if kernel:
      repeats = math.prod(equation.params['grid_mapping'].grid)
    for inner in core.jaxprs_in_params(equation.params):
      inner_flops, inner_traffic = _count(inner, while_length)
      flops += repeats * inner_flops
      if not kernel:  # What is inside is in the chip's fast memory.
        traffic += repeats * inner_traffic
  return flops, traffic


def print_report(
    report: Report, chip: Chip, config: ml_collections.ConfigDict) -> None:
  """Prints a table, a verdict, and what would help."""
  print(f'\n{", ".join(report.policies)} on '
        f'{config.compile_check.topology}, for each device')
  for name, size in (
      ('parameters', report.parameters), ('optimiser', report.optimiser),
      ('keys and values', report.cache)):
    print(f'  {name:16s} {size / _GIB:8.2f} GiB')
  print(f'  {"program":24s} {"given":>7s} {"extra":>7s} {"kept":>7s} '
        f'{"total":>7s} GiB  {"TFLOP":>9s} {"GB":>9s} {"at least":>10s}')
  for program in report.programs:
    seconds = max(
        program.flops / chip.flops, program.traffic / chip.bandwidth)
    sizes = (
        program.arguments, program.peak - program.arguments, program.kept,
        program.total)
    print(f'  {program.name:24s} '
          + ' '.join(f'{size / _GIB:7.2f}' for size in sizes)
          + f'      {program.flops / 1e12:9.1f} {program.traffic / 1e9:9.1f} '
          f'{seconds:8.3f} s')
  largest = report.largest
  spare = (chip.memory - largest.total) / _GIB
  if spare >= 0:
    print(f'FITS: {spare:.2f} of {chip.memory / _GIB:.2f} GiB are left in '
          f'{largest.name!r}.')
  else:
    print(f'DOES NOT FIT: {largest.name!r} needs {-spare:.2f} GiB more than '
          f'the {chip.memory / _GIB:.2f} GiB there are. What would help: '
          f'{"; ".join(knobs(report, config))}.')


def knobs(report: Report, config: ml_collections.ConfigDict) -> list[str]:
  """What in the config could be changed, the largest part first."""
  largest = report.largest
  found = []
  if config.mesh.tensor < config.compile_check.dimensions.num_kv_heads:
    found.append('a larger mesh.tensor')
  if largest.name.partition(' ')[0] in ('prefill', 'decode', 'more'):
    found.append('smaller buckets.groups')
  else:
    longest = (
        config.buckets.prompt[-1]
        + config.rollout.group_size * config.buckets.completion[-1])
    if config.buckets.microbatch_tokens >= 2 * longest:
      found.append('a smaller buckets.microbatch_tokens')
    if not config.model.remat:
      found.append('model.remat')
  found.append('shorter buckets.prompt and rollout.max_new_tokens')
  state = ['a larger mesh.fsdp on a larger slice']
  if config.policies != 'lora_per_role':
    state.append('policies=lora_per_role')
  if report.parameters + report.optimiser > largest.total / 2:
    return state + found
  return found + state


def _cache_bytes(config, policy) -> int:
  """Keys and values of all groups that are sampled at once."""
  c, groups = policy.config, _buckets(config, policy).groups[-1]
  positions = (
      config.buckets.prompt[-1]
      + config.rollout.group_size
      * engine.padded_size(config.rollout.max_new_tokens))
  tensor = policy.mesh.shape['tensor']
  return (
      2 * c.num_layers * groups * positions * c.num_kv_heads * c.head_width
      * jnp.dtype(policy.learner.dtype).itemsize
      // (sharding.num_row_parts(policy.mesh) * tensor))


def _buckets(config, policy) -> batching.Buckets:
  return batching.Buckets(**config.buckets).on(
      sharding.num_row_parts(policy.mesh))


def _bytes(tree) -> int:
  """On each device, of a tree of shapes with shardings."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree))


def _shape(at, shape, dtype):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=at)
