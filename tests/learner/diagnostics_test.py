"""diagnostics.py: each role's own gradient, entropy and way from the start."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from atgrpo_jax import model
from atgrpo_jax.learner import diagnostics
from atgrpo_jax.learner import train_step
from atgrpo_jax.runtime import sharding
from tests import specs
from tests.rl import tiny

SPEC = specs.learner()
STATIC = {'config': tiny.CONFIG, 'spec': SPEC}
LORA = model.LoraSpec(
    rank=2, alpha=3.0, targets=('gate/kernel', 'down/kernel'))


@pytest.fixture(scope='module')
def params():
  return tiny.make_params()


@pytest.fixture(scope='module')
def batch(params):
  """What the model itself could have sampled."""
  batch = tiny.make_batch()
  return dataclasses.replace(
      batch, behavior_logprobs=train_step.score(params, batch, **STATIC))


def _num_tokens(batches):
  return sum(batch.completion_lengths.sum().item() for batch in batches)


def _diagnose(params, batches, start=None, spec=SPEC, frozen_params=None):
  mesh, = sharding.make_meshes(
      ['all'], jax.devices()[:1], sharding.MeshSpec()).values()
  roles = {
      role: diagnostics.RoleBatches(own, *[_num_tokens(own)] * 2)
      for role, own in batches.items()}
  return diagnostics.diagnose(
      params, roles, functools.partial(
          train_step.score, params if start is None else start, **STATIC),
      frozen_params=frozen_params, mesh=mesh, config=tiny.CONFIG, spec=spec)


def _negated(batch):
  return dataclasses.replace(batch, advantages=-batch.advantages)


def test_gradients_of_each_role(params, batch):
  other = dataclasses.replace(
      batch, advantages=np.roll(batch.advantages, 1, axis=0))
  roles = {'one': [batch], 'other': [other, batch]}
  grads = {}
  for role, own in roles.items():
    sums = train_step.zero_sums(params, **STATIC)
    for each in own:
      sums = train_step.accumulate(params, sums, each, **STATIC)
    num_tokens = _num_tokens(own)
    grads[role] = jax.tree.map(lambda g: g[0] / num_tokens, sums.grads)
  values = _diagnose(params, roles)
  norms = {role: optax.tree.norm(g) for role, g in grads.items()}
  for role, norm in norms.items():
    np.testing.assert_allclose(values[f'{role}/grad_norm'], norm, rtol=1e-5)
  np.testing.assert_allclose(
      values['cosine/one+other'],
      optax.tree.vdot(grads['one'], grads['other'])
      / norms['one'] / norms['other'], rtol=1e-4)
  assert abs(values['cosine/one+other']) < 0.9


def test_roles_that_contradict_each_other(params, batch):
  values = _diagnose(
      params, {'a': [batch], 'b': [_negated(batch)], 'c': [batch, batch]})
  assert values['cosine/a+b'] == pytest.approx(-1, abs=1e-5)
  assert values['cosine/b+c'] == pytest.approx(-1, abs=1e-5)
  assert values['cosine/a+c'] == pytest.approx(1, abs=1e-5)
  # A mean does not depend on how often the same is said.
  assert values['c/grad_norm'] == pytest.approx(values['a/grad_norm'])
  assert values['c/entropy'] == pytest.approx(values['a/entropy'])


def _plain(params, batch):
  """Log-probabilities of a completion's tokens and entropies, as [P, G, T]."""
  logprobs = jax.nn.log_softmax(tiny.plain_logits(params, batch))
  logprobs = logprobs.reshape(*batch.completions.shape, -1)
  chosen = jnp.take_along_axis(logprobs, batch.completions[..., None], axis=-1)
  return chosen[..., 0], -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)


def _merged(params, adapter):
  """The model that an adapter of `LORA` makes of another."""
  layers = {
      name: {'kernel': params['layers'][name]['kernel']
             + LORA.alpha / LORA.rank * own['a'][0] @ own['b'][0]}
      for name, own in adapter.items()}
  return params | {'layers': params['layers'] | layers}


def test_entropy_of_a_token(params, batch):
  # Without parameters all tokens are alike.
  nothing = jax.tree.map(jnp.zeros_like, params)
  values = _diagnose(nothing, {'a': [batch]})
  assert values['a/entropy'] == pytest.approx(np.log(tiny.CONFIG.vocab_size))
  mask = np.asarray(train_step.completion_mask(batch))
  _, entropy = jax.jit(lambda params: _plain(params, batch))(params)
  expected = np.mean(np.asarray(entropy)[mask])
  assert 0.5 < expected < 0.95 * np.log(tiny.CONFIG.vocab_size)
  values = _diagnose(params, {'a': [batch, batch]})
  assert values['a/entropy'] == pytest.approx(expected, rel=1e-5)


def test_an_adapter_over_its_base(params, batch):
  # Bite: gradients of the base, an adapter that is left out or not scaled.
  adapter = jax.tree.map(
      lambda x: x + tiny.ids(*x.shape) / 64 - 0.25,
      model.init_lora(jax.random.key(1), tiny.CONFIG, LORA, 1))
  mask = np.asarray(train_step.completion_mask(batch))

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def plain_gradient(adapter, advantages):
    logprobs, entropy = _plain(_merged(params, adapter), batch)
    gains = jnp.where(mask, advantages[..., None] * logprobs, 0.0)
    return -jnp.sum(gains) / mask.sum(), (logprobs, entropy)

  advantages = batch.advantages, np.roll(batch.advantages, 1, axis=0)
  one, (logprobs, entropy) = plain_gradient(adapter, advantages[0])
  other, _ = plain_gradient(adapter, advantages[1])
  values = _diagnose(
      adapter, {
          role: [dataclasses.replace(
              batch, advantages=own, behavior_logprobs=logprobs)]
          for role, own in zip(('one', 'other'), advantages)},
      params, dataclasses.replace(SPEC, adapter_scale=LORA.scale), params)
  norms = float(optax.tree.norm(one)), float(optax.tree.norm(other))
  cosine = float(optax.tree.vdot(one, other)) / norms[0] / norms[1]
  entropy = np.mean(np.asarray(entropy)[mask])
  way = np.asarray(batch.behavior_logprobs - logprobs)[mask]
  kl = np.mean(np.exp(way) - 1 - way)
  assert kl > 0.01 and abs(cosine) < 0.9
  assert values == pytest.approx({
      'one/grad_norm': norms[0], 'other/grad_norm': norms[1],
      'cosine/one+other': cosine, 'one/entropy': entropy,
      'other/entropy': entropy, 'one/kl_to_start': kl, 'other/kl_to_start': kl,
  }, rel=1e-4)


def test_distance_to_the_start(params, batch):
  assert _diagnose(params, {'a': [batch]})['a/kl_to_start'] == pytest.approx(
      0, abs=1e-6)
  start = jax.tree.map(lambda x: 1.1 * x, params)
  values = _diagnose(params, {'a': [batch, batch]}, start)
  there = np.asarray(train_step.score(start, batch, **STATIC))
  difference = there - np.asarray(batch.behavior_logprobs)
  mask = np.asarray(train_step.completion_mask(batch))
  expected = np.mean((np.exp(difference) - 1 - difference)[mask])
  assert expected > 0.01
  np.testing.assert_allclose(values['a/kl_to_start'], expected, rtol=1e-5)


def test_a_penalty_is_part_of_the_gradient(params, batch):
  spec = dataclasses.replace(SPEC, loss=specs.loss(
      kl_estimator='k3', kl_coefficient=1.0))
  start = jax.tree.map(lambda x: 1.1 * x, params)
  plain = _diagnose(params, {'a': [batch]}, start)
  with_penalty = _diagnose(params, {'a': [batch]}, start, spec)
  assert with_penalty['a/grad_norm'] != pytest.approx(
      plain['a/grad_norm'], rel=0.01)
  assert with_penalty['a/kl_to_start'] == plain['a/kl_to_start']
