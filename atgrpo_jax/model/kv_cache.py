"""Keys and values that are kept between calls of the model."""

from __future__ import annotations

from flax import struct
import jax
import jax.numpy as jnp

from atgrpo_jax import sharding
from atgrpo_jax.model import config as config_lib


@struct.dataclass
class Prefix:
  """What P groups share: the keys and values of their prompts.

  Head-major, so that the scores of one head are one matrix product; keys in
  columns and values in rows, as `attention` reads them. Stacked
  where layers are scanned; where they are unrolled, one array per layer, since
  there a part of a stack would be a copy.
  """

  keys: jax.Array | tuple[jax.Array, ...]  # [L, P, K, H, S]
  values: jax.Array | tuple[jax.Array, ...]  # [L, P, K, S, H]
  lengths: jax.Array  # [P] int32, positions that count


@struct.dataclass
class Cache:
  """What each of the G members of P groups has for itself while decoding.

  One array per layer: a stacked cache would be copied whole at every token.
  """

  keys: tuple[jax.Array, ...]  # L x [P, K, G, H, T]
  values: tuple[jax.Array, ...]  # L x [P, K, G, T, H]


@struct.dataclass
class Past:
  """Earlier tokens of the members, which are only read.

  Each group has as many as it has, so groups of different age are decoded
  together. What is decoded now goes into a short `Cache`, at one place for all
  groups, and is moved here once in a while.
  """

  cache: Cache
  lengths: jax.Array  # [P] int32, positions that count


@struct.dataclass
class Rows:
  """Which R of the P * G members are computed; the others have ended."""

  taken: jax.Array  # [R] int32, a place in the flat [P * G]
  place: jax.Array  # [P, G] int32, which of the R; any for who has ended


def init_cache(
    config: config_lib.ModelConfig, num_groups: int, group_size: int,
    length: int, dtype: jnp.dtype) -> Cache:
  """An empty cache for `length` tokens of each member."""
  def zeros(*shape):
    shape = num_groups, config.num_kv_heads, group_size, *shape
    return tuple(
        sharding.constrain(jnp.zeros(shape, dtype), sharding.ROWS, 'tensor')
        for _ in range(config.num_layers))

  return Cache(
      keys=zeros(config.head_width, length),
      values=zeros(length, config.head_width))
