"""How long a training step must take: its real schedule, without a device.

The algorithm of the config plays the tasks of a step through the runner and the
engines of a run. Of all that is real but three things: a `dry_run.DryRun`
stands for the devices, `drawn.Environment` for the environment, and lengths are
drawn. Each program that an engine would call, and each microbatch of the
learner, is traced at its own shape for the work that it is.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax
import ml_collections

from atgrpo_jax import builders
from atgrpo_jax import experiment
from atgrpo_jax import measures
from atgrpo_jax import model
from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.compile_check import calls as calls_lib
from atgrpo_jax.compile_check import drawn
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import program_costs
from atgrpo_jax.distributed import chips
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.sampling import dry_run


@dataclasses.dataclass(frozen=True)
class Lengths:
  """What tasks are like: tokens of prompts and of answers, and turns."""

  prompts: drawn.Numbers
  completions: drawn.Numbers
  turns: drawn.Numbers


@dataclasses.dataclass(frozen=True)
class Prediction:
  """A training step.

  Attributes:
    seconds: part -> seconds, which add up to the step.
    programs: (program, what it waits for) -> device seconds of the rollout and
      the update; devices that work at the same time count each.
    completion_tokens: that are generated.
    flops: of all devices.
    num_devices: of all pools.
  """

  seconds: Mapping[str, float]
  programs: Mapping[tuple[str, str], float]
  completion_tokens: int
  flops: float
  num_devices: int

  @property
  def total(self) -> float:
    return sum(self.seconds.values())


class _Meter:
  """Adds up what devices and environments take, chunk by chunk."""

  def __init__(self, config: ml_collections.ConfigDict, chip: chips.Chip):
    self._config, self.chip = config, chip
    self.executor = drawn.Executor()
    self._busy = collections.Counter()  # Mesh -> seconds of this chunk.
    self._stepped = [0, 0]  # Before the last chunk, and before this one.
    self.programs = collections.Counter()
    self.flops = self.device_seconds = self.waited = 0.0

  def add(
      self, mesh: jax.sharding.Mesh, name: str,
      cost: program_costs.Cost) -> None:
    """A call on the devices of a mesh."""
    seconds, limit = cost.seconds(
        self.chip, self._config.compile_check.talk_seconds)
    self._busy[mesh] += seconds
    self.programs[name, limit] += seconds
    self.flops += mesh.size * cost.flops

  def end_chunk(self) -> bool:
    """Devices work at the same time, and environments are stepped meanwhile.

    False, as an answer of `EpisodeRunner.is_stopped`.
    """
    device = max(self._busy.values(), default=0.0)
    self._busy.clear()
    before, now = self._stepped
    self._stepped = [now, self.executor.num_steps]
    stepped = (now - before) * (
        self._config.compile_check.environment_seconds
        / self._config.environment.num_workers)
    self.device_seconds += device
    self.waited += max(0.0, stepped - device)
    return False


class _Device(dry_run.DryRun):
  """A dry run that is timed."""

  def __init__(
      self, meter: _Meter, programs: program_costs.Programs,
      lengths: drawn.Numbers, has_kernel: bool):
    self._meter, self._programs = meter, programs
    self._lengths, self._has_kernel = lengths, has_kernel
    super().__init__(
        mesh_lib.num_data_shards(programs.mesh), {})

  def prepare(self, params: Any, **static: Any) -> Any:
    self._add('prepare', self._programs.prepare())
    return super().prepare(params, **static)

  def fill(self, params, slots, slot_ids, prompts, *args, **kwargs):
    shared_prefix, size = kwargs['shared_prefix'], slots.left.shape[-1]
    self._completions = drawn.Completions(self._lengths, size)
    self._add('prefill', self._programs.prefill(
        slots.prompts.size, slots.size, *prompts.shape, shared_prefix or 0,
        size))
    return super().fill(params, slots, slot_ids, prompts, *args, **kwargs)

  def decode(self, params, slots, past, *args, **kwargs):
    num_rows, capacity = past
    left = slots.left.max()
    num_tokens = min(int(left), kwargs['num_tokens'])
    cost = self._programs.decode(
        slots.prompts.size, slots.size, num_rows, capacity,
        slots.left.shape[-1]) * (num_tokens / kwargs['num_tokens'])
    before = dataclasses.replace(self.reads)
    found = super().decode(params, slots, past, *args, **kwargs)
    if self._has_kernel:  # Whole rooms are in the cost.
      unread = (self.reads.by_room - before.by_room) - (
          self.reads.by_block - before.by_block)
      cost = dataclasses.replace(
          cost, traffic=cost.traffic - unread * self._programs.position_bytes
          / self._programs.mesh.size)
    self._add('decode', cost)
    return found

  def move_rows(self, past, order, *, capacity):
    """What is moved is read and written."""
    num_positions = order.size * capacity
    self._add('move', program_costs.Cost(
        traffic=2 * num_positions * self._programs.position_bytes
        / self._programs.mesh.size))
    return super().move_rows(past, order, capacity=capacity)

  def _add(self, name, cost):
    self._meter.add(self._programs.mesh, name, cost)


def predict(
    config: ml_collections.ConfigDict,
    policies: Mapping[str, policy_lib.Policy],
    programs: Sequence[lower.Program], chip: chips.Chip,
    lengths: Lengths | None = None) -> Prediction:
  """A step of the config; `policies` as of `lower.build_policies`.

  Args:
    config: of the run, with `compile_check`.
    policies: of it, on the devices of a topology or others.
    programs: that were compiled, whose collectives are taken over.
    chip: what the devices are.
    lengths: of the tasks; by default as `config.compile_check` says.
  """
  lengths = lengths or lengths_of(config)
  compiled = {program.name: program for program in programs}
  devices = sorted({
      device for policy in policies.values()
      for device in policy.mesh.devices.flat}, key=lambda device: device.id)
  small = []
  for num_layers in (1, 2):
    less = config.copy_and_resolve_references()
    less.compile_check.dimensions.num_layers = num_layers
    small.append(lower.build_policies(less, devices))
  costs, of_kinds = {}, {}
  for name, policy in policies.items():
    # Of those of one kind on one mesh only the first was compiled.
    kind = policy.config, policy.learner, policy.trained, policy.mesh
    if kind not in of_kinds:
      of_kinds[kind] = program_costs.Programs(
          config, policy, [x[name] for x in small], compiled)
    costs[name] = of_kinds[kind]
  meter = _Meter(config, chip)
  real = builders.make_environment(config, sandbox=None)
  c = config.compile_check
  environment = drawn.Environment(
      real.roles, real.phases, real.max_turns, lengths.turns)
  sampled = _sampling_policies(policies, lengths.prompts)
  has_kernel = next(iter(policies.values())).mesh.devices.flat[
      0].platform == 'tpu'
  owners = {policy.model: name for name, policy in sampled.items()}

  def play(function):
    """Seconds of devices, and those of environments beyond them."""
    runner = runner_lib.EpisodeRunner(
        environment=environment, policies=sampled,
        policy_map=policies_lib.make_policy_map(
            config.policies, real.roles),
        buckets=batching.Buckets(**config.buckets),
        max_new_tokens=config.rollout.max_new_tokens,
        temperature=config.rollout.temperature, seed=config.seed, train_step=0,
        executor=meter.executor, is_stopped=meter.end_chunk,
        kv_cache_dtype=config.rollout.kv_cache_dtype,
        device_of=lambda model: _Device(
            meter, costs[owners[model]], lengths.completions, has_kernel))
    before = meter.device_seconds, meter.waited
    found = function(runner)
    for _ in range(3):  # The last chunks.
      meter.end_chunk()
    return found, runner.usage, (
        meter.device_seconds - before[0], meter.waited - before[1])

  trees, usage, (sampling, waiting) = play(lambda runner: credit.collect(
      runner, _tasks(config.rollout.num_tasks),
      experiment.rollout_spec(config),
      spec_lib.AdvantageSpec(**config.advantage)))
  update = _update(config, policies, costs, trees, meter)
  flops, programs_seconds = meter.flops, dict(meter.programs)
  _, _, validation = play(lambda runner: measures.play_episodes(
      runner, _tasks(c.num_validation)))
  states = {
      name: policy.state_template() for name, policy in policies.items()
      if policy.trained != 'none'}
  return Prediction(
      seconds={
          'sample': sampling, 'environment': waiting, 'update': update,
          'validation': sum(validation) / config.evaluation.validate_every,
          'checkpoint': (
              checkpoints_lib.num_bytes(states) / c.disk_bytes_per_second
              / config.train.checkpoint_every)},
      programs=programs_seconds,
      completion_tokens=usage.completion_tokens, flops=flops,
      num_devices=len(devices))


def lengths_of(config: ml_collections.ConfigDict) -> Lengths:
  """Those that `config.compile_check` states."""
  c = config.compile_check
  return Lengths(
      drawn.LogNormal(*c.prompt_lengths, config.buckets.prompt[-1]),
      drawn.LogNormal(*c.completion_lengths, config.rollout.max_new_tokens),
      drawn.Recorded((c.num_turns or config.environment.max_turns,)))


def _tasks(number: int) -> list[dict[str, str]]:
  return [{'task_id': str(i)} for i in range(number)]


def _update(config, policies, costs, trees, meter) -> float:
  """Seconds of the microbatches and updates; pools work at the same time."""
  busy = collections.Counter()
  for name, policy in policies.items():
    groups = [
        group for group in tree_lib.groups_of(trees) if group.policy == name]
    if policy.trained == 'none' or not groups:
      continue
    called = [
        ('gradient', costs[name].gradient(*shape))
        for shape, _ in batching.split(
            groups, calls_lib.buckets_of(config, policy))]
    called += [('update', costs[name].update())] * (
        config.train.updates_per_rollout)
    for program, cost in called:
      seconds, limit = cost.seconds(
          meter.chip, config.compile_check.talk_seconds)
      meter.programs[program, limit] += seconds
      meter.flops += policy.mesh.size * cost.flops
      busy[policy.mesh] += seconds
  return max(busy.values(), default=0.0)


def _sampling_policies(policies, prompt_lengths):
  """As of `sampling_policies.make`, of nothing but shapes."""
  tokenizer = drawn.Tokenizer(prompt_lengths)
  models, sampled = {}, {}
  for name, policy in policies.items():
    adapters, key = None, name
    if policy.trained == 'lora':  # Those of one model are sampled together.
      adapters, key = model.Adapters({}, None), (
          policy.mesh, policy.pretrained.folder)
    if key not in models:
      models[key] = policies_lib.SampledModel(
          params=None, config=policy.config, dtype=policy.learner.dtype,
          mesh=policy.mesh, adapters=adapters)
    sampled[name] = policies_lib.SamplingPolicy(models[key], tokenizer)
  return sampled
