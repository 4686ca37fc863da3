"""The attention of decoding on a TPU: it reads the positions that count.

Rows have rooms of one size for keys and values, and most of a room is empty: a
prompt of 900 tokens stands in a bucket of 8192. The kernel has a step for each
block of a room up to the room's length and none for the others: their number is
known when it runs, and a step that does nothing would take as long as the read
that it saves.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

import functools

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np

from atgrpo_jax.model import kv_cache

BLOCK = 256  # Positions that are read at once.

_LANES = 128  # Of a TPU's registers.
_SUBLANES = 16  # Rows of a register of bfloat16.
_MASKED = -1e30


def fits(
    device: jax.sharding.AbstractDevice, width: int,
    num_positions: int) -> bool:
  """Whether `attend` can take rooms [B, K, H, S] on such a device."""
  return device.platform == 'tpu' and not width % _LANES and (
      num_positions < _LANES or not num_positions % _LANES)


def block_size(num_positions: int) -> int:
  """The positions of a room that are read at once."""
  return np.gcd(num_positions, BLOCK).item()


def attend(q, k, v, lengths, interpret: bool = False):
  """What queries mix of the first positions of a room, not yet divided.

  Args:
    q: [B, K, Q, H] scaled queries.
    k: [B, K, H, S] keys; perhaps `kv_cache.Quantized`, as the values are then.
    v: [B, K, S, H] values.
    lengths: [B] int32, positions that count.
    interpret: whether to run without a TPU, for tests.

  Returns:
    mixed: [B, K, Q, H] float32, the sum of exp(score - top) times the value.
    top: [B, K, Q, 1] float32, the largest score; -1e30 without a position.
    total: [B, K, Q, 1] float32, the sum of exp(score - top).
  """
  rooms, heads, num_queries, width = q.shape
  pad = -num_queries % _SUBLANES
  q = jnp.pad(q, ((0, 0), (0, 0), (0, pad), (0, 0)))
  block = block_size(k.shape[-1])
  num_blocks = -(-lengths // block)
  ends = jnp.cumsum(num_blocks)
  most = rooms * (k.shape[-1] // block)
  # Of each step the room, and the block in it.
  room = jnp.repeat(jnp.arange(rooms), num_blocks, total_repeat_length=most)
  at = jnp.arange(most) - (ends - num_blocks)[room]

  def query_at(step, lengths, room, at):
    return room[step], 0, 0, 0

  def keys_at(step, lengths, room, at):
    return room[step], 0, 0, at[step]

  def values_at(step, lengths, room, at):
    return room[step], 0, at[step], 0

  def scales_at(step, lengths, room, at):
    return room[step], 0, at[step]

  of_queries = pl.BlockSpec((1, heads, num_queries + pad, width), query_at)
  of_lanes = pl.BlockSpec((1, heads, num_queries + pad, _LANES), query_at)
  lanes = jax.ShapeDtypeStruct((*q.shape[:-1], _LANES), jnp.float32)
  of_rooms = [
      pl.BlockSpec((1, heads, width, block), keys_at),
      pl.BlockSpec((1, heads, block, width), values_at)]
  if isinstance(k, kv_cache.Quantized):
    of_rooms += [pl.BlockSpec((1, heads, block), scales_at)] * 2
    rooms_read = k.codes, v.codes, k.scales, v.scales
  else:
    rooms_read = k, v
  found = pl.pallas_call(
      functools.partial(_attend_block, block),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=3, grid=(jnp.maximum(ends[-1], 1),),
          in_specs=[of_queries, *of_rooms],
          out_specs=[of_queries, of_lanes, of_lanes]),
      out_shape=[jax.ShapeDtypeStruct(q.shape, jnp.float32), lanes, lanes],
      interpret=interpret, name='ragged_attention',
  )(lengths, room, at, q, *rooms_read)
  # Nothing is written of a room without a position.
  return tuple(
      jnp.where(lengths[:, None, None, None] > 0, x[:, :, :num_queries], empty)
      for x, empty in zip(
          (found[0], found[1][..., :1], found[2][..., :1]),
          (0.0, _MASKED, 0.0)))


def _attend_block(block, lengths, room, at, q, k, v, *rest):
  """One block of a room; the results gather what the blocks before it gave."""
  *scales, mixed, top, total = rest
  step = pl.program_id(0)
  length, start = lengths[room[step]], at[step] * block

  @pl.when(start == 0)
  def _():
    mixed[...] = jnp.zeros_like(mixed)
    top[...] = jnp.full_like(top, _MASKED)
    total[...] = jnp.zeros_like(total)

  for head in range(q.shape[1]):
    scores = jnp.dot(
        q[0, head], k[0, head].astype(q.dtype),
        preferred_element_type=jnp.float32)
    if scales:
      scores *= scales[0][0, head:head + 1]
    positions = start + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    scores = jnp.where(positions < length, scores, _MASKED)
    before = top[0, head][:, :1]
    now = jnp.maximum(before, jnp.max(scores, axis=-1, keepdims=True))
    shrink, weights = jnp.exp(before - now), jnp.exp(scores - now)
    total[0, head] = total[0, head] * shrink + jnp.sum(
        weights, axis=-1, keepdims=True)
    if scales:
      weights *= scales[1][0, head:head + 1]
    mixed[0, head] = mixed[0, head] * shrink + jnp.dot(
        weights.astype(q.dtype), v[0, head].astype(q.dtype),
        preferred_element_type=jnp.float32)
    top[0, head] = jnp.broadcast_to(now, top.shape[2:])
