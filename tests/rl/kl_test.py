"""KL penalties against an enumeration of all completions, in float64.

The random policies are the sampler, the learner before the first update (old),
the current policy and the reference.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.rl import losses
from tests import specs

VOCABULARY = 5
ATOL = 1e-9
ESTIMATORS = ('k3', 'k3_forward')


@pytest.fixture(autouse=True)
def _float64():
  with jax.enable_x64(True):
    yield


def random_logits(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


def kl(p, q):
  """KL [...] of log-probabilities [..., V]."""
  return jnp.sum(jnp.exp(p) * (p - q), axis=-1)


def terms(logprobs, old, behavior, reference, estimator, **switches):
  """The penalty [N] of each completion; arguments are [N, T]."""
  spec = specs.loss(
      kl_estimator=estimator, kl_coefficient=1.0, aggregation='constant',
      **switches)

  def penalty(*row):
    logprobs, old, behavior, reference = (x[None] for x in row)
    return losses.policy_loss(
        logprobs, old, behavior, jnp.zeros_like(logprobs),
        jnp.zeros(1, logprobs.dtype), jnp.ones(logprobs.shape, bool),
        reference, spec)[0]

  return jax.vmap(penalty)(logprobs, old, behavior, reference)


# Sampler, old policy and current policy.
POLICIES = {
    'on-policy': [random_logits(1, VOCABULARY)] * 3,
    'later update': [random_logits(1, VOCABULARY)] * 2 + [
        random_logits(1, VOCABULARY) + 0.7 * random_logits(2, VOCABULARY)],
    'mismatched sampler': [
        random_logits(1, VOCABULARY) + 0.2 * random_logits(3, VOCABULARY),
        random_logits(1, VOCABULARY),
        random_logits(1, VOCABULARY) + 0.7 * random_logits(2, VOCABULARY)],
}
# Later updates have ratios below 0.5 and above 1.5, so each switch matters.
SWITCHES = (
    {}, {'clip_low': 0.0, 'clip_high': 0.0},
    {'clip_low': 10.0, 'clip_high': 10.0})


@pytest.mark.parametrize('estimator', ESTIMATORS)
@pytest.mark.parametrize('policies', POLICIES.values(), ids=POLICIES)
def test_value_and_gradient_of_one_token(policies, estimator):
  """KL(policy || reference); 'k3_forward' has the forward KL's gradient."""
  behavior, old, reference = map(
      jax.nn.log_softmax, (*policies[:2], random_logits(0, VOCABULARY)))

  def true(logits):
    return kl(jax.nn.log_softmax(logits), reference)

  gradients = {'k3': jax.grad(true)(policies[2]), 'k3_forward': jax.grad(
      lambda x: kl(reference, jax.nn.log_softmax(x)))(policies[2])}
  assert np.abs(gradients['k3'] - gradients['k3_forward']).max() > 0.05
  for switches in SWITCHES:
    def expectation(logits):
      tokens = (x[:, None] for x in (
          jax.nn.log_softmax(logits), old, behavior, reference))
      return jnp.exp(behavior) @ terms(*tokens, estimator, **switches)

    value, grad = jax.value_and_grad(expectation)(policies[2])
    np.testing.assert_allclose(value, true(policies[2]), atol=ATOL)
    np.testing.assert_allclose(grad, gradients[estimator], atol=ATOL)


def both(logits):
  """Log-probabilities of completions of two tokens.

  Args:
    logits: [V] of the first token, [V, V] of the second given the first.

  Returns:
    first, second: log-probabilities, shaped like `logits`.
    tokens: [V * V, 2], those of each completion.
  """
  first, second = map(jax.nn.log_softmax, logits)
  tokens = jnp.stack(jnp.broadcast_arrays(first[:, None], second), axis=-1)
  return first, second, tokens.reshape(-1, 2)


@pytest.mark.parametrize('estimator', ESTIMATORS)
def test_gradient_of_two_tokens(estimator):
  """The KL of each token given tokens of the old policy."""
  reference, policy, change = (
      (random_logits(seed, VOCABULARY),
       random_logits(seed, VOCABULARY, VOCABULARY)) for seed in (10, 11, 12))
  old = jax.tree.map(lambda x, y: x + 0.5 * y, policy, change)
  *reference_pair, reference_tokens = both(reference)
  old_first, _, old_tokens = both(old)

  def expectation(logits):
    return jnp.exp(old_tokens.sum(axis=-1)) @ terms(
        both(logits)[2], old_tokens, old_tokens, reference_tokens, estimator)

  def tokenwise(logits):
    kl_first, kl_second = (
        kl(*(pair if estimator == 'k3' else pair[::-1]))
        for pair in zip(both(logits), reference_pair))
    return kl_first + jnp.exp(old_first) @ kl_second

  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=ATOL),
      jax.grad(expectation)(policy), jax.grad(tokenwise)(policy))


@pytest.mark.parametrize('estimator', ESTIMATORS)
def test_gradient_survives_a_ratio_of_e30_in_float32(estimator):
  """With ref / pi = e^30, naive float32 gradients cancel to 0."""
  policy, reference = jnp.full((1, 1), -30.0), jnp.zeros((1, 1))
  policy, reference = policy.astype(jnp.float32), reference.astype(jnp.float32)
  grad = jax.grad(lambda x: terms(
      x, policy, policy, reference, estimator).sum())(policy)
  assert grad.dtype == jnp.float32
  # log(pi / ref), or 1 - ref / pi.
  expected = {'k3': -30.0, 'k3_forward': 1 - np.exp(30.0)}[estimator]
  np.testing.assert_allclose(grad, expected, rtol=1e-5)
