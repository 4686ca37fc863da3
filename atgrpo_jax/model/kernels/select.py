"""Which kernel computes the attention, and where.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools

import jax

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model.kernels import cudnn
from atgrpo_jax.model.kernels import ragged
from atgrpo_jax.model.kernels import splash

_KERNELS = (splash, cudnn)


def find(q: jax.Array, prefix_length: int) -> Callable[..., jax.Array] | None:
  """The kernel for queries [P, K, G, X, M, H], or None: `attention.attend`.

  Of prefill and learner. The devices are those of the mesh of `set_mesh`;
  without one there is none.
  """
  device = _device(q)
  for kernel in _KERNELS:
    if device is not None and kernel.fits(device, q, prefix_length):
      return functools.partial(
          _on_each_device, kernel.attend, (True,) * 4 + (False,))
  return None


def find_for_rows(
    q: jax.Array, room_sizes: Sequence[int]) -> Callable[..., jax.Array] | None:
  """The same for the query [N * R, K, 1, 1, M, H] of each row, over a cache."""
  device = _device(q)
  if device is None or not all(
      ragged.fits(device, q.shape[-1], size) for size in room_sizes):
    return None
  return functools.partial(
      _on_each_device, functools.partial(attention.attend_rooms, ragged.attend),
      (True, True, True, None, True, False, True, False, False))


def _device(q):
  """What the mesh is of; None where heads would be cut."""
  mesh = jax.sharding.get_abstract_mesh()
  device = mesh.abstract_device
  if device is None or q.shape[1] % mesh.shape['tensor']:
    return None  # The compiler pads heads that do not divide, a kernel cannot.
  return device


def _on_each_device(attend, have_heads, *args):
  """On each device the attention of its groups, or rows, and heads.

  `have_heads` says of each argument whether its second axis is that of heads;
  None, if its first is not that of groups either.
  """
  axes = mesh_lib.free_axes()
  # Axes of size 1, too: cuDNN's call is not for devices that share an array.
  if axes and jax.sharding.get_abstract_mesh().size > 1:
    of_rows = mesh_lib.free_spec(mesh_lib.ROWS)
    of_heads = mesh_lib.free_spec(mesh_lib.ROWS, 'tensor')
    attend = jax.shard_map(
        attend, in_specs=tuple(
            {True: of_heads, False: of_rows, None: mesh_lib.free_spec()}[has]
            for has in have_heads),
        out_specs=of_heads, axis_names=set(axes),
        check_vma=False)
  return attend(*args)
