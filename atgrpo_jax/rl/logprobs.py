"""Log-probabilities of tokens, and entropies.

The learner scores with `token_logprobs`. The sampler computes the same number
while it draws the token (`sampling.programs.sample_tokens`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def token_logprobs(
    logits: jax.Array, tokens: jax.Array, temperature: float) -> jax.Array:
  """Log-probabilities [...] float32 of `tokens` [...] under `logits` [..., V].

  Temperature 0 means greedy decoding, with the log-probabilities of temperature
  1.
  """
  scaled = logits.astype(jnp.float32) / (temperature or 1.0)
  picked = jnp.take_along_axis(scaled, tokens[..., None], axis=-1)[..., 0]
  return picked - jax.nn.logsumexp(scaled, axis=-1)


def entropy(logits: jax.Array, temperature: float) -> jax.Array:
  """Entropy [...] float32, in nats, of the distributions `logits` [..., V]."""
  logprobs = jax.nn.log_softmax(
      logits.astype(jnp.float32) / (temperature or 1.0))
  return -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
