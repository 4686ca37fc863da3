"""Products in bfloat16 with float32 activations, as on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax.learner import gradients
from atgrpo_jax.model import products
from tests import specs
from tests.rl import tiny

BFLOAT16 = jnp.dtype(jnp.bfloat16)


def _normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize('equation, shapes', [
    ('ri,io->ro', ((5, 8), (8, 3))), ('rd,vd->rv', ((5, 8), (3, 8)))])
def test_operands_and_cotangents_are_rounded(equation, shapes):
  x, y = (_normal(i, *shape) for i, shape in enumerate(shapes))

  def rounded(x):
    return x.astype(jnp.bfloat16).astype(jnp.float32)

  exact, pullback = jax.vjp(
      lambda x, y: jnp.einsum(equation, x, y), rounded(x), rounded(y))
  found, found_pullback = jax.vjp(
      lambda x, y: products.multiply(equation, x, y, BFLOAT16), x, y)
  cotangent = _normal(7, *exact.shape)
  for a, b in zip(
      (found, *found_pullback(cotangent)),
      (exact, *pullback(rounded(cotangent))), strict=True):
    assert a.dtype == jnp.float32
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  assert np.any(exact != jnp.einsum(equation, x, y))


def test_gradients_of_parameters_are_summed_in_float32():
  """Also where activations have the dtype of the products, as on TPUs."""
  x, y = (_normal(i, 5, 5).astype(BFLOAT16) for i in range(2))
  text = jax.jit(jax.grad(
      lambda x, y: products.multiply(
          'ri,io->ro', x, y, BFLOAT16, BFLOAT16).astype(jnp.float32).sum(),
      argnums=(0, 1))).lower(x, y).as_text()
  results = [
      line.rpartition('-> ')[2] for line in text.splitlines()
      if 'stablehlo.dot_general' in line]
  assert [*map(str.strip, results)] == ['tensor<5x5xbf16>', 'tensor<5x5xf32>']


def test_only_attention_and_norms_multiply_in_float32(params):
  batch = tiny.make_batch()
  spec = specs.learner(dtype='bfloat16')
  sums = gradients.zero_sums(params, config=tiny.CONFIG, spec=spec)
  text = gradients.accumulate.lower(
      params, sums, batch, config=tiny.CONFIG, spec=spec).as_text()
  dots = [line for line in text.splitlines() if 'stablehlo.dot_general' in line]
  assert len(dots) > 20
  for line in dots:
    operands, result = line.rsplit(':', 1)[1].split('->')
    in_float32 = 'batching_dims' in line or f'x{products.COLUMNS}xf32>' in line
    assert operands.count('bf16>') == (0 if in_float32 else 2), line
    assert 'xf32>' in result, line


def test_without_remat_the_backward_pass_multiplies_less(params):
  def cost(remat):
    def loss(params):
      hidden, _ = model.forward(
          params, tiny.CONFIG, tiny.ids(2, 3, 32), remat=remat)
      return jnp.sum(hidden)

    compiled = jax.jit(jax.grad(loss)).lower(params).compile()
    return compiled.cost_analysis()['flops']

  assert cost(remat=False) < 0.9 * cost(remat=True)


@pytest.mark.parametrize('flags, dtype', [
    ('flags : fpu avx512_bf16', 'bfloat16'), ('flags : amx_bf16', 'bfloat16'),
    ('flags : fpu avx512f', 'float32')])
def test_the_dtype_follows_the_instructions_of_the_cpu(
    monkeypatch, flags, dtype):
  monkeypatch.setattr(products.pathlib.Path, 'read_text', lambda self: flags)
  assert products.fastest_dtype('cpu') == dtype
  assert products.fastest_dtype('tpu') == 'bfloat16'
