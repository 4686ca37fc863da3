"""sample_tokens: tokens follow the softmax, and each row has its own key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.rl import logprobs as logprobs_lib
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
  # Seven degrees of freedom: 24.3 is passed once in a thousand.
  assert _chi_square(tokens, _softmax(LOGITS / temperature)) < 24.3
  for other in {1.0, 0.7} - {temperature}:
    assert _chi_square(tokens, _softmax(LOGITS / other)) > 500


@pytest.mark.parametrize('size', [5, 300])
def test_every_part_of_the_vocabulary_is_reached(size):
  # Bite: pads that are drawn, a run or its last token that never is.
  keys = jax.random.split(jax.random.key(0), 30 * size)
  tokens, _ = map(np.asarray, sample_tokens(
      jnp.zeros((30 * size, size)), keys, 1.0))
  # Each is missed by chance once in e^30 times.
  np.testing.assert_array_equal(np.unique(tokens), np.arange(size))


def test_what_has_no_chance_is_never_drawn():
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
def test_what_is_sampled_is_what_is_scored(size, temperature):
  # Bite: a largest logit left out, pads in the sum, a temperature of 0 that
  # divides.
  logits = 100 + 10 * jax.random.normal(jax.random.key(2), (500, size))
  tokens, logprobs = sample_tokens(
      logits, jax.random.split(jax.random.key(3), 500), temperature)
  assert logprobs.dtype == jnp.float32
  np.testing.assert_allclose(
      logprobs, logprobs_lib.token_logprobs(logits, tokens, temperature),
      atol=1e-4)


def test_no_number_draws_what_has_no_weight():
  # Bite: sums of the same weights that differ by rounding, taken at their
  # word; the largest number, times a total, as a draw beyond the last.
  weights = np.random.default_rng(0).exponential(size=(2000, 64))
  weights[np.random.default_rng(1).random(weights.shape) < 0.7] = 0
  weights[:, 5] = 1e-6  # None is without any.
  weights = weights.astype(np.float32)
  ends = np.cumsum(weights, axis=1)
  rows = np.arange(len(weights))
  for numbers in (
      np.zeros(len(weights)), ends[rows, rows % 64] / ends[:, -1],
      np.full(len(weights), np.nextafter(np.float32(1), np.float32(0)))):
    numbers = np.minimum(numbers, 1 - 2**-24).astype(np.float32)
    drawn = np.asarray(programs._draw(jnp.array(weights), numbers))
    assert weights[rows, drawn].min() > 0
    # Where the sums end, whatever their rounding.
    error = 1e-5 * ends[:, -1]
    wanted = numbers * ends[:, -1]
    assert (ends[rows, drawn] >= wanted - error).all()
    assert (ends[rows, drawn] - weights[rows, drawn] <= wanted + error).all()


@pytest.mark.parametrize('temperature, divisor', [
    (1.0, 1.0), (0.7, 0.7), (2.0, 2.0),
    # Greedy decoding reports those of temperature 1.
    (0.0, 1.0)])
def test_logprobs_and_entropy(temperature, divisor):
  logits = np.stack([LOGITS, 50 * LOGITS])
  probabilities = _softmax(logits / divisor)
  tokens = np.array([4, 0])
  np.testing.assert_allclose(
      logprobs_lib.token_logprobs(jnp.array(logits), tokens, temperature),
      np.log(probabilities[[0, 1], tokens]), rtol=1e-5)
  np.testing.assert_allclose(
      logprobs_lib.entropy(jnp.array(logits), temperature),
      -np.sum(probabilities * np.log(probabilities), axis=-1),
      rtol=1e-5, atol=1e-6)


def test_half_precision_is_widened_first():
  logits = jnp.array(LOGITS, jnp.bfloat16)
  exact = logprobs_lib.token_logprobs(
      logits.astype(jnp.float32), jnp.array(2), 0.7)
  found = logprobs_lib.token_logprobs(logits, jnp.array(2), 0.7)
  assert found.dtype == jnp.float32
  assert found == exact
  assert logprobs_lib.entropy(logits, 0.7) == logprobs_lib.entropy(
      logits.astype(jnp.float32), 0.7)


# Keys.


def _data(seed, ids):
  keys = programs.group_keys(
      jax.random.key(seed), np.array(ids, np.uint32).reshape(len(ids), -1))
  return [tuple(row) for row in np.asarray(jax.random.key_data(keys))]


def test_the_same_ids_have_the_same_key_wherever_they_stand():
  row = [3, 2**32 - 1, 0, 5, 1]
  first = _data(7, [row])
  again = _data(7, [[9, 9, 9, 9, 9], row, [0, 0, 0, 0, 0], row])
  assert again[1] == again[3] == first[0]
  assert len(set(again)) == 3


def test_whatever_differs_gives_another_key():
  row = [3, 2**32 - 1, 0, 5, 1]
  rows = [row]
  for column in range(5):
    for value in (2, 2**31):
      rows.append(row[:column] + [value] + row[column + 1:])
  # The same numbers in other columns, too.
  rows += [row[1:] + row[:1], row[::-1]]
  keys = _data(7, rows)
  assert len(set(keys)) == len(rows)
  assert not set(keys) & set(_data(8, rows))
