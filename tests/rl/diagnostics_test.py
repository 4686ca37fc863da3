"""diagnostics.py: each role's own gradient, entropy and way from the start."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from atgrpo_jax import sharding
from atgrpo_jax.rl import diagnostics
from atgrpo_jax.rl import losses
from atgrpo_jax.rl import optimizer
from atgrpo_jax.rl import train_step
from tests.rl import tiny

SPEC = train_step.LearnerSpec(
    optimizer.OptimizerSpec(learning_rate=1e-2), losses.LossSpec())
STATIC = {'config': tiny.CONFIG, 'spec': SPEC}


@pytest.fixture(scope='module')
def params():
  return tiny.make_params()


@pytest.fixture(scope='module')
def batch(params):
  """What the model itself could have sampled."""
  batch = tiny.make_batch()
  return dataclasses.replace(
      batch, behavior_logprobs=train_step.score(params, batch, **STATIC))


def _diagnose(params, batches, start=None, spec=SPEC):
  mesh, = sharding.make_meshes(
      ['all'], jax.devices()[:1], sharding.MeshSpec()).values()
  return diagnostics.diagnose(
      params, batches, functools.partial(
          train_step.score, params if start is None else start, **STATIC),
      base=None, mesh=mesh, config=tiny.CONFIG, spec=spec)


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
    grads[role] = jax.tree.map(lambda g, n=sums.count: g / n, sums.grads)
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
  spec = dataclasses.replace(SPEC, loss=losses.LossSpec(
      kl_estimator='k3', kl_coefficient=1.0))
  start = jax.tree.map(lambda x: 1.1 * x, params)
  plain = _diagnose(params, {'a': [batch]}, start)
  with_penalty = _diagnose(params, {'a': [batch]}, start, spec)
  assert with_penalty['a/grad_norm'] != pytest.approx(
      plain['a/grad_norm'], rel=0.01)
  assert with_penalty['a/kl_to_start'] == plain['a/kl_to_start']
