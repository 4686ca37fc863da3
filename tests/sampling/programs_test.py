"""Sampling equals scoring; each row is independent of the others."""

import dataclasses

import jax
import numpy as np
import pytest

from atgrpo_jax import types
from atgrpo_jax.learner import gradients
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from tests import specs
from tests.rl import tiny
from tests.rollout import scripted

SPEC = programs.SamplerSpec(
    group_size=4, temperature=1.0, stop_ids=(3, 7), dtype='float32')
BUDGET = 5
NEVER = tiny.CONFIG.vocab_size  # A stop id that is never sampled.


@pytest.fixture(scope='module')
def params():
  return tiny.make_params()


def _keys(num):
  return programs.group_keys(
      jax.random.key(11), np.arange(num, dtype=np.uint32)[:, None])


def _sample(
    params, rows=(0, 1, 2), keys=None, width=7, budget=BUDGET, num_slots=(8,),
    **changes):
  """Samples the tiny prompts `rows` with a key each."""
  prompts, lengths = tiny.make_prompts()
  prompts = np.pad(prompts, ((0, 0), (0, width - prompts.shape[1])))
  rows = np.array(rows)
  return tiny.sample(
      params, scripted.one_device(), prompts[rows], lengths[rows],
      _keys(3)[rows if keys is None else np.array(keys)], budget=budget,
      num_slots=num_slots, spec=dataclasses.replace(SPEC, **changes))


def _score(params, prompts, prompt_lengths, completions, temperature):
  """The learner's log-probabilities of completions [P, G, T]."""
  batch = types.TrainBatch(
      prompts=prompts, prompt_lengths=prompt_lengths, completions=completions,
      completion_lengths=np.full(
          completions.shape[:2], completions.shape[2], np.int32),
      behavior_logprobs=np.zeros(completions.shape, np.float32),
      advantages=np.zeros(completions.shape[:2], np.float32))
  spec = specs.learner(loss=None, temperature=temperature)
  return np.asarray(gradients.score(
      params, batch, config=tiny.CONFIG, spec=spec))


def _tokens(samples):
  """The completions without padding."""
  return [
      [row[:n].tolist() for row, n in zip(rows, lengths)]
      for rows, lengths in zip(samples.completions, samples.lengths)]


@pytest.mark.parametrize('temperature', [1.0, 0.7])
def test_sampled_logprobs_equal_the_learners(params, temperature):
  # Longer than a chunk.
  budget = 2 * engine_lib.CHUNK + 3
  samples = _sample(
      params, temperature=temperature, stop_ids=(NEVER,), budget=budget)
  assert (samples.lengths == budget).all()
  prompts = tiny.make_prompts()
  scores = _score(params, *prompts, samples.completions, temperature)
  assert np.abs(scores - samples.logprobs).max() <= 1e-5
  other = _score(params, *prompts, samples.completions, 1.7 - temperature)
  assert np.abs(other - samples.logprobs).max() > 0.1
  # The key of a token depends on its position only.
  short = _sample(
      params, temperature=temperature, stop_ids=(NEVER,),
      budget=engine_lib.CHUNK - 1)
  np.testing.assert_array_equal(
      short.completions, samples.completions[..., :engine_lib.CHUNK - 1])


@pytest.mark.parametrize('temperature', [0.0, 0.7])
def test_loop_over_the_learner_samples_the_same(params, temperature):
  samples = _sample(params, temperature=temperature, stop_ids=(NEVER,))
  candidate = 2
  tokens, lengths = tiny.make_prompts()
  tokens = np.pad(tokens, ((0, 0), (0, BUDGET)))
  every = np.broadcast_to(
      np.arange(NEVER, dtype=np.int32)[:, None], (3, NEVER, 1))
  for index in range(BUDGET):
    # Log-probabilities of all next tokens, [3, V].
    scores = _score(params, tokens, lengths, every, 1.0)[..., 0]
    if temperature:
      keys = jax.vmap(lambda key: jax.random.fold_in(
          jax.random.fold_in(key, candidate), index))(_keys(3))
      expected, logprobs = map(
          np.asarray, programs.sample_tokens(scores, keys, temperature))
      np.testing.assert_allclose(
          samples.logprobs[:, candidate, index], logprobs, atol=1e-5)
    else:
      expected = np.argmax(scores, axis=1)
      np.testing.assert_allclose(
          samples.logprobs[:, candidate, index],
          scores[np.arange(3), expected], atol=1e-5)
    np.testing.assert_array_equal(
        samples.completions[:, candidate, index], expected)
    tokens[np.arange(3), lengths] = expected
    lengths = lengths + 1


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
