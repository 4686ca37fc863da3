"""The mesh of a run: what fits its devices, and which settings would be faster.

By the estimate of `device_fit`; nothing is compiled and no weights are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools

import jax
import ml_collections

from atgrpo_jax import builders
from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.distributed import chips
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import device_fit

# By so much pools of their own must be faster, and a setting to be named.
_POOLS_GAIN = 1.02
_GAIN = 1.05
_MOST_GROUPS = 512

Config = ml_collections.ConfigDict


def fit_to_devices(
    config: Config, names: Sequence[str], devices: Sequence[jax.Device],
    chip: chips.Chip | None, read_model: builders.ReadModel) -> Config:
  """The config with a mesh that fits; says which, and why.

  What of `mesh.fsdp` and `mesh.tensor` is 0 is chosen, and `mesh.pools` where
  it is 'auto': one pool for all policies, or one for each if that should sample
  faster. `buckets.groups` loses what does not fit beside it. Where nothing is
  to be chosen nothing is changed.

  Args:
    config: of the run.
    names: of the policies.
    devices: all that the run has.
    chip: each of them; None for a CPU, whose devices share all memory.
    read_model: of `model.folder` and `model.thinking`.

  Raises:
    device_fit.DoesNotFit: there is no such mesh.
  """
  given = mesh_lib.MeshSpec(**config.mesh)
  for name in ('fsdp', 'tensor'):
    errors.check_number(f'mesh.{name}', config.mesh[name], min_value=0)
  if given.fsdp and given.tensor and given.pools != mesh_lib.AUTO:
    return config
  config = config.copy_and_resolve_references()
  if chip is None:
    config.mesh.fsdp, config.mesh.tensor = given.fsdp or 1, given.tensor or 1
    if given.pools == mesh_lib.AUTO:
      config.mesh.pools = ''
    return config
  fits = _fits(config, names, devices, chip, read_model)
  pools = _best(fits)
  fit, groups = fits[pools], config.buckets.groups
  config.mesh.fsdp, config.mesh.tensor = fit.fsdp, fit.tensor
  config.mesh.pools = pools
  config.buckets.groups = tuple(
      size for size in groups if size <= fit.num_groups)
  print(device_fit.describe(fit, groups, chip))
  if given.pools == mesh_lib.AUTO and _equal_pools(names, devices):
    print(_describe_pools(pools, fits))
  return config


def faster_settings(
    config: Config, names: Sequence[str], devices: Sequence[jax.Device],
    chip: chips.Chip, read_model: builders.ReadModel) -> dict[str, float]:
  """Overrides -> how many times as fast a run should sample, the best first.

  Each by itself: more groups at once, keys and values as int8, another mesh.
  Arguments are those of `fit_to_devices`.
  """
  rate = _best_fit(config, names, devices, chip, read_model).rate
  found, more_groups = {}, {'buckets.groups': _more_groups(config)}
  for changes in (
      dict(more_groups),
      {'rollout.kv_cache_dtype': 'int8', **more_groups},
      {'mesh.fsdp': 0, 'mesh.tensor': 0, 'mesh.pools': mesh_lib.AUTO}):
    changed = config.copy_and_resolve_references()
    changed.update_from_flattened_dict(changes)
    fit = _best_fit(changed, names, devices, chip, read_model)
    if 'buckets.groups' in changes:
      changes['buckets.groups'] = (fit.num_groups,)
    if fit.rate > _GAIN * rate:
      found[' '.join(
          f'--config.{key}={value}'.replace(' ', '')
          for key, value in changes.items())] = fit.rate / rate
  return dict(sorted(found.items(), key=lambda item: -item[1]))


def _more_groups(config):
  """Sizes up to the largest that a step has at once."""
  most = min(
      _MOST_GROUPS, max(config.rollout.num_tasks, config.buckets.groups[-1]))
  return tuple(sorted({
      *config.buckets.groups,
      *(size << i for size in (2, 3) for i in range(9)
        if size << i <= most)}))


def _best_fit(*args):
  fits = _fits(*args)
  return fits[_best(fits)]


def _best(fits: Mapping[str, device_fit.Fit]) -> str:
  """The pools with which a run should sample fastest."""
  return max(fits, key=lambda pools: (
      fits[pools].rate * (1.0 if pools else _POOLS_GAIN)))


def _fits(
    config: Config, names: Sequence[str], devices: Sequence[jax.Device],
    chip: chips.Chip, read_model: builders.ReadModel,
) -> dict[str, device_fit.Fit]:
  """Pools -> the best mesh, of pools with which the run fits."""
  choices = [config.mesh.pools]
  if config.mesh.pools == mesh_lib.AUTO:
    choices = list(dict.fromkeys(
        ['', _equal_pools(names, devices)]))
  fits, refusals = {}, []
  for pools in choices:
    try:
      fits[pools] = _fit(config, pools, names, devices, chip, read_model)
    except errors.UserError as error:
      refusals.append(error)
  if not fits:
    raise refusals[0]
  return fits


def _fit(config, pools, names, devices, chip, read_model):
  """The best mesh with these pools."""
  anywhere = config.copy_and_resolve_references()
  anywhere.mesh.update(fsdp=1, tensor=1, pools=pools)
  policies = builders.build_policies(anywhere, names, devices, read_model)
  buckets = batching.Buckets(**config.buckets)
  critics = actor_critic.make_critics(
      spec_lib.CriticSpec(**config.critic), policies)
  return device_fit.choose(
      device_fit.pools_of(
          list(policies.values()), list(critics.values()), keeps_start=(
              config.loss.kl_estimator != 'none'
              or config.train.diagnose_every > 0),
          cache_dtype=functools.partial(
              model.cache_dtype, config.rollout.kv_cache_dtype)),
      device_fit.Shapes(
          buckets.prompt[-1], buckets.completion[-1],
          config.rollout.group_size, buckets.microbatch_tokens),
      buckets.groups, chip, fsdp=config.mesh.fsdp, tensor=config.mesh.tensor,
      num_slices=max(
          mesh_lib.num_slices(policy.mesh) for policy in policies.values()))


def check_pools(
    meshes: Mapping[str, jax.sharding.Mesh],
    devices: Sequence[jax.Device]) -> None:
  """Raises UserError where a process has none of the devices of a policy.

  orbax saves no array of which a process has nothing.

  Args:
    meshes: of the policies.
    devices: all that the run has.
  """
  num_processes = len({device.process_index for device in devices})
  for policy, mesh in meshes.items():
    own = {device.process_index for device in mesh.devices.flat}
    if len(own) < num_processes:
      raise errors.UserError(
          f'mesh.pools: policy {policy!r} has devices of {len(own)} of '
          f'{num_processes} processes, but checkpoints need some of each '
          "in every pool; leave it '', so that all policies have all devices.")


def _equal_pools(
    policies: Sequence[str], devices: Sequence[jax.Device]) -> str:
  """Pools of the same size, one for each policy; '' if there are none."""
  size, rest = divmod(len(devices), len(policies))
  is_one_process = len({device.process_index for device in devices}) == 1
  if rest or not size or len(policies) == 1 or not is_one_process:
    return ''
  return ','.join(
      f'{policy}={i * size}:{(i + 1) * size}'
      for i, policy in enumerate(policies))


def _describe_pools(
    chosen: str, fits: Mapping[str, device_fit.Fit]) -> str:
  """Why there is one pool, or one for each policy."""
  if len(fits) == 1:
    return f'mesh.pools={chosen!r}: ' + (
        'all policies would not fit on the same devices' if chosen
        else 'policies with devices of their own would not fit')
  together, apart = fits.values()
  return (
      f'mesh.pools={chosen!r}: with devices of their own the policies should '
      f'sample {apart.rate / together.rate:.2f} times as fast as in turns')
