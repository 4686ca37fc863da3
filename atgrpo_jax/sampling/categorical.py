"""Choosing tokens, with keys that depend on nothing but their own counters."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.rl import logprobs as logprobs_lib

# Runs of the vocabulary of which one is drawn before a token in it. A power of
# two, so that each device has whole runs where the vocabulary is split.
_RUNS = 128


def sample_tokens(
    logits: jax.Array, keys: jax.Array,
    temperature: float) -> tuple[jax.Array, jax.Array]:
  """A token for each row of logits, and its log-probability.

  Each row has a key of its own, so a row's token does not depend on its
  neighbours. Two random numbers choose it: one a run of the vocabulary, one a
  token in it. One for every token would cost more than the logits do.

  Where the vocabulary is split over devices, these are told the largest logit,
  the weight of each run and the logits of the run that was drawn, no more.

  Args:
    logits: [R, V] float32.
    keys: [R] typed keys.
    temperature: 0 for the likeliest token.

  Returns:
    tokens: [R] int32.
    logprobs: [R] float32, as `logprobs.token_logprobs` has them.
  """
  if temperature == 0.0:
    tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return tokens, logprobs_lib.token_logprobs(logits, tokens, temperature)
  scaled = logits / temperature
  top = jnp.max(scaled, axis=-1, keepdims=True)
  scaled = jnp.pad(
      scaled, ((0, 0), (0, -scaled.shape[1] % _RUNS)), constant_values=-jnp.inf)
  scaled = scaled.reshape(len(scaled), _RUNS, -1)
  weights = mesh_lib.constrain(
      jnp.sum(jnp.exp(scaled - top[:, :, None]), axis=-1))
  numbers = jax.vmap(lambda key: jax.random.uniform(key, 2))(keys)
  run = _draw(weights, numbers[:, 0])
  of_run = mesh_lib.constrain(
      jnp.take_along_axis(scaled, run[:, None, None], axis=1)[:, 0])
  in_run = _draw(jnp.exp(of_run - top), numbers[:, 1])
  tokens = run * of_run.shape[1] + in_run
  picked = jnp.take_along_axis(of_run, in_run[:, None], axis=1)
  logprobs = picked - top - jnp.log(jnp.sum(weights, axis=-1, keepdims=True))
  return tokens.astype(jnp.int32), logprobs[:, 0]


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
