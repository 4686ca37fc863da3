"""Log-probabilities, entropies and losses over arrays.

A loss is a sum over its microbatch. The caller adds up all microbatches and
devices, then divides once by `num_units` of all valid candidates of the update,
including those with a zero advantage. The loss of a token is -w times its gain.
With the ratio rho = pi / pi_old and clipped = clip(rho, 1 - low, 1 + high), the
built-in gains are

  clip       min(rho A, clipped A): Algorithm 1 of arXiv 2510.11062
  unclipped  rho A
  cispo      stop_gradient(clipped) A log(pi) (arXiv 2506.13585, equation 4)

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
distribution of later ones. Penalties are not clipped. Their rho is the ratio of
the token, even if the surrogate uses the ratio of the sequence. Let
k3 = ref / pi - 1 - log(ref / pi) (joschu.net/blog/kl-approx.html):

  k3          w rho k3: value and gradient of KL(pi || ref)
  k3_forward  w stop_gradient(rho) k3: value of KL(pi || ref), gradient of
              KL(ref || pi)

Two estimators are left out: k1, log(pi / ref), has an expected gradient of 0;
k2, stop_gradient(w rho) log(pi / ref)^2 / 2, has the gradient of w rho k3.

Deviations from the paper:
1. The mean is over tokens by default, not over candidates.
2. The weight w.

Deviations from the authors' code:
1. There is no dual clip.
2. The log-probabilities of the sampler are used, in w.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import rules

RATIO_LEVELS = ('token', 'sequence')
AGGREGATIONS = ('token_mean', 'sequence_mean', 'constant')
KL_ESTIMATORS = ('none', 'k3', 'k3_forward')


@dataclasses.dataclass(frozen=True)
class LossSpec:
  """The switches of the policy loss; docs/algorithms.md explains them."""

  surrogate: str
  clip_low: float
  clip_high: float
  ratio_level: str
  aggregation: str
  importance_cap: float
  kl_estimator: str
  kl_coefficient: float
  entropy_coefficient: float
  # The function of `surrogate`. Because it is compared, jit compiles again
  # after the user's module was reloaded.
  rule: Callable[..., jax.Array] = dataclasses.field(init=False, repr=False)

  @property
  def has_penalty(self) -> bool:
    """True if candidates without an advantage have a gradient."""
    return bool(self.kl_coefficient or self.entropy_coefficient)

  def __post_init__(self):
    for name, choices in (
        ('ratio_level', RATIO_LEVELS), ('aggregation', AGGREGATIONS),
        ('kl_estimator', KL_ESTIMATORS)):
      errors.check_choice(f'loss.{name}', getattr(self, name), choices)
    rules.check('loss.surrogate', self.surrogate, SURROGATES)
    object.__setattr__(
        self, 'rule', rules.find('loss.surrogate', self.surrogate, SURROGATES))
    for name in ('clip_low', 'clip_high', 'importance_cap', 'kl_coefficient'):
      errors.check_number(f'loss.{name}', getattr(self, name), min_value=0)
    errors.check_number('loss.entropy_coefficient', self.entropy_coefficient)
    if (self.kl_estimator == 'none') != (self.kl_coefficient == 0.0):
      raise errors.UserError(
          f'loss.kl_estimator={self.kl_estimator!r} and kl_coefficient='
          f'{self.kl_coefficient}: set both or neither.')
    if rules.is_custom(self.surrogate):
      self._check_surrogate()

  def gain(
      self, ratio: jax.Array, logprobs: jax.Array,
      advantages: jax.Array) -> jax.Array:
    """The gain [B, T] of the surrogate, from the arrays in the module."""
    gain = rules.call_found(
        'loss.surrogate', self.surrogate, self.rule, ratio, logprobs,
        advantages, self)
    if getattr(gain, 'shape', None) != ratio.shape or not jnp.issubdtype(
        gain.dtype, jnp.floating):
      returned = jax.typeof(gain) if hasattr(gain, 'shape') else repr(gain)
      raise errors.UserError(
          f'loss.surrogate={self.surrogate!r} returned {returned!s:.100}; '
          f'expected a float array of shape {ratio.shape}.')
    return gain

  def _check_surrogate(self):
    """Traces the gradient, so that mistakes show before any work."""
    tokens, row = (
        jax.ShapeDtypeStruct((2, length), jnp.float32) for length in (3, 1))
    gradient = jax.grad(lambda *args: jnp.sum(self.gain(*args)), argnums=(0, 1))
    rules.call_found(
        'loss.surrogate', self.surrogate, jax.eval_shape, gradient, tokens,
        tokens, row)


def _clipped(ratio, spec):
  return jnp.clip(ratio, 1.0 - spec.clip_low, 1.0 + spec.clip_high)


def _clip(ratio, logprobs, advantages, spec):
  del logprobs
  return jnp.minimum(ratio * advantages, _clipped(ratio, spec) * advantages)


def _unclipped(ratio, logprobs, advantages, spec):
  del logprobs, spec
  return ratio * advantages


def _cispo(ratio, logprobs, advantages, spec):
  return jax.lax.stop_gradient(_clipped(ratio, spec)) * advantages * logprobs


SURROGATES = {'clip': _clip, 'unclipped': _unclipped, 'cispo': _cispo}


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
  log_ratio = logprobs - old_logprobs
  if spec.ratio_level == 'sequence':
    lengths = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
    mean = jnp.sum(log_ratio, axis=1, keepdims=True) / lengths
    log_ratio = jnp.broadcast_to(mean, log_ratio.shape)
  ratio = jnp.exp(log_ratio)
  gain = spec.gain(ratio, logprobs, advantages)
  was_clipped = _clipped(ratio, spec) != ratio
  if spec.surrogate in ('clip', 'unclipped'):
    was_clipped = gain != ratio * advantages
  mismatch = old_logprobs - behavior_logprobs
  weight = jnp.ones_like(mismatch)
  if spec.importance_cap:
    weight = jnp.minimum(jnp.exp(mismatch), spec.importance_cap)
  loss = -weight * gain - spec.entropy_coefficient * entropy
  if spec.kl_estimator != 'none':
    kl = _kl_penalty(
        logprobs, old_logprobs, masked(reference_logprobs), spec.kl_estimator)
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


def _kl_penalty(
    logprobs: jax.Array, old_logprobs: jax.Array,
    reference_logprobs: jax.Array, estimator: str) -> jax.Array:
  """Penalty of each token, sampled by the old policy; see the module."""
  ratio = jnp.exp(logprobs - old_logprobs)
  if estimator == 'k3':
    # Multiplied out: for large ref / pi, the gradients through rho and k3
    # would cancel to rounding noise.
    return jnp.exp(reference_logprobs - old_logprobs) - ratio * (
        1.0 + reference_logprobs - logprobs)
  return jax.lax.stop_gradient(ratio) * kl_value(logprobs, reference_logprobs)


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
