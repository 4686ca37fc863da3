"""Critics: values, gradients and updates against a plain forward pass."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from tests import specs
from tests.rl import tiny
from tests.rollout import scripted

CONFIG = dataclasses.replace(tiny.CONFIG, tied_head=False)
BUCKETS = batching.Buckets(
    prompt=(4, 8), completion=(1,), groups=(1,), microbatch_tokens=16)
# (shapes, remat) that leave the result unchanged.
VARIANTS = (
    ({}, False), ({'microbatch_tokens': 1}, True),
    ({'prompt': (11,), 'microbatch_tokens': 999}, False))
LENGTHS = 3, 7, 1, 8, 5


def make(mesh=None, **changes):
  """A critic of the tiny model."""
  learner = specs.learner(loss=None, value_head=True, **changes)
  return policy_lib.Policy(
      name='critic/p', pretrained=policy_lib.Pretrained(None, CONFIG, None),
      trained='all', lora=None, adapter=None, learner=learner,
      mesh=mesh or scripted.one_device())


def make_params(head=None):
  params = jax.jit(model.init_params, static_argnums=1)(
      jax.random.key(0), CONFIG)
  del params['head']
  head = head or {'kernel': jnp.arange(16) / 8 - 1.0, 'bias': jnp.float32(0.25)}
  return {'model': params, 'head': head}


def make_examples():
  return [
      types.ValueExample(
          'critic/p', tiny.ids(length, seed=length), value=0.1 * i,
          target=1.0 - 0.5 * i) for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope='module', name='params')
def _params():
  return make_params()


@pytest.fixture(scope='module', name='examples')
def _examples():
  return make_examples()


@pytest.fixture(scope='module', name='inputs')
def _inputs(examples):
  return [example.inputs for example in examples]


def _plain(params, inputs):
  """Values [N] of unpadded inputs, one forward pass each."""
  head = params['head']
  return jnp.stack([
      model.forward(params['model'], CONFIG, ids[None, None])[0][0, 0, -1]
      @ head['kernel'] + head['bias'] for ids in inputs])


def test_values_equal_a_plain_forward(params, inputs):
  expected = _plain(params, inputs)
  for shapes, remat in VARIANTS:
    values = update_lib.critic_values(
        make(remat=remat), params, inputs,
        dataclasses.replace(BUCKETS, **shapes))
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)


def test_gradient_equals_the_plain_model(params, inputs, examples):
  targets = np.array([example.target for example in examples])
  loss, grads = jax.jit(jax.value_and_grad(lambda params: jnp.sum(
      jnp.square(_plain(params, inputs) - targets)) / 2))(params)
  for shapes, remat in VARIANTS:
    static = {'config': CONFIG, 'spec': make(remat=remat).learner}
    sums = gradients.zero_sums(params, **static)
    for batch in batching.make_value_batches(
        examples, dataclasses.replace(BUCKETS, **shapes)):
      sums = gradients.accumulate(params, sums, batch, **static)
    total = gradients.add_up(sums, **static)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(
        x, y, rtol=1e-4, atol=1e-4), (total.loss, total.grads), (loss, grads))


def test_first_update_by_hand(params, inputs, examples):
  """The head's gradient is the mean of (value - target) * hidden state."""
  hidden = np.stack([
      model.forward(params['model'], CONFIG, ids[None, None])[0][0, 0, -1]
      for ids in inputs])
  targets = np.array([example.target for example in examples])
  critic = make()
  state = policy_lib.TrainState.create(
      jax.tree.map(jnp.copy, make_params(policy_lib.init_value_head(CONFIG))),
      critic.learner.optimizer)
  state, update = update_lib.update_critic(critic, state, [
      *examples, dataclasses.replace(examples[0], critic='critic/q')], BUCKETS)
  metrics = update.metrics('critic/p')
  # The kernel is zero, so the trunk has no gradient yet.
  kernel, bias = -hidden.T @ targets / 5, -targets.mean()
  assert metrics['grad_norm'] == pytest.approx(
      np.sqrt(np.sum(kernel**2) + bias**2), rel=1e-5)
  assert metrics['loss'] == pytest.approx(np.mean(targets**2) / 2)
  assert (metrics['examples'], metrics['target_mean']) == (5, targets.mean())
  # Adam's first step is one learning rate against the sign of the gradient.
  np.testing.assert_allclose(
      state.params['head']['kernel'], -1e-2 * np.sign(kernel), rtol=1e-3)
