"""Which kernel computes the attention of prefill and learner, and where.

Letters as in `atgrpo_jax.model.qwen3`.
"""

from __future__ import annotations

from collections.abc import Callable
import functools

import jax

from atgrpo_jax.model.kernels import cudnn
from atgrpo_jax.model.kernels import splash
from atgrpo_jax.runtime import sharding

_KERNELS = (splash, cudnn)


def find(q: jax.Array, prefix_length: int) -> Callable[..., jax.Array] | None:
  """The kernel for queries [P, K, G, X, M, H], or None: `attention.attend`.

  The devices are those of the mesh of `set_mesh`; without one there is none.
  """
  mesh = jax.sharding.get_abstract_mesh()
  device = mesh.abstract_device
  if device is None or q.shape[1] % mesh.shape['tensor']:
    return None  # The compiler pads heads that do not divide, a kernel cannot.
  for kernel in _KERNELS:
    if kernel.fits(device, q, prefix_length):
      return functools.partial(_on_each_device, kernel.attend)
  return None


def _on_each_device(attend, q, k, v, prefix, prefix_mask):
  """On each device the attention of its groups and heads."""
  if sharding.current_size() > 1:
    rows = sharding.free_spec(sharding.ROWS)
    heads = sharding.free_spec(sharding.ROWS, 'tensor')
    attend = jax.shard_map(
        attend, in_specs=(heads, heads, heads, heads, rows), out_specs=heads,
        axis_names=set(sharding.free_axes()), check_vma=False)
  return attend(q, k, v, prefix, prefix_mask)
