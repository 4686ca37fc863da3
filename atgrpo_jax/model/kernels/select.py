"""Chooses the attention kernel for a device, and runs it on each one.

TPUs use jax's splash kernel in prefill and learner, and `ragged` in decoding.
NVIDIA GPUs use cuDNN for sequences without a prefix. With a prefix, jax offers
two ways. One adds the results of two calls, whose log-sums jax rounds and whose
gradient cuDNN drops. The other passes a mask, which jax turns into a bias as
large as the scores of a head.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as kernel_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as mask_lib,
)
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model.kernels import ragged

_LANES = 128  # On TPUs, lengths and head widths must be multiples.
_BLOCK = 512  # Queries or keys of a block of the splash kernel.


def find(q: jax.Array, prefix_length: int) -> Callable[..., jax.Array] | None:
  """The kernel of prefill and learner for queries [P, K, G, X, M, H].

  None stands for `attention.attend`. The device comes from the mesh of
  `set_mesh`; without a mesh there is no kernel.
  """
  device = _device(q)
  if device is None:
    return None
  *_, queries, _, width = q.shape
  if device.platform == 'tpu' and not any(
      size % _LANES for size in (queries, width, prefix_length)):
    attend = attend_with_splash
  elif _fits_cudnn(device, q, prefix_length):
    attend = attend_with_cudnn
  else:
    return None
  return functools.partial(
      _on_each_device, attend, (True, True, True, True, False))


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


def _fits_cudnn(device, q, prefix_length):
  """Whether cuDNN supports these queries; it needs Ampere or newer."""
  width = q.shape[-1]
  return (
      device.device_kind.startswith('NVIDIA') and not prefix_length
      and q.dtype in (jnp.bfloat16, jnp.float16)
      and width <= 128 and not width % 8)


def attend_with_splash(
    q, k, v, prefix, prefix_mask, interpret: bool = False):
  """`attention.attend` for causal suffixes without a past.

  Each candidate is a sequence of queries whose keys are a copy of the prefix,
  followed by its suffix. The kernel skips fully masked blocks and keeps scores
  in VMEM. `interpret` runs it without a TPU, for tests.
  """
  groups, _, candidates, queries, per_head, _ = q.shape
  q, k = q.swapaxes(3, 4), k.swapaxes(3, 4)
  # A query sees the keys of its segment; padding of the prefix has another id.
  query_ids = key_ids = jnp.ones((groups, queries), jnp.int32)
  prefix_length = 0
  if prefix is not None:
    prefix_length = prefix_mask.shape[1]
    key_ids = jnp.concatenate(
        [prefix_mask.astype(jnp.int32), query_ids], axis=1)
    k, v = (
        jnp.concatenate(
            [jnp.repeat(shared[:, :, None], candidates, axis=2), private],
            axis=3)
        for shared, private in (
            (prefix[0].swapaxes(2, 3), k), (prefix[1], v)))
  kernel = _splash_kernel(queries, prefix_length, per_head, interpret)
  for in_axes in ((0, 0, 0, None), (0, 0, 0, None), 0):
    kernel = jax.vmap(kernel, in_axes)  # Candidates, heads, groups.
  ids = kernel_lib.SegmentIds(query_ids, key_ids)
  return kernel(q, k, v, ids).swapaxes(3, 4)


def _splash_kernel(queries, prefix_length, per_head, interpret):
  """Attention of the M query heads of one key head."""
  mask = mask_lib.CausalMask(
      (queries, prefix_length + queries), offset=prefix_length)
  rows = math.gcd(queries, _BLOCK)
  columns = math.gcd(rows, prefix_length)
  blocks = kernel_lib.BlockSizes(
      block_q=rows, block_kv=columns, block_q_dkv=rows, block_kv_dkv=columns,
      block_q_dq=rows, block_kv_dq=columns,
      k_layout=kernel_lib.QKVLayout.SEQ_MINOR)
  return kernel_lib.make_splash_mqa_single_device(
      mask_lib.MultiHeadMask([mask] * per_head), block_sizes=blocks,
      interpret=interpret)


def attend_with_cudnn(
    q, k, v, prefix, prefix_mask, implementation: str = 'cudnn'):
  """`attention.attend` for causal suffixes without prefix or past.

  Tests replace cuDNN by the `implementation` 'xla' of jax.
  """
  del prefix, prefix_mask
  groups, heads, candidates, queries, per_head, width = q.shape
  rows = groups * candidates
  # The M queries of a key head are adjacent.
  q = q.transpose(0, 2, 3, 1, 4, 5).reshape(
      rows, queries, heads * per_head, width)
  k = k.transpose(0, 2, 4, 1, 3).reshape(rows, queries, heads, width)
  v = v.transpose(0, 2, 3, 1, 4).reshape(rows, queries, heads, width)
  mixed = jax.nn.dot_product_attention(
      q, k, v, is_causal=True, scale=1.0, implementation=implementation)
  mixed = mixed.reshape(groups, candidates, queries, heads, per_head, width)
  return mixed.transpose(0, 3, 1, 2, 4, 5)


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
