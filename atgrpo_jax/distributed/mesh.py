"""Meshes and shardings.

A mesh has three axes:

  data    splits the groups; parameters are replicated over it
  fsdp    splits the groups and the parameters
  tensor  splits heads, hidden units and vocabulary

`mesh.fsdp` and `mesh.tensor` set their sizes; 0 leaves them to `fit.py`. Models
follow `param_rules`, and adapters `ADAPTER_RULES`; see also
`learner/policy.py`. Optimizer states are sharded like their parameters.

Each policy runs on the mesh of its pool, a subset of the devices. The network
between TPU slices or GPU nodes is slower than the one within them, so `data` is
split over slices or nodes first.

Computations on groups run in `per_shard`, where a shard sees only its groups.
`sum_over_data` adds the shards in the only collective over `data`: XLA's CPU
backend may start independent ones in another order on each device, which then
wait forever.
"""

from collections.abc import Callable, Sequence
import itertools
import math
import re
from typing import Any

import jax
from jax import flatten_util
from jax.experimental import mesh_utils
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from atgrpo_jax import errors

AXES = ('data', 'fsdp', 'tensor')
ROWS = ('data', 'fsdp')  # The axes that shard the groups of a batch.

# (pattern of leaf names, sharding). A layer's kernel is [L, in, out].
Rules = Sequence[tuple[str, PartitionSpec]]

_PARAM_RULES = (
    (r'embedding', PartitionSpec('tensor', 'fsdp')),
    (r'layers/attention/[qkv]/kernel', PartitionSpec(None, 'fsdp', 'tensor')),
    (r'layers/attention/o/kernel', PartitionSpec(None, 'tensor', 'fsdp')),
    (r'layers/(gate|up)/kernel', PartitionSpec(None, 'fsdp', 'tensor')),
    (r'layers/down/kernel', PartitionSpec(None, 'tensor', 'fsdp')),
    (r'(layers/.*)?norm/scale|layers/.*/bias', PartitionSpec()),
)
# An adapter is small, so only fsdp splits it: `a` [A, L, in, R] and `b`
# [A, L, R, out].
ADAPTER_RULES = (
    (r'.*/a', PartitionSpec(None, None, 'fsdp')),
    (r'.*/b', PartitionSpec(None, None, None, 'fsdp')),
)

_num_dispatched = itertools.count()  # See `throttle_cpu_dispatch`.


def param_rules(tied_head: bool) -> Rules:
  """Sharding rules of model parameters."""
  head = () if tied_head else ((r'head', PartitionSpec('fsdp', 'tensor')),)
  return _PARAM_RULES + head


def decoding_rules(tied_head: bool) -> Rules:
  """`param_rules` without `fsdp`, so that no parameters move in decoding."""
  return [
      (rule, PartitionSpec(*(
          None if axis == 'fsdp' else axis for axis in spec)))
      for rule, spec in param_rules(tied_head)]


def make_meshes(
    policies: Sequence[str], devices: Sequence[jax.Device], *, fsdp: int = 1,
    tensor: int = 1, pools: Sequence[tuple[str, int, int]] = (),
) -> dict[str, Mesh]:
  """Policy -> mesh; policies of one pool share a mesh.

  Args:
    policies: names of all policies.
    devices: all devices.
    fsdp, tensor: sizes of these axes in each pool; `data` takes the rest.
    pools: (policy, first device, end) of each policy, counted slice by slice,
      such as (('tool', 0, 4), ('planner', 4, 8)). () gives every policy all
      devices.
  """
  for name, size in (('fsdp', fsdp), ('tensor', tensor)):
    errors.check_number(f'mesh.{name}', size, min_value=1)
  devices_of, meshes = split_devices(policies, devices, pools), {}
  for policy, pool in devices_of.items():
    if pool in meshes:
      continue
    if len(pool) % (fsdp * tensor):
      raise errors.UserError(
          f'mesh.fsdp={fsdp} times mesh.tensor={tensor} does not divide the '
          f'{len(pool)} devices of policy {policy!r}; choose a divisor.')
    meshes[pool] = Mesh(
        _arrange(pool, fsdp, tensor), AXES,
        axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))
  return {policy: meshes[pool] for policy, pool in devices_of.items()}


def split_devices(
    policies: Sequence[str], devices: Sequence[jax.Device],
    pools: Sequence[tuple[str, int, int]],
) -> dict[str, tuple[jax.Device, ...]]:
  """Policy -> the devices of its pool, slice by slice; see `make_meshes`."""
  devices = sorted(devices, key=_slice_of)
  pools = pools or [(policy, 0, len(devices)) for policy in policies]
  is_valid = all(
      isinstance(pool, tuple) and [*map(type, pool)] == [str, int, int]
      and 0 <= pool[1] < pool[2] <= len(devices) for pool in pools)
  is_valid = is_valid and sorted(
      name for name, _, _ in pools) == sorted(policies)
  if not is_valid or any(
      first[1:] != second[1:] and first[1] < second[2] and second[1] < first[2]
      for first, second in itertools.combinations(pools, 2)):
    raise errors.UserError(
        f'mesh.pools={pools!r}: expected (policy, first device, end) of every '
        f'policy once, with equal or disjoint ranges of the {len(devices)} '
        f'devices, such as ({policies[0]!r}, 0, {len(devices)}).')
  return {name: tuple(devices[start:end]) for name, start, end in pools}


def num_slices(devices: Sequence[jax.Device]) -> int:
  """Number of TPU slices or GPU nodes that devices belong to."""
  return len({_slice_of(device) for device in devices})


def num_data_shards(mesh: Mesh) -> int:
  """Number of shards that a mesh splits the groups into."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


def tree_shardings(tree: Any, mesh: Mesh, rules: Rules) -> Any:
  """The sharding of each leaf of `tree` (arrays or their shapes).

  Rules match the end of a leaf's path, such as layers/gate/kernel, so they also
  apply to optimizer moments. Scalars are replicated.

  Raises ValueError unless every leaf but scalars matches exactly one rule and
  every rule a leaf, and UserError for an axis that the mesh does not divide.
  """
  specs, used = _specs(tree, rules)
  unused = [rule for rule, _ in rules if rule not in used]
  if unused:
    raise ValueError(f'These sharding rules match no leaf: {unused}.')

  def sharding(path, leaf, spec):
    for size, axis in zip(leaf.shape, spec):
      if axis is not None and size % mesh.shape[axis]:
        raise errors.UserError(
            f'mesh.{axis}={mesh.shape[axis]} does not divide the axis of size '
            f'{size} of {_name(path)} {leaf.shape}; choose a divisor.')
    return NamedSharding(mesh, spec)

  return jax.tree_util.tree_map_with_path(sharding, tree, specs)


def tree_template(
    shapes: Any, mesh: Mesh, rules: Rules, dtype: Any = None) -> Any:
  """Shapes with the shardings of `tree_shardings`, optionally cast."""
  return jax.tree.map(
      lambda x, sharding: jax.ShapeDtypeStruct(
          x.shape, dtype or x.dtype, sharding=sharding),
      shapes, tree_shardings(shapes, mesh, rules))


def constrain_tree(tree: Any, rules: Rules) -> Any:
  """Constrains a traced tree to the shardings of `tree_shardings`."""
  if current_size() == 1:
    return tree
  return jax.tree.map(
      lambda x, spec: constrain(x, *spec), tree, _specs(tree, rules)[0])


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
  """Constrains the axes of a traced array to axes of the current mesh.

  Within `per_shard`, its axes are ignored.
  """
  if current_size() == 1:
    return x
  return jax.lax.with_sharding_constraint(x, free_spec(*axes))


def free_spec(*axes: str | tuple[str, ...] | None) -> PartitionSpec:
  """A `PartitionSpec` without the axes of a surrounding `per_shard`."""
  free = free_axes()

  def keep(axis):
    names = (axis,) if isinstance(axis, str) else axis or ()
    return tuple(name for name in names if name in free) or None

  return PartitionSpec(*map(keep, axes))


def per_shard(
    function: Callable[[Any, Any], Any],
    axes: Sequence[str] = ROWS) -> Callable[[Any, Any], Any]:
  """Runs `function(whole, split)` on each shard of `axes`.

  `whole` is replicated; `split` and the result are sharded on their first axis.
  No shard waits for another. The gradient of `whole` is summed once.
  """
  sizes = free_axes()
  axes = tuple(axis for axis in axes if sizes.get(axis, 1) > 1)
  if not axes:
    return function
  return jax.shard_map(
      function, in_specs=(PartitionSpec(), PartitionSpec(axes)),
      out_specs=PartitionSpec(axes), axis_names=set(axes), check_vma=False)


def zeros_over_data(tree: Any, rules: Rules) -> Any:
  """Zeros like `tree`, with a leading axis for the shards of `data`.

  `rules` shard the other axes. `sum_over_data` adds the shards.
  """
  num_shards = free_axes().get('data', 1)
  return jax.tree.map(
      lambda x, spec: constrain(
          jnp.zeros((num_shards, *x.shape), x.dtype), *spec),
      tree, data_specs(tree, rules))


def sum_over_data(tree: Any, rules: Rules) -> Any:
  """Sums over the leading axis of `zeros_over_data`, in one collective.

  All leaves are float32.
  """
  def first(tree):
    return jax.tree.map(lambda x: x[0], tree)

  def add(tree):
    flat, unravel = flatten_util.ravel_pytree(first(tree))
    return unravel(jax.lax.psum(flat, 'data'))

  if free_axes().get('data', 1) == 1:
    return first(tree)
  shapes = jax.eval_shape(first, tree)
  return jax.shard_map(
      add, in_specs=(data_specs(shapes, rules),),
      out_specs=_specs(shapes, rules)[0], check_vma=False)(tree)


def data_specs(tree: Any, rules: Rules) -> Any:
  """The spec of each leaf of `zeros_over_data(tree, rules)`."""
  return jax.tree.map(
      lambda spec: PartitionSpec('data', *spec), _specs(tree, rules)[0],
      is_leaf=lambda x: isinstance(x, PartitionSpec))


def put_rows(tree: Any, mesh: Mesh) -> Any:
  """Shards the first axis of numpy arrays that are equal in all processes."""
  sharding = NamedSharding(mesh, PartitionSpec(ROWS))
  return jax.tree.map(
      lambda x: jax.make_array_from_callback(
          x.shape, sharding, x.__getitem__, dtype=x.dtype), tree)


def throttle_cpu_dispatch(result: Any, mesh: Mesh) -> Any:
  """Returns `result`; on a CPU, every eighth call waits for it.

  This avoids a deadlock. XLA's CPU client has one pool with a thread per
  device, and a launch blocks while 32 programs of its device are pending. If
  one of them is in a collective, the launch holds the thread that another
  device needs to join it.
  """
  if (mesh.devices.flat[0].platform == 'cpu'
      and next(_num_dispatched) % 8 == 7):
    jax.block_until_ready(result)
  return result


def gather_per_shard(x: jax.Array, at: jax.Array) -> jax.Array:
  """Gathers rows `at` [N, B] of each of N shards.

  [N * A, ...] -> [N * B, ...]. Indices beyond the last row give any row.
  """
  taken = jax.vmap(lambda x, at: x.at[at].get(mode='clip'))(
      x.reshape(len(at), -1, *x.shape[1:]), at)
  return taken.reshape(-1, *x.shape[1:])


def scatter_per_shard(x: jax.Array, at: jax.Array, y: jax.Array) -> jax.Array:
  """Sets rows `at` [N, B] of each of N shards.

  `x` is [N * A, ...] and `y` [N * B, ...]. Indices beyond the last row are
  ignored.
  """
  return jax.vmap(lambda x, at, y: x.at[at].set(y, mode='drop'))(
      x.reshape(len(at), -1, *x.shape[1:]), at,
      y.reshape(*at.shape, *y.shape[1:])).reshape(x.shape)


def _specs(tree, rules):
  """The spec of each leaf, and the set of used rules."""
  used = set()

  def spec(path, leaf):
    if not leaf.ndim:
      return PartitionSpec()
    name = _name(path)
    matches = [
        (rule, spec) for rule, spec in rules
        if re.fullmatch(f'(.*/)?(?:{rule})', name)]
    if len(matches) != 1:
      raise ValueError(
          f'{name} matches {len(matches)} sharding rules, expected one: '
          f'{[rule for rule, _ in matches]}.')
    used.add(matches[0][0])
    return matches[0][1]

  return jax.tree_util.tree_map_with_path(spec, tree), used


def _name(path) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')


def current_size() -> int:
  """Number of devices of the current mesh or shard; 1 without a mesh."""
  return math.prod(free_axes().values())


def platform() -> str:
  """Platform of the current mesh, or of jax without a mesh."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return device.platform if device else jax.default_backend()


def free_axes() -> dict[str, int]:
  """Axes of the current mesh, without those of a `per_shard`."""
  mesh = jax.sharding.get_abstract_mesh()
  return {
      name: mesh.shape[name]
      for name, kind in zip(mesh.axis_names, mesh.axis_types)
      if kind == jax.sharding.AxisType.Auto}


def _slice_of(device):
  # Devices of a single slice may lack the attribute.
  return getattr(device, 'slice_index', 0)


def _arrange(devices, fsdp, tensor):
  """Devices, ordered by slice, as an array [data, fsdp, tensor]."""
  slices = [
      list(each) for _, each in itertools.groupby(devices, _slice_of)]
  if all(len(each) % (fsdp * tensor) == 0 for each in slices):
    try:
      # Splitting a physical axis allows 2 and 4 on 4x4 chips.
      return np.concatenate([
          mesh_utils.create_device_mesh(
              (len(each) // (fsdp * tensor), fsdp, tensor), each,
              allow_split_physical_axes=True) for each in slices])
    except AssertionError as error:  # jax asserts that there is no gap.
      raise errors.UserError(
          f'mesh.pools: a pool has {", ".join(str(len(x)) for x in slices)} '
          'chips of a TPU slice that form no rectangle or cuboid; choose '
          'other ranges of devices.') from error
  if devices[0].platform == 'tpu':
    raise errors.UserError(
        f'mesh.fsdp={fsdp} times mesh.tensor={tensor} does not divide the '
        f'devices of each slice, {", ".join(str(len(x)) for x in slices)}; '
        'choose a divisor, because slices share no parameters.')
  # The network between GPU nodes is fast enough to shard parameters.
  return np.array(devices).reshape(-1, fsdp, tensor)
