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
  """Which members are computed; the others have ended.

  Each of the N parts of a mesh computes R members of its own groups.
  """

  taken: jax.Array  # [N, R] int32, a place in the flat [P / N * G] of the part
  place: jax.Array  # [N, P / N, G] int32, which of R; any for who has ended

  @classmethod
  def of(cls, taken: jax.Array, num_groups: int, group_size: int) -> Rows:
    """Rows that only fill the shape have a place beyond the last."""
    num_parts, num_rows = taken.shape
    place = _put(
        jnp.zeros((num_parts, num_groups * group_size // num_parts), jnp.int32),
        taken, jnp.broadcast_to(jnp.arange(num_rows), taken.shape))
    return cls(taken, place.reshape(num_parts, -1, group_size))

  def take(self, x: jax.Array) -> jax.Array:
    """[P, G, ...] -> [N * R, ...]; any for rows that only fill the shape."""
    taken = _take(x.reshape(len(self.taken), -1, *x.shape[2:]), self.taken)
    return taken.reshape(-1, *x.shape[2:])

  def spread(self, y: jax.Array) -> jax.Array:
    """[N * R, ...] -> [P, G, ...]; any for who has ended."""
    spread = _take(y.reshape(*self.taken.shape, *y.shape[1:]), self.place)
    return spread.reshape(-1, *spread.shape[2:])

  def put(self, x: jax.Array, y: jax.Array) -> jax.Array:
    """`x` [P, G] with `y` [N * R] at the members that are computed."""
    return _put(
        x.reshape(len(self.taken), -1), self.taken,
        y.reshape(self.taken.shape)).reshape(x.shape)


def _take(x, at):
  """Of each part of `x` [N, ...] what stands at the places `at` [N, ...]."""
  return jax.vmap(lambda x, at: x.at[at].get(mode='clip'))(x, at)


def _put(x, at, y):
  """Each part of `x` [N, A] with `y` [N, B] at the places `at` [N, B]."""
  return jax.vmap(lambda x, at, y: x.at[at].set(y, mode='drop'))(x, at, y)


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
