"""Compiles the programs of a run for devices that need not exist.

The programs of each policy and critic are lowered from the shapes of their
largest arguments and compiled ahead of time. Memory is XLA's account of a
compiled program plus the arrays that the run keeps on the devices. Engines for
shorter prompts or for groups of one are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import pathlib
from typing import NamedTuple

import jax
import ml_collections

from atgrpo_jax import config as config_lib
from atgrpo_jax import model
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.compile_check import calls as calls_lib
from atgrpo_jax.compile_check import costs
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.sampling import engine


@dataclasses.dataclass(frozen=True)
class Program:
  """The cost of one compiled program on each device."""

  name: str  # The program and its policy or critic.
  arguments: int  # Bytes.
  peak: int  # Bytes, arguments and results included.
  kept: int  # Bytes that the run keeps beside the arguments.
  num_tokens: int  # Padded tokens of one call, on all devices.
  flops: float  # Of matrix products.
  traffic: float  # Bytes that matrix products read and write.
  collectives: tuple[costs.Collective, ...] = ()
  # The compiler's message if it found the program too large; `peak` is then the
  # size of the arguments.
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

  def fits(self, chip: fit.Chip) -> bool:
    return not self.refusal and self.total <= chip.memory

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


def largest(programs: Iterable[Program]) -> Program:
  """The program that needs the most memory, or one that was refused."""
  return max(
      programs, key=lambda program: (bool(program.refusal), program.total))


class Run(NamedTuple):
  """A config with its mesh, policies and critics."""

  config: ml_collections.ConfigDict
  policy_map: policies_lib.PolicyMap
  policies: dict[str, policy_lib.Policy]
  critics: dict[str, policy_lib.Policy]


def build(
    config: ml_collections.ConfigDict, devices: Sequence[jax.Device],
    chip: fit.Chip | None) -> Run:
  """Builds a run with the model dimensions of the config; reads no files.

  `chip` is None for CPUs, as in `config_lib.choose_mesh`.

  Raises:
    fit.DoesNotFit: `fit.choose` finds no mesh.
  """
  dimensions = model.ModelConfig(**config.compile_check.dimensions)

  def read_model(folder, thinking):
    del thinking
    return policy_lib.Pretrained(
        pathlib.Path(folder), dimensions, tokenizer=None)

  environment = config_lib.make_environment(config, sandbox=None)
  policy_map = policies_lib.make_policy_map(
      config.policies, environment.roles, config.policy_map)
  names = policies_lib.policy_names(policy_map)
  config = config_lib.choose_mesh(config, names, devices, chip, read_model)
  policies = config_lib.build_policies(config, names, devices, read_model)
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
  policies, critics = (
      [learner for learner in learners.values() if learner.mesh == mesh]
      for learners in (run.policies, run.critics))
  states, frozen_models = [critic.state_template() for critic in critics], {}
  for policy in policies:
    state, frozen_params = calls_lib.state_and_frozen_params(policy)
    states.append(state)
    if frozen_params is not None:
      frozen_models[
          policy.pretrained.folder, policy.learner.dtype] = frozen_params
    if policy.trained == 'all' and config.loss.kl_estimator != 'none':
      # The reference model of the KL penalty.
      states.append(policy.params_template(policy.learner.dtype))
  resident = calls_lib.num_bytes((states, list(frozen_models.values())))

  with jax.set_mesh(mesh):
    calls = [
        (policy.name, call) for policy in policies
        for call in calls_lib.policy_calls(config, policy)]
    calls += [
        (critic.name, call) for critic in critics
        for call in calls_lib.critic_calls(config, critic)]
    programs = []
    for name, call in calls:
      leaves, treedef = jax.tree.flatten((call.args, call.kwargs))
      key = call.function, treedef, tuple(leaves)
      if key not in compiled:  # Policies of one kind share their programs.
        compiled[key] = _compile(call, mesh.size)
      programs.append(dataclasses.replace(
          compiled[key], name=f'{call.name} {name}',
          kept=resident - call.held))
  num_slots = calls_lib.buckets_of(config, policies[0]).groups[-1]
  num_positions = config.buckets.prompt[-1] + (
      config.rollout.group_size
      * engine.padded_size(config.rollout.max_new_tokens))
  cache = num_slots * num_positions * max(
      model.position_bytes(policy.config, policy.learner.dtype)
      for policy in policies) // (
          mesh_lib.num_data_shards(mesh) * mesh.shape['tensor'])
  return Pool(
      tuple(policy.name for policy in policies), num_slots, resident, cache,
      tuple(programs))


def _compile(call, num_devices):
  traced = call.function.trace(*call.args, **call.kwargs)
  flops, traffic = costs.count_work(traced.jaxpr, engine.CHUNK)
  arguments = calls_lib.num_bytes([
      leaf for leaf in jax.tree.leaves((call.args, call.kwargs))
      if isinstance(leaf, jax.ShapeDtypeStruct)])
  program = Program(
      name='', arguments=arguments, peak=arguments, kept=0,
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
