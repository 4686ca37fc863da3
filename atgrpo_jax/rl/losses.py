"""Log-probabilities, entropies and losses over arrays.

A loss is a sum over its microbatch. The caller adds up all microbatches and
devices, then divides once by `num_units` of all valid candidates of the update,
including those with a zero advantage. The loss of a token is -w times its gain.
With the ratio rho = pi / pi_old, the built-in gains are

  clip       min(rho A, clip(rho, 1 - low, 1 + high) A): Algorithm 1 of arXiv
             2510.11062
  unclipped  rho A

A surrogate is a function (ratio, logprobs, advantages, spec) -> gain that jit
can trace:

  ratio: [B, T] float32, rho.
  logprobs: [B, T] float32, log(pi); 0 for padding.
  advantages: [B, 1] float32.
  spec: the `LossSpec`, for surrogates with a parameter.
  gain: [B, T] float.

pi_old is the learner before the first update. w = min(pi_old / pi_sampler, cap)
corrects the sampler-learner mismatch (truncated importance sampling). If both
compute in float32, w is 1 up to rounding.

A penalty keeps the policy near a reference. It estimates the KL of each sampled
token given the preceding tokens; its gradient ignores how a token changes the
distribution of later ones. Penalties are not clipped. With
k3 = ref / pi - 1 - log(ref / pi) (joschu.net/blog/kl-approx.html), w rho k3 has
the value and the gradient of KL(pi || ref).

Three estimators are left out: k1, log(pi / ref), has an expected gradient of 0;
k2, stop_gradient(w rho) log(pi / ref)^2 / 2, has the gradient of w rho k3; and
w stop_gradient(rho) k3, as in GRPO, has the gradient of KL(ref || pi).

Deviations from the paper:
1. The mean is over tokens by default, not over candidates.
2. The weight w.

Deviations from the authors' code:
1. There is no dual clip.
2. The log-probabilities of the sampler are used, in w.
"""

from collections.abc import Callable
import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np

AGGREGATIONS = ('token_mean', 'sequence_mean', 'constant')
KL_ESTIMATORS = ('none', 'k3')


@dataclasses.dataclass(frozen=True)
class LossSpec:
  """The switches of the policy loss; docs/algorithms.md explains them."""

  surrogate: Callable[..., jax.Array]
  clip_low: float
  clip_high: float
  aggregation: str  # One of `AGGREGATIONS`.
  importance_cap: float
  kl_estimator: str  # One of `KL_ESTIMATORS`.
  kl_coefficient: float


def clip(ratio, logprobs, advantages, spec):
  clipped = jnp.clip(ratio, 1.0 - spec.clip_low, 1.0 + spec.clip_high)
  return jnp.minimum(ratio * advantages, clipped * advantages)


def unclipped(ratio, logprobs, advantages, spec):
  return ratio * advantages


SURROGATES = {'clip': clip, 'unclipped': unclipped}


def token_logprobs(
    logits: jax.Array, tokens: jax.Array, temperature: float) -> jax.Array:
  """Log-probabilities [...] float32 of `tokens` [...] under `logits` [..., V].

  The sampler and the learner both call this. Temperature 0 means greedy
  decoding, with the log-probabilities of temperature 1.
  """
  scaled = logits.astype(jnp.float32) / (temperature or 1.0)
  picked = jnp.take_along_axis(scaled, tokens[..., None], axis=-1)[..., 0]
  return picked - jax.nn.logsumexp(scaled, axis=-1)


def entropy(logits: jax.Array, temperature: float) -> jax.Array:
  """Entropy [...] float32, in nats, of the distributions `logits` [..., V]."""
  logprobs = jax.nn.log_softmax(
      logits.astype(jnp.float32) / (temperature or 1.0))
  return -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)


def policy_loss(
    logprobs: jax.Array, old_logprobs: jax.Array, behavior_logprobs: jax.Array,
    entropy: jax.Array, advantages: jax.Array, mask: jax.Array,
    reference_logprobs: jax.Array | None, spec: LossSpec):
  """The surrogate with penalties.

  Args:
    logprobs: [B, T] float32 of the policy.
    old_logprobs: [B, T] float32 of the learner before the first update.
    behavior_logprobs: [B, T] float32 of the sampler.
    entropy: [B, T] float32 of the distribution of each token.
    advantages: [B] float32.
    mask: [B, T] bool, True for sampled tokens.
    reference_logprobs: [B, T] float32, or None without a KL penalty.
    spec: the switches.

  Returns:
    loss: [] float32, `aggregate` of the losses of tokens.
    sums: name -> [] float32, sum over tokens, for the log.
  """
  chex.assert_rank([logprobs, advantages], [2, 1])
  chex.assert_equal_shape(
      [logprobs, old_logprobs, behavior_logprobs, entropy, mask])
  chex.assert_equal_shape_prefix([logprobs, advantages], 1)
  chex.assert_type(mask, bool)

  def masked(x):
    return jnp.where(mask, x, 0.0)

  # Masked positions hold arbitrary values: exp may overflow, 0 * inf is NaN.
  logprobs, old_logprobs, behavior_logprobs = map(
      masked, (logprobs, old_logprobs, behavior_logprobs))
  advantages = advantages[:, None]
  ratio = jnp.exp(logprobs - old_logprobs)
  gain = spec.surrogate(ratio, logprobs, advantages, spec)
  was_clipped = gain != ratio * advantages
  mismatch = old_logprobs - behavior_logprobs
  weight = jnp.ones_like(mismatch)
  if spec.importance_cap:
    weight = jnp.minimum(jnp.exp(mismatch), spec.importance_cap)
  loss = -weight * gain
  if spec.kl_estimator != 'none':
    reference_logprobs = masked(reference_logprobs)
    # rho k3, multiplied out: for large ref / pi, the gradients through rho and
    # k3 would cancel to rounding noise.
    kl = jnp.exp(reference_logprobs - old_logprobs) - ratio * (
        1.0 + reference_logprobs - logprobs)
    loss += spec.kl_coefficient * weight * kl
  sums = {
      'clipped': jnp.sum(mask & was_clipped).astype(jnp.float32),
      'entropy': jnp.sum(masked(entropy)),
      'mismatch': jnp.sum(jnp.abs(mismatch)),
      # KL(old || policy), because the old policy sampled the tokens.
      'approx_kl': jnp.sum(kl_value(old_logprobs, logprobs)),
  }
  return aggregate(loss, mask, spec.aggregation), jax.lax.stop_gradient(sums)


def kl_value(logprobs: jax.Array, other_logprobs: jax.Array) -> jax.Array:
  """k3, a nonnegative estimate of KL(policy || other) per sampled token."""
  difference = other_logprobs - logprobs
  return jnp.exp(difference) - 1.0 - difference


def aggregate(
    loss: jax.Array, mask: jax.Array, aggregation: str) -> jax.Array:
  """Sum of `loss` [B, T]; 'sequence_mean' averages each row first."""
  loss = jnp.where(mask, loss, 0.0)
  if aggregation == 'sequence_mean':
    loss /= jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
  return jnp.sum(loss)


def num_units(lengths: np.ndarray, aggregation: str) -> int:
  """Number of units in completions of lengths [N]; empty ones do not count."""
  if aggregation == 'token_mean':
    return int(np.sum(lengths))
  return int(np.count_nonzero(lengths))


def value_loss(
    values: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
  """Half the squared error of a critic, summed over inputs.

  All arrays are [B] float32; the weight of padding is 0.
  """
  chex.assert_rank(values, 1)
  chex.assert_equal_shape([values, targets, weights])
  return 0.5 * jnp.sum(weights * jnp.square(values - targets))
