"""Losses over arrays: they know no model, no config and no tokenizer.

A loss is a sum over its microbatch; the caller divides once, after all
microbatches and devices, by `num_units` of all candidates of the step: also of
those that have no advantage, whose terms are 0 and which need not be computed.
With the ratio rho = pi / pi_old of a token,

  surrogate = -w min(rho A, clip(rho, 1 - low, 1 + high) A)

as in Algorithm 1 of arXiv 2510.11062. pi_old is the learner before the first
update; w = min(pi_old / pi_sampler, cap) corrects what the sampler's numerics
differ from the learner's (truncated importance sampling), and is 1 up to
rounding in float32.

A penalty keeps the policy near a reference. From each sampled token it
estimates the KL of that token given what stands before it; the effect on later
tokens is not in the gradient, and what stands before is what the sampler wrote.
With k3 = ref / pi - 1 - log(ref / pi) (joschu.net/blog/kl-approx.html)

  k3          w rho k3: value and gradient are those of KL(pi || ref)
  k3_forward  w rho k3 with rho held fixed: the value is that of KL(pi || ref),
              the gradient that of KL(ref || pi)

are neither clipped nor averaged by `ratio_level`. Not offered: log(pi / ref)
(k1), whose gradient has the mean 0, and log(pi / ref)^2 / 2 (k2) times a fixed
w rho, whose gradient is that of k3, token by token.

Deviations from the authors' code: the dual clip is off by default; the
sampler's own log-probabilities are used instead of being thrown away.
"""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax import errors

RATIO_LEVELS = ('token', 'sequence')
AGGREGATIONS = ('token_mean', 'sequence_mean', 'constant')
KL_ESTIMATORS = ('none', 'k3', 'k3_forward')


@dataclasses.dataclass(frozen=True)
class LossSpec:
  """The switches of the policy loss.

  Attributes:
    clip_low: the ratio is clipped to [1 - low, 1 + high].
    clip_high: see `clip_low`.
    dual_clip: for a negative advantage the loss is at most -dual_clip * A
      (arXiv 1912.09729); 0 for none.
    ratio_level: 'token', or 'sequence' for the geometric mean over a
      completion (GSPO, arXiv 2507.18071).
    aggregation: what one unit of the mean is. 'token_mean': a token;
      'sequence_mean': a completion, its tokens averaged first; 'constant': a
      completion, its tokens summed (Dr. GRPO, arXiv 2503.20783, up to the
      constant it divides by; the completion axis T is none, since it differs
      from one microbatch to the next).
    importance_cap: upper bound of w; 0 for w = 1.
    kl_estimator: of the penalty towards the reference policy. 'k3': its
      gradient is that of KL(policy || reference), the reverse KL (as in
      DeepSeek-V3.2); 'k3_forward': that of KL(reference || policy), the forward
      KL (GRPO's own, arXiv 2402.03300); 'none' for no penalty.
    kl_coefficient: weight of that penalty.
    entropy_coefficient: bonus for the entropy of each token's distribution.
  """

  clip_low: float
  clip_high: float
  dual_clip: float
  ratio_level: str
  aggregation: str
  importance_cap: float
  kl_estimator: str
  kl_coefficient: float
  entropy_coefficient: float

  @property
  def has_penalty(self) -> bool:
    """Whether candidates without an advantage have a gradient, too."""
    return bool(self.kl_coefficient or self.entropy_coefficient)

  def __post_init__(self):
    for name, value, known in (
        ('ratio_level', self.ratio_level, RATIO_LEVELS),
        ('aggregation', self.aggregation, AGGREGATIONS),
        ('kl_estimator', self.kl_estimator, KL_ESTIMATORS)):
      if value not in known:
        raise errors.UserError(
            f'loss.{name}={value!r} is not one of {list(known)}.')
    for name in (
        'clip_low', 'clip_high', 'dual_clip', 'importance_cap',
        'kl_coefficient'):
      errors.check_number(f'loss.{name}', getattr(self, name), min_value=0)
    errors.check_number('loss.entropy_coefficient', self.entropy_coefficient)
    if 0 < self.dual_clip <= 1:
      raise errors.UserError(
          f'loss.dual_clip={self.dual_clip} would take the gradient of tokens '
          'whose ratio is 1; give more than 1, such as 3, or 0 for none.')
    if (self.kl_estimator == 'none') != (self.kl_coefficient == 0.0):
      raise errors.UserError(
          f'loss.kl_estimator={self.kl_estimator!r} and kl_coefficient='
          f'{self.kl_coefficient} contradict each other: set both or neither.')


def policy_loss(
    logprobs: jax.Array, old_logprobs: jax.Array, behavior_logprobs: jax.Array,
    entropy: jax.Array, advantages: jax.Array, mask: jax.Array,
    reference_logprobs: jax.Array | None, spec: LossSpec):
  """The clipped surrogate with its penalties.

  Args:
    logprobs: [B, T] float32 of the policy that is trained.
    old_logprobs: [B, T] float32 of the learner before the first update.
    behavior_logprobs: [B, T] float32 of the sampler.
    entropy: [B, T] float32 of each token's distribution.
    advantages: [B] float32.
    mask: [B, T] bool, True where the policy chose the token.
    reference_logprobs: [B, T] float32, or None without a KL penalty.
    spec: the switches.

  Returns:
    loss: float32, sum over the units of `spec.aggregation`.
    sums: name -> sum over tokens, for the log.
  """
  chex.assert_rank([logprobs, advantages], [2, 1])
  chex.assert_equal_shape(
      [logprobs, old_logprobs, behavior_logprobs, entropy, mask])
  chex.assert_equal_shape_prefix([logprobs, advantages], 1)
  chex.assert_type(mask, bool)
  if (reference_logprobs is None) != (spec.kl_estimator == 'none'):
    raise ValueError(
        f'kl_estimator={spec.kl_estimator!r}, but reference_logprobs are '
        f'{"missing" if reference_logprobs is None else "given"}; a penalty '
        'needs both.')

  def masked(x):
    return jnp.where(mask, x, 0.0)

  # What is masked means nothing: its exp may overflow, and 0 * inf is NaN.
  logprobs, old_logprobs, behavior_logprobs = map(
      masked, (logprobs, old_logprobs, behavior_logprobs))
  advantages = advantages[:, None]
  log_ratio = logprobs - old_logprobs
  if spec.ratio_level == 'sequence':
    lengths = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
    mean = jnp.sum(log_ratio, axis=1, keepdims=True) / lengths
    log_ratio = jnp.broadcast_to(mean, log_ratio.shape)
  ratio = jnp.exp(log_ratio)
  clipped = jnp.clip(ratio, 1.0 - spec.clip_low, 1.0 + spec.clip_high)
  unclipped_gain = ratio * advantages
  gain = jnp.minimum(unclipped_gain, clipped * advantages)
  if spec.dual_clip:
    floor = spec.dual_clip * advantages
    gain = jnp.where(advantages < 0, jnp.maximum(gain, floor), gain)
  was_clipped = gain != unclipped_gain
  mismatch = old_logprobs - behavior_logprobs
  weight = jnp.ones_like(mismatch)
  if spec.importance_cap:
    weight = jnp.minimum(jnp.exp(mismatch), spec.importance_cap)
  loss = -weight * gain - spec.entropy_coefficient * entropy
  if reference_logprobs is not None:
    kl = _kl_penalty(
        logprobs, old_logprobs, masked(reference_logprobs), spec.kl_estimator)
    loss += spec.kl_coefficient * weight * kl
  sums = {
      'clipped': jnp.sum(mask & was_clipped).astype(jnp.float32),
      'entropy': jnp.sum(masked(entropy)),
      'mismatch': jnp.sum(jnp.abs(mismatch)),
      # KL(old || policy), since the old policy is who sampled.
      'approx_kl': jnp.sum(kl_value(old_logprobs, logprobs)),
  }
  return aggregate(loss, mask, spec.aggregation), jax.lax.stop_gradient(sums)


def kl_value(logprobs: jax.Array, other_logprobs: jax.Array) -> jax.Array:
  """k3: for each token, an estimate of KL(policy || other).

  The tokens are the policy's own samples. No value is below 0. Only the value
  is of this KL; the gradient for the policy is that of KL(other || policy).
  """
  difference = other_logprobs - logprobs
  return jnp.exp(difference) - 1.0 - difference


def _kl_penalty(
    logprobs: jax.Array, old_logprobs: jax.Array,
    reference_logprobs: jax.Array, estimator: str) -> jax.Array:
  """For each token, sampled by the old policy; see the top of the file."""
  ratio = jnp.exp(logprobs - old_logprobs)
  if estimator == 'k3':
    # rho k3, multiplied out: where ref / pi is large, the sum of its gradients
    # by rho and by pi would be rounding alone.
    return jnp.exp(reference_logprobs - old_logprobs) - ratio * (
        1.0 + reference_logprobs - logprobs)
  if estimator == 'k3_forward':
    return jax.lax.stop_gradient(ratio) * kl_value(
        logprobs, reference_logprobs)
  raise NotImplementedError(f'No rule for kl_estimator={estimator!r}.')


def aggregate(
    loss: jax.Array, mask: jax.Array, aggregation: str) -> jax.Array:
  """Sum of `loss` [B, T] over the units of `aggregation`."""
  loss = jnp.where(mask, loss, 0.0)
  if aggregation == 'sequence_mean':
    loss /= jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
  return jnp.sum(loss)


def num_units(lengths: np.ndarray, aggregation: str) -> int:
  """How many units of `aggregation` completions of these lengths [N] are.

  Without a token, a completion is none.
  """
  if aggregation == 'token_mean':
    return int(np.sum(lengths))
  return int(np.count_nonzero(lengths))


def supervised_loss(logprobs: jax.Array, mask: jax.Array) -> jax.Array:
  """Negative log-likelihood, a sum over tokens."""
  chex.assert_rank([logprobs, mask], 2)
  return aggregate(-logprobs, mask, 'token_mean')


def value_loss(
    values: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
  """Half the squared error of a critic; a sum over inputs.

  Args:
    values: [B] float32.
    targets: [B] float32.
    weights: [B] float32, 0 for padding.
  """
  chex.assert_rank([values, targets, weights], 1)
  chex.assert_equal_shape([values, targets, weights])
  return 0.5 * jnp.sum(weights * jnp.square(values - targets))
