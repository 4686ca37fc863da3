"""Products in bfloat16 with float32 activations, as on CPUs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax.learner import gradients
from atgrpo_jax.model import products
from atgrpo_jax.rl import advantages
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from tests import specs
from tests.rl import tiny
from tests.rollout import scripted

BFLOAT16 = jnp.dtype(jnp.bfloat16)


def _normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize('equation, shapes', [
    ('ri,io->ro', ((5, 8), (8, 3))), ('rd,vd->rv', ((5, 8), (3, 8))),
    ('pkqh,pkhs->pkqs', ((2, 2, 3, 4), (2, 2, 4, 5))),
    ('...qh,...hy->...qy', ((2, 2, 3, 4), (2, 2, 4, 5)))])
def test_operands_and_cotangents_are_rounded(equation, shapes):
  x, y = (_normal(i, *shape) for i, shape in enumerate(shapes))

  def rounded(x):
    return x.astype(jnp.bfloat16).astype(jnp.float32)

  exact, pullback = jax.vjp(
      lambda x, y: jnp.einsum(equation, x, y), rounded(x), rounded(y))
  found, found_pullback = jax.vjp(
      lambda x, y: products.einsum(equation, x, y, BFLOAT16), x, y)
  cotangent = _normal(7, *exact.shape)
  for a, b in zip(
      (found, *found_pullback(cotangent)),
      (exact, *pullback(rounded(cotangent))), strict=True):
    assert a.dtype == jnp.float32
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  assert np.any(exact != jnp.einsum(equation, x, y))


def test_no_product_of_the_model_is_left_in_float32():
  params = tiny.make_params()
  batch = tiny.make_batch()
  spec = specs.learner(dtype='bfloat16')
  sums = gradients.zero_sums(params, config=tiny.CONFIG, spec=spec)
  text = gradients.accumulate.lower(
      params, sums, batch, config=tiny.CONFIG, spec=spec).as_text()
  dots = [line for line in text.splitlines() if 'stablehlo.dot_general' in line]
  assert len(dots) > 20
  for line in dots:
    operands, result = line.rsplit(':', 1)[1].split('->')
    assert operands.count('bf16>') == 2 and 'f32>' in result, line


def test_sampler_and_learner_round_alike():
  params = tiny.make_params()
  config = dataclasses.replace(tiny.CONFIG, max_positions=256)
  requests = [
      engine_lib.Request(i, ids, (0, i), 40)
      for i, ids in enumerate(tiny.ids(6, 7))]
  engine = engine_lib.Engine(
      engine_lib.SampledModel(
          params, config, 'bfloat16', scripted.one_device()),
      spec=programs.SamplerSpec(
          group_size=8, temperature=1.0, stop_ids=(3,), dtype='bfloat16'),
      num_slots=(6,), prompt_length=7)
  for request in requests:
    engine.add(request)
  groups = tiny.drain(engine)

  def padded(name):
    return np.array([
        [np.pad(x, (0, 40 - len(x))) for x in getattr(group, name)]
        for group in groups])

  lengths = np.array([[len(x) for x in g.completions] for g in groups])
  batch = dataclasses.replace(
      tiny.make_batch(), prompts=np.stack([x.request.prompt for x in groups]),
      prompt_lengths=np.full(6, 7, np.int32), completions=padded('completions'),
      completion_lengths=lengths.astype(np.int32))
  mask, scores = np.arange(40) < lengths[..., None], {}
  for dtype in ('bfloat16', 'float32'):
    found = gradients.score(
        params, batch, config=config, spec=specs.learner(dtype=dtype))
    scores[dtype] = np.mean(np.abs(found - padded('logprobs'))[mask])
  # Measured: 8e-8, 5e-3 if XLA skips a rounding, and 1.1e-2 with float32
  # products in the learner.
  assert scores['bfloat16'] < 1e-5 and scores['float32'] > 5e-3


def test_rounding_does_not_become_advantage():
  returns = np.full(8, 0.7, np.float32)
  returns[3] = np.nextafter(returns[3], np.float32(1))
  assert len({*returns}) == 2
  found = advantages.group_advantages(
      returns, np.zeros(8, int), np.ones(8, bool), baseline='mean', scale='std')
  np.testing.assert_array_equal(found, 0)


def test_without_remat_the_backward_pass_multiplies_less():
  params = tiny.make_params()

  def cost(remat):
    def loss(params):
      hidden, _ = model.forward(
          params, tiny.CONFIG, tiny.ids(2, 3, 32), remat=remat)
      return jnp.sum(hidden)

    compiled = jax.jit(jax.grad(loss)).lower(params).compile()
    return compiled.cost_analysis()['flops'], jax.jit(jax.grad(loss))(params)

  (less, kept), (more, recomputed) = cost(False), cost(True)
  assert less < 0.9 * more
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
      kept, recomputed)


@pytest.mark.parametrize('flags, dtype', [
    ('flags : fpu avx512_bf16', 'bfloat16'), ('flags : amx_bf16', 'bfloat16'),
    ('flags : fpu avx512f', 'float32')])
def test_the_dtype_follows_the_instructions_of_the_cpu(
    monkeypatch, flags, dtype):
  monkeypatch.setattr(products.pathlib.Path, 'read_text', lambda self: flags)
  assert products.fastest_dtype('cpu') == dtype
  assert products.fastest_dtype('tpu') == 'bfloat16'
