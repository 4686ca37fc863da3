"""work.py: small programs whose work is counted by hand."""

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from atgrpo_jax.compile_check import work


def test_work_is_counted_with_its_loops():
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


def test_a_program_takes_the_longer_of_computing_and_reading():
  chip = work.Chip(memory=0, flops=100.0, bandwidth=10.0)
  assert work.min_seconds(200.0, 5.0, chip) == 2
  assert work.min_seconds(200.0, 50.0, chip) == 5
