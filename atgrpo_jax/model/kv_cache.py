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
  columns and values in rows, as `attention` reads them. Stacked where layers
  are scanned; where they are unrolled, one array per layer, since there a part
  of a stack would be a copy.
  """

  keys: jax.Array | tuple[jax.Array, ...]  # [L, P, K, H, S]
  values: jax.Array | tuple[jax.Array, ...]  # [L, P, K, S, H]
  lengths: jax.Array  # [P] int32, positions that count


@struct.dataclass
class Cache:
  """What members have for themselves while decoding, in a row each.

  One array per layer: a stacked cache would be copied whole at every token.
  """

  keys: tuple[jax.Array, ...]  # L x [N * R, K, H, T]
  values: tuple[jax.Array, ...]  # L x [N * R, K, T, H]


@struct.dataclass
class Past:
  """Earlier tokens of the members, which are only read.

  Each has as many as it has, so members of different age are decoded together.
  What is decoded now goes into a short `Cache`, at one place for all, and is
  moved here once in a while.
  """

  cache: Cache
  lengths: jax.Array  # [N * R] int32, positions that count


@struct.dataclass
class Rows:
  """Which member of P groups each row is; who has none has ended.

  Each of the N parts of a mesh has R rows, for members of its own groups.
  """

  group_size: int = struct.field(pytree_node=False)
  # Places in the flat [P / N * G] of a part, and rows of it. None where the
  # rows are all members in their order.
  taken: jax.Array | None  # [N, R] int32, of the row's member
  place: jax.Array | None  # [N, P / N * G] int32, any for who has ended

  @classmethod
  def of(
      cls, taken: jax.Array | None, num_groups: int, group_size: int) -> Rows:
    """`taken` as above; a free row has that of any member that has ended."""
    if taken is None:
      return cls(group_size, None, None)
    num_parts, num_rows = taken.shape
    place = sharding.put_in_parts(
        jnp.zeros(num_groups * group_size, jnp.int32), taken,
        jnp.tile(jnp.arange(num_rows), num_parts))
    return cls(group_size, taken, place.reshape(num_parts, -1))

  def take(self, x: jax.Array) -> jax.Array:
    """[P * G, ...] -> [N * R, ...]"""
    return x if self.taken is None else sharding.take_in_parts(x, self.taken)

  def spread(self, y: jax.Array) -> jax.Array:
    """[N * R, ...] -> [P * G, ...]; any for who has ended."""
    return y if self.place is None else sharding.take_in_parts(y, self.place)

  def take_groups(self, x: jax.Array) -> jax.Array:
    """[P] -> [N * R], of each member's group."""
    return self.take(jnp.repeat(x, self.group_size))

  def take_heads(self, x: jax.Array) -> jax.Array:
    """[P, K, G, ...] -> [N * R, K, ...]"""
    x = jnp.moveaxis(x, 2, 1)
    return self.take(x.reshape(-1, *x.shape[2:]))

  def spread_heads(self, y: jax.Array) -> jax.Array:
    """[N * R, K, ...] -> [P, K, G, ...]; any for who has ended."""
    y = self.spread(y)
    return jnp.moveaxis(y.reshape(-1, self.group_size, *y.shape[1:]), 1, 2)


def init_cache(
    config: config_lib.ModelConfig, num_rows: int, length: int,
    dtype: jnp.dtype) -> Cache:
  """An empty cache for `length` tokens in each row."""
  def zeros(*shape):
    shape = num_rows, config.num_kv_heads, *shape
    return tuple(
        sharding.constrain(jnp.zeros(shape, dtype), sharding.ROWS, 'tensor')
        for _ in range(config.num_layers))

  return Cache(
      keys=zeros(config.head_width, length),
      values=zeros(length, config.head_width))
