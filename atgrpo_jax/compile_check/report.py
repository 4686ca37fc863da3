"""Reports whether a run fits a TPU slice or GPUs, and how long a step takes.

No accelerator is needed: `lower` compiles the programs of the run for a named
topology. The predicted step is a lower bound. It multiplies the roofline
seconds of the programs by the mean lengths in the section `compile_check` of
the config:

  decode     rounds of concurrent groups x tokens of a group's longest candidate
             x seconds per token
  prefill, gradient
             padded tokens x seconds per token

Environments, validation, checkpoints, critics, Monte-Carlo continuations and
idle slots are not included.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import ml_collections

from atgrpo_jax import errors
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import targets
from atgrpo_jax.distributed import fit
from atgrpo_jax.learner import batching
from atgrpo_jax.sampling import engine

_GIB = 2**30


def compile_check(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Prints and returns whether the run fits `compile_check.topology`."""
  errors.check_number(
      'compile_check.dollars_per_hour', config.compile_check.dollars_per_hour,
      min_value=0)
  devices, chip = targets.devices_of(config.compile_check.topology)
  try:
    run = lower.build(config, devices, chip)
  except fit.DoesNotFit as error:  # Before anything is compiled.
    print(f'DOES NOT FIT: {error}')
    return {'fits': False, 'refusal': str(error)}
  pools = lower.check(run)
  for pool in pools:
    _print_programs(pool, chip, run.config)
  return _verdict(run, pools, chip, len(devices))


def _print_programs(pool, chip, config):
  """Prints the memory and cost of each program."""
  print(f'\n{", ".join(pool.policies)} on {config.compile_check.topology}, '
        'per device')
  for name, size in (
      ('model and optimizer', pool.state), ('keys and values', pool.cache)):
    print(f'  {name:20s} {size / _GIB:6.2f} GiB')
  print(f'  {"program":24s} {"args":>6s} {"extra":>6s} {"kept":>6s} '
        f'{"total":>6s} GiB {"TFLOP":>7s} {"GB":>6s} {"collectives":>11s} '
        f'{"GB sent":>7s} {"seconds":>8s} limit')
  for program in pool.programs:
    seconds, limit = program.seconds(
        chip, config.compile_check.collective_latency)
    sizes = (
        program.arguments, program.peak - program.arguments, program.kept,
        program.total)
    print(f'  {program.name:24s} '
          + ' '.join(f'{size / _GIB:6.2f}' for size in sizes)
          + f'     {program.flops / 1e12:7.1f} {program.traffic / 1e9:6.1f} '
          f'{program.num_collectives:11d} {program.bytes_sent / 1e9:7.1f} '
          f'{seconds:8.3f} {limit}')


def _verdict(
    run: lower.Run, pools: Sequence[lower.Pool], chip: fit.Chip,
    num_devices: int) -> dict[str, Any]:
  """Prints and returns whether the largest program fits, and a step's time."""
  largest = max(
      (program for pool in pools for program in pool.programs),
      key=lambda program: (bool(program.refusal), program.total))
  spare = (chip.memory - largest.total) / _GIB
  verdict = {
      'fits': not largest.refusal and spare >= 0, 'spare_gib': round(spare, 2),
      'largest': largest.name, 'refusal': largest.refusal,
      'mesh': run.config.mesh.to_dict(),
      'groups': run.config.buckets.groups[-1]}
  if largest.refusal:
    print(f'DOES NOT FIT: the compiler refuses {largest.name!r}: '
          f'{largest.refusal}')
  elif not verdict['fits']:
    print(f'DOES NOT FIT: {largest.name!r} needs {-spare:.2f} GiB more than '
          f'the {chip.memory / _GIB:.2f} GiB of a device.')
  else:
    print(f'FITS: {spare:.2f} of {chip.memory / _GIB:.2f} GiB are left in '
          f'{largest.name!r}.')
    seconds = max(step_seconds(run, pool, chip) for pool in pools)
    hours = run.config.train.num_steps * seconds / 3600
    verdict |= {'step_seconds': round(seconds, 1), 'hours': round(hours, 1)}
    dollars = (
        hours * num_devices * run.config.compile_check.dollars_per_hour)
    print(f'A step takes at least {seconds:.0f} s, and '
          f'{run.config.train.num_steps} steps {hours:.1f} hours'
          + (f', which cost {dollars:,.2f} dollars.' if dollars else '.'))
  return verdict


def step_seconds(run: lower.Run, pool: lower.Pool, chip: fit.Chip) -> float:
  """A lower bound on the seconds of a step, if every group has advantages.

  Policies of a pool take turns.
  """
  return sum(_policy_seconds(run, pool, name, chip) for name in pool.policies)


def _policy_seconds(run, pool, policy, chip):
  config, c = run.config, run.config.compile_check
  rollout, group_size = config.rollout, config.rollout.group_size
  max_turns = config.environment.max_turns
  programs = {
      program.name.removesuffix(f' {policy}'): program
      for program in pool.programs if program.name.endswith(f' {policy}')}
  # Mean tokens of a prompt, a completion, and the longest one of a group.
  prompt = min(c.prompt_tokens, config.buckets.prompt[-1])
  completion, longest = (
      min(size, rollout.max_new_tokens)
      for size in (c.completion_tokens, c.longest_tokens))
  padded_prompt = batching.bucket(prompt, config.buckets.prompt, 'prompt')
  shorter, longer = (
      batching.bucket(size, config.buckets.completion, 'completion')
      for size in (completion, longest))
  padded_group = batching.row_tokens(padded_prompt, longer, group_size)
  halves = sum(
      batching.row_tokens(padded_prompt, size, group_size / 2)
      for size in (shorter, longer))

  branches = 1
  if rollout.mode == 'joint':  # Every joint action is continued.
    branches = group_size ** (
        len(run.policy_map) if rollout.joint_actions == 'cross' else 1)
  num_roles = list(run.policy_map.values()).count(policy)
  num_groups = rollout.num_tasks * num_roles * sum(
      branches**turn for turn in range(max_turns))

  def seconds(program, num_calls):
    return num_calls * program.seconds(chip, c.collective_latency)[0]

  # The compiled program reads the keys and values of the largest shapes.
  num_rows = min(
      config.buckets.rows or math.inf, pool.num_slots * group_size)
  tokens = pool.num_slots * prompt + num_rows * completion / 2
  largest = (
      pool.num_slots * config.buckets.prompt[-1]
      + num_rows * rollout.max_new_tokens)
  decode = dataclasses.replace(programs['decode'], traffic=(
      programs['decode'].traffic
      - (1 - tokens / largest) * engine.CHUNK * pool.cache))
  # The turns of a task, and the roles of a turn, are sequential.
  rounds = max(num_groups / pool.num_slots, max_turns * num_roles)
  num_tokens = max(
      rounds * longest, num_groups * group_size * completion / num_rows)
  prefill = programs['prefill']
  total = (
      seconds(programs['prepare'], 1)
      + seconds(prefill, num_groups * padded_prompt / prefill.num_tokens)
      + seconds(decode, num_tokens / engine.CHUNK))
  if gradient := programs.get('gradient'):
    padded = num_groups * min(padded_group, halves)
    total += seconds(gradient, padded / gradient.num_tokens)
    total += seconds(programs['update'], config.train.updates_per_rollout)
  return total
