"""Attention of prefill and learner on a TPU: jax's splash kernel.

Each candidate is a sequence of queries whose keys are a copy of the prefix,
followed by its suffix. The kernel skips fully masked blocks and keeps scores in
VMEM.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

import math

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as kernel_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as mask_lib,
)
import jax.numpy as jnp

_LANES = 128  # Lengths and head widths must be multiples.
_BLOCK = 512  # Queries or keys of a block.


def fits(
    device: jax.sharding.AbstractDevice, q: jax.Array,
    prefix_length: int) -> bool:
  """Whether `attend` supports queries [P, K, G, X, M, H] on this device."""
  *_, queries, _, width = q.shape
  return device.platform == 'tpu' and not any(
      size % _LANES for size in (queries, width, prefix_length))


def attend(q, k, v, prefix, prefix_mask, interpret: bool = False):
  """`attention.attend` for causal suffixes without a past.

  Args:
    q: [P, K, G, X, M, H] scaled queries.
    k: [P, K, G, H, X] suffix keys.
    v: [P, K, G, X, H] suffix values.
    prefix: keys [P, K, H, S] and values [P, K, S, H], or None.
    prefix_mask: [P, S] bool, or None without a prefix.
    interpret: run without a TPU, for tests.

  Returns:
    [P, K, G, X, M, H]
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
  kernel = _kernel(queries, prefix_length, per_head, interpret)
  for in_axes in ((0, 0, 0, None), (0, 0, 0, None), 0):
    kernel = jax.vmap(kernel, in_axes)  # Candidates, heads, groups.
  ids = kernel_lib.SegmentIds(query_ids, key_ids)
  return kernel(q, k, v, ids).swapaxes(3, 4)


def _kernel(queries, prefix_length, per_head, interpret):
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
