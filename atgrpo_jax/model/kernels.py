"""Which kernel computes the attention of prefill and learner, and where.

Letters as in `atgrpo_jax.model.qwen3`.
"""

from __future__ import annotations

from collections.abc import Callable
import functools

import jax

from atgrpo_jax import sharding
from atgrpo_jax.model import cudnn
from atgrpo_jax.model import splash

_KERNELS = (splash, cudnn)


def find(q: jax.Array, prefix_length: int) -> Callable[..., jax.Array] | None:
  """The kernel for queries [P, K, G, X, M, H], or None: `attention.attend`.

  The devices are those of the mesh of `set_mesh`; without one there is none.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  for kernel in _KERNELS:
    if device is not None and kernel.fits(device, q, prefix_length):
      return functools.partial(_on_each_device, kernel.attend)
  return None


def _on_each_device(attend, q, k, v, prefix, prefix_mask):
  """A kernel is not split by the compiler: each device has its own."""
  if sharding.current_size() > 1:
    rows = jax.sharding.PartitionSpec(sharding.ROWS)
    heads = jax.sharding.PartitionSpec(sharding.ROWS, 'tensor')
    attend = jax.shard_map(
        attend, in_specs=(heads, heads, heads, heads, rows), out_specs=heads,
        check_vma=False)
  return attend(q, k, v, prefix, prefix_mask)
