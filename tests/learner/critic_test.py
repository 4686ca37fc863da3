"""critic.py: one critic, and all the ways to compute it that must agree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.learner import critic as critic_lib
from atgrpo_jax.learner import critic_step
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import train_state
from atgrpo_jax.rl import losses
from tests import specs
from tests.rl import tiny
from tests.rollout import scripted

CONFIG = dataclasses.replace(tiny.CONFIG, tied_head=False)
LENGTHS = 3, 7, 1, 8, 5


def make(**changes):
  """A critic of the tiny model; `trunk` is 'own' or 'policy'."""
  learner = critic_step.CriticLearnerSpec(
      optimizer=specs.optimizer(learning_rate=1e-2), value_clip=0.0,
      dtype='float32', remat=False, trains_trunk=True)
  fields = {
      'lengths': (4, 8), 'microbatch_tokens': 16, 'num_updates': 1,
      'pretrained': policy_lib.Pretrained(None, CONFIG, None)}
  of_learner = learner.__dataclass_fields__.keys() & changes.keys()
  learner = dataclasses.replace(
      learner, **{name: changes.pop(name) for name in of_learner})
  if 'mesh' not in changes:
    changes['mesh'] = scripted.one_device()
  return critic_lib.Critic(
      name='critic/p', policy='p', learner=learner, **fields | changes)


def make_params():
  """The policy, and a critic that has a model and a head of its own."""
  policy = jax.jit(model.init_params, static_argnums=1)(
      jax.random.key(0), CONFIG)
  trunk = {name: 1.5 * leaf if name == 'embedding' else leaf
           for name, leaf in policy.items() if name != 'head'}
  head = {'kernel': jnp.arange(16) / 8 - 1.0, 'bias': jnp.float32(0.25)}
  return {'p': policy, 'critic/p': {'model': trunk, 'head': head}}


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


def _plain(trunk, head, inputs):
  """[N], each input for itself and as long as it is."""
  return jnp.stack([
      model.forward(trunk, CONFIG, ids[None, None])[0][0, 0, -1]
      @ head['kernel'] + head['bias'] for ids in inputs])


def _state(params):
  return {
      name: train_state.create(
          jax.tree.map(jnp.copy, own), specs.optimizer(learning_rate=1e-2))
      for name, own in params.items()}


def test_values_are_those_of_a_plain_forward(params, inputs):
  own = params['critic/p']
  expected = _plain(own['model'], own['head'], inputs)
  for changes in ({}, {'microbatch_tokens': 1}, {'lengths': (8,)},
                  {'microbatch_tokens': 999, 'remat': True}):
    np.testing.assert_allclose(
        make(**changes).values(params, inputs), expected, rtol=1e-5, atol=1e-5)
  # Of a head alone the hidden states are the policy's.
  np.testing.assert_allclose(
      make(trains_trunk=False).values(
          params | {'critic/p': {'head': own['head']}}, inputs),
      _plain(params['p'], own['head'], inputs), rtol=1e-5, atol=1e-5)
  assert not np.allclose(
      expected, _plain(params['p'], own['head'], inputs), atol=.1)


@pytest.mark.parametrize('value_clip', [0.0, 0.2])
def test_gradient_is_that_of_the_plain_model(
    params, inputs, examples, value_clip):
  """Whatever the padding and the microbatches; clipped values have none."""
  own = params['critic/p']
  old, targets = np.transpose([(x.value, x.target) for x in examples])

  def loss_fn(own):
    values = _plain(own['model'], own['head'], inputs)
    squared = jnp.square(values - targets)
    if value_clip:
      clipped = jnp.clip(values, old - value_clip, old + value_clip)
      squared = jnp.maximum(squared, jnp.square(clipped - targets))
    return jnp.sum(squared) / 2

  expected = jax.value_and_grad(loss_fn)(own)
  for changes in ({}, {'microbatch_tokens': 1, 'remat': True},
                  {'lengths': (11,), 'microbatch_tokens': 999}):
    critic = make(value_clip=value_clip, **changes)
    sums = critic_step.zero_sums(own, spec=critic.learner)
    for batch in critic._value_batches(examples):
      sums = critic_step.accumulate(
          own, sums, batch, config=CONFIG, spec=critic.learner)
    found = sums.loss[0], jax.tree.map(lambda x: x[0], sums.grads)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(
        x, y, rtol=1e-4, atol=1e-4), found, expected)


def test_gradient_of_a_head_by_hand(params, inputs, examples):
  """The mean of (value - target) times the features, with a head of zeros."""
  features = np.stack([
      model.forward(params['p'], CONFIG, ids[None, None])[0][0, 0, -1]
      for ids in inputs])
  targets = np.array([example.target for example in examples])
  head = critic_step.init_head(CONFIG)
  states = _state({'p': params['p'], 'critic/p': {'head': head}})
  state, update = make(trains_trunk=False).update(states, [
      *examples, dataclasses.replace(examples[0], critic='critic/q')])
  metrics = update.metrics('critic/p')
  kernel, bias = -features.T @ targets / 5, -targets.mean()
  assert metrics['grad_norm'] == pytest.approx(
      np.sqrt(np.sum(kernel**2) + bias**2), rel=1e-5)
  assert metrics['loss'] == pytest.approx(np.mean(targets**2) / 2)
  assert (metrics['examples'], metrics['target_mean']) == (5, targets.mean())
  # Adam's first step is one learning rate against the sign.
  np.testing.assert_allclose(
      state.params['head']['kernel'], -1e-2 * np.sign(kernel), rtol=1e-3)
  assert state.params.keys() == {'head'}


@pytest.mark.parametrize('trains_trunk', [True, False])
def test_a_critic_learns_what_it_is_told(
    params, inputs, examples, trains_trunk):
  critic = make(trains_trunk=trains_trunk, num_updates=10)
  start = {'head': critic_step.init_head(CONFIG)}
  if trains_trunk:
    start['model'] = params['critic/p']['model']
  states, losses_found = _state({'p': params['p'], 'critic/p': start}), []
  constant = [dataclasses.replace(x, target=0.5) for x in examples]
  for _ in range(6):
    states['critic/p'], update = critic.update(states, constant)
    losses_found.append(update.metrics('critic/p')['loss'])
  assert int(states['critic/p'].num_updates) == 60
  assert losses_found[0] > 0.02 and losses_found[-1] < 1e-3, losses_found
  now = {name: state.params for name, state in states.items()}
  np.testing.assert_allclose(critic.values(now, inputs), 0.5, atol=0.1)


def test_a_clipped_value_by_hand():
  def loss(value, clip):
    return losses.value_loss(
        jnp.array([value]), jnp.array([1.0]), jnp.array([3.0]),
        jnp.array([1.0]), clip)

  assert loss(2.0, 0.0) == 0.5
  assert loss(2.0, 0.2) == pytest.approx(1.8**2 / 2)  # As if it were 1.2.
  assert loss(0.0, 0.2) == 4.5  # The larger error, of the value itself.


def test_an_input_that_does_not_fit_is_refused(params):
  with pytest.raises(errors.UserError, match='has 9 tokens, but only 8 fit: '
                     'raise critic.prompt_buckets'):
    make().values(params, [tiny.ids(9)])
