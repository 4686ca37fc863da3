"""Gradient, entropy and distance from the reference of each role."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from atgrpo_jax import types
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from tests import specs
from tests.rl import tiny
from tests.rollout import scripted

SPEC = specs.learner(
    loss=specs.loss(kl_estimator='k3', kl_coefficient=0.5))


def _groups(role, batch, advantages, logprobs):
  """The groups of a batch, with other advantages [P, G]."""
  return [
      types.Group(
          key=types.GroupKey('A', role, 0, 0), policy='p',
          prompt=batch.prompts[i, :batch.prompt_lengths[i]],
          candidates=tuple(
              types.Candidate(
                  batch.completions[i, j, :length], logprobs[i, j, :length],
                  advantage=advantages[i, j])
              for j, length in enumerate(batch.completion_lengths[i])))
      for i in range(len(batch.prompts))]


def _plain(params, batch):
  """Log-probabilities and entropies [P, G, T] of completions."""
  logprobs = jax.nn.log_softmax(tiny.plain_logits(params, batch))
  logprobs = logprobs.reshape(*batch.completions.shape, -1)
  chosen = jnp.take_along_axis(logprobs, batch.completions[..., None], axis=-1)
  return chosen[..., 0], -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)


def test_values_equal_a_plain_model():
  params, batch = tiny.make_params(), tiny.make_batch()
  reference = jax.tree.map(lambda x: 1.1 * x, params)
  mask = np.asarray(gradients.completion_mask(batch))
  reference_logprobs = gradients.score(
      reference, batch, config=tiny.CONFIG, spec=SPEC)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def plain_gradient(params, advantages):
    logprobs, entropy = _plain(params, batch)
    # The gradient of the KL is log(policy / reference) times this.
    gains = advantages[..., None] - 0.5 * jax.lax.stop_gradient(
        logprobs - reference_logprobs)
    gains = jnp.where(mask, gains * logprobs, 0.0)
    return -jnp.sum(gains) / mask.sum(), (logprobs, entropy)

  advantages = batch.advantages, np.roll(batch.advantages, 1, axis=0)
  first, (logprobs, entropy) = plain_gradient(params, advantages[0])
  second, _ = plain_gradient(params, advantages[1])
  logprobs = np.asarray(logprobs)
  policy = policy_lib.Policy(
      'p', policy_lib.Pretrained(None, tiny.CONFIG, None), 'all', None, None,
      SPEC, scripted.one_device())
  # Repeating the groups of a role does not change a mean.
  values = update_lib.diagnose(
      policy, params, [
          *_groups('a', batch, advantages[0], logprobs),
          *_groups('b', batch, advantages[1], logprobs) * 2],
      buckets=batching.Buckets((7,), (5,), (3,), microbatch_tokens=60),
      frozen_params=None, reference=reference)
  norms = float(optax.tree.norm(first)), float(optax.tree.norm(second))
  cosine = float(optax.tree.vdot(first, second)) / norms[0] / norms[1]
  entropy = np.mean(np.asarray(entropy)[mask])
  log_ratio = np.asarray(reference_logprobs - logprobs)[mask]
  kl = np.mean(np.exp(log_ratio) - 1 - log_ratio)
  assert kl > 0.01 and abs(cosine) < 0.9
  assert 0.5 < entropy < 0.95 * np.log(tiny.CONFIG.vocab_size)
  expected = {
      'a/grad_norm': norms[0], 'b/grad_norm': norms[1], 'cosine/a+b': cosine,
      'a/entropy': entropy, 'b/entropy': entropy, 'a/kl_to_start': kl,
      'b/kl_to_start': kl}
  assert values == pytest.approx({
      f'diagnosis/{name}': value for name, value in expected.items()}, rel=1e-4)
