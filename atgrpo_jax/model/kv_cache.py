"""Keys and values that are kept between calls of the model."""

from __future__ import annotations

from flax import struct
import jax
import jax.numpy as jnp

from atgrpo_jax.model import config as config_lib
from atgrpo_jax.runtime import sharding


@struct.dataclass
class PromptCache:
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
class RowCache:
  """Keys and values of tokens that are a candidate's own, in a row each.

  One array per layer: a stacked cache would be copied whole at every token.
  """

  keys: tuple[jax.Array, ...]  # L x [N * R, K, H, T]
  values: tuple[jax.Array, ...]  # L x [N * R, K, T, H]


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
    row_of_candidate = sharding.scatter_per_shard(
        jnp.zeros(num_groups * group_size, jnp.int32), candidate_of_row,
        jnp.tile(jnp.arange(num_rows), num_shards))
    return cls(
        group_size, candidate_of_row, row_of_candidate.reshape(num_shards, -1))

  def take(self, x: jax.Array) -> jax.Array:
    """[P * G, ...] -> [N * R, ...]"""
    if self.candidate_of_row is None:
      return x
    return sharding.gather_per_shard(x, self.candidate_of_row)

  def spread(self, y: jax.Array) -> jax.Array:
    """[N * R, ...] -> [P * G, ...]; any for a finished candidate."""
    if self.row_of_candidate is None:
      return y
    return sharding.gather_per_shard(y, self.row_of_candidate)

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
  """An empty cache for `length` tokens in each row."""
  def zeros(*shape):
    shape = num_rows, config.num_kv_heads, *shape
    return tuple(
        sharding.constrain(jnp.zeros(shape, dtype), sharding.ROWS, 'tensor')
        for _ in range(config.num_layers))

  return RowCache(
      keys=zeros(config.head_dim, length),
      values=zeros(length, config.head_dim))
