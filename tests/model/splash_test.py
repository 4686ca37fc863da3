"""The TPU's kernel, interpreted, computes what the plain attention does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.model import attention
from atgrpo_jax.model.kernels import splash

GROUPS, HEADS, MEMBERS, QUERIES, PER_HEAD, WIDTH = 2, 1, 2, 128, 2, 128


def _inputs(prefix_length):
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.array(rng.normal(size=(GROUPS, HEADS, *shape)), jnp.float32)

  prefix = mask = None
  if prefix_length:
    prefix = draw(WIDTH, prefix_length), draw(prefix_length, WIDTH)
    lengths = np.array([[prefix_length], [57]])
    mask = jnp.array(np.arange(prefix_length) < lengths)
  q = draw(MEMBERS, QUERIES, PER_HEAD, WIDTH) * WIDTH**-0.5
  return (
      (q, draw(MEMBERS, WIDTH, QUERIES), draw(MEMBERS, QUERIES, WIDTH),
       prefix), mask)


def _plain(q, k, v, prefix, prefix_mask):
  causal = jnp.tril(jnp.ones((QUERIES, QUERIES), bool))
  return attention.attend(q, k, v, causal, prefix, prefix_mask)


def _splash(*args):
  return splash.attend(*args, interpret=True)


@pytest.mark.parametrize('prefix_length', [0, 256])
def test_values_and_gradients_are_those_of_the_plain_one(prefix_length):
  args, mask = _inputs(prefix_length)
  weights = jnp.cos(jnp.arange(WIDTH))  # So that no gradient cancels.

  def run(function):
    def total(args):
      mixed = function(*args, mask)
      return jnp.sum(jnp.square(mixed) * weights), mixed
    return jax.jit(jax.grad(total, has_aux=True))(args)

  found, expected = run(_splash), run(_plain)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
      found, expected)


def test_the_mask_by_hand():
  mask = splash._Mask(candidates=2, queries=2, prefix_length=1)
  np.testing.assert_array_equal(mask[:, :], np.array([
      [1, 1, 0, 0, 0],
      [1, 1, 1, 0, 0],
      [1, 0, 0, 1, 0],
      [1, 0, 0, 1, 1]], bool))
