"""Reports whether a run fits a TPU slice or GPUs, and how long a step takes.

No accelerator is needed: `lower` compiles the programs of the run for a named
topology. A step is predicted from their roofline seconds and the mean lengths
in the section `compile_check` of the config:

  decode     rounds of concurrent groups x tokens of a group's longest candidate
             x seconds per token
  prefill, gradient
             padded tokens x seconds per token

Environments, validation, checkpoints, critics, Monte-Carlo continuations and
idle slots are not included, so a real step takes longer.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
from typing import Any

import ml_collections

from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import targets
from atgrpo_jax.distributed import fit
from atgrpo_jax.learner import batching
from atgrpo_jax.sampling import engine

_GIB = 2**30


def compile_check(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Prints and returns whether the run fits `compile_check.topology`."""
  devices, chip = targets.devices_of(config.compile_check.topology)
  try:
    run = lower.build(config, devices, chip)
  except fit.DoesNotFit as error:  # Before anything is compiled.
    print(f'DOES NOT FIT: {error}')
    return {'fits': False, 'refusal': str(error)}
  pools = lower.check(run)
  for pool in pools:
    print_pool(pool, chip, run.config)
  largest = lower.largest(
      program for pool in pools for program in pool.programs)
  verdict = {
      'fits': largest.fits(chip),
      'spare_gib': round((chip.memory - largest.total) / _GIB, 2),
      'largest': largest.name, 'refusal': largest.refusal,
      'mesh': run.config.mesh.to_dict(),
      'groups': run.config.buckets.groups[-1]}
  if largest.fits(chip):
    seconds, num_tokens = predict(run, pools, chip)
    total = sum(seconds.values())
    verdict |= {
        'step_seconds': round(total, 1),
        'hours': round(config.train.num_steps * total / 3600, 1),
        'tokens_per_second_per_chip': round(num_tokens / total / len(devices))}
    print(f'\nA step takes about {total:.0f} s:')
    for name, each in seconds.items():
      print(f'  {name:16s} {each:8.1f} s  {each / total:4.0%}')
    print(
        f'  {verdict["tokens_per_second_per_chip"]} tokens per second and '
        f'chip; {config.train.num_steps} steps take {verdict["hours"]} hours')
  return verdict


def print_pool(
    pool: lower.Pool, chip: fit.Chip,
    config: ml_collections.ConfigDict) -> None:
  """Prints the memory and cost of each program, and the verdict."""
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
  largest = lower.largest(pool.programs)
  spare = (chip.memory - largest.total) / _GIB
  if largest.fits(chip):
    print(f'FITS: {spare:.2f} of {chip.memory / _GIB:.2f} GiB are left in '
          f'{largest.name!r}.')
    return
  reason = (
      f'the compiler refuses {largest.name!r}: {largest.refusal}'
      if largest.refusal else f'{largest.name!r} needs {-spare:.2f} GiB more '
      f'than the {chip.memory / _GIB:.2f} GiB of a device')
  print(f'DOES NOT FIT: {reason}. Give a larger mesh.tensor or mesh.fsdp, '
        'fewer buckets.groups, shorter buckets, a smaller '
        'buckets.microbatch_tokens, or policies=lora_per_role.')


def predict(
    run: lower.Run, pools: Sequence[lower.Pool],
    chip: fit.Chip) -> tuple[dict[str, float], float]:
  """Predicts a training step; see the module.

  Returns:
    Program -> seconds in the slowest pool, and completion tokens of all pools.
  """
  per_pool = []
  for pool in pools:
    seconds = collections.Counter()
    for policy in pool.policies:  # Policies of a pool take turns.
      seconds.update(_predict_policy(run, pool, policy, chip))
    per_pool.append(seconds)
  num_groups = sum(_num_groups(run, policy) for policy in run.policies)
  num_candidates = num_groups * run.config.rollout.group_size
  return (
      max(per_pool, key=lambda seconds: seconds.total()),
      num_candidates * _mean_lengths(run.config)[1])


def _predict_policy(run, pool, policy, chip):
  """Program -> seconds in a step."""
  config, c = run.config, run.config.compile_check
  num_groups, group_size = _num_groups(run, policy), config.rollout.group_size
  programs = {
      program.name.removesuffix(f' {policy}'): program
      for program in pool.programs if program.name.endswith(f' {policy}')}
  prompt, completion, longest = _mean_lengths(config)
  padded_prompt = batching.bucket(prompt, config.buckets.prompt, 'prompt')
  padded_group = padded_prompt + group_size * batching.bucket(
      longest, config.buckets.completion, 'completion')

  def seconds(program, num_calls):
    return num_calls * program.seconds(chip, c.collective_latency)[0]

  prefill, decode = programs['prefill'], programs['decode']
  # The compiled program reads the keys and values of the largest shapes.
  num_private = group_size * config.rollout.max_new_tokens
  max_positions = config.buckets.prompt[-1] + num_private
  positions = padded_prompt + num_private
  if not targets.is_gpu(c.topology):  # The kernel skips padding.
    positions = prompt + group_size * completion / 2
  decode = dataclasses.replace(decode, traffic=decode.traffic - (
      1 - positions / max_positions) * engine.CHUNK * pool.cache)
  # The turns of a task, and the roles of a turn, are sequential.
  rounds = max(
      num_groups / pool.num_slots,
      config.environment.max_turns * _num_roles(run, policy))
  result = {
      'prepare': seconds(programs['prepare'], 1),
      'prefill': seconds(
          prefill, num_groups * padded_prompt / prefill.num_tokens),
      'decode': seconds(decode, rounds * longest / engine.CHUNK)}
  if gradient := programs.get('gradient'):
    result['gradient'] = seconds(
        gradient, num_groups * padded_group / gradient.num_tokens)
    result['update'] = seconds(
        programs['update'], config.train.updates_per_rollout)
  return result


def _mean_lengths(config):
  """Tokens of a prompt, a completion, and the longest one of a group."""
  c, max_tokens = config.compile_check, config.rollout.max_new_tokens
  return (
      min(c.prompt_tokens, config.buckets.prompt[-1]),
      min(c.completion_tokens, max_tokens), min(c.longest_tokens, max_tokens))


def _num_roles(run, policy):
  return list(run.policy_map.values()).count(policy)


def _num_groups(run, policy):
  """Groups that a policy samples in a step."""
  rollout, branches = run.config.rollout, 1
  if rollout.mode == 'joint':  # Every joint action is continued.
    branches = rollout.group_size ** (
        len(run.policy_map) if rollout.joint_actions == 'cross' else 1)
  turns = range(run.config.environment.max_turns)
  return rollout.num_tasks * _num_roles(run, policy) * sum(
      branches**turn for turn in turns)
