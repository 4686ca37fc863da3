"""Meshes, and which axis of which array lies on which axis of a mesh.

A mesh has three axes:

  data    each part computes other groups with all parameters
  fsdp    the same, but each part keeps only its share of the parameters
  tensor  each part computes all groups with its share of the heads, hidden
          units and vocabulary

Every policy is computed on the mesh of its pool, a slice of the devices.
Everything runs on a mesh, one device is a mesh of one.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import math
import re
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from atgrpo_jax import errors

AXES = ('data', 'fsdp', 'tensor')
ROWS = ('data', 'fsdp')  # What the groups of a batch are split over.

# (name of a leaf, where its axes lie). A kernel is [L, in, out].
Rules = Sequence[tuple[str, PartitionSpec]]

_HEAD_RULE = (r'head', PartitionSpec('fsdp', 'tensor'))
_PARAM_RULES = (
    (r'embedding', PartitionSpec('tensor', 'fsdp')),
    (r'layers/attention/[qkv]/kernel', PartitionSpec(None, 'fsdp', 'tensor')),
    (r'layers/attention/o/kernel', PartitionSpec(None, 'tensor', 'fsdp')),
    (r'layers/(gate|up)/kernel', PartitionSpec(None, 'fsdp', 'tensor')),
    (r'layers/down/kernel', PartitionSpec(None, 'tensor', 'fsdp')),
    (r'(layers/.*)?norm/scale', PartitionSpec()),
)
# An adapter is small: `a` [A, L, in, R] and `b` [A, L, R, out].
ADAPTER_RULES = (
    (r'.*/a', PartitionSpec(None, None, 'fsdp')),
    (r'.*/b', PartitionSpec(None, None, None, 'fsdp')),
)

_num_queued = itertools.count()  # Programs of this process, see `queued`.


def param_rules(tied_head: bool) -> Rules:
  """The rules of a model's parameters."""
  return _PARAM_RULES if tied_head else (*_PARAM_RULES, _HEAD_RULE)


def decoding_rules(tied_head: bool) -> Rules:
  """The rules without `fsdp`: no device waits for another's parameters."""
  return [
      (rule, PartitionSpec(*(
          None if axis == 'fsdp' else axis for axis in spec)))
      for rule, spec in param_rules(tied_head)]


@dataclasses.dataclass(frozen=True)
class MeshSpec:
  """How the devices are cut.

  Attributes:
    fsdp: size of that axis in each pool.
    tensor: size of that axis; `data` is what remains of the pool.
    pools: the devices of each policy, as in 'tool=0:4,planner=4:8'; '' gives
      every policy all devices.
  """

  fsdp: int = 1
  tensor: int = 1
  pools: str = ''


def make_meshes(
    policies: Sequence[str], devices: Sequence[jax.Device],
    spec: MeshSpec) -> dict[str, Mesh]:
  """Policy -> mesh. Policies with the same pool have the same mesh."""
  for name, size in (('fsdp', spec.fsdp), ('tensor', spec.tensor)):
    if size < 1:
      raise errors.UserError(f'mesh.{name}={size} must be at least 1.')
  slices = _parse_pools(policies, len(devices), spec.pools)
  meshes = {}
  for start, stop in dict.fromkeys(slices.values()):
    data, rest = divmod(stop - start, spec.fsdp * spec.tensor)
    if rest:
      raise errors.UserError(
          f'mesh.fsdp={spec.fsdp} times mesh.tensor={spec.tensor} does not '
          f'divide the {stop - start} devices {start}:{stop}.')
    meshes[start, stop] = jax.make_mesh(
        (data, spec.fsdp, spec.tensor), AXES,
        axis_types=(jax.sharding.AxisType.Auto,) * len(AXES),
        devices=devices[start:stop])
  return {policy: meshes[slices[policy]] for policy in policies}


def num_row_parts(mesh: Mesh | None = None) -> int:
  """Into how many parts a mesh, or that of `set_mesh`, splits the groups."""
  mesh = mesh or jax.sharding.get_abstract_mesh()
  return math.prod(mesh.shape.get(axis, 1) for axis in ROWS)


def tree_shardings(tree: Any, mesh: Mesh, rules: Rules) -> Any:
  """The sharding of each leaf of `tree` (arrays or their shapes).

  A leaf's name is its path, as in layers/gate/kernel; what holds the tree,
  such as an optimiser's moments, may stand before it. Scalars are everywhere.
  Raises ValueError unless every leaf matches one rule and every rule a leaf,
  and UserError for an axis that the mesh does not divide.
  """
  specs, used = _specs(tree, rules)
  unused = [rule for rule, _ in rules if rule not in used]
  if unused:
    raise ValueError(f'These sharding rules match no leaf: {unused}.')

  def sharding(path, leaf, spec):
    for size, axis in zip(leaf.shape, spec):
      if axis is not None and size % mesh.shape[axis]:
        raise errors.UserError(
            f'mesh.{axis}={mesh.shape[axis]} does not divide the axis of '
            f'{size} of {_name(path)} {leaf.shape}; choose a divisor.')
    return NamedSharding(mesh, spec)

  return jax.tree_util.tree_map_with_path(sharding, tree, specs)


def constrain_tree(tree: Any, rules: Rules) -> Any:
  """Keeps a traced tree where `tree_shardings` puts it."""
  if current_size() == 1:
    return tree
  return jax.tree.map(
      jax.lax.with_sharding_constraint, tree, _specs(tree, rules)[0])


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
  """Says on which mesh axes those of a traced array lie, within `set_mesh`."""
  if current_size() == 1:
    return x
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


def put_rows(tree: Any, mesh: Mesh) -> Any:
  """Puts numpy arrays, the same in every process, with the first axis split."""
  sharding = NamedSharding(mesh, PartitionSpec(ROWS))
  return jax.tree.map(
      lambda x: jax.make_array_from_callback(
          x.shape, sharding, x.__getitem__), tree)


def queued(result: Any, mesh: Mesh) -> Any:
  """The result of a program, for which every eighth call waits on a CPU.

  With 32 or more programs waiting for several CPU devices, XLA hangs in their
  collectives.
  """
  if (mesh.devices.flat[0].platform == 'cpu'
      and next(_num_queued) % 8 == 7):
    jax.block_until_ready(result)
  return result


def take_in_parts(x: jax.Array, at: jax.Array) -> jax.Array:
  """[N * A, ...] -> [N * B, ...]: of each part of a mesh its rows `at` [N, B].

  No part reads another's. Beyond the last row stands any of them.
  """
  taken = jax.vmap(lambda x, at: x.at[at].get(mode='clip'))(
      x.reshape(len(at), -1, *x.shape[1:]), at)
  return taken.reshape(-1, *x.shape[1:])


def put_in_parts(x: jax.Array, at: jax.Array, y: jax.Array) -> jax.Array:
  """`x` [N * A, ...], with `y` [N * B, ...] at rows `at` [N, B] of each part.

  What would stand beyond the last row is left out.
  """
  return jax.vmap(lambda x, at, y: x.at[at].set(y, mode='drop'))(
      x.reshape(len(at), -1, *x.shape[1:]), at,
      y.reshape(*at.shape, *y.shape[1:])).reshape(x.shape)


def _specs(tree, rules):
  """A spec for each leaf, and the rules that were used."""
  used = set()

  def spec(path, leaf):
    if not leaf.ndim:
      return PartitionSpec()
    name = _name(path)
    found = [
        (rule, spec) for rule, spec in rules
        if re.fullmatch(f'(.*/)?(?:{rule})', name)]
    if len(found) != 1:
      raise ValueError(
          f'{name} matches {len(found)} sharding rules, expected one: '
          f'{[rule for rule, _ in found]}.')
    used.add(found[0][0])
    return found[0][1]

  return jax.tree_util.tree_map_with_path(spec, tree), used


def _name(path) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')


def current_size() -> int:
  """Devices of the mesh of `set_mesh`; 1 without one."""
  mesh = jax.sharding.get_abstract_mesh()
  return 1 if mesh.empty else mesh.size


def _parse_pools(policies, num_devices, pools):
  """Policy -> (first device, one past the last)."""
  if not pools:
    return dict.fromkeys(policies, (0, num_devices))
  found = re.findall(r'(\w+)=(\d+):(\d+)', pools)
  slices = {name: (int(start), int(stop)) for name, start, stop in found}
  example = ','.join(f'{name}=0:{num_devices}' for name in policies)
  if (','.join(f'{name}={a}:{b}' for name, a, b in found) != pools
      or set(slices) != set(policies) or len(found) != len(slices)):
    raise errors.UserError(
        f'mesh.pools={pools!r} must name the devices of every policy once, '
        f'such as {example!r}.')
  for name, (start, stop) in slices.items():
    if not start < stop <= num_devices:
      raise errors.UserError(
          f'mesh.pools: {name}={start}:{stop} is no slice of the '
          f'{num_devices} devices there are.')
    for other, (other_start, other_stop) in slices.items():
      if (start, stop) != (other_start, other_stop) and (
          start < other_stop and other_start < stop):
        raise errors.UserError(
            f'mesh.pools: {name}={start}:{stop} and '
            f'{other}={other_start}:{other_stop} overlap; give them the same '
            'devices or none in common.')
  return slices
