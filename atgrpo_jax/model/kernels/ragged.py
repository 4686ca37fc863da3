"""Attention of decoding on a TPU that skips the padding of a cache.

All rows of a cache have the same capacity, and most of it is padding: a prompt
of 900 tokens is stored in a bucket of 8192. The grid of the kernel has one step
for each block with keys. The number of steps is known at run time; a step that
only skips a block would take as long as reading it.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

import functools
import math

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

_BLOCK = 256  # Positions read in one step.
_LANES = 128  # Width of a TPU register.
_SUBLANES = 16  # Rows of a bfloat16 register.
_MASKED = -1e30


def fits(
    device: jax.sharding.AbstractDevice, width: int,
    num_positions: int) -> bool:
  """Whether `attend` supports keys [B, K, H, S] on this device."""
  return device.platform == 'tpu' and not width % _LANES and (
      num_positions < _LANES or not num_positions % _LANES)


def attend(q, k, v, lengths, interpret: bool = False):
  """Unnormalised attention over the first `lengths` positions.

  Args:
    q: [B, K, Q, H] scaled queries.
    k: [B, K, H, S] keys.
    v: [B, K, S, H] values.
    lengths: [B] int32, number of unmasked positions.
    interpret: run without a TPU, for tests.

  Returns:
    mixed: [B, K, Q, H] float32, the sum of exp(score - top) * value.
    top: [B, K, Q, 1] float32, the largest score; -1e30 if all are masked.
    total: [B, K, Q, 1] float32, the sum of exp(score - top).
  """
  num_rows, heads, num_queries, width = q.shape
  pad = -num_queries % _SUBLANES
  q = jnp.pad(q, ((0, 0), (0, 0), (0, pad), (0, 0)))
  block = math.gcd(k.shape[-1], _BLOCK)
  num_blocks = -(-lengths // block)
  ends = jnp.cumsum(num_blocks)
  max_steps = num_rows * (k.shape[-1] // block)
  # The row of each step, and the block of this row.
  row = jnp.repeat(
      jnp.arange(num_rows), num_blocks, total_repeat_length=max_steps)
  index = jnp.arange(max_steps) - (ends - num_blocks)[row]

  def query_block(step, lengths, row, index):
    return row[step], 0, 0, 0

  def key_block(step, lengths, row, index):
    return row[step], 0, 0, index[step]

  def value_block(step, lengths, row, index):
    return row[step], 0, index[step], 0

  query_spec = pl.BlockSpec((1, heads, num_queries + pad, width), query_block)
  lanes_spec = pl.BlockSpec((1, heads, num_queries + pad, _LANES), query_block)
  lanes = jax.ShapeDtypeStruct((*q.shape[:-1], _LANES), jnp.float32)
  mixed, top, total = pl.pallas_call(
      functools.partial(_attend_block, block),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=3, grid=(jnp.maximum(ends[-1], 1),),
          in_specs=[
              query_spec, pl.BlockSpec((1, heads, width, block), key_block),
              pl.BlockSpec((1, heads, block, width), value_block)],
          out_specs=[query_spec, lanes_spec, lanes_spec]),
      out_shape=[jax.ShapeDtypeStruct(q.shape, jnp.float32), lanes, lanes],
      interpret=interpret, name='ragged_attention',
  )(lengths, row, index, q, k, v)
  # The kernel writes nothing for rows without keys.
  return tuple(
      jnp.where(lengths[:, None, None, None] > 0, x[:, :, :num_queries], empty)
      for x, empty in zip(
          (mixed, top[..., :1], total[..., :1]), (0.0, _MASKED, 0.0)))


def _attend_block(
    block, lengths, row, index, q, k, v, mixed, top, total):
  """Adds one block of a row to its results."""
  step = pl.program_id(0)
  length, start = lengths[row[step]], index[step] * block

  @pl.when(start == 0)
  def _():
    mixed[...] = jnp.zeros_like(mixed)
    top[...] = jnp.full_like(top, _MASKED)
    total[...] = jnp.zeros_like(total)

  for head in range(q.shape[1]):
    scores = jnp.dot(
        q[0, head], k[0, head], preferred_element_type=jnp.float32)
    positions = start + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    scores = jnp.where(positions < length, scores, _MASKED)
    old_top = top[0, head][:, :1]
    new_top = jnp.maximum(
        old_top, jnp.max(scores, axis=-1, keepdims=True))
    shrink, weights = jnp.exp(old_top - new_top), jnp.exp(scores - new_top)
    total[0, head] = total[0, head] * shrink + jnp.sum(
        weights, axis=-1, keepdims=True)
    mixed[0, head] = mixed[0, head] * shrink + jnp.dot(
        weights.astype(q.dtype), v[0, head],
        preferred_element_type=jnp.float32)
    top[0, head] = jnp.broadcast_to(new_top, top.shape[2:])
