"""The KL penalty against an enumeration of all tokens, in float64.

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


def random_logits(seed):
  return np.random.default_rng(seed).normal(size=VOCABULARY)


def penalties(logprobs, old, behavior, reference, **switches):
  """The penalty [N] of each token; arguments are [N]."""
  spec = specs.loss(
      kl_estimator='k3', kl_coefficient=1.0, aggregation='constant', **switches)

  def penalty(*token):
    logprobs, old, behavior, reference = (x[None, None] for x in token)
    return losses.policy_loss(
        logprobs, old, behavior, jnp.zeros_like(logprobs),
        jnp.zeros(1, logprobs.dtype), jnp.ones(logprobs.shape, bool),
        reference, spec)[0]

  return jax.vmap(penalty)(logprobs, old, behavior, reference)


# Sampler, old policy and current policy.
POLICIES = {
    'on-policy': [random_logits(1)] * 3,
    'later update': [random_logits(1)] * 2 + [
        random_logits(1) + 0.7 * random_logits(2)],
    'mismatched sampler': [
        random_logits(1) + 0.2 * random_logits(3), random_logits(1),
        random_logits(1) + 0.7 * random_logits(2)],
}


@pytest.mark.parametrize('policies', POLICIES.values(), ids=POLICIES)
# Later updates have ratios below 0.5 and above 1.5, so the range matters.
@pytest.mark.parametrize('switches', [
    {}, {'clip_low': 0.0, 'clip_high': 0.0},
    {'clip_low': 10.0, 'clip_high': 10.0}])
def test_value_and_gradient_are_those_of_the_reverse_kl(policies, switches):
  with jax.enable_x64(True):
    behavior, old, reference = map(
        jax.nn.log_softmax, (*policies[:2], random_logits(0)))

    def true(logits):
      policy = jax.nn.log_softmax(logits)
      return jnp.sum(jnp.exp(policy) * (policy - reference))

    def expectation(logits):
      return jnp.exp(behavior) @ penalties(
          jax.nn.log_softmax(logits), old, behavior, reference, **switches)

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-9),
        jax.value_and_grad(expectation)(policies[2]),
        jax.value_and_grad(true)(policies[2]))


def test_gradient_survives_a_ratio_of_e30_in_float32():
  """With ref / pi = e^30, a naive gradient cancels to 0."""
  policy, reference = jnp.full(1, -30.0), jnp.zeros(1)
  grad = jax.grad(
      lambda x: penalties(x, policy, policy, reference).sum())(policy)
  assert grad.dtype == jnp.float32
  np.testing.assert_allclose(grad, -30.0, rtol=1e-5)  # log(pi / ref)
