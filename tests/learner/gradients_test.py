"""A golden step, and equivalent ways to compute a gradient."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from atgrpo_jax import model
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rl import losses
from tests import specs
from tests.rl import tiny

SPEC = specs.learner(
    optimizer=specs.optimizer(learning_rate=1e-2, weight_decay=0.01),
    loss=specs.loss(
        clip_high=0.3, kl_estimator='k3', kl_coefficient=0.1))
ON_POLICY = dataclasses.replace(SPEC, loss=specs.loss())
NUM_TOKENS = np.float32(35)  # In the tiny batch.


def _score(params, batch, spec=SPEC):
  return gradients.score(params, batch, config=tiny.CONFIG, spec=spec)


@pytest.fixture(scope='module')
def batch(params):
  """The tiny batch in the second of several updates."""
  batch = tiny.make_batch()
  def about(x, seed):
    shift = tiny.ids(*x.shape, seed=seed) / tiny.CONFIG.vocab_size - 0.5
    return x + shift.astype(np.float32)
  old = about(_score(params, batch), 3)
  return dataclasses.replace(
      batch, old_logprobs=old, behavior_logprobs=about(old, 4),
      reference_logprobs=about(old, 5))


def _accumulate(params, batches, spec=SPEC, frozen_params=None):
  sums = gradients.zero_sums(
      params, config=tiny.CONFIG, spec=spec)
  for batch in batches:
    sums = gradients.accumulate(
        params, sums, batch, frozen_params=frozen_params, config=tiny.CONFIG,
        spec=spec)
  return sums


def _update(state, sums):
  return update_lib.apply_update(
      state, sums, NUM_TOKENS, NUM_TOKENS, config=tiny.CONFIG, spec=SPEC)


def _state(params):
  """A state with fresh buffers, which updates donate."""
  return policy_lib.TrainState.create(
      jax.tree.map(jnp.copy, params), SPEC.optimizer)


def _assert_close(found, expected, tolerance):
  """Compares sums relative to the gradient norm and the number of tokens."""
  def compare(x, y, scale):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(
        x, y, rtol=0, atol=tolerance * scale), x, y)

  compare(found.grads, expected.grads, optax.tree.norm(expected.grads))
  compare(
      (found.loss, found.metrics), (expected.loss, expected.metrics),
      NUM_TOKENS)


GOLDEN = {
    'loss': -0.5850728, 'clipped': 10 / 35, 'entropy': 2.869555,
    'mismatch': 0.2919643, 'grad_norm': 3.526386, 'update_norm': 0.7735675,
    'param_norm': 25.12764}


def test_golden_step(params, batch):
  state, metrics = _update(_state(params), _accumulate(params, [batch]))
  assert int(state.num_updates) == 1
  found = {name: float(metrics[name]) for name in GOLDEN}
  assert found == pytest.approx(GOLDEN, rel=1e-4), (
      'The numbers of one update changed. Copy the new ones only after an '
      'intended change of the loss, optimizer, initialisation or tiny batch; '
      'refactoring, layout and batching must not change them.')


def test_supervised_loss_is_the_mean_score_and_falls(params):
  batch = tiny.make_batch()
  mask = np.asarray(gradients.completion_mask(batch))
  state, found = _state(params), [np.inf]
  for _ in range(3):
    expected = -np.mean(np.asarray(_score(state.params, batch))[mask])
    state, metrics = _update(state, _accumulate(
        state.params, [batch], dataclasses.replace(SPEC, loss=None)))
    np.testing.assert_allclose(metrics['loss'], expected, rtol=1e-5)
    assert expected < found[-1]
    found.append(expected)


def test_without_old_logprobs_the_policy_is_the_old_one(params):
  batch = tiny.make_batch()
  assert batch.old_logprobs is None
  # Importance weights would have the gradient of the ratio.
  spec = dataclasses.replace(SPEC, loss=specs.loss(importance_cap=0.0))
  with_old = dataclasses.replace(batch, old_logprobs=_score(params, batch))
  _assert_close(
      _accumulate(params, [batch], spec), _accumulate(params, [with_old], spec),
      1e-5)


def test_padding_order_and_microbatches_have_no_effect(params, batch):
  mask = np.asarray(gradients.completion_mask(batch))
  prompt_mask = np.arange(7) < np.asarray(batch.prompt_lengths)[:, None]
  assert not mask.all() and not prompt_mask.all() and not mask.any(-1).all()
  junk = dataclasses.replace(
      batch, prompts=np.where(prompt_mask, batch.prompts, 31),
      completions=np.where(mask, batch.completions, 31),
      old_logprobs=np.where(mask, batch.old_logprobs, np.nan),
      behavior_logprobs=np.where(mask, batch.behavior_logprobs, -np.inf),
      reference_logprobs=np.where(mask, batch.reference_logprobs, 1e9),
      # The candidate without tokens.
      advantages=np.where(mask.any(-1), batch.advantages, -1e6))
  once = _accumulate(params, [batch])
  jax.tree.map(
      np.testing.assert_array_equal, _accumulate(params, [junk]), once)

  def pad(x, **axes):
    widths = [(0, axes.get(f'axis{i}', 0)) for i in range(x.ndim)]
    return np.pad(x, widths)

  def shuffle(x):
    x = x[:, np.array([1, 3, 0, 2])] if x.shape[1:2] == (4,) else x
    return np.concatenate([x[::-1]] * 12)

  shuffled = jax.tree.map(shuffle, junk)
  padded = jax.tree.map(lambda x: pad(x, axis0=1, axis2=3), shuffled)
  padded = dataclasses.replace(
      padded, prompts=pad(shuffled.prompts, axis0=1, axis1=4),
      prompt_lengths=np.append(shuffled.prompt_lengths, np.int32(1)))
  assert padded.prompts.shape == (37, 11)
  # The tokens fill one chunk of 256 and part of a second.
  assert padded.completions.shape == (37, 4, 8)
  assert 256 < np.sum(padded.completion_lengths) < 512
  _assert_close(
      _accumulate(params, [padded, padded]),
      jax.tree.map(lambda x: 24 * x, once), 1e-5)


def _plain_sums(
    params, batch, loss_spec=SPEC.loss, whole=lambda params: params):
  """`accumulate` with one row per completion and no shared prompts.

  `whole` returns the model of trained parameters.
  """
  def rows(x):
    return x.reshape(-1, *x.shape[2:])

  def loss_fn(params):
    logits = tiny.plain_logits(whole(params), batch)
    total, metrics = losses.policy_loss(
        losses.token_logprobs(logits, rows(batch.completions), 1.0),
        rows(batch.old_logprobs), rows(batch.behavior_logprobs),
        losses.entropy(logits, 1.0), rows(batch.advantages),
        rows(gradients.completion_mask(batch)),
        rows(batch.reference_logprobs), loss_spec)
    return total, metrics

  (total, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
  return jax.tree.map(
      lambda x: x[None], gradients.Sums(grads, total, metrics))


@pytest.mark.parametrize('remat', [False, True])
def test_shared_prompt_equals_repeated_prompts(params, batch, remat):
  plain = jax.jit(functools.partial(_plain_sums, batch=batch))
  spec = dataclasses.replace(SPEC, remat=remat)
  _assert_close(_accumulate(params, [batch], spec), plain(params), 1e-5)


def test_gradient_of_an_adapter(params, batch):
  spec = dataclasses.replace(SPEC, adapter_scale=2.0)
  adapter = model.init_lora(
      jax.random.key(1), tiny.CONFIG,
      model.LoraSpec(4, 8.0, ('attention/q/kernel', 'down/kernel')))
  adapter = jax.tree.map(lambda x: x + 0.1, adapter)
  plain = jax.jit(functools.partial(
      _plain_sums, batch=batch, loss_spec=spec.loss,
      whole=lambda weights: model.with_adapters(
          params, model.Adapters(weights, jnp.full(1, 2.0)))))
  _assert_close(
      _accumulate(adapter, [batch], spec, params), plain(adapter), 1e-5)


def test_prompt_is_computed_once_per_group(params):
  def flops(size):
    batch = dataclasses.replace(
        tiny.make_batch(), prompts=tiny.ids(3, 50),
        completions=tiny.ids(3, size, 1),
        completion_lengths=np.ones((3, size), np.int32),
        behavior_logprobs=np.zeros((3, size, 1), np.float32),
        advantages=np.ones((3, size), np.float32))
    gradient = jax.jit(lambda params: _accumulate(params, [batch], ON_POLICY))
    return gradient.lower(params).cost_analysis()['flops']

  # Repeated prompts of 50 tokens would cost eight times as much.
  assert flops(8) < 1.3 * flops(1)
