"""model/attention.py: parts of the queries give the same numbers for less.

That the numbers are right at all is tests/model/qwen3_test.py.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.model import attention


def _inputs(num_queries, num_prefix, dtype=jnp.float32):
  """(q, k, v, mask, prefix, prefix_mask) of 2 groups of 3; K = M = 2."""
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.asarray(rng.normal(size=shape), dtype)

  q = draw(2, 2, 3, num_queries, 2, 8)
  k, v = draw(2, 2, 3, 8, num_queries), draw(2, 2, 3, num_queries, 8)
  at = jnp.arange(num_queries)
  mask = at <= at[:, None]
  if not num_prefix:
    return q, k, v, mask, None, None
  prefix = draw(2, 2, 8, num_prefix), draw(2, 2, num_prefix, 8)
  lengths = jnp.array([num_prefix, num_prefix // 2])
  return q, k, v, mask, prefix, jnp.arange(num_prefix) < lengths[:, None]


def _row_bytes(num_keys):
  """Bytes of the scores of one query position of one group of `_inputs`."""
  return 4 * 2 * 3 * 2 * num_keys


def _loss(q, k, v, prefix, masks):
  """A sum of the values with varied weights, and the values."""
  mixed = attention.attend(q, k, v, masks[0], prefix, masks[1])
  weights = jnp.cos(jnp.arange(mixed.size)).reshape(mixed.shape)
  return jnp.sum(mixed * weights), mixed


def _values_and_gradients(inputs):
  """The values, and the gradients for all but the masks."""
  q, k, v, mask, prefix, prefix_mask = inputs
  # A function of its own for each call: the number of blocks, which the test
  # changes, is not an argument that jit would see.
  grad_fn = jax.jit(jax.grad(
      functools.partial(_loss, masks=(mask, prefix_mask)),
      argnums=(0, 1, 2, 3), has_aux=True))
  grads, mixed = grad_fn(q, k, v, prefix)
  return jax.tree.map(lambda x: np.asarray(x, np.float64), (mixed, grads))


def _jaxpr(inputs):
  """The text of the program, traced anew: see `_values_and_gradients`."""
  return str(jax.make_jaxpr(lambda *args: attention.attend(*args))(*inputs))


def _difference(x, y):
  """Largest difference, relative to the largest value."""
  return abs(x - y).max() / abs(y).max()


@pytest.mark.parametrize('blocks', (False, True))
@pytest.mark.parametrize('num_prefix', (0, 9))
def test_spans_see_no_later_keys_and_change_no_number(
    monkeypatch, num_prefix, blocks):
  # Bite: keys cut before the end of a span, or not at all. 13 queries are
  # spans of 4, 4, 4, 1.
  inputs = _inputs(13, num_prefix)
  whole = _values_and_gradients(inputs)
  monkeypatch.setattr(attention, '_SPAN', 3)
  if blocks:
    monkeypatch.setattr(
        attention, '_SCORE_BYTES', 2 * _row_bytes(13 + num_prefix))
  numbers_of_keys = re.findall(r'f32\[[\d,]*,(\d+)\] = exp ', _jaxpr(inputs))
  assert {int(x) for x in numbers_of_keys} - {num_prefix} == {4, 8, 12, 13}
  differences = jax.tree.map(
      _difference, _values_and_gradients(inputs), whole)
  assert max(jax.tree.leaves(differences)) < 1e-6, differences


def test_a_cache_of_one_token_goes_on_from_the_past():
  # Bite: one query and one key of a cache that are taken for a sequence.
  rng = np.random.default_rng(0)
  q, k, v, *past = (
      jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in (
          (2, 2, 1, 1, 2, 8), (2, 2, 8, 2), (2, 2, 2, 8), (2, 2, 8, 3),
          (2, 2, 3, 8)))

  def mixed(length):
    return attention.attend(
        q, k[..., :length], v[..., :length, :], jnp.arange(length)[None] < 1,
        None, None, tuple(past), jnp.ones((2, 3), bool))

  np.testing.assert_allclose(mixed(1), mixed(2), rtol=1e-5)


@pytest.mark.parametrize('num_prefix', (0, 9))
def test_blocks_change_no_number(monkeypatch, num_prefix):
  # Bite: the mask of another block, pads that are not cut off, prefix keys
  # that are cut like suffix keys. 13 queries are 4 blocks and 3 pads.
  inputs = _inputs(13, num_prefix)
  whole = _values_and_gradients(inputs)
  monkeypatch.setattr(
      attention, '_SCORE_BYTES', 5 * _row_bytes(13 + num_prefix))
  assert _jaxpr(inputs).count('length=4') == 1
  differences = jax.tree.map(
      _difference, _values_and_gradients(inputs), whole)
  assert max(jax.tree.leaves(differences)) < 1e-6, differences


def test_gradients_of_keys_add_up_in_float32(monkeypatch):
  # Bite: bfloat16 keys taken into the parts as they are: then 512 blocks add
  # up with 8 bits (measured: a difference of 0.037 instead of 0.005).
  inputs = _inputs(512, 9, jnp.bfloat16)
  monkeypatch.setattr(attention, '_SPANS', 1)
  whole = _values_and_gradients(inputs)
  monkeypatch.setattr(attention, '_SCORE_BYTES', 1)
  differences = jax.tree.map(
      _difference, _values_and_gradients(inputs), whole)
  # Both are rounded to 8 bits once.
  assert max(jax.tree.leaves(differences)) <= 2**-7, differences


def _temporary_bytes(num_queries, num_prefix):
  """What XLA allots to the forward and the backward pass on this CPU."""
  q, k, v, mask, prefix, prefix_mask = jax.eval_shape(
      functools.partial(_inputs, num_queries, num_prefix))

  def loss(q, k, v, prefix, masks):
    return _loss(q, k, v, prefix, masks)[0]

  compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(
      q, k, v, prefix, (mask, prefix_mask)).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def test_memory_grows_with_the_length(monkeypatch):
  # Bite: no checkpoint, so that the scores of all blocks are kept.
  growth = _temporary_bytes(512, 512) / _temporary_bytes(256, 256)
  assert growth > 3.5
  monkeypatch.setattr(attention, '_SCORE_BYTES', 8 * _row_bytes(512))
  growth = _temporary_bytes(512, 512) / _temporary_bytes(256, 256)
  assert growth < 2.1


def _has_loop(groups, kv_heads, candidates, queries, per_head, width, prefix):
  """Whether queries of such a model are taken in blocks."""
  spec = jax.ShapeDtypeStruct

  def draw(*shape):
    return spec((groups, kv_heads, *shape), jnp.bfloat16)

  q = draw(candidates, queries, per_head, width)
  k, v = draw(candidates, width, queries), draw(candidates, queries, width)
  mask = spec((queries, queries), bool)
  prefix_kv = prefix_mask = None
  if prefix:
    prefix_kv = draw(width, prefix), draw(prefix, width)
    prefix_mask = spec((groups, prefix), bool)
  return 'scan' in str(jax.make_jaxpr(attention.attend)(
      q, k, v, mask, prefix_kv, prefix_mask))


def test_only_long_sequences_are_cut():
  # Bite: a limit that counts all groups: a batch would change the program.
  # models/nano, its largest shapes in configs/plan_path.py.
  assert not _has_loop(64, 2, 1, 1536, 2, 32, None)
  assert not _has_loop(64, 2, 8, 104, 2, 32, 1536)
  # Qwen3-8B in configs/common.py.
  assert _has_loop(1, 8, 1, 8192, 4, 128, None)
  assert _has_loop(1, 8, 4, 4096, 4, 128, 8192)
