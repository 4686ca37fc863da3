"""Chooses the attention kernel for a device.

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
  """The kernel of prefill and learner for queries [P, K, G, X, M, H].

  None stands for `attention.attend`. The device comes from the mesh of
  `set_mesh`; without a mesh there is no kernel.
  """
  device = _device(q)
  for kernel in _KERNELS:
    if device is not None and kernel.fits(device, q, prefix_length):
      return functools.partial(
          _on_each_device, kernel.attend, (True,) * 4 + (False,))
  return None


def find_for_rows(
    q: jax.Array, capacities: Sequence[int]) -> Callable[..., jax.Array] | None:
  """The kernel of decoding for queries [N * R, K, 1, 1, M, H]."""
  device = _device(q)
  if device is None or not all(
      ragged.fits(device, q.shape[-1], size) for size in capacities):
    return None
  return functools.partial(
      _on_each_device,
      functools.partial(attention.attend_ragged, ragged.attend),
      (True, True, True, None, True, False, True, False, False))


def _device(q):
  """The device of the mesh; None if a head would be split."""
  mesh = jax.sharding.get_abstract_mesh()
  device = mesh.abstract_device
  if device is None or q.shape[1] % mesh.shape['tensor']:
    return None  # The compiler pads a fraction of a head; a kernel cannot.
  return device


def _on_each_device(attend, have_heads, *args):
  """Runs the kernel on the groups (or rows) and heads of each device.

  `have_heads` has an entry per argument: True if its axes start with groups and
  heads, False if with groups alone, None if with neither.
  """
  axes = mesh_lib.free_axes()
  # All axes, even of size 1: cuDNN's call cannot be partitioned.
  if axes and jax.sharding.get_abstract_mesh().size > 1:
    heads_spec = mesh_lib.free_spec(mesh_lib.ROWS, 'tensor')
    specs = {
        True: heads_spec, False: mesh_lib.free_spec(mesh_lib.ROWS),
        None: mesh_lib.free_spec()}
    attend = jax.shard_map(
        attend, in_specs=tuple(specs[has] for has in have_heads),
        out_specs=heads_spec, axis_names=set(axes),
        check_vma=False)
  return attend(*args)
