"""FLOPs and traffic of small programs, counted by hand."""

import functools

import jax
import jax.numpy as jnp
import pytest

from atgrpo_jax.compile_check import work
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
