"""Keys and values that are kept between calls of the model."""

from __future__ import annotations

from collections.abc import Callable

from flax import struct
import jax
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import config as config_lib


@struct.dataclass
class Quantized:
  """Keys or values as whole numbers, with a scale for each head and position.

  They are read for every token that is decoded, so half of the bytes are up to
  half of the time, and there is room for twice as many groups.
  """

  codes: jax.Array  # int8, keys [..., H, S] or values [..., S, H]
  scales: jax.Array  # [..., S] float32

  @property
  def shape(self) -> tuple[int, ...]:
    """That of the keys or values."""
    return self.codes.shape


Room = jax.Array | Quantized  # Keys or values.


@struct.dataclass
class PromptCache:
  """What P groups share: the keys and values of their prompts.

  Head-major, so that the scores of one head are one matrix product; keys in
  columns and values in rows, as `attention` reads them. Stacked where layers
  are scanned; where they are unrolled, one array per layer, since there a part
  of a stack would be a copy.
  """

  keys: Room | tuple[Room, ...]  # [L, P, K, H, S]
  values: Room | tuple[Room, ...]  # [L, P, K, S, H]
  lengths: jax.Array  # [P] int32, positions that count


@struct.dataclass
class RowCache:
  """Keys and values of tokens that are a candidate's own, in a row each.

  One array per layer: a stacked cache would be copied whole at every token.
  """

  keys: tuple[Room, ...]  # L x [N * R, K, H, T]
  values: tuple[Room, ...]  # L x [N * R, K, T, H]


@struct.dataclass
class CompletionCache:
  """Earlier tokens of completions, which are only read.

  Rows have different lengths, so candidates of different age are decoded
  together. The tokens of the present chunk go into a short `RowCache`, at one
  position for all, and are appended here after the chunk.
  """

  cache: RowCache
  lengths: jax.Array  # [N * R] int32, positions that count


@struct.dataclass
class Rows:
  """Which candidate of P groups each row is; only unfinished ones own a row.

  Each of the N shards of a mesh has R rows, for candidates of its own groups.
  """

  group_size: int = struct.field(pytree_node=False)
  # Numbers of candidates in the flat [P / N * G] of a shard, and its rows. None
  # where the rows are all candidates in their order.
  candidate_of_row: jax.Array | None  # [N, R] int32
  row_of_candidate: jax.Array | None  # [N, P / N * G] int32, any if finished

  @classmethod
  def of(
      cls, candidate_of_row: jax.Array | None, num_groups: int,
      group_size: int) -> Rows:
    """`candidate_of_row` as above; a free row has that of any finished one."""
    if candidate_of_row is None:
      return cls(group_size, None, None)
    num_shards, num_rows = candidate_of_row.shape
    row_of_candidate = mesh_lib.scatter_per_shard(
        jnp.zeros(num_groups * group_size, jnp.int32), candidate_of_row,
        jnp.tile(jnp.arange(num_rows), num_shards))
    return cls(
        group_size, candidate_of_row, row_of_candidate.reshape(num_shards, -1))

  def take(self, x: jax.Array) -> jax.Array:
    """[P * G, ...] -> [N * R, ...]"""
    if self.candidate_of_row is None:
      return x
    return mesh_lib.gather_per_shard(x, self.candidate_of_row)

  def spread(self, y: jax.Array) -> jax.Array:
    """[N * R, ...] -> [P * G, ...]; any for a finished candidate."""
    if self.row_of_candidate is None:
      return y
    return mesh_lib.gather_per_shard(y, self.row_of_candidate)

  def take_groups(self, x: jax.Array) -> jax.Array:
    """[P] -> [N * R], of each row's group."""
    return self.take(jnp.repeat(x, self.group_size))

  def take_heads(self, x: jax.Array) -> jax.Array:
    """[P, K, G, ...] -> [N * R, K, ...]"""
    x = jnp.moveaxis(x, 2, 1)
    return self.take(x.reshape(-1, *x.shape[2:]))

  def spread_heads(self, y: jax.Array) -> jax.Array:
    """[N * R, K, ...] -> [P, K, G, ...]; any if finished."""
    y = self.spread(y)
    return jnp.moveaxis(y.reshape(-1, self.group_size, *y.shape[1:]), 1, 2)


def init_cache(
    config: config_lib.ModelConfig, num_rows: int, length: int,
    dtype: jnp.dtype) -> RowCache:
  """An empty cache for `length` tokens in each row; int8 is `Quantized`."""
  def zeros(dtype, *shape):
    shape = num_rows, config.num_kv_heads, *shape
    return mesh_lib.constrain(
        jnp.zeros(shape, dtype), mesh_lib.ROWS, 'tensor')

  def rooms(*shape):
    if dtype != jnp.int8:
      return zeros(dtype, *shape)
    return Quantized(zeros(dtype, *shape), zeros(jnp.float32, length))

  layers = range(config.num_layers)
  return RowCache(
      keys=tuple(rooms(config.head_dim, length) for _ in layers),
      values=tuple(rooms(length, config.head_dim) for _ in layers))


def cache_dtype(kv_cache_dtype: str, dtype: str) -> jnp.dtype:
  """`rollout.kv_cache_dtype` of a model whose products have a dtype."""
  return jnp.dtype(dtype if kv_cache_dtype == 'auto' else kv_cache_dtype)


def position_bytes(
    config: config_lib.ModelConfig, dtype: jnp.dtype | str) -> int:
  """What the keys and values of a position take, in all layers and heads."""
  dtype = jnp.dtype(dtype)
  head = config.head_dim * dtype.itemsize
  if dtype == jnp.int8:
    head += jnp.dtype(jnp.float32).itemsize
  return 2 * config.num_layers * config.num_kv_heads * head


def quantize(x: jax.Array, axis: int) -> Quantized:
  """Keys (`axis` -2, along which a head lies) or values (-1) as `Quantized`.

  The largest number of a head and position is 127, so that none is off by more
  than 1 / 254 of it.
  """
  x = x.astype(jnp.float32)
  scales = jnp.max(jnp.abs(x), axis=axis, keepdims=True) / 127
  codes = jnp.round(x / jnp.where(scales > 0, scales, 1.0))
  return Quantized(codes.astype(jnp.int8), jnp.squeeze(scales, axis))


def like(cache: RowCache, new: RowCache | PromptCache) -> RowCache:
  """New keys and values, layer by layer, in the form of those of a cache."""
  def rooms(old, new, axis):
    return tuple(
        quantize(new[layer], axis) if isinstance(room, Quantized)
        else new[layer].astype(room.dtype) for layer, room in enumerate(old))

  return RowCache(
      rooms(cache.keys, new.keys, -2), rooms(cache.values, new.values, -1))


def along_positions(
    function: Callable[..., jax.Array], *caches: RowCache) -> RowCache:
  """A cache of what `function(axis, *arrays)` makes of each array of `caches`.

  The axis is that of the positions; keys and values have it at another place.
  """
  def rooms(axis, *each):
    if isinstance(each[0], Quantized):
      return Quantized(
          function(axis, *(x.codes for x in each)),
          function(-1, *(x.scales for x in each)))
    return function(axis, *each)

  return RowCache(
      tuple(rooms(-1, *each) for each in zip(*(x.keys for x in caches))),
      tuple(rooms(-2, *each) for each in zip(*(x.values for x in caches))))
