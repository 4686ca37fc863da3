"""Reports whether a run fits a TPU slice or GPUs, and how long a step takes.

No accelerator is needed: `lower` compiles the programs of the run for a named
topology. A step is predicted from the roofline seconds of these programs and
the lengths that `compile_check` states:

  decode     rounds of concurrent groups x tokens of a group's longest candidate
             x seconds per token, for each padded prompt length
  prefill, gradient
             padded tokens x seconds per token

Environments, validation, checkpoints, critics, Monte-Carlo continuations and
slots that are idle at the end of a step are not included, so a real step takes
longer.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import ml_collections
import numpy as np

from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import targets
from atgrpo_jax.distributed import fit
from atgrpo_jax.sampling import engine

_GIB = 2**30
_NUM_DRAWS = 4096
_Z_95 = 1.6449  # 95 % of a normal distribution lies below this.


@dataclasses.dataclass(frozen=True)
class Prediction:
  """One training step.

  Attributes:
    seconds: program -> seconds in the slowest pool.
    completion_tokens: generated tokens, of all pools.
    num_devices: devices of all pools.
  """

  seconds: dict[str, float]
  completion_tokens: float
  num_devices: int

  @property
  def total(self) -> float:
    return sum(self.seconds.values())

  @property
  def tokens_per_second_per_chip(self) -> float:
    return self.completion_tokens / self.total / self.num_devices


def compile_check(config: ml_collections.ConfigDict) -> bool:
  """Prints whether the run fits `compile_check.topology`."""
  devices, chip = targets.devices_of(config.compile_check.topology)
  try:
    run = lower.build(config, devices, chip)
  except fit.DoesNotFit as error:  # Before anything is compiled.
    print(f'DOES NOT FIT: {error}')
    return False
  pools = lower.check(run)
  for pool in pools:
    print_pool(pool, chip, run.config)
  if not all(pool.fits(chip) for pool in pools):
    return False
  print_step(predict(run, pools, chip), run.config)
  return True


def print_pool(
    pool: lower.Pool, chip: fit.Chip,
    config: ml_collections.ConfigDict) -> None:
  """Prints the memory and cost of each program, and the verdict."""
  print(f'\n{", ".join(pool.policies)} on {config.compile_check.topology}, '
        'per device')
  for name, size in (
      ('parameters', pool.parameters), ('optimizer', pool.optimizer),
      ('keys and values', pool.cache)):
    print(f'  {name:16s} {size / _GIB:8.2f} GiB')
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
  largest = pool.largest
  spare = (chip.memory - largest.total) / _GIB
  if pool.fits(chip):
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
    run: lower.Run, pools: Sequence[lower.Pool], chip: fit.Chip) -> Prediction:
  """Predicts a training step; see the module."""
  lengths = _draw_lengths(run.config)
  per_pool = []
  for pool in pools:
    seconds = collections.Counter()
    for policy in pool.policies:  # Policies of a pool take turns.
      seconds.update(_predict_policy(run, pool, policy, lengths, chip))
    per_pool.append(seconds)
  num_groups = sum(_num_groups(run, policy) for policy in run.policies)
  return Prediction(
      max(per_pool, key=lambda seconds: seconds.total()),
      num_groups * lengths.completions.sum(axis=1).mean(),
      sum(pool.num_devices for pool in pools))


def _predict_policy(run, pool, policy, lengths, chip):
  """Program -> seconds in a step."""
  config, num_groups = run.config, _num_groups(run, policy)
  programs = {
      program.name.removesuffix(f' {policy}'): program
      for program in pool.programs if program.name.endswith(f' {policy}')}

  def seconds(name, num_calls, unread_bytes=0.0):
    program = dataclasses.replace(
        programs[name], traffic=programs[name].traffic - unread_bytes)
    return num_calls * program.seconds(
        chip, config.compile_check.collective_latency)[0]

  prompts, completions, longest = (
      lengths.prompts, lengths.completions, lengths.completions.max(axis=1))
  padded_prompts = _pad(prompts, config.buckets.prompt)
  result = {
      'prepare': seconds('prepare', 1), 'prefill': seconds(
          'prefill', num_groups * padded_prompts.mean()
          / programs['prefill'].num_tokens), 'decode': 0.0}
  group_size, max_tokens = completions.shape[1], config.rollout.max_new_tokens
  # The turns of a task, and the roles of a turn, are sequential.
  min_rounds = config.environment.max_turns * _num_roles(run, policy)
  for size in config.buckets.prompt:  # Each has an engine.
    inside = padded_prompts == size
    if not inside.any():
      continue
    rounds = max(inside.mean() * num_groups / pool.num_slots, min_rounds)
    num_tokens = longest[inside].sum()
    # Positions that the tokens of a group read, summed over groups.
    if targets.has_ragged_kernel(config.compile_check.topology):
      read = prompts[inside] @ longest[inside] + (
          completions[inside]**2).sum() / 2
    else:
      read = size * num_tokens + max_tokens * completions[inside].sum()
    ratio = read / num_tokens / (
        config.buckets.prompt[-1] + group_size * max_tokens)
    result['decode'] += seconds(
        'decode', rounds * longest[inside].mean() / engine.CHUNK,
        (1 - ratio) * engine.CHUNK * pool.cache)
  if 'gradient' in programs:
    padded_groups = padded_prompts + group_size * _pad(
        longest, config.buckets.completion)
    result['gradient'] = seconds(
        'gradient', num_groups * padded_groups.mean()
        / programs['gradient'].num_tokens)
    result['update'] = seconds('update', config.train.updates_per_rollout)
  return result


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


class _Lengths(NamedTuple):
  prompts: np.ndarray  # [N] int
  completions: np.ndarray  # [N, G] int


def _draw_lengths(config):
  """Log-normal lengths of many groups."""
  rng, c = np.random.default_rng(0), config.compile_check

  def draw(median_and_percentile_95, largest, *shape):
    median, percentile_95 = median_and_percentile_95
    width = np.log(percentile_95 / median) / _Z_95
    lengths = np.exp(rng.normal(np.log(median), width, shape))
    return np.clip(lengths.astype(int), 1, largest)

  return _Lengths(
      draw(c.prompt_lengths, config.buckets.prompt[-1], _NUM_DRAWS),
      draw(c.completion_lengths, config.rollout.max_new_tokens, _NUM_DRAWS,
           config.rollout.group_size))


def _pad(lengths, buckets):
  """Rounds lengths up to the sizes of buckets."""
  return np.asarray(buckets)[np.searchsorted(buckets, lengths)]


def print_step(
    step: Prediction, config: ml_collections.ConfigDict) -> None:
  """Prints the seconds of a step and the hours of a run."""
  c, num_steps = config.compile_check, config.train.num_steps
  prompts, completions = (
      f'{median} tokens (95 % below {percentile_95})'
      for median, percentile_95 in (c.prompt_lengths, c.completion_lengths))
  print(
      f'\nA step takes about {step.total:.0f} s: {config.rollout.num_tasks} '
      f'tasks of {config.environment.max_turns} turns, prompts of {prompts}, '
      f'completions of {completions}')
  for name, seconds in step.seconds.items():
    print(f'  {name:16s} {seconds:8.1f} s  {seconds / step.total:4.0%}')
  print(
      f'  {step.tokens_per_second_per_chip:.0f} tokens per second and chip'
      + (f'; {num_steps} steps take {num_steps * step.total / 3600:.1f} hours'
         if num_steps else ''))
