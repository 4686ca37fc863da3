"""Meshes, and which axis of which array lies on which axis of a mesh.

A mesh has three axes:

  data    each shard computes other groups with all parameters
  fsdp    the same, but each shard keeps only its share of the parameters
  tensor  each shard computes all groups with its share of the heads, hidden
          units and vocabulary

Every policy is computed on the mesh of its pool, some of the devices.
Everything runs on a mesh, one device is a mesh of one.

Several TPU slices are joined by a network that is slower than the links within
a slice, as several nodes with GPUs are. There `data` is split first: each slice
or node computes its own groups.

Whatever belongs to groups is computed by `per_shard`, in which a shard sees its
own groups alone, and what all shards add up to is added once, by
`sum_over_data`. So a program has no collective over `data` but that one. XLA
runs the collectives of a CPU program that do not depend on each other in any
order, with a thread for each device: two devices that take two of them in
different orders would wait for ever.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
import dataclasses
import itertools
import math
import re
from typing import Any

import jax
from jax.experimental import mesh_utils
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from atgrpo_jax import errors

AXES = ('data', 'fsdp', 'tensor')
AUTO = 'auto'  # Pools that are still to be chosen.
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

_num_dispatched = itertools.count()  # See `throttle_cpu_dispatch`.


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
    fsdp: size of that axis in each pool; 0 where it is still to be chosen.
    tensor: size of that axis, or 0; `data` is what remains of the pool.
    pools: the devices of each policy, as in 'tool=0:4,planner=4:8'; '' gives
      every policy all devices, and AUTO is still to be chosen. They are counted
      slice by slice.
  """

  fsdp: int = 1
  tensor: int = 1
  pools: str = ''


def make_meshes(
    policies: Sequence[str], devices: Sequence[jax.Device],
    spec: MeshSpec) -> dict[str, Mesh]:
  """Policy -> mesh. Policies with the same pool have the same mesh."""
  for name, size in (('fsdp', spec.fsdp), ('tensor', spec.tensor)):
    errors.check_number(f'mesh.{name}', size, min_value=1)
  pools = _parse_pools(policies, len(devices), spec.pools)
  devices = sorted(devices, key=_slice_of)
  meshes = {}
  for start, stop in dict.fromkeys(pools.values()):
    data, rest = divmod(stop - start, spec.fsdp * spec.tensor)
    if rest:
      raise errors.UserError(
          f'mesh.fsdp={spec.fsdp} times mesh.tensor={spec.tensor} does not '
          f'divide the {stop - start} devices {start}:{stop}.')
    meshes[start, stop] = Mesh(
        _arrange(devices[start:stop], (data, spec.fsdp, spec.tensor)), AXES,
        axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))
  return {policy: meshes[pools[policy]] for policy in policies}


def num_slices(mesh: Mesh) -> int:
  """On how many slices, or nodes with GPUs, a mesh lies."""
  return len({_slice_of(device) for device in mesh.devices.flat})


def num_data_shards(mesh: Mesh) -> int:
  """Into how many shards a mesh splits the groups."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


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


def tree_template(
    shapes: Any, mesh: Mesh, rules: Rules, dtype: Any = None) -> Any:
  """Shapes with the shardings of `tree_shardings`, and a dtype if given."""
  return jax.tree.map(
      lambda x, at: jax.ShapeDtypeStruct(
          x.shape, dtype or x.dtype, sharding=at),
      shapes, tree_shardings(shapes, mesh, rules))


def constrain_tree(tree: Any, rules: Rules) -> Any:
  """Keeps a traced tree where `tree_shardings` puts it."""
  if current_size() == 1:
    return tree
  return jax.tree.map(
      lambda x, spec: constrain(x, *spec), tree, _specs(tree, rules)[0])


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
  """Says on which mesh axes those of a traced array lie, within `set_mesh`.

  Within `per_shard`, only the axes that are left count.
  """
  if current_size() == 1:
    return x
  return jax.lax.with_sharding_constraint(x, free_spec(*axes))


def free_spec(*axes: str | tuple[str, ...] | None) -> PartitionSpec:
  """A spec without the axes of a surrounding `per_shard`."""
  free = free_axes()

  def keep(axis):
    names = (axis,) if isinstance(axis, str) else axis or ()
    return tuple(name for name in names if name in free) or None

  return PartitionSpec(*map(keep, axes))


def per_shard(
    function: Callable[[Any, Any], Any],
    axes: Sequence[str] = ROWS) -> Callable[[Any, Any], Any]:
  """`function(whole, split)` as each shard of `axes` computes it by itself.

  `whole` is the same for all shards; `split` and what is returned are split on
  the first axis of each array. No shard waits for another. What a gradient of
  `whole` adds up to over the shards is added at the end, in one piece.
  """
  sizes = free_axes()
  axes = tuple(axis for axis in axes if sizes.get(axis, 1) > 1)
  if not axes:
    return function
  return jax.shard_map(
      function, in_specs=(PartitionSpec(), PartitionSpec(axes)),
      out_specs=PartitionSpec(axes), axis_names=set(axes), check_vma=False)


def any_shard(x: jax.Array) -> jax.Array:
  """Within `per_shard`, whether `x` [] bool holds in any shard of `ROWS`."""
  axes = tuple(axis for axis in ROWS if axis not in free_axes())
  return jax.lax.pmax(x.astype(jnp.int32), axes) > 0 if axes else x


def data_size() -> int:
  """Shards of the axis `data` of the mesh of `set_mesh`; 1 without one."""
  return free_axes().get('data', 1)


def zeros_over_data(tree: Any, rules: Rules) -> Any:
  """Zeros for what each shard of `data` adds up by itself.

  Each leaf of `tree` (arrays or their shapes) has one, with a first axis for
  the shards; `rules` say where the others lie. See `sum_over_data`.
  """
  return jax.tree.map(
      lambda x, spec: constrain(
          jnp.zeros((data_size(), *x.shape), x.dtype), *spec),
      tree, data_specs(tree, rules))


def sum_over_data(tree: Any, rules: Rules) -> Any:
  """Adds up what `zeros_over_data` began, float32 all of it.

  In one piece, whatever the tree holds: one collective.
  """
  if data_size() == 1:
    return jax.tree.map(lambda x: x[0], tree)

  def add(tree):
    leaves, structure = jax.tree.flatten(tree)
    total = jax.lax.psum(
        jnp.concatenate([leaf.ravel() for leaf in leaves]), 'data')
    ends = list(itertools.accumulate(leaf.size for leaf in leaves))
    return jax.tree.unflatten(structure, [
        part.reshape(leaf.shape[1:])
        for part, leaf in zip(jnp.split(total, ends[:-1]), leaves)])

  one = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], tree))
  return jax.shard_map(
      add, in_specs=(data_specs(one, rules),),
      out_specs=_specs(one, rules)[0], check_vma=False)(tree)


def data_specs(tree: Any, rules: Rules) -> Any:
  """The spec of each leaf of `zeros_over_data(tree, rules)`."""
  return jax.tree.map(
      lambda spec: PartitionSpec('data', *spec), _specs(tree, rules)[0],
      is_leaf=lambda x: isinstance(x, PartitionSpec))


def put_rows(tree: Any, mesh: Mesh) -> Any:
  """Puts numpy arrays, the same in every process, with the first axis split."""
  sharding = NamedSharding(mesh, PartitionSpec(ROWS))
  return jax.tree.map(
      lambda x: jax.make_array_from_callback(
          x.shape, sharding, x.__getitem__), tree)


def throttle_cpu_dispatch(result: Any, mesh: Mesh) -> Any:
  """The result of a program, for which every eighth call waits on a CPU.

  XLA's CPU client launches the programs of several devices, and runs them, on
  one pool with a thread for each device. A launch waits there while 32 programs
  of its device have not ended. If one of these is in a collective, the launch
  has the thread that the other device needs to come to it, for ever.
  """
  if (mesh.devices.flat[0].platform == 'cpu'
      and next(_num_dispatched) % 8 == 7):
    jax.block_until_ready(result)
  return result


def gather_per_shard(x: jax.Array, at: jax.Array) -> jax.Array:
  """[N * A, ...] -> [N * B, ...]: of each shard its rows `at` [N, B].

  No shard reads another's. Beyond the last row stands any of them.
  """
  taken = jax.vmap(lambda x, at: x.at[at].get(mode='clip'))(
      x.reshape(len(at), -1, *x.shape[1:]), at)
  return taken.reshape(-1, *x.shape[1:])


def scatter_per_shard(x: jax.Array, at: jax.Array, y: jax.Array) -> jax.Array:
  """`x` [N * A, ...], with `y` [N * B, ...] at rows `at` [N, B] of each shard.

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
  """Devices of the mesh of `set_mesh`, or of a shard's; 1 without one."""
  return math.prod(free_axes().values())


def free_axes() -> dict[str, int]:
  """Axes of the mesh of `set_mesh`, without those of a `per_shard`."""
  mesh = jax.sharding.get_abstract_mesh()
  return {
      name: mesh.shape[name]
      for name, kind in zip(mesh.axis_names, mesh.axis_types)
      if kind == jax.sharding.AxisType.Auto}


def _slice_of(device):
  # A device of one slice may not say so.
  return getattr(device, 'slice_index', 0)


def _arrange(devices, shape):
  """The devices of one mesh as an array of that shape."""
  _, fsdp, tensor = shape
  slices = collections.defaultdict(list)
  for device in devices:
    slices[_slice_of(device)].append(device)
  parts = list(slices.values())
  if all(len(part) % (fsdp * tensor) == 0 for part in parts):
    try:  # An axis may be half of a physical one: 2 and 4 on 4x4 chips.
      return np.concatenate([
          mesh_utils.create_device_mesh(
              (len(part) // (fsdp * tensor), fsdp, tensor), part,
              allow_split_physical_axes=True) for part in parts])
    except AssertionError as error:
      raise errors.UserError(
          f'mesh.pools: {len(devices)} devices from {devices[0]} on are no '
          'rectangle of chips; give pools of equal size.') from error
  if devices[0].platform == 'tpu':
    raise errors.UserError(
        f'mesh.fsdp={fsdp} times mesh.tensor={tensor} does not divide the '
        f'devices of each slice, {", ".join(str(len(p)) for p in parts)}; '
        'choose a divisor, since only groups are split over slices.')
  # Nodes with GPUs, whose network is fast enough for parameters.
  return np.reshape(np.array(devices), shape)


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
