"""Whether a run fits a TPU slice or GPUs, and how fast it could be there.

Neither is needed: `lower` compiles the programs of the run for a named
topology, `work` counts what they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import jax
import ml_collections

from atgrpo_jax import meshes
from atgrpo_jax import model
from atgrpo_jax.compile_check import calls as calls_lib
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import targets
from atgrpo_jax.compile_check import whole_step
from atgrpo_jax.compile_check import work
from atgrpo_jax.distributed import chips
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.sampling import placement

_GIB = 2**30
_MAX_SHOWN = 3  # Collectives of a program.


@dataclasses.dataclass(frozen=True)
class Report:
  """One pool of devices.

  Attributes:
    policies: on the pool.
    parameters: bytes on each device, of all its policies, critics and frozen
      models.
    optimiser: bytes on each device.
    cache: bytes on each device of the keys and values while sampling.
    programs: that run there.
  """

  policies: tuple[str, ...]
  parameters: int
  optimiser: int
  cache: int
  programs: tuple[lower.Program, ...]

  @property
  def largest(self) -> lower.Program:
    """What needs most; of what the compiler refused, if it refused some."""
    return max(self.programs, key=lambda program: program.order)

  def fits(self, chip: chips.Chip) -> bool:
    return self.largest.fits(chip)


def compile_check(config: ml_collections.ConfigDict) -> bool:
  """Prints whether the run fits `compile_check.topology`."""
  devices, chip = targets.devices_of(config)
  config = lower.fit_to_devices(config, devices, chip)
  reports = check(config, devices)
  for report in reports:
    print_report(report, chip, config)
  if not all(report.fits(chip) for report in reports):
    return False
  print_step(whole_step.predict(
      config, lower.build_policies(config, devices),
      [program for report in reports for program in report.programs], chip),
             chip, config)
  return True


def check(
    config: ml_collections.ConfigDict, devices: Sequence[jax.Device],
    compiled: lower.Compiled | None = None) -> list[Report]:
  """Compiles the programs of every policy and critic, pool by pool.

  Args:
    config: of the run.
    devices: of the topology.
    compiled: of earlier calls, which are not compiled again; those of this call
      are added.
  """
  compiled = {} if compiled is None else compiled
  policies = lower.build_policies(config, devices)
  meshes.check_pools({
      name: policy.mesh for name, policy in policies.items()}, devices)
  critics = lower.build_critics(config, policies)
  pools = {}
  for policy in policies.values():
    pools.setdefault(policy.mesh, []).append(policy)
  return [
      _check_pool(config, pool, [
          critic for critic in critics.values() if critic.mesh == mesh],
                  compiled)
      for mesh, pool in pools.items()]


def _check_pool(
    config: ml_collections.ConfigDict,
    policies: Sequence[policy_lib.Policy],
    critics: Sequence[policy_lib.Policy],
    compiled: lower.Compiled) -> Report:
  """What the policies and critics on one mesh need together."""
  parameters = optimiser = 0
  loaded = set()
  for policy in policies:
    state, frozen_params = calls_lib.state_and_frozen_params(policy)
    if state is not None:
      parameters += calls_lib.num_bytes(state.params)
      optimiser += calls_lib.num_bytes((state.opt_state, state.num_updates))
    frozen = policy.pretrained.folder, policy.learner.dtype
    if frozen_params is not None and frozen not in loaded:
      loaded.add(frozen)
      parameters += calls_lib.num_bytes(frozen_params)
    if policy.trained == 'all' and config.loss.kl_estimator != 'none':
      # Its start, which a KL penalty needs beside it.
      parameters += calls_lib.num_bytes(
          policy.params_template(policy.learner.dtype))
  for critic in critics:
    state = critic.state_template()
    parameters += calls_lib.num_bytes(state.params)
    optimiser += calls_lib.num_bytes((state.opt_state, state.num_updates))

  programs, seen = [], set()
  for policy in policies:
    # Policies of one kind have the same programs.
    kind = policy.config, policy.learner, policy.trained
    if kind in seen:
      continue
    seen.add(kind)
    programs += lower.compile_programs(
        config, policy, parameters + optimiser, compiled)
  for critic in critics:
    kind = critic.config, critic.learner
    if kind not in seen:
      seen.add(kind)
      programs += lower.compile_critic(
          config, critic, parameters + optimiser, compiled)
  cache = max(_cache_bytes(config, policy) for policy in policies)
  return Report(
      tuple(policy.name for policy in policies), parameters, optimiser, cache,
      tuple(programs))


def print_report(
    report: Report, chip: chips.Chip,
    config: ml_collections.ConfigDict) -> None:
  """Prints a table, a verdict, and what would help."""
  print(f'\n{", ".join(report.policies)} on '
        f'{config.compile_check.topology}, for each device')
  for name, size in (
      ('parameters', report.parameters), ('optimiser', report.optimiser),
      ('keys and values', report.cache)):
    print(f'  {name:16s} {size / _GIB:8.2f} GiB')
  print(f'  {"program":24s} {"given":>7s} {"extra":>7s} {"kept":>7s} '
        f'{"total":>7s} GiB  {"TFLOP":>7s} {"GB":>7s} {"talks":>7s} '
        f'{"GB sent":>7s} {"at least":>10s}')
  for program in report.programs:
    seconds = work.min_seconds(
        program.flops, program.traffic, program.num_sent, chip)
    longest = max(seconds, key=seconds.get)
    sizes = (
        program.arguments, program.peak - program.arguments, program.kept,
        program.total)
    talks = sum(found.times for found in program.collectives)
    print(f'  {program.name:24s} '
          + ' '.join(f'{size / _GIB:7.2f}' for size in sizes)
          + f'      {program.flops / 1e12:7.1f} {program.traffic / 1e9:7.1f} '
          f'{talks:7d} {program.num_sent / 1e9:7.1f} '
          f'{seconds[longest]:8.3f} s  {longest}')
  print_collectives(report)
  largest = report.largest
  spare = (chip.memory - largest.total) / _GIB
  advice = f'What would help: {"; ".join(knobs(report, config))}.'
  if report.fits(chip):
    print(f'FITS: {spare:.2f} of {chip.memory / _GIB:.2f} GiB are left in '
          f'{largest.name!r}.')
  elif spare >= 0:
    print(f'DOES NOT FIT: the compiler gives up on {largest.name!r}: '
          f'{largest.refusal} {advice}')
  else:
    print(f'DOES NOT FIT: {largest.name!r} needs {-spare:.2f} GiB more than '
          f'the {chip.memory / _GIB:.2f} GiB there are. {advice}')


def print_step(
    step: whole_step.Prediction, chip: chips.Chip,
    config: ml_collections.ConfigDict) -> None:
  """Prints what a step and the run take, and what holds them back."""
  c, num_steps = config.compile_check, config.train.num_steps
  prompts, answers = (
      f'{median} tokens (5 % above {most})'
      for median, most in (c.prompt_lengths, c.completion_lengths))
  print(
      f'\nA step takes at least {step.total:.0f} s: {config.rollout.num_tasks} '
      f'tasks of {c.num_turns or config.environment.max_turns} turns, prompts '
      f'of {prompts}, answers of {answers}')
  for name, seconds in step.seconds.items():
    print(f'  {name:16s} {seconds:8.1f} s  {seconds / step.total:4.0%}')
  for (program, limit), seconds in sorted(
      step.programs.items(), key=lambda item: -item[1])[:_MAX_SHOWN]:
    print(f'  of which {program:10s} {seconds:5.1f} s  {limit}')
  rate = step.completion_tokens / step.total / step.num_devices
  share = step.flops / (step.total * step.num_devices * chip.flops)
  print(
      f'  {rate:.0f} tokens a second and chip, {share:.1%} of the peak'
      + (f'; {num_steps} steps take {num_steps * step.total / 3600:.1f} hours'
         if num_steps else ''))
  if config.critic.kind != 'none':
    print('  Critics are not in it.')


def print_collectives(report: Report) -> None:
  """Prints what each program sends most between the chips."""
  if any(program.collectives for program in report.programs):
    print('  sent most')
  for program in report.programs:
    for found in program.collectives[:_MAX_SHOWN]:
      loops = ' in a loop of '.join(map(str, (found.number, *found.loops)))
      print(f'    {program.name:22s} {found.num_bytes / 1e6:9.3f} MB '
            f'{found.kind} of {found.num_devices} chips, {loops}')


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
  groups = calls_lib.buckets_of(config, policy).groups[-1]
  positions = (
      config.buckets.prompt[-1]
      + config.rollout.group_size
      * placement.padded_size(config.rollout.max_new_tokens))
  tensor = policy.mesh.shape['tensor']
  dtype = model.cache_dtype(
      config.rollout.kv_cache_dtype, policy.learner.dtype)
  return (
      groups * positions * model.position_bytes(policy.config, dtype)
      // (mesh_lib.num_data_shards(policy.mesh) * tensor))
