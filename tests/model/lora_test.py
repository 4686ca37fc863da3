"""Adapters change only their targets."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.model import layers
from tests.rl import tiny

SPEC = model.LoraSpec(
    rank=3, alpha=6.0, targets=('attention/(q|v)/kernel', 'down/kernel'))
TOKENS = np.arange(24, dtype=np.int32).reshape(3, 2, 4) % tiny.CONFIG.vocab_size


def _random(spec=SPEC, seed=1):
  """An adapter whose `b` is not 0."""
  shapes = jax.eval_shape(
      lambda: model.init_lora(jax.random.key(0), tiny.CONFIG, spec))
  rng = np.random.default_rng(seed)
  return jax.tree.map(
      lambda x: 0.3 * rng.normal(size=x.shape).astype(np.float32), shapes)


@jax.jit
def _logits(params, tokens):
  hidden, _ = model.forward(params, tiny.CONFIG, tokens)
  return model.unembed(params, tiny.CONFIG, hidden)


def _adapted(params, weights, scales):
  adapters = model.Adapters(weights, jnp.asarray(scales, jnp.float32))
  return _logits(model.with_adapters(params, adapters), TOKENS)


def test_initial_adapters_have_no_effect(params):
  weights = model.init_lora(jax.random.key(1), tiny.CONFIG, SPEC)
  bound = tiny.CONFIG.intermediate_size**-0.5
  assert np.abs(weights['down']['a']).max() <= bound
  assert np.std(weights['down']['a']) > 0.4 * bound
  # Two programs agree up to rounding.
  np.testing.assert_allclose(
      _adapted(params, weights, [2.0]), _logits(params, TOKENS), atol=2e-6)


def test_groups_of_a_batch_use_different_adapters(params):
  # The ranks differ, so the smaller one is padded.
  weights = _random(), _random(dataclasses.replace(SPEC, rank=5), seed=2)
  scales, ids = [0.5, 2.0], np.array([1, 0, 1])
  stacked = model.stack(weights, scales)
  assert stacked.weights['down']['a'].shape[-1] == 5
  found = _logits(model.with_adapters(params, stacked, ids), TOKENS)
  for row, index in enumerate(ids):
    np.testing.assert_allclose(
        found[row], _adapted(params, weights[index], [scales[index]])[row],
        atol=1e-5)
  assert np.abs(found - _logits(params, TOKENS)).max() > 0.01


def test_adapters_of_other_groups_change_no_bit():
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.array(rng.normal(size=shape), jnp.float32)

  layer = layers.Linear(64, 1.0, jnp.bfloat16)
  x, kernel = draw(1, 1024, 4864), draw(4864, 64)
  (a, b), (other_a, other_b) = (
      (draw(4864, 16), draw(16, 64)) for _ in range(2))

  def apply(**lora):
    return jax.jit(layer.apply)(
        {'params': {'kernel': kernel}, 'lora': lora}, x)

  np.testing.assert_array_equal(
      apply(a=a, b=b),
      apply(a=jnp.hstack([other_a, a]), b=jnp.vstack([other_b, b]),
            use=jnp.array([[0.0, 1.0]])))
