"""Keys and values kept between calls of the model."""

from collections.abc import Callable
import functools

from flax import struct
import jax
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import kernels
from atgrpo_jax.model import products


@struct.dataclass
class PromptCache:
  """Keys and values of the prompts of P groups.

  Scanned layers are stacked; unrolled layers have one array each, because
  slicing a stack would copy.
  """

  keys: jax.Array | tuple[jax.Array, ...]  # [L, P, K, H, S]
  values: jax.Array | tuple[jax.Array, ...]  # [L, P, K, S, H]
  lengths: jax.Array  # [P] int32, unmasked positions


@struct.dataclass
class RowCache:
  """Keys and values of candidates, one row each.

  One array per layer: a stacked cache would be copied at every token.
  """

  keys: tuple[jax.Array, ...]  # L x [N * R, K, H, T]
  values: tuple[jax.Array, ...]  # L x [N * R, K, T, H]


@struct.dataclass
class CompletionCache:
  """Read-only cache of earlier completion tokens, of any length in each row.

  Tokens of the current chunk go into a short `RowCache`, at the same position
  in all rows, and are appended here after the chunk.
  """

  cache: RowCache
  lengths: jax.Array  # [N * R] int32, unmasked positions


@struct.dataclass
class Rows:
  """The candidate in each row; others have finished or wait for a row.

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
      group_size: int) -> 'Rows':
    """Rows with these candidates; free rows hold any finished one."""
    if candidate_of_row is None:
      return cls(group_size, None, None)
    num_shards, num_rows = candidate_of_row.shape
    row_of_candidate = mesh_lib.scatter_per_shard(
        jnp.zeros(num_groups * group_size, jnp.int32), candidate_of_row,
        jnp.tile(jnp.arange(num_rows), num_shards))
    return cls(
        group_size, candidate_of_row, row_of_candidate.reshape(num_shards, -1))

  @property
  def have(self) -> jax.Array:
    """Which candidates have a row, [P, G] bool."""
    if self.candidate_of_row is None:
      return jnp.bool_(True)
    candidates = jnp.zeros(self.row_of_candidate.size, bool)
    return mesh_lib.scatter_per_shard(
        candidates, self.candidate_of_row,
        jnp.ones(self.candidate_of_row.size, bool)).reshape(-1, self.group_size)

  def take(self, x: jax.Array) -> jax.Array:
    """[P * G, ...] -> [N * R, ...]"""
    if self.candidate_of_row is None:
      return x
    return mesh_lib.gather_per_shard(x, self.candidate_of_row)

  def spread(self, y: jax.Array) -> jax.Array:
    """[N * R, ...] -> [P * G, ...]; arbitrary for candidates without a row."""
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
  """An empty cache for `length` tokens per row; `dtype` is of the products."""
  dtype = products.activation_dtype(dtype)

  def zeros(*shape):
    shape = num_rows, config.num_kv_heads, *shape
    return mesh_lib.constrain(
        jnp.zeros(shape, dtype), mesh_lib.ROWS, 'tensor')

  layers = range(config.num_layers)
  return RowCache(
      keys=tuple(zeros(config.head_dim, length) for _ in layers),
      values=tuple(zeros(length, config.head_dim) for _ in layers))


def along_positions(
    function: Callable[..., jax.Array], *caches: RowCache) -> RowCache:
  """Maps `function(axis, *arrays)` over the arrays of caches.

  `axis` is the axis of positions: the last of keys, the second last of values.
  """
  def apply(axis, *arrays):
    return jax.tree.map(functools.partial(function, axis), *arrays)

  return RowCache(
      apply(-1, *(cache.keys for cache in caches)),
      apply(-2, *(cache.values for cache in caches)))


def append_chunk(
    cache: RowCache, chunk: RowCache, ages: jax.Array) -> RowCache:
  """Writes a chunk into each row at position `ages` [N * R] of its cache."""
  return along_positions(
      lambda axis, old, new: kernels.append(axis, old, new, ages), cache, chunk)
