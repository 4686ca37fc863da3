"""The fastest sizes with which a run fits a TPU slice.

How many groups are sampled at once and how many tokens a microbatch has are
raised, one after the other, for as long as the compiler takes the programs and
the predicted step becomes shorter; where the run does not fit, they are lowered
first. A program whose shapes were compiled before is not compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import pathlib
import shlex
from typing import NamedTuple

import jax
import ml_collections

from atgrpo_jax import errors
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import report as report_lib
from atgrpo_jax.compile_check import targets
from atgrpo_jax.compile_check import whole_step
from atgrpo_jax.distributed import chips
from atgrpo_jax.distributed import mesh as mesh_lib

# Of the groups of a shard, or of the longest groups of a microbatch.
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_FASTER = 0.99  # Of the seconds of a step; what gains less is left out.
_OF_GROUPS = ('prefill', 'decode', 'more')  # Programs, by their first word.
_OF_MICROBATCHES = ('gradient', 'values')
_GIB = 2**30

Config = ml_collections.ConfigDict


class Trial(NamedTuple):
  """What was found of one size.

  Attributes:
    size: that was tried.
    seconds: of a step, at least.
  """

  size: int
  seconds: float


def fit(config: Config, out: pathlib.Path) -> bool:
  """Writes the overrides of the fastest sizes to a file; False if none fits.

  Args:
    config: of the run, with `compile_check`.
    out: gets one line, which `$(cat FILE)` adds to a command.

  Raises:
    UserError: the file has no folder.
    device_fit.DoesNotFit: no mesh fits by the estimate.
  """
  if out.is_dir() or not out.absolute().parent.is_dir():
    raise errors.UserError(
        f'--fit={out} should be a file in a folder that there is.')
  devices, chip = targets.devices_of(config)
  config = lower.fit_to_devices(config, devices, chip)
  trials = _Trials(devices, chip)
  for resize, start, programs in _knobs(config, devices):
    best = climb(start, lambda size, resize=resize, programs=programs: (
        trials.seconds(resize(config, size), programs)))
    config = resize(config, best.size if best else _SIZES[0])
  if best is None or not trials.fits(config):
    print('DOES NOT FIT with any of these sizes; the check without --fit says '
          'what would help.')
    return False
  line = ' '.join(map(shlex.quote, overrides(config)))
  out.write_text(' '.join(overrides(config)) + '\n')
  print(f'FITS: a step takes at least {best.seconds:.1f} s with\n  {line}\n'
        f'written to {out}: add $(cat {out}) to the command of the run.')
  return True


class _Trials:
  """Tries one config after another."""

  def __init__(self, devices: Sequence[jax.Device], chip: chips.Chip):
    self._devices, self._chip = devices, chip
    self._compiled = {}

  def fits(self, config: Config) -> bool:
    """Whether all programs do; nothing that was tried is compiled again."""
    return all(report.fits(self._chip) for report in report_lib.check(
        config, self._devices, self._compiled))

  def seconds(self, config: Config, programs: Sequence[str]) -> float | None:
    """Of a step, at least; None if one of these programs does not fit."""
    reports = report_lib.check(config, self._devices, self._compiled)
    found = [program for report in reports for program in report.programs]
    worst = max(
        (program for program in found if program.name.split()[0] in programs),
        key=lambda program: program.order)
    seconds = None
    if worst.fits(self._chip):
      seconds = whole_step.predict(
          config, lower.build_policies(config, self._devices), found,
          self._chip).total
    print(' '.join(overrides(config)[-2:]), '->', (
        'does not fit' if seconds is None else f'{seconds:.1f} s a step')
        + f', {worst.total / _GIB:.2f} GiB in {worst.name!r}', flush=True)
    return seconds


def overrides(config: Config) -> list[str]:
  """Flags of what is fitted."""
  values = {
      'mesh.fsdp': config.mesh.fsdp, 'mesh.tensor': config.mesh.tensor,
      'mesh.pools': config.mesh.pools,
      'buckets.groups': config.buckets.groups,
      'buckets.microbatch_tokens': config.buckets.microbatch_tokens}
  return [
      f'--config.{key}={value}'.replace(' ', '')
      for key, value in values.items()]


def _knobs(
    config: Config, devices: Sequence[jax.Device],
) -> list[tuple[Callable[[Config, int], Config], int, Sequence[str]]]:
  """(config of a size, size of the given config, programs that grow with it)"""
  shards = max(
      mesh_lib.num_data_shards(policy.mesh)
      for policy in lower.build_policies(config, devices).values())
  longest = (
      config.buckets.prompt[-1]
      + config.rollout.group_size * config.buckets.completion[-1])

  def with_groups(config, size):
    fewer = [x for x in config.buckets.groups[:-1] if x < size * shards]
    return _with(config, 'groups', (*fewer, size * shards))

  def with_microbatch(config, size):
    return _with(config, 'microbatch_tokens', size * longest)

  return [
      (with_groups, -(-config.buckets.groups[-1] // shards), _OF_GROUPS),
      (with_microbatch, max(1, config.buckets.microbatch_tokens // longest),
       _OF_MICROBATCHES)]


def _with(config, name, value):
  config = config.copy_and_resolve_references()
  config.buckets[name] = value
  return config


def climb(
    start: int, try_size: Callable[[int], float | None]) -> Trial | None:
  """The fastest size around `start`; None if none fits.

  Goes down to the first that fits. If that is the first that is tried, goes up
  from it until one does not fit or is not faster.
  """
  below = [size for size in _SIZES if size <= start]
  best = None
  for size in reversed(below):
    seconds = try_size(size)
    if seconds is not None:
      best = Trial(size, seconds)
      break
  if best is None or best.size < below[-1]:
    return best
  for size in _SIZES[len(below):]:
    seconds = try_size(size)
    if seconds is None or seconds > _FASTER * best.seconds:
      break
    best = Trial(size, seconds)
  return best
