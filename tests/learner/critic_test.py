"""Critics: values, gradients and updates against a plain forward pass."""

import dataclasses
import functools

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

CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1, tied_head=False)
BUCKETS = batching.Buckets(
    prompt=(4, 8), completion=(1,), groups=(1,), microbatch_tokens=16)
# (shapes, remat) that leave the result unchanged.
VARIANTS = (
    ({}, False), ({'microbatch_tokens': 1}, True),
    ({'prompt': (11,), 'microbatch_tokens': 999}, False))
LENGTHS = 3, 8, 1, 5


def make(mesh=None, **changes):
  """A critic of the tiny model."""
  learner = specs.learner(loss=None, value_head=True, **changes)
  return policy_lib.Policy(
      name='critic/p', folder=None, config=CONFIG, tokenizer=None,
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


def _hidden(params, examples):
  """Last hidden states [N, D] of unpadded inputs, one forward pass each."""
  return jnp.stack([
      model.forward(params['model'], CONFIG, x.inputs[None, None])[0][0, 0, -1]
      for x in examples])


def test_values_and_gradient_equal_the_plain_model():
  params, examples = make_params(), make_examples()
  targets = np.array([example.target for example in examples])

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def plain(params):
    head = params['head']
    values = _hidden(params, examples) @ head['kernel'] + head['bias']
    return jnp.sum(jnp.square(values - targets)) / 2, values

  (loss, expected), grads = plain(params)
  for shapes, remat in VARIANTS:
    critic = make(remat=remat)
    buckets = dataclasses.replace(BUCKETS, **shapes)
    values = update_lib.critic_values(
        critic, params, [example.inputs for example in examples], buckets)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
    static = {'config': CONFIG, 'spec': critic.learner}
    sums = gradients.zero_sums(params, **static)
    for batch in batching.make_value_batches(examples, buckets):
      sums = gradients.accumulate(params, sums, batch, **static)
    total = gradients.add_up(sums, **static)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(
        x, y, rtol=1e-4, atol=1e-4), (total.loss, total.grads), (loss, grads))


def test_first_update_by_hand():
  """The head's gradient is the mean of (value - target) * hidden state."""
  examples = make_examples()
  hidden = jax.jit(lambda params: _hidden(params, examples))(make_params())
  targets = np.array([example.target for example in examples])
  critic = make()
  state = policy_lib.TrainState.create(
      make_params({'kernel': jnp.zeros(16), 'bias': jnp.float32(0)}),
      critic.learner.optimizer)
  state, update = update_lib.update_critic(critic, state, [
      *examples, dataclasses.replace(examples[0], critic='critic/q')], BUCKETS)
  metrics = update.metrics('critic/p')
  # The kernel is zero, so the trunk has no gradient yet.
  kernel, bias = -hidden.T @ targets / len(targets), -targets.mean()
  assert metrics['grad_norm'] == pytest.approx(
      np.sqrt(np.sum(kernel**2) + bias**2), rel=1e-5)
  assert metrics['loss'] == pytest.approx(np.mean(targets**2) / 2)
  assert metrics['target_mean'] == targets.mean()
  residuals = targets - [example.value for example in examples]
  assert metrics['explained_variance'] == pytest.approx(
      1 - residuals.var() / targets.var())
  # Adam's first step is one learning rate against the sign of the gradient.
  np.testing.assert_allclose(
      state.params['head']['kernel'], -1e-2 * np.sign(kernel), rtol=1e-3)
