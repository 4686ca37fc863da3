"""Attention kernels of TPUs and GPUs, and the choice between them.

TPUs use JAX's splash kernel in prefill and learner. NVIDIA GPUs use cuDNN,
except for suffixes shorter than half of their prefix.

Decoding uses `ragged_on_tpu` or `ragged_on_gpu`. GPU kernels of JAX, cuDNN and
tokamax expect keys in rows, so XLA would copy all keys for each token.

Letters as in `atgrpo_jax.model.decoder`.
"""

from collections.abc import Callable, Sequence
import functools
import math

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as kernel_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as mask_lib,
)
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import products

_LANES = 128  # Width of a TPU register.
_SUBLANES = 16  # Rows of a bfloat16 register.
_SPLASH_BLOCK = 512  # Queries or keys of a block.
# Positions that `ragged_on_tpu` and `ragged_on_gpu` read in one step.
RAGGED_BLOCKS = {'tpu': 256, 'gpu': 64}  # Benchmarks change it.
_MIN_GPU_BLOCK = 16  # Smallest axis of a product on tensor cores.
_MAX_GPU_QUERIES = 64  # Queries of a GPU program; 128 spill registers.
_MIN_GPU_PROGRAMS = 264  # Two for each multiprocessor of an H100.


def find(q: jax.Array, prefix_length: int) -> Callable[..., jax.Array] | None:
  """The kernel of prefill and learner for queries [P, K, G, X, M, H].

  None stands for `attention.attend`. The device comes from the mesh of
  `set_mesh`; without a mesh there is no kernel.
  """
  device = _device(q)
  if device is None:
    return None
  *_, queries, _, width = q.shape
  if device.platform == 'tpu' and not any(
      size % _LANES for size in (queries, width, prefix_length)):
    attend = attend_with_splash
  elif (_has_tensor_cores(device, q) and prefix_length <= 2 * queries
        and not width % 8):
    attend = attend_with_cudnn
  else:
    return None
  return functools.partial(
      _on_each_device, attend, (True, True, True, True, False))


def find_for_rows(
    q: jax.Array, capacities: Sequence[int]) -> Callable[..., jax.Array] | None:
  """The kernel of decoding for queries [N * R, K, 1, 1, M, H]."""
  device, width = _device(q), q.shape[-1]
  if device is None:
    return None
  if device.platform == 'tpu' and not width % _LANES and not any(
      size >= _LANES and size % _LANES for size in capacities):
    ragged = ragged_on_tpu
  elif (_has_tensor_cores(device, q) and width >= _MIN_GPU_BLOCK
        and width.bit_count() == 1
        and not any(size % _MIN_GPU_BLOCK for size in capacities)):
    ragged = ragged_on_gpu
  else:
    return None
  return functools.partial(
      _on_each_device, functools.partial(attend_with_ragged, ragged),
      (True, True, True, None, True, False, True, False, False))


def skips_padding(
    config: config_lib.ModelConfig, dtype: str, prompt_length: int) -> bool:
  """Whether decoding has a kernel for prompts of a padded length."""
  c = config
  return find_for_rows(jax.ShapeDtypeStruct(
      (1, c.num_kv_heads, 1, 1, c.num_heads // c.num_kv_heads, c.head_dim),
      products.activation_dtype(jnp.dtype(dtype))), [prompt_length]) is not None


def append(
    axis: int, old: jax.Array, new: jax.Array, starts: jax.Array) -> jax.Array:
  """Writes new keys (axis -1) or values (axis -2) of each row at its start.

  On a TPU, XLA would write one row after the other, in 14,000 cycles each
  (estimate of libtpu 0.0.50.1 for v5e, two heads), so a kernel does it.

  Args:
    axis: of positions.
    old: [R, K, H, S], or [R, K, S, H].
    new: [R, K, H, T], or [R, K, T, H].
    starts: [R] int32. T divides those of unfinished candidates; what the rows
      of others get is arbitrary.
  """
  device, size = _device(old), new.shape[axis]
  if (device is None or device.platform != 'tpu' or _LANES % size
      or old.shape[-1] % _LANES or old.shape[-2] % _LANES):
    return jax.vmap(functools.partial(
        jax.lax.dynamic_update_slice_in_dim, axis=axis))(old, new, starts)
  return _on_each_device(
      functools.partial(append_on_tpu, axis), (True, True, False), old, new,
      starts)


def append_on_tpu(axis, old, new, starts, interpret: bool = False):
  """`append` in place, by reading and writing 128 positions of each row.

  The number of new positions divides 128.
  """
  size, num_blocks = new.shape[axis], old.shape[axis] // _LANES
  # The new positions at every place of a block.
  new = jnp.concatenate([new] * (_LANES // size), axis)
  shape = list(new.shape)
  shape[0] = 1

  def old_block(row, starts):
    # A start beyond the end belongs to a row that has finished.
    block = jnp.minimum(starts[row] // _LANES, num_blocks - 1)
    return (row, 0, 0, block) if axis == -1 else (row, 0, block, 0)

  def write(starts, old, new, result):
    start = starts[pl.program_id(0)] % _LANES
    positions = jax.lax.broadcasted_iota(
        jnp.int32, old.shape[2:], 2 + axis) - start
    is_new = (positions >= 0) & (positions < size)
    for head in range(old.shape[1]):
      result[0, head] = jnp.where(is_new, new[0, head], old[0, head])

  spec = pl.BlockSpec(shape, old_block)
  return pl.pallas_call(
      write,
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=1, grid=(len(old),),
          in_specs=[
              spec, pl.BlockSpec(shape, lambda row, starts: (row, 0, 0, 0))],
          out_specs=spec),
      out_shape=jax.ShapeDtypeStruct(old.shape, old.dtype),
      input_output_aliases={1: 0}, interpret=interpret, name='append',
      cost_estimate=pl.CostEstimate(
          flops=0, transcendentals=0, bytes_accessed=3 * new.nbytes),
  )(starts, old, new)


def _device(q):
  """The device of the mesh; None if a head would be split."""
  mesh = jax.sharding.get_abstract_mesh()
  device = mesh.abstract_device
  if device is None or q.shape[1] % mesh.shape['tensor']:
    return None  # The compiler pads a fraction of a head; a kernel cannot.
  return device


def _has_tensor_cores(device, q):
  """Whether a GPU's kernels support the dtype and width of the queries."""
  return (
      device.device_kind.startswith('NVIDIA') and q.shape[-1] <= 128
      and q.dtype in (jnp.bfloat16, jnp.float16))


def _on_each_device(attend, have_heads, *args):
  """Runs the kernel on the groups (or rows) and heads of each device.

  `have_heads` has an entry per argument: True if its axes start with groups and
  heads, False if with groups alone, None if with neither.
  """
  axes = mesh_lib.free_axes()
  # All axes, even of size 1: cuDNN's call cannot be partitioned.
  if axes and jax.sharding.get_abstract_mesh().size > 1:
    heads_spec = mesh_lib.free_spec(mesh_lib.ROWS, 'tensor')
    specs = {
        True: heads_spec, False: mesh_lib.free_spec(mesh_lib.ROWS),
        None: mesh_lib.free_spec()}
    attend = jax.shard_map(
        attend, in_specs=tuple(specs[has] for has in have_heads),
        out_specs=heads_spec, axis_names=set(axes), check_vma=False)
  return attend(*args)


def attend_with_splash(q, k, v, prefix, prefix_mask, interpret: bool = False):
  """`attention.attend` for causal suffixes without a past.

  Each candidate is a sequence of queries whose keys are a copy of the prefix,
  followed by its suffix. The kernel skips fully masked blocks and keeps scores
  in VMEM. `interpret` runs it without a TPU, for tests.
  """
  groups, _, candidates, queries, per_head, _ = q.shape
  q, k = q.swapaxes(3, 4), k.swapaxes(3, 4)
  # A query sees the keys of its segment; padding of the prefix has another id.
  query_ids = key_ids = jnp.ones((groups, queries), jnp.int32)
  prefix_length = 0
  if prefix is not None:
    prefix_length = prefix_mask.shape[1]
    key_ids = jnp.concatenate(
        [prefix_mask.astype(jnp.int32), query_ids], axis=1)
    k, v = (
        jnp.concatenate(
            [jnp.repeat(shared[:, :, None], candidates, axis=2), private],
            axis=3)
        for shared, private in (
            (prefix[0].swapaxes(2, 3), k), (prefix[1], v)))
  rows = math.gcd(queries, _SPLASH_BLOCK)
  columns = math.gcd(rows, prefix_length)
  mask = mask_lib.CausalMask(
      (queries, prefix_length + queries), offset=prefix_length)
  kernel = kernel_lib.make_splash_mqa_single_device(
      mask_lib.MultiHeadMask([mask] * per_head),
      block_sizes=kernel_lib.BlockSizes(
          block_q=rows, block_kv=columns, block_q_dkv=rows,
          block_kv_dkv=columns, block_q_dq=rows, block_kv_dq=columns,
          k_layout=kernel_lib.QKVLayout.SEQ_MINOR),
      interpret=interpret)
  for in_axes in ((0, 0, 0, None), (0, 0, 0, None), 0):
    kernel = jax.vmap(kernel, in_axes)  # Candidates, heads, groups.
  ids = kernel_lib.SegmentIds(query_ids, key_ids)
  return kernel(q, k, v, ids).swapaxes(3, 4)


def attend_with_cudnn(
    q, k, v, prefix, prefix_mask, implementation: str = 'cudnn'):
  """`attention.attend` for causal suffixes without a past.

  JAX's interface to cuDNN has no offset between queries and keys. Therefore
  each candidate is a whole sequence: a copy of the unmasked prefix, its suffix
  and padding. Results of the prefix are computed and dropped, which adds a
  third to the scores if both have the same length, and four fifths if the
  prefix is twice as long. Tests replace cuDNN by the `implementation` 'xla' of
  JAX.
  """
  groups, heads, candidates, queries, per_head, width = q.shape

  def in_rows(x, *axes):  # -> [P, G, X, heads, H]
    return x.transpose(axes).reshape(groups, candidates, queries, -1, width)

  # The M queries of a key head are adjacent.
  q = in_rows(q, 0, 2, 3, 1, 4, 5)
  k, v = in_rows(k, 0, 2, 4, 1, 3), in_rows(v, 0, 2, 3, 1, 4)
  if prefix is not None:
    starts = _count(prefix_mask)
    no_queries = jnp.zeros(
        (groups, prefix_mask.shape[1], *q.shape[3:]), q.dtype)
    q, k, v = (
        _after_prefix(first, x, starts) for first, x in (
            (no_queries, q), (prefix[0].transpose(0, 3, 1, 2), k),
            (prefix[1].swapaxes(1, 2), v)))
  mixed = jax.nn.dot_product_attention(
      *(x.reshape(-1, *x.shape[2:]) for x in (q, k, v)), is_causal=True,
      scale=1.0, implementation=implementation).reshape(q.shape)
  if prefix is not None:
    mixed = jax.vmap(lambda x, start: jax.lax.dynamic_slice_in_dim(
        x, start, queries, axis=1))(mixed, starts)
  mixed = mixed.reshape(groups, candidates, queries, heads, per_head, width)
  return mixed.transpose(0, 3, 1, 2, 4, 5)


def _after_prefix(prefix, suffix, starts):
  """[P, G, S + X, ...] from [P, S, ...] and, at starts [P], [P, G, X, ...]."""
  _, candidates, queries, *_ = suffix.shape
  whole = jnp.pad(prefix, ((0, 0), (0, queries), (0, 0), (0, 0)))
  return jax.vmap(functools.partial(
      jax.lax.dynamic_update_slice_in_dim, axis=1))(
          jnp.repeat(whole[:, None], candidates, axis=1), suffix, starts)


def attend_with_ragged(
    ragged, q, k, v, suffix_mask, prefix, prefix_mask, past, past_mask, rows):
  """`attention.attend` over a cache; skips padding of prefix and past.

  Their unmasked positions come first. `ragged` is `ragged_on_tpu` or
  `ragged_on_gpu`.
  """
  queries = q[:, :, 0, 0]
  scores = products.einsum('rkmh,rkhy->rkmy', queries, k, q.dtype)
  scores = jnp.where(suffix_mask, scores, attention.MASKED)
  top = jnp.max(scores, axis=-1, keepdims=True)
  weights = jnp.exp(scores - top)
  partial = [(
      products.einsum('rkmy,rkyh->rkmh', weights, v, q.dtype), top,
      jnp.sum(weights, axis=-1, keepdims=True))]
  partial += ragged(queries, *past, _count(past_mask))
  by_group = rows.spread_heads(queries)  # [P, K, G, M, H]
  groups, heads, *_, width = by_group.shape
  partial += [
      tuple(
          rows.take_heads(x.reshape(*by_group.shape[:-1], -1))
          for x in results)
      for results in ragged(
          by_group.reshape(groups, heads, -1, width), *prefix,
          _count(prefix_mask))]
  mixed, tops, totals = zip(*partial)
  top = functools.reduce(jnp.maximum, tops)
  scales = [jnp.exp(x - top) for x in tops]
  total = sum(x * scale for x, scale in zip(totals, scales))
  mixed = sum(x * scale for x, scale in zip(mixed, scales))
  return (mixed / total).astype(q.dtype)[:, :, None, None]


def _count(mask):
  return jnp.sum(mask, axis=-1, dtype=jnp.int32)


def ragged_on_tpu(q, k, v, lengths, interpret: bool = False):
  """Unnormalised attention over the first `lengths` positions, on a TPU.

  All rows of a cache have the same capacity, and most of it is padding: a
  prompt of 900 tokens is stored in a bucket of 8192. The grid has one step for
  each block with keys, because a step that only skips a block would take as
  long as reading it.

  Args:
    q: [B, K, Q, H] scaled queries.
    k: [B, K, H, S] keys.
    v: [B, K, S, H] values.
    lengths: [B] int32, number of unmasked positions.
    interpret: run without a TPU, for tests.

  Returns:
    A list of partial results over disjoint positions, here a single one:
    mixed: [B, K, Q, H] float32, the sum of exp(score - top) * value.
    top: [B, K, Q, 1] float32, the largest score; -1e30 if all are masked.
    total: [B, K, Q, 1] float32, the sum of exp(score - top).
  """
  num_rows, heads, num_queries, width = q.shape
  pad = -num_queries % _SUBLANES
  q = jnp.pad(q, ((0, 0), (0, 0), (0, pad), (0, 0)))
  block = math.gcd(k.shape[-1], RAGGED_BLOCKS['tpu'])
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
      functools.partial(_tpu_step, block),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=3, grid=(jnp.maximum(ends[-1], 1),),
          in_specs=[
              query_spec, pl.BlockSpec((1, heads, width, block), key_block),
              pl.BlockSpec((1, heads, block, width), value_block)],
          out_specs=[query_spec, lanes_spec, lanes_spec]),
      out_shape=[jax.ShapeDtypeStruct(q.shape, jnp.float32), lanes, lanes],
      cost_estimate=_max_cost(q, k), interpret=interpret,
      name='ragged_attention',
  )(lengths, row, index, q, k, v)
  # The kernel writes nothing for rows without keys.
  return [tuple(
      jnp.where(lengths[:, None, None, None] > 0, x[:, :, :num_queries], empty)
      for x, empty in zip(
          (mixed, top[..., :1], total[..., :1]), (0.0, attention.MASKED, 0.0)))]


def _tpu_step(block, lengths, row, index, q, k, v, mixed, top, total):
  """Adds one block of a row to its results."""
  step = pl.program_id(0)
  length, start = lengths[row[step]], index[step] * block

  @pl.when(start == 0)
  def _():
    mixed[...] = jnp.zeros_like(mixed)
    top[...] = jnp.full_like(top, attention.MASKED)
    total[...] = jnp.zeros_like(total)

  for head in range(q.shape[1]):
    results = _add_block(
        q[0, head], k[0, head], v[0, head], start, length,
        mixed[0, head], top[0, head][:, :1], total[0, head][:, :1])
    for ref, result in zip((mixed, top, total), results):
      ref[0, head] = jnp.broadcast_to(result, ref.shape[2:])


def _add_block(q, k, v, start, length, mixed, top, total):
  """Adds keys [H, B] and values [B, H] from position `start` to results."""
  dot = functools.partial(
      jnp.dot, precision=products.precision(q.dtype),
      preferred_element_type=jnp.float32)
  scores = dot(q, k)
  positions = start + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
  scores = jnp.where(positions < length, scores, attention.MASKED)
  new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
  shrink, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top)
  mixed = mixed * shrink + dot(weights.astype(q.dtype), v)
  total = total * shrink + jnp.sum(weights, axis=-1, keepdims=True)
  return mixed, new_top, total


def _max_cost(q, k):
  """The cost of a kernel if no position is masked."""
  scores = q.size // q.shape[-1] * k.shape[-1]
  return pl.CostEstimate(
      flops=4 * scores * q.shape[-1], transcendentals=scores,
      bytes_accessed=q.nbytes + 2 * k.nbytes)


def ragged_on_gpu(q, k, v, lengths, interpret: bool = False):
  """`ragged_on_tpu` for NVIDIA GPUs, with a result for each split of a row.

  A program attends to the keys of one split, row and head. Rows are split only
  if there are too few programs to occupy the GPU.
  """
  num_rows, heads, num_queries, width = q.shape
  capacity = k.shape[-1]
  block = math.gcd(capacity, RAGGED_BLOCKS['gpu'])
  max_queries = min(
      max(pl.next_power_of_2(num_queries), _MIN_GPU_BLOCK), _MAX_GPU_QUERIES)
  grid = num_rows, heads, pl.cdiv(num_queries, max_queries)
  num_splits = min(
      pl.cdiv(_MIN_GPU_PROGRAMS, math.prod(grid)), capacity // block)

  def row_block(row, head, index, split):
    return row, head, 0, 0

  def query_block(row, head, index, split):
    return row, head, index, 0

  def result_block(row, head, index, split):
    return split, row, head, index, 0

  widths = width, 1, 1
  results = pl.pallas_call(
      functools.partial(_gpu_program, block, num_queries),
      grid=(*grid, num_splits),
      in_specs=[
          pl.BlockSpec((None,), lambda row, head, index, split: (row,)),
          pl.BlockSpec((None, None, max_queries, width), query_block),
          pl.BlockSpec((None, None, width, capacity), row_block),
          pl.BlockSpec((None, None, capacity, width), row_block)],
      out_specs=[
          pl.BlockSpec((None, None, None, max_queries, x), result_block)
          for x in widths],
      out_shape=[
          jax.ShapeDtypeStruct((num_splits, *q.shape[:-1], x), jnp.float32)
          for x in widths],
      compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
      cost_estimate=_max_cost(q, k), interpret=interpret,
      name='ragged_attention',
  )(lengths, q, k, v)
  return list(zip(*results))


def _gpu_program(block, num_queries, lengths, q, k, v, mixed, top, total):
  """Attends to the blocks of one split of a row."""
  length, split = lengths[...], pl.program_id(3)
  num_blocks = pl.cdiv(length, block)
  split_size = pl.cdiv(num_blocks, pl.num_programs(3))
  # The block of the last queries extends beyond the array.
  index = pl.program_id(2) * len(q) + jnp.arange(len(q))[:, None]
  is_query = index < num_queries
  queries = triton.load(q, mask=is_query, other=0.0)

  def add_block(index, results):
    start = index * block
    span = pl.ds(start, block)
    return _add_block(queries, k[:, span], v[span], start, length, *results)

  results = jax.lax.fori_loop(
      split * split_size, jnp.minimum((split + 1) * split_size, num_blocks),
      add_block, (
          jnp.zeros(mixed.shape, jnp.float32),
          jnp.full(top.shape, attention.MASKED),
          jnp.zeros(total.shape, jnp.float32)))
  for ref, result in zip((mixed, top, total), results):
    triton.store(ref, result, mask=is_query)
