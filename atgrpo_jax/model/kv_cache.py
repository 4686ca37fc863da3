"""Keys and values kept between calls of the model."""

from __future__ import annotations

from collections.abc import Callable

from flax import struct
import jax
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import config as config_lib


@struct.dataclass
class Quantized:
  """Keys or values as int8 with a scale for each head and position.

  Decoding reads the cache for each token. Half the bytes take up to half the
  time, and twice as many groups fit.
  """

  codes: jax.Array  # int8, keys [..., H, S] or values [..., S, H]
  scales: jax.Array  # [..., S] float32

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the keys or values."""
    return self.codes.shape


KVArray = jax.Array | Quantized  # Keys or values.


@struct.dataclass
class PromptCache:
  """Keys and values of the prompts of P groups.

  The head axis comes first, so the scores of a head are one matrix product.
  Scanned layers are stacked; unrolled layers have one array each, because
  slicing a stack would copy.
  """

  keys: KVArray | tuple[KVArray, ...]  # [L, P, K, H, S]
  values: KVArray | tuple[KVArray, ...]  # [L, P, K, S, H]
  lengths: jax.Array  # [P] int32, unmasked positions


@struct.dataclass
class RowCache:
  """Keys and values of candidates, one row each.

  One array per layer: a stacked cache would be copied at every token.
  """

  keys: tuple[KVArray, ...]  # L x [N * R, K, H, T]
  values: tuple[KVArray, ...]  # L x [N * R, K, T, H]


@struct.dataclass
class CompletionCache:
  """Read-only cache of earlier completion tokens.

  Rows have different lengths, so candidates of different age decode together.
  Tokens of the current chunk go into a short `RowCache`, at the same position
  in all rows, and are appended here after the chunk.
  """

  cache: RowCache
  lengths: jax.Array  # [N * R] int32, unmasked positions


@struct.dataclass
class Rows:
  """The candidate in each row; only unfinished candidates have a row.

  Each of the N shards of a mesh has R rows for the candidates of its groups.
  """

  group_size: int = struct.field(pytree_node=False)
  # Indices into the flat candidates [P / N * G] of a shard and into its rows;
  # None if the rows are all candidates in order.
  candidate_of_row: jax.Array | None  # [N, R] int32
  row_of_candidate: jax.Array | None  # [N, P / N * G] int32

  @classmethod
  def of(
      cls, candidate_of_row: jax.Array | None, num_groups: int,
      group_size: int) -> Rows:
    """Rows with these candidates; free rows hold any finished candidate."""
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
    """[N * R, ...] -> [P * G, ...]; arbitrary for finished candidates."""
    if self.row_of_candidate is None:
      return y
    return mesh_lib.gather_per_shard(y, self.row_of_candidate)

  def take_groups(self, x: jax.Array) -> jax.Array:
    """[P] -> [N * R], the value of each row's group."""
    return self.take(jnp.repeat(x, self.group_size))

  def take_heads(self, x: jax.Array) -> jax.Array:
    """[P, K, G, ...] -> [N * R, K, ...]"""
    x = jnp.moveaxis(x, 2, 1)
    return self.take(x.reshape(-1, *x.shape[2:]))

  def spread_heads(self, y: jax.Array) -> jax.Array:
    """[N * R, K, ...] -> [P, K, G, ...]; arbitrary if finished."""
    y = self.spread(y)
    return jnp.moveaxis(y.reshape(-1, self.group_size, *y.shape[1:]), 1, 2)


def init_cache(
    config: config_lib.ModelConfig, num_rows: int, length: int,
    dtype: jnp.dtype) -> RowCache:
  """An empty cache for `length` tokens per row; int8 is `Quantized`."""
  def zeros(dtype, *shape):
    shape = num_rows, config.num_kv_heads, *shape
    return mesh_lib.constrain(
        jnp.zeros(shape, dtype), mesh_lib.ROWS, 'tensor')

  def kv_array(*shape):
    if dtype != jnp.int8:
      return zeros(dtype, *shape)
    return Quantized(zeros(dtype, *shape), zeros(jnp.float32, length))

  layers = range(config.num_layers)
  return RowCache(
      keys=tuple(kv_array(config.head_dim, length) for _ in layers),
      values=tuple(kv_array(length, config.head_dim) for _ in layers))


def cache_dtype(kv_cache_dtype: str, dtype: str) -> jnp.dtype:
  """The dtype for `rollout.kv_cache_dtype`; 'auto' means `dtype`."""
  return jnp.dtype(dtype if kv_cache_dtype == 'auto' else kv_cache_dtype)


def position_bytes(
    config: config_lib.ModelConfig, dtype: jnp.dtype | str) -> int:
  """Bytes of the keys and values of one position, over layers and heads."""
  dtype = jnp.dtype(dtype)
  head = config.head_dim * dtype.itemsize
  if dtype == jnp.int8:
    head += jnp.dtype(jnp.float32).itemsize
  return 2 * config.num_layers * config.num_kv_heads * head


def quantize(x: jax.Array, axis: int) -> Quantized:
  """Quantizes keys (`axis=-2`, the axis of H) or values (-1).

  The largest number of a head and position becomes 127, so no error exceeds
  1 / 254 of it.
  """
  x = x.astype(jnp.float32)
  scales = jnp.max(jnp.abs(x), axis=axis, keepdims=True) / 127
  codes = jnp.round(x / jnp.where(scales > 0, scales, 1.0))
  return Quantized(codes.astype(jnp.int8), jnp.squeeze(scales, axis))


def cast_like(cache: RowCache, new: RowCache | PromptCache) -> RowCache:
  """New keys and values, layer by layer, in the dtype of a cache."""
  def cast(old, new, axis):
    return tuple(
        quantize(new[layer], axis) if isinstance(x, Quantized)
        else new[layer].astype(x.dtype) for layer, x in enumerate(old))

  return RowCache(
      cast(cache.keys, new.keys, -2), cast(cache.values, new.values, -1))


def along_positions(
    function: Callable[..., jax.Array], *caches: RowCache) -> RowCache:
  """Maps `function(axis, *arrays)` over the arrays of caches.

  `axis` is the axis of positions, which differs between keys and values.
  """
  def apply(axis, *each):
    if isinstance(each[0], Quantized):
      return Quantized(
          function(axis, *(x.codes for x in each)),
          function(-1, *(x.scales for x in each)))
    return function(axis, *each)

  return RowCache(
      tuple(apply(-1, *each) for each in zip(*(x.keys for x in caches))),
      tuple(apply(-2, *each) for each in zip(*(x.values for x in caches))))
