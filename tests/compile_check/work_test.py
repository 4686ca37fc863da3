"""work.py: small programs whose work is also counted by hand."""

import functools

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import pytest

from atgrpo_jax.compile_check import work
from atgrpo_jax.model.kernels import ragged
from atgrpo_jax.model.kernels import splash


def test_loops_are_multiplied():
  @jax.jit
  def program(x, y):
    def body(carry, _):
      return carry @ y, None
    x, _ = jax.lax.scan(body, x, length=5)
    return jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] @ y), (0, x))[1]

  spec = jax.ShapeDtypeStruct((2, 2), jnp.float32)
  flops, traffic = work.count_work(
      program.trace(spec, spec).jaxpr, while_length=7)
  assert flops == (5 + 7) * 2 * 2 * 2 * 2
  assert traffic == (5 + 7) * 3 * 4 * 4


def test_a_kernel_reads_its_operands_once():
  def multiply(x, y, out):
    out[...] = jnp.dot(x[...], y[...])

  whole = pl.BlockSpec((8, 8), lambda i: (0, 0))
  rows = pl.BlockSpec((2, 8), lambda i: (i, 0))
  program = pl.pallas_call(
      multiply, out_shape=jax.ShapeDtypeStruct((8, 8), jnp.float32), grid=4,
      in_specs=(rows, whole), out_specs=rows)
  spec = jax.ShapeDtypeStruct((8, 8), jnp.float32)
  flops, traffic = work.count_work(
      jax.jit(program).trace(spec, spec).jaxpr, while_length=1)
  assert flops == 2 * 8 * 8 * 8
  assert traffic == 3 * 8 * 8 * 4


@pytest.mark.parametrize('prefix', [0, 1024])
def test_masked_blocks_are_not_counted(prefix):
  # Four blocks of 512 queries, in a loop over layers as in the model.
  groups, heads, per_head, queries, width = 2, 2, 2, 2048, 128
  spec = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)

  def layers(q, k, v, past, mask):
    @jax.checkpoint
    def layer(q, _):
      return splash.attend(
          q, k, v, past if prefix else None, mask, interpret=True), None

    return jax.lax.scan(layer, q, None, length=3)[0]

  flops, _ = work.count_work(
      jax.jit(layers).trace(
          spec((groups, heads, 1, queries, per_head, width)),
          spec((groups, heads, 1, width, queries)),
          spec((groups, heads, 1, queries, width)),
          (spec((groups, heads, width, prefix)),
           spec((groups, heads, prefix, width))),
          jax.ShapeDtypeStruct((groups, prefix), bool)).jaxpr, while_length=1)
  seen = 512**2 * (1 + 2 + 3 + 4) + queries * prefix
  assert flops == 3 * groups * heads * per_head * seen * 4 * width


def test_rows_of_the_cache_are_counted_as_full():
  num_rows, heads, queries, width, size = 3, 2, 4, 128, 1024
  spec = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
  flops, _ = work.count_work(
      jax.jit(ragged.attend).trace(
          spec((num_rows, heads, queries, width)),
          spec((num_rows, heads, width, size)),
          spec((num_rows, heads, size, width)),
          jax.ShapeDtypeStruct((num_rows,), jnp.int32)).jaxpr, while_length=1)
  # Queries fill the 16 rows of a register.
  assert flops == num_rows * heads * 16 * size * 4 * width


def test_shards_add_up():
  mesh = jax.sharding.AbstractMesh((4, 2), ('data', 'tensor'))
  spec = jax.ShapeDtypeStruct((8, 8), jnp.float32)

  def product(axes):
    return jax.jit(jax.shard_map(
        jnp.dot, mesh=mesh, axis_names=set(axes), check_vma=False,
        in_specs=(PartitionSpec(axes), PartitionSpec()),
        out_specs=PartitionSpec(axes)))

  for axes, num_shards in ((('data',), 4), (('data', 'tensor'), 8)):
    flops, traffic = work.count_work(
        product(axes).trace(spec, spec).jaxpr, while_length=1)
    assert flops == 2 * 8 * 8 * 8
    # Each shard reads the whole right side.
    assert traffic == 4 * (2 * 8 * 8 + num_shards * 8 * 8)
