"""Choosing tokens, with keys that depend on nothing but their own counters."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Runs of the vocabulary of which one is drawn before a token in it. A power of
# two, so that each device has whole runs where the vocabulary is split.
_RUNS = 128


def sample_tokens(
    logits: jax.Array, keys: jax.Array, temperature: float) -> jax.Array:
  """One token [...] int32 for each row of `logits` [..., V] float32.

  Each row has a key of its own ([...] typed keys), so a row's token does not
  depend on its neighbours. Two random numbers choose it: one a run of the
  vocabulary, one a token in it. One for every token would cost more than the
  logits do.
  """
  if temperature == 0.0:
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)
  rows = logits.reshape(-1, logits.shape[-1]) / temperature
  weights = jnp.exp(rows - jnp.max(rows, axis=-1, keepdims=True))
  weights = jnp.pad(weights, ((0, 0), (0, -weights.shape[1] % _RUNS)))
  weights = weights.reshape(len(weights), _RUNS, -1)
  numbers = jax.vmap(lambda key: jax.random.uniform(key, 2))(keys.reshape(-1))
  run = _draw(jnp.sum(weights, axis=-1), numbers[:, 0])
  weights = jnp.take_along_axis(weights, run[:, None, None], axis=1)[:, 0]
  tokens = run * weights.shape[1] + _draw(weights, numbers[:, 1])
  return tokens.reshape(logits.shape[:-1]).astype(jnp.int32)


def _draw(weights, numbers):
  """Indices [R] with the chances `weights` [R, N], by `numbers` [R] in [0, 1).

  Never one of weight 0: the sums are not computed in order, so those before
  and after it may differ by rounding.
  """
  ends = jnp.where(weights > 0, jnp.cumsum(weights, axis=-1), 0)
  total = jnp.max(ends, axis=-1, keepdims=True)
  return jnp.argmax(ends > numbers[:, None] * total, axis=-1)


@jax.jit
def group_keys(seed: jax.Array, ids: jax.Array) -> jax.Array:
  """Counter-based keys [P], folded from `seed` and the columns of `ids`.

  Args:
    seed: a typed key.
    ids: [P, N] uint32, such as step, task, turn, role and branch.
  """
  def fold_all(row):
    key = seed
    for number in row:
      key = jax.random.fold_in(key, number)
    return key
  return jax.vmap(fold_all)(ids)
