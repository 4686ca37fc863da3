"""Attention equals a plain softmax for any split of the queries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.model import attention

QUERIES = 601  # Two spans, of 301 and 300.
GROUPS, CANDIDATES, PER_HEAD = 2, 2, 2


def make_inputs(num_prefix, dtype, queries, heads=1, width=8):
  """((q, k, v, prefix), mask, prefix_mask)."""
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.asarray(rng.normal(size=(GROUPS, heads, *shape)), dtype)

  q = draw(CANDIDATES, queries, PER_HEAD, width)
  k, v = draw(CANDIDATES, width, queries), draw(CANDIDATES, queries, width)
  mask = jnp.tril(jnp.ones((queries, queries), bool))
  if not num_prefix:
    return (q, k, v, None), mask, None
  prefix = draw(width, num_prefix), draw(num_prefix, width)
  lengths = jnp.array([num_prefix, num_prefix // 2])
  return (q, k, v, prefix), mask, jnp.arange(num_prefix) < lengths[:, None]


def _plain(q, k, v, mask, prefix, prefix_mask):
  """Softmax over concatenated keys, in float32."""
  q, k, v, prefix = jax.tree.map(
      lambda x: x.astype(jnp.float32), (q, k, v, prefix))
  if prefix is not None:
    shared = [
        jnp.repeat(x[:, :, None], CANDIDATES, axis=2) for x in prefix]
    k = jnp.concatenate([shared[0], k], axis=-1)
    v = jnp.concatenate([shared[1], v], axis=-2)
    prefix_mask = jnp.repeat(prefix_mask[:, None], q.shape[3], axis=1)
    mask = jnp.broadcast_to(mask, (GROUPS, *mask.shape))
    mask = jnp.concatenate([prefix_mask, mask], axis=-1)[:, None, None]
  scores = jnp.einsum('pkgxmh,pkghy->pkgmxy', q, k)
  weights = jax.nn.softmax(jnp.where(mask[..., None, :, :], scores, -jnp.inf))
  return jnp.einsum('pkgmxy,pkgyh->pkgxmh', weights, v)


def _values_and_gradients(attend, inputs):
  args, mask, prefix_mask = inputs

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def gradients(args):
    q, k, v, prefix = args
    mixed = attend(q, k, v, mask, prefix, prefix_mask).astype(jnp.float32)
    weights = jnp.cos(jnp.arange(mixed.size)).reshape(mixed.shape)
    return jnp.sum(mixed * weights), mixed

  return jax.tree.map(
      lambda x: np.asarray(x, np.float64), gradients(args))


def max_difference(attend, inputs):
  """The largest one of values and gradients, relative to the largest number."""
  return max(jax.tree.leaves(jax.tree.map(
      lambda x, y: abs(x - y).max() / abs(y).max(),
      _values_and_gradients(attend, inputs),
      _values_and_gradients(_plain, inputs))))


@pytest.mark.parametrize('num_prefix, block, dtype, scale, tolerance', [
    # Blocks of 8 queries; the last block is padded.
    (0, 8, 'float32', 1, 1e-5), (9, 8, 'float32', 1, 1e-5),
    # Large scores need the common maximum of prefix and suffix.
    (9, None, 'float32', 50, 1e-3),
    # Gradients of keys are summed in float32; in bfloat16 they differ by 0.018.
    (9, 1, 'bfloat16', 1, 2**-7)])
def test_spans_and_blocks_equal_plain_attention(
    num_prefix, block, dtype, scale, tolerance, monkeypatch):
  (q, *keys), *masks = make_inputs(num_prefix, dtype, QUERIES)
  inputs = (scale * q, *keys), *masks
  if block:
    row = 4 * CANDIDATES * PER_HEAD * (QUERIES + num_prefix)
    monkeypatch.setattr(attention, '_MAX_SCORE_BYTES', block * row)
  assert max_difference(attention.attend, inputs) < tolerance


def test_long_prompts_never_hold_all_scores():
  length, heads, per_head, width = 8192, 8, 4, 128  # Qwen3-8B.
  spec = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
  shapes = (
      spec((1, heads, 1, length, per_head, width)),
      spec((1, heads, 1, width, length)), spec((1, heads, 1, length, width)))

  @functools.partial(jax.grad, argnums=(0, 1, 2))
  def gradients(q, k, v):
    mask = jnp.tril(jnp.ones((length, length), bool))
    return jnp.sum(attention.attend(q, k, v, mask, None, None))

  program = jax.jit(gradients).lower(*shapes).compile()
  scores = 4 * heads * per_head * length**2
  assert program.memory_analysis().temp_size_in_bytes < scores / 4
