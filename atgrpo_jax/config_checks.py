"""Refuses numbers of a config that the loops would fall over later.

What belongs to a spec of its own (`RolloutSpec`, `LossSpec`, `OptimizerSpec`,
...) is refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atgrpo_jax import errors
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import update

Config = Mapping[str, Any]  # Of sections, as a ConfigDict or a nested dict.

DTYPES = ('float32', 'bfloat16')
# Logits divided by a smaller temperature may overflow.
_LEAST_TEMPERATURE = 1e-6


def check_run(config: Config) -> None:
  """Raises UserError for numbers that no run can have."""
  never = ('; what is done every so many steps is never done with more than '
           'train.num_steps')
  for section, name, min_value, advice in (
      ('rollout', 'num_tasks', 1, ''),
      ('rollout', 'max_new_tokens', 1, ''),
      ('train', 'updates_per_rollout', 1, ''),
      ('train', 'checkpoint_every', 1, never),
      ('train', 'groups_every', 1, never),
      ('train', 'diagnose_every', 0, ''),
      ('evaluation', 'validate_every', 1, never),
      ('evaluation', 'num_timed', 0, ''), ('evaluation', 'num_samples', 1, '')):
    errors.check_number(
        f'{section}.{name}', config[section][name], min_value=min_value,
        advice=advice)
  _check_seed(config['seed'])
  train = config['train']
  limits = train['num_steps'], train['completion_tokens']
  if min(limits) < 0 or not any(limits):
    raise errors.UserError(
        f'train.num_steps={limits[0]} and train.completion_tokens={limits[1]} '
        'would never end; one of them must be above 0, and none below.')
  metrics_lib.check_writers(train['writers'])
  if 'compile_check' in config:
    _check_compile_check(config['compile_check'])
  update.check_order(train['update_order'], train['updates_per_rollout'])
  rollout = config['rollout']
  errors.check_number(
      'rollout.temperature', rollout['temperature'],
      min_value=_LEAST_TEMPERATURE,
      advice='; candidates that are all alike teach nothing')
  if rollout['kv_cache_dtype'] not in ('auto', 'int8'):
    raise errors.UserError(
        f'rollout.kv_cache_dtype={rollout["kv_cache_dtype"]!r} is not one of '
        "['auto', 'int8']; 'auto' is that of model.dtype.")
  if config['evaluation']['temperature']:
    errors.check_number(
        'evaluation.temperature', config['evaluation']['temperature'],
        min_value=_LEAST_TEMPERATURE, advice=', or 0 for the likeliest token')
  lengths = batching.Buckets(**config['buckets']).completion
  if rollout['max_new_tokens'] > lengths[-1]:
    raise errors.UserError(
        f'rollout.max_new_tokens={rollout["max_new_tokens"]} is more than the '
        f'largest of buckets.completion={lengths}; lower the one or raise the '
        'other.')


def _check_compile_check(values):
  for name in ('prompt_lengths', 'completion_lengths'):
    lengths = values[name]
    if len(lengths) != 2:
      raise errors.UserError(
          f'compile_check.{name}={lengths}, but must be a median and a 95th '
          'percentile, such as (900, 3000).')
    errors.check_number(f'compile_check.{name}', lengths[0], min_value=1)
    errors.check_number(
        f'compile_check.{name}', lengths[1], min_value=lengths[0],
        advice=', the median')
  errors.check_number(
      'compile_check.collective_latency', values['collective_latency'],
      min_value=0)


def check_dtype(name: str, dtype: str) -> None:
  """Raises UserError unless weights may have this type."""
  if dtype not in DTYPES:
    raise errors.UserError(f'{name}={dtype!r} is not one of {list(DTYPES)}.')


def _check_seed(seed: int) -> None:
  """Refuses a seed that would draw what another one draws."""
  errors.check_number(
      'seed', seed, min_value=0, less_than=2**32,
      advice=', since jax takes seeds modulo that')
