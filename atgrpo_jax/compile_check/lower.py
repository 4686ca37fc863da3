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

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import jax
import ml_collections

from atgrpo_jax import builders
from atgrpo_jax import meshes
from atgrpo_jax import model
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.compile_check import calls as calls_lib
from atgrpo_jax.compile_check import collectives as collectives_lib
from atgrpo_jax.compile_check import work
from atgrpo_jax.distributed import chips
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rollout import policy_map
from atgrpo_jax.sampling import engine

# A function with its arguments -> what it needs; of `check`.
Compiled = dict[Any, 'Program']


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
  def order(self) -> tuple[bool, int]:
    """Of programs, the one with the largest needs most."""
    return bool(self.refusal), self.total

  def fits(self, chip: chips.Chip) -> bool:
    return not self.refusal and self.total <= chip.memory

  @property
  def num_sent(self) -> float:
    """Bytes that a device sends to others, at least."""
    return sum(found.num_sent for found in self.collectives)


def build_policies(
    config: ml_collections.ConfigDict,
    devices: Sequence[jax.Device]) -> dict[str, policy_lib.Policy]:
  """The policies of the run, with the dimensions that the config gives."""
  return builders.build_policies(
      config, _names(config), devices, _read_model(config))


def fit_to_devices(
    config: ml_collections.ConfigDict, devices: Sequence[jax.Device],
    chip: chips.Chip) -> ml_collections.ConfigDict:
  """The config with the mesh that a run on these devices has."""
  return meshes.fit_to_devices(
      config, _names(config), devices, chip, _read_model(config))


def build_critics(
    config: ml_collections.ConfigDict,
    policies: Mapping[str, policy_lib.Policy],
) -> dict[str, policy_lib.Policy]:
  """The critics of the run, with the dimensions that the config gives."""
  return actor_critic.make_critics(
      spec_lib.CriticSpec(**config.critic), policies)


def _names(config):
  """Of the policies."""
  environment = builders.make_environment(config, sandbox=None)
  return policy_map.policies_of(
      policy_map.make_policy_map(config.policies, environment.roles))


def _read_model(config):
  """Reads nothing: all models have the dimensions of the config."""
  dimensions = model.ModelConfig(**config.compile_check.dimensions)
  return lambda folder, thinking: policy_lib.Pretrained(
      pathlib.Path(folder), dimensions, tokenizer=None)


def compile_programs(
    config: ml_collections.ConfigDict, policy: policy_lib.Policy,
    resident: int, compiled: Compiled) -> list[Program]:
  """Every program of the policy, compiled for the devices of its mesh.

  Args:
    config: of the run.
    policy: whose programs.
    resident: bytes of parameters and optimisers that the run keeps on each
      device of the mesh.
    compiled: what need not be compiled again; the others are added.
  """
  with jax.set_mesh(policy.mesh):
    return [
        _program(call, policy, resident, compiled)
        for call in calls_lib.calls(config, policy)]


def compile_critic(
    config: ml_collections.ConfigDict, critic: policy_lib.Policy,
    resident: int, compiled: Compiled) -> list[Program]:
  """Every program of the critic; arguments as of `compile_programs`."""
  with jax.set_mesh(critic.mesh):
    return [
        _program(call, critic, resident, compiled)
        for call in calls_lib.critic_calls(config, critic)]


def _program(call, learner, resident, compiled):
  leaves, treedef = jax.tree.flatten((call.args, call.kwargs))
  key = call.function, treedef, tuple(leaves)
  if key not in compiled:
    compiled[key] = _compile(call, learner.mesh.size)
  return dataclasses.replace(
      compiled[key], name=f'{call.name} {learner.name}',
      kept=resident - call.held)


def _compile(call, num_devices):
  traced = call.function.trace(*call.args, **call.kwargs)
  flops, traffic = work.count_work(traced.jaxpr, engine.CHUNK)
  program = Program(
      name='', arguments=calls_lib.num_bytes([
          leaf for leaf in jax.tree.leaves((call.args, call.kwargs))
          if isinstance(leaf, jax.ShapeDtypeStruct)]),
      peak=0, kept=0, flops=flops / num_devices,
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
