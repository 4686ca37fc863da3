"""losses.py: whose KL a penalty is, by enumeration of all completions.

In float64, over random policies: who sampled, who learned from it before the
first update (old), who is trained, and the reference.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.rl import losses
from tests import specs

VOCABULARY = 5
ATOL = 1e-9


@pytest.fixture(autouse=True)
def _float64():
  with jax.enable_x64(True):
    yield


def random_logits(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


def spec_of(estimator, **switches):
  return specs.loss(
      kl_estimator=estimator, kl_coefficient=1.0, aggregation='constant',
      **switches)


def kl(p, q):
  """KL [...] of log-probabilities [..., V]."""
  return jnp.sum(jnp.exp(p) * (p - q), axis=-1)


def terms(logprobs, old, behavior, reference, spec):
  """The penalty [N] of completions, each of its own; arguments are [N, T]."""
  def one(*row):
    logprobs, old, behavior, reference = (x[None] for x in row)
    return losses.policy_loss(
        logprobs, old, behavior, jnp.zeros_like(logprobs),
        jnp.zeros(1, logprobs.dtype), jnp.ones(logprobs.shape, bool),
        reference, spec)[0]

  return jax.vmap(one)(logprobs, old, behavior, reference)


# Who sampled, the old policy and the one that is trained.
REFERENCE = random_logits(0, VOCABULARY)
POLICIES = {
    'on-policy': [random_logits(1, VOCABULARY)] * 3,
    'a later update': [random_logits(1, VOCABULARY)] * 2 + [
        random_logits(1, VOCABULARY) + 0.7 * random_logits(2, VOCABULARY)],
    'a sampler of its own': [
        random_logits(1, VOCABULARY) + 0.2 * random_logits(3, VOCABULARY),
        random_logits(1, VOCABULARY),
        random_logits(1, VOCABULARY) + 0.7 * random_logits(2, VOCABULARY)],
}


def expected_term(estimator, behavior, old, policy, **switches):
  """Value and gradient by the policy's logits of the expected penalty."""
  behavior, old, reference = map(
      jax.nn.log_softmax, (behavior, old, REFERENCE))

  def expectation(logits):
    tokens = (
        x[:, None] for x in (
            jax.nn.log_softmax(logits), old, behavior, reference))
    return jnp.exp(behavior) @ terms(*tokens, spec_of(estimator, **switches))

  return jax.value_and_grad(expectation)(policy)


def exact(logits):
  """KL(policy || reference), its gradient and that of KL(reference || policy).
  """
  reference = jax.nn.log_softmax(REFERENCE)
  value, reverse = jax.value_and_grad(
      lambda x: kl(jax.nn.log_softmax(x), reference))(logits)
  forward = jax.grad(
      lambda x: kl(reference, jax.nn.log_softmax(x)))(logits)
  return value, {'k3': reverse, 'k3_forward': forward}


@pytest.mark.parametrize('ratio_level', losses.RATIO_LEVELS)
@pytest.mark.parametrize('estimator', ['k3', 'k3_forward'])
@pytest.mark.parametrize('policies', POLICIES.values(), ids=POLICIES)
def test_value_and_gradient_of_one_token(policies, estimator, ratio_level):
  *_, policy = policies
  value, grad = expected_term(estimator, *policies, ratio_level=ratio_level)
  true, gradients = exact(policy)
  np.testing.assert_allclose(value, true, atol=ATOL)
  np.testing.assert_allclose(grad, gradients[estimator], atol=ATOL)
  assert np.abs(gradients['k3'] - gradients['k3_forward']).max() > 0.05


def test_k3_has_the_gradient_of_k2_token_by_token():
  old, policy = random_logits(1, 6, 4), random_logits(2, 6, 4)
  reference, behavior = random_logits(3, 6, 4), old + 0.1
  grad = jax.grad(lambda x: terms(
      x, old, behavior, reference, spec_of('k3')).sum())(policy)
  np.testing.assert_allclose(
      grad, jnp.exp(policy - behavior) * (policy - reference), rtol=1e-9)


@pytest.mark.parametrize('estimator', ['k3', 'k3_forward'])
def test_no_clip_touches_the_penalty(estimator):
  behavior, old, policy = POLICIES['a later update']
  ratios = np.exp(jax.nn.log_softmax(policy) - jax.nn.log_softmax(old))
  assert ratios.min() < 0.5 and ratios.max() > 1.5
  for clip, dual_clip in ((0.0, 1.5), (0.2, 0.0), (10.0, 0.0)):
    _, grad = expected_term(
        estimator, behavior, old, policy, clip_low=clip, clip_high=clip,
        dual_clip=dual_clip)
    np.testing.assert_allclose(grad, exact(policy)[1][estimator], atol=ATOL)


def test_the_penalty_has_the_weight_of_the_importance_cap():
  old = random_logits(0, 1, 1)
  reference = old - 1.0
  full = terms(old, old, old, reference, spec_of('k3'))
  assert full > 0.01
  for cap, weight in ((2.0, 2.0), (3.0, 3.0), (0.0, 1.0)):
    found = terms(
        old, old, old - np.log(4.0), reference,
        spec_of('k3', importance_cap=cap))
    np.testing.assert_allclose(found, weight * full)


# Completions of two tokens: logits of the first [V], and of the second [V, V]
# behind each first one.


def both(logits):
  first, second = map(jax.nn.log_softmax, logits)
  tokens = jnp.stack(jnp.broadcast_arrays(first[:, None], second), axis=-1)
  return first, second, tokens.reshape(-1, 2)


@pytest.mark.parametrize('ratio_level', losses.RATIO_LEVELS)
@pytest.mark.parametrize('on_policy', [True, False])
@pytest.mark.parametrize('estimator', ['k3', 'k3_forward'])
def test_two_tokens(estimator, on_policy, ratio_level):
  def draw(seed):
    return (
        random_logits(seed, VOCABULARY),
        random_logits(seed, VOCABULARY, VOCABULARY))

  reference, policy, change = draw(10), draw(11), draw(12)
  old = policy if on_policy else jax.tree.map(
      lambda x, y: x + 0.5 * y, policy, change)
  reference_first, reference_second, reference_tokens = both(reference)
  old_first, _, old_tokens = both(old)

  def expectation(logits):
    tokens = both(logits)[2]
    return jnp.exp(old_tokens.sum(axis=-1)) @ terms(
        tokens, old_tokens, old_tokens, reference_tokens,
        spec_of(estimator, ratio_level=ratio_level))

  def tokenwise(logits, prefix):
    """The KL of each token, the second behind a first one of `prefix`."""
    first, second, _ = both(logits)
    pairs = ((first, reference_first), (second, reference_second))
    one, two = (
        kl(*(pair if estimator == 'k3' else pair[::-1])) for pair in pairs)
    return one + jnp.exp(prefix) @ two

  found = jax.grad(expectation)(policy)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=ATOL),
      found, jax.grad(tokenwise)(policy, old_first))

  # What is left out of the KL of the whole completion: how the first token
  # changes what the second will cost.
  if estimator == 'k3' and on_policy:
    whole = jax.grad(lambda logits: kl(
        both(logits)[2].sum(axis=-1), reference_tokens.sum(axis=-1)))(policy)
    left_out = jax.grad(
        lambda prefix: tokenwise(policy, jax.nn.log_softmax(prefix)))(policy[0])
    assert np.abs(left_out).max() > 0.05
    np.testing.assert_allclose(whole[0], found[0] + left_out, atol=ATOL)
    np.testing.assert_allclose(whole[1], found[1], atol=ATOL)


# Values for the log.


@pytest.mark.parametrize('ratio_level', losses.RATIO_LEVELS)
def test_approx_kl_is_that_of_the_old_policy_to_the_new_one(ratio_level):
  def draw(seed):
    return both((
        random_logits(seed, VOCABULARY),
        random_logits(seed, VOCABULARY, VOCABULARY)))

  old, policy = draw(10), draw(11)
  spec = specs.loss(ratio_level=ratio_level)

  def approx_kl(*row):
    logprobs, old = (x[None] for x in row)
    return losses.policy_loss(
        logprobs, old, old, jnp.zeros_like(old), jnp.ones(1, old.dtype),
        jnp.ones(old.shape, bool), None, spec)[1]['approx_kl']

  found = jnp.exp(old[2].sum(axis=-1)) @ jax.vmap(approx_kl)(policy[2], old[2])
  expected, other = (
      kl(p[0], q[0]) + jnp.exp(old[0]) @ kl(p[1], q[1])
      for p, q in ((old, policy), (policy, old)))
  np.testing.assert_allclose(found, expected, atol=ATOL)
  assert abs(expected - other) > 0.1


def test_kl_value():
  policy, other = map(jax.nn.log_softmax, (REFERENCE, random_logits(1, 5)))
  values = losses.kl_value(policy, other)
  assert values.min() >= 0
  np.testing.assert_allclose(
      jnp.exp(policy) @ values, kl(policy, other), atol=ATOL)


@pytest.mark.parametrize('estimator', ['k3', 'k3_forward'])
def test_a_reference_that_knows_better_gives_a_gradient_in_float32(estimator):
  """Where ref / pi is e^30, float32 has no digit for what is not it."""
  policy, reference = jnp.full((1, 1), -30.0), jnp.zeros((1, 1))
  policy, reference = policy.astype(jnp.float32), reference.astype(jnp.float32)
  grad = jax.grad(lambda x: terms(
      x, policy, policy, reference, spec_of(estimator)).sum())(policy)
  assert grad.dtype == jnp.float32
  # log(pi / ref), or 1 - ref / pi.
  expected = {'k3': -30.0, 'k3_forward': 1 - np.exp(30.0)}[estimator]
  np.testing.assert_allclose(grad, expected, rtol=1e-5)


def test_every_estimator_has_a_rule(monkeypatch):
  monkeypatch.setattr(losses, 'KL_ESTIMATORS', (*losses.KL_ESTIMATORS, 'k4'))
  ones = jnp.ones((1, 1))
  with pytest.raises(NotImplementedError, match="kl_estimator='k4'"):
    terms(ones, ones, ones, ones, spec_of('k4'))
