"""Attention of prefill and learner on a TPU: jax's splash kernel.

The G candidates of a group form one sequence of G * X queries. Its keys are the
prefix, followed by each candidate. The mask of the candidates is block diagonal
with causal blocks. The kernel skips fully masked blocks and keeps scores in
VMEM.

If the prefix is not longer than the candidates, such as prompts after their
instructions, each candidate is a sequence with a copy of the prefix. The copy
costs less than tracing the mask of all pairs of blocks.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

import functools

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as kernel_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as mask_lib,
)
import jax.numpy as jnp
import numpy as np

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
  groups, heads, candidates, queries, per_head, width = q.shape
  if candidates > 1 and prefix is not None and prefix[1].shape[2] <= queries:
    def attend_candidate(*qkv):
      qkv = (x[:, :, None] for x in qkv)
      return attend(*qkv, prefix, prefix_mask, interpret)[:, :, 0]

    return jax.vmap(attend_candidate, in_axes=2, out_axes=2)(q, k, v)
  # One sequence of all candidates, query heads first.
  q = q.transpose(0, 1, 4, 2, 3, 5).reshape(
      groups, heads, per_head, -1, width)
  k = k.transpose(0, 1, 2, 4, 3).reshape(groups, heads, -1, width)
  v = v.reshape(groups, heads, -1, width)
  # A query sees the keys of its segment; padding of the prefix has another id.
  suffix_ids = jnp.ones((groups, candidates * queries), jnp.int32)
  ids = kernel_lib.SegmentIds(suffix_ids, suffix_ids)
  if prefix is not None:
    k = jnp.concatenate([prefix[0].swapaxes(-1, -2), k], axis=2)
    v = jnp.concatenate([prefix[1], v], axis=2)
    ids = kernel_lib.SegmentIds(suffix_ids, jnp.concatenate(
        [prefix_mask.astype(jnp.int32), suffix_ids], axis=1))
  kernel = _kernel(
      candidates, queries, k.shape[2] - suffix_ids.shape[1], per_head,
      interpret)
  mixed = jax.vmap(jax.vmap(kernel, in_axes=(0, 0, 0, None)))(q, k, v, ids)
  mixed = mixed.reshape(groups, heads, per_head, candidates, queries, width)
  return mixed.transpose(0, 1, 3, 4, 2, 5)


def _kernel(candidates, queries, prefix_length, per_head, interpret):
  mask = _Mask(candidates, queries, prefix_length)
  rows, columns = (
      _block(queries), np.gcd(_block(queries), _block(prefix_length)).item())
  blocks = kernel_lib.BlockSizes(
      block_q=rows, block_kv=columns, block_q_dkv=rows, block_kv_dkv=columns,
      block_q_dq=rows, block_kv_dq=columns,
      k_layout=kernel_lib.QKVLayout.SEQ_MINOR)
  return kernel_lib.make_splash_mqa_single_device(
      mask_lib.MultiHeadMask([mask] * per_head), block_sizes=blocks,
      interpret=interpret)


def _block(length):
  """The largest block that divides a length."""
  return np.gcd(length, _BLOCK).item()


class _Mask(mask_lib.Mask):
  """A prefix that all queries see, then a causal block per candidate."""

  def __init__(self, candidates: int, queries: int, prefix_length: int):
    self._sizes = candidates, queries, prefix_length

  @property
  def shape(self) -> tuple[int, int]:
    candidates, queries, prefix_length = self._sizes
    return candidates * queries, prefix_length + candidates * queries

  def __getitem__(self, index) -> np.ndarray:
    _, queries, prefix_length = self._sizes
    row, column = (
        np.arange(size)[at] for size, at in zip(self.shape, index))
    column -= prefix_length
    # Most of the many blocks are fully visible or fully masked.
    shape = len(row), len(column)
    if column[-1] < 0:
      return _all(True, shape)
    if column[0] >= 0:
      owners = {x // queries for x in (row[0], row[-1], column[0], column[-1])}
      if column[0] > row[-1] or column[-1] // queries < row[0] // queries:
        return _all(False, shape)
      if len(owners) == 1 and column[-1] <= row[0]:
        return _all(True, shape)
    row, column = row[:, None], column[None]
    causal = (column <= row) & (column // queries == row // queries)
    return (column < 0) | causal

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Mask) and self._sizes == other._sizes

  def __hash__(self) -> int:
    return hash(self._sizes)


@functools.lru_cache
def _all(value: bool, shape: tuple[int, int]) -> np.ndarray:
  return np.full(shape, value)
