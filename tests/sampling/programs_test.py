"""Sampled log-probabilities equal the learner's; tokens follow the softmax."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.learner import gradients
from atgrpo_jax.model import products
from atgrpo_jax.rl import losses
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from tests import specs
from tests.rl import tiny
from tests.rollout import scripted

SPEC = programs.SamplerSpec(
    group_size=4, temperature=1.0, stop_ids=(3, 7), dtype='float32')
BUDGET = 5
NEVER = tiny.CONFIG.vocab_size  # A stop id that is never sampled.


def _sample(
    params, rows=(0, 1, 2), width=7, budget=BUDGET, num_slots=(8,), **changes):
  """Groups of the tiny prompts `rows`, each with a key."""
  prompts, lengths = tiny.make_prompts()
  prompts = np.pad(prompts, ((0, 0), (0, width - prompts.shape[1])))
  rows = np.array(rows)
  return tiny.sample(
      params, scripted.one_device(), prompts[rows], lengths[rows],
      [(11, row) for row in rows], budget=budget, num_slots=num_slots,
      config=tiny.CONFIG, spec=dataclasses.replace(SPEC, **changes))


def _score(params, completions, temperature, dtype='float32'):
  """The learner's log-probabilities of completions [P, G, T]."""
  batch = dataclasses.replace(
      tiny.make_batch(), completions=completions,
      completion_lengths=np.full(
          completions.shape[:2], completions.shape[2], np.int32),
      temperature=temperature)
  spec = specs.learner(loss=None, dtype=dtype)
  return np.asarray(gradients.score(
      params, batch, config=tiny.CONFIG, spec=spec))


def _arrays(groups):
  """Completions and log-probabilities [P, G, T] if all have one length."""
  return (
      np.array([group.completions for group in groups]),
      np.array([group.logprobs for group in groups]))


def _tokens(groups):
  return [[ids.tolist() for ids in group.completions] for group in groups]


@pytest.mark.parametrize('temperature', [1.0, 0.7])
def test_sampled_logprobs_equal_the_learners(params, temperature):
  # Longer than a chunk.
  budget = 2 * engine_lib.CHUNK + 3
  completions, logprobs = _arrays(_sample(
      params, temperature=temperature, stop_ids=(NEVER,), budget=budget))
  assert completions.shape == (3, 4, budget)
  scores = _score(params, completions, temperature)
  assert np.abs(scores - logprobs).max() <= 1e-5
  other = _score(params, completions, 1.7 - temperature)
  assert np.abs(other - logprobs).max() > 0.1
  # The key of a token depends on its position only.
  short, _ = _arrays(_sample(
      params, temperature=temperature, stop_ids=(NEVER,),
      budget=engine_lib.CHUNK - 1))
  np.testing.assert_array_equal(
      short, completions[..., :engine_lib.CHUNK - 1])


@pytest.mark.skipif(
    products.fastest_dtype('cpu') != 'bfloat16',
    reason='no instructions for bfloat16: model.dtype=auto is float32 here')
@pytest.mark.parametrize('head_dim, width', [(64, 1200), (128, 600)])
def test_products_in_bfloat16_round_alike_in_sampler_and_learner(
    head_dim, width, monkeypatch):
  monkeypatch.setattr(tiny, 'CONFIG', dataclasses.replace(
      tiny.CONFIG, num_layers=3, hidden_size=128, intermediate_size=256,
      head_dim=head_dim))
  params = tiny.make_params()
  completions, logprobs = _arrays(_sample(
      params, stop_ids=(NEVER,), width=width, budget=3 * engine_lib.CHUNK,
      dtype='bfloat16'))
  alike, other = (
      np.abs(logprobs - _score(params, completions, 1.0, dtype)).max()
      for dtype in ('bfloat16', 'float32'))
  # Measured: 7e-7. It is 2e-2 if attention adds in an order that depends on the
  # shapes, and 0.15 with float32 products in the learner.
  assert alike < 1e-5 and other > 5e-3


def test_greedy_tokens_are_the_likeliest(params):
  completions, logprobs = _arrays(
      _sample(params, temperature=0.0, stop_ids=(NEVER,)))
  batch = dataclasses.replace(tiny.make_batch(), completions=completions)
  expected = jax.nn.log_softmax(tiny.plain_logits(params, batch))
  np.testing.assert_array_equal(
      completions, np.argmax(expected, axis=-1).reshape(completions.shape))
  np.testing.assert_allclose(
      logprobs, np.max(expected, axis=-1).reshape(logprobs.shape), atol=1e-5)


def test_neighbours_and_padding_have_no_effect(params):
  together = _tokens(_sample(params))
  assert together[1:2] == _tokens(_sample(params, rows=(1,)))
  shuffled = _tokens(_sample(params, rows=(2, 0, 1)))
  assert shuffled == [together[2], together[0], together[1]]
  # Other candidates.
  larger = _tokens(_sample(params, group_size=6))
  assert together == [group[:4] for group in larger]
  # Longer prompts, more slots, and capacity for longer completions.
  longer = _tokens(_sample(
      params, rows=(0, 1, 2, 0), width=12, budget=9, num_slots=(16,)))
  cut = [[row[:5] for row in group] for group in longer]
  assert together == cut[:3] != longer[:3]
  # They are not all the same by chance.
  assert len({str(x) for group in together for x in group}) > 9


# Tokens and keys.


sample_tokens = jax.jit(programs.sample_tokens, static_argnums=(2, 3, 4))
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


@pytest.mark.parametrize('top_k, top_p, kept', [
    (3, 1.0, (0, 1, 2)), (0, 0.6, (0, 1)), (0, 0.3, (0,)), (0, 0.0, (0,)),
    # The first of two kept tokens has probability 4/7.
    (2, 0.55, (0,)), (2, 0.6, (0, 1)), (99, 1.0, (0, 1, 2, 3))])
def test_top_k_and_top_p_keep_the_likeliest_tokens(top_k, top_p, kept):
  probabilities, num = np.array([0.4, 0.3, 0.2, 0.1]), 20_000
  keys = jax.random.split(jax.random.key(0), num)
  tokens, logprobs = map(np.asarray, sample_tokens(
      jnp.broadcast_to(jnp.log(probabilities), (num, 4)), keys, 1.0, top_k,
      top_p))
  kept = [*kept]
  assert set(np.unique(tokens)) == {*kept}
  left = probabilities[kept] / probabilities[kept].sum()
  assert _chi_square(tokens, left) < 16.3  # At most three degrees of freedom.
  np.testing.assert_allclose(logprobs, np.log(left)[tokens], atol=1e-5)


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
  # Half precision is widened first.
  half = jnp.array(logits, jnp.bfloat16)
  np.testing.assert_array_equal(
      losses.token_logprobs(half, tokens, temperature),
      losses.token_logprobs(half.astype(jnp.float32), tokens, temperature))
