"""Sampled tokens follow the softmax; ids determine the key of a group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.rl import losses
from atgrpo_jax.sampling import programs

sample_tokens = jax.jit(programs.sample_tokens, static_argnums=2)

LOGITS = np.array([1.5, 0.0, -1.0, 2.0, 0.3, -0.5, 1.0, -2.0], np.float32)


def _softmax(logits):
  weights = np.exp(np.asarray(logits, np.float64))
  return weights / weights.sum(-1, keepdims=True)


def _chi_square(tokens, probabilities):
  counts = np.bincount(tokens, minlength=len(probabilities))
  expected = len(tokens) * probabilities
  return np.sum((counts - expected)**2 / expected)


@pytest.mark.parametrize('temperature', [1.0, 0.7])
def test_frequencies_match_the_softmax(temperature):
  num = 20_000
  keys = jax.random.split(jax.random.key(0), num)
  tokens, _ = map(np.asarray, sample_tokens(
      jnp.broadcast_to(LOGITS, (num, 8)), keys, temperature))
  assert tokens.dtype == np.int32
  # Seven degrees of freedom: one in a thousand exceeds 24.3.
  assert _chi_square(tokens, _softmax(LOGITS / temperature)) < 24.3
  for other in {1.0, 0.7} - {temperature}:
    assert _chi_square(tokens, _softmax(LOGITS / other)) > 500


def test_tokens_without_probability_are_never_drawn():
  for at in (0, 1, 77, 299):
    logits = np.full((5000, 300), -np.inf, np.float32)
    logits[:, [at, 150]] = [0.0, -15.0]
    keys = jax.random.split(jax.random.key(1), 5000)
    tokens, logprobs = map(
        np.asarray, sample_tokens(jnp.array(logits), keys, 1.0))
    assert set(np.unique(tokens)) <= {at, 150}
    np.testing.assert_allclose(
        logprobs, np.where(tokens == at, 0.0, -15.0), atol=1e-6)


@pytest.mark.parametrize('temperature', [0.0, 0.7, 1.0])
@pytest.mark.parametrize('size', [5, 300, 1024])
def test_sampled_logprobs_equal_the_learners(size, temperature):
  logits = 100 + 10 * jax.random.normal(jax.random.key(2), (500, size))
  tokens, logprobs = sample_tokens(
      logits, jax.random.split(jax.random.key(3), 500), temperature)
  assert logprobs.dtype == jnp.float32
  np.testing.assert_allclose(
      logprobs, losses.token_logprobs(logits, tokens, temperature),
      atol=1e-4)


@pytest.mark.parametrize('temperature, divisor', [
    (1.0, 1.0), (0.7, 0.7), (2.0, 2.0),
    # Greedy decoding reports log-probabilities at temperature 1.
    (0.0, 1.0)])
def test_logprobs_and_entropy(temperature, divisor):
  logits = np.stack([LOGITS, 50 * LOGITS])
  probabilities = _softmax(logits / divisor)
  tokens = np.array([4, 0])
  np.testing.assert_allclose(
      losses.token_logprobs(jnp.array(logits), tokens, temperature),
      np.log(probabilities[[0, 1], tokens]), rtol=1e-5)
  np.testing.assert_allclose(
      losses.entropy(jnp.array(logits), temperature),
      -np.sum(probabilities * np.log(probabilities), axis=-1),
      rtol=1e-5, atol=1e-6)


def test_half_precision_is_widened_first():
  logits = jnp.array(LOGITS, jnp.bfloat16)
  exact = losses.token_logprobs(
      logits.astype(jnp.float32), jnp.array(2), 0.7)
  found = losses.token_logprobs(logits, jnp.array(2), 0.7)
  assert found.dtype == jnp.float32
  assert found == exact
  assert losses.entropy(logits, 0.7) == losses.entropy(
      logits.astype(jnp.float32), 0.7)


def test_ids_determine_the_key_of_a_group():
  row = [3, 2**32 - 1, 0, 5, 1]
  rows = [row, row[1:] + row[:1], row[::-1]]
  for column in range(5):
    rows += [
        row[:column] + [value] + row[column + 1:] for value in (2, 2**31)]

  def keys(seed, rows):
    return [tuple(key) for key in np.asarray(jax.random.key_data(
        programs.group_keys(jax.random.key(seed), np.array(rows, np.uint32))))]

  found = keys(7, rows)
  assert len(set(found)) == len(rows)
  assert keys(7, [rows[2], row]) == [found[2], found[0]]
  assert not set(found) & set(keys(8, rows))
