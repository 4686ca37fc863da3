"""What is sampled is what is scored, row by row on its own.

programs.py, through the engine that calls it.
"""

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
NEVER = tiny.CONFIG.vocab_size  # Stop id of those who want full lengths.


@pytest.fixture(scope='module')
def params():
  return tiny.make_params()


def _keys(num):
  return programs.group_keys(
      jax.random.key(11), np.arange(num, dtype=np.uint32)[:, None])


def _sample(
    params, rows=(0, 1, 2), keys=None, width=7, budget=BUDGET, num_slots=(8,),
    **changes):
  """Samples the tiny prompts `rows`, each with its own key."""
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
  """The completions without what stands behind them."""
  return [
      [row[:n].tolist() for row, n in zip(rows, lengths)]
      for rows, lengths in zip(samples.completions, samples.lengths)]


@pytest.mark.parametrize('temperature', [1.0, 0.7])
def test_sampled_logprobs_are_those_of_the_learner(params, temperature):
  # Also behind the end of a chunk.
  budget = 2 * engine_lib.CHUNK + 3
  samples = _sample(
      params, temperature=temperature, stop_ids=(NEVER,), budget=budget)
  assert (samples.lengths == budget).all()
  prompts = tiny.make_prompts()
  scores = _score(params, *prompts, samples.completions, temperature)
  assert np.abs(scores - samples.logprobs).max() <= 1e-5
  other = _score(params, *prompts, samples.completions, 1.7 - temperature)
  assert np.abs(other - samples.logprobs).max() > 0.1
  # The key of a token is that of its place, whatever may follow.
  short = _sample(
      params, temperature=temperature, stop_ids=(NEVER,),
      budget=engine_lib.CHUNK - 1)
  np.testing.assert_array_equal(
      short.completions, samples.completions[..., :engine_lib.CHUNK - 1])


def test_whole_numbers_are_near_the_learner_and_not_equal(params):
  # Bite: scales that are left out, or of other positions.
  samples = _sample(
      params, kv_cache_dtype='int8', stop_ids=(NEVER,),
      budget=2 * engine_lib.CHUNK + 3)
  scores = _score(params, *tiny.make_prompts(), samples.completions, 1.0)
  errors = np.abs(scores - samples.logprobs)
  assert 1e-4 < errors.max() < 0.1, errors.max()


@pytest.mark.parametrize('temperature', [0.0, 0.7])
def test_a_loop_over_the_learner_samples_the_same(params, temperature):
  samples = _sample(params, temperature=temperature, stop_ids=(NEVER,))
  candidate = 2
  tokens, lengths = tiny.make_prompts()
  tokens = np.pad(tokens, ((0, 0), (0, BUDGET)))
  every = np.broadcast_to(
      np.arange(NEVER, dtype=np.int32)[:, None], (3, NEVER, 1))
  for index in range(BUDGET):
    # Of every id as the next one, [3, V].
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


# A row on its own.


def test_neighbours_and_padding_change_nothing(params):
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


def test_the_key_alone_tells_candidates_and_groups_apart(params):
  one, same, other = _sample(
      params, rows=(0, 0, 0), keys=(0, 0, 1), stop_ids=(NEVER,)).completions
  np.testing.assert_array_equal(one, same)
  assert not np.array_equal(one, other)
  assert len(np.unique(one, axis=0)) == 4


def test_stop_ids_end_a_row(params):
  free = _sample(params, stop_ids=(NEVER,))
  assert (free.lengths == 5).all()
  samples = _sample(params)
  for row, length, unstopped in zip(
      samples.completions.reshape(12, 5), samples.lengths.ravel(),
      free.completions.reshape(12, 5)):
    stops = np.flatnonzero(np.isin(unstopped, SPEC.stop_ids))
    assert length == (stops[0] + 1 if len(stops) else 5)
    # Until then, nothing is different.
    np.testing.assert_array_equal(row[:length], unstopped[:length])
  assert 1 < len(np.unique(samples.lengths))


def test_a_prompt_is_computed_once_for_its_group(params):
  """Eight candidates cost the prefill no more operations than one."""
  flops = []
  for size in (1, 8):
    static = {
        'config': tiny.CONFIG, 'spec': dataclasses.replace(
            SPEC, group_size=size)}
    prompts, lengths = tiny.make_prompts()
    ones = np.ones(3, np.int32)
    slots = programs.empty_slots(num_slots=3, prompt_length=7, **static)
    filled = programs.fill.lower(
        params, slots, np.arange(3)[None], prompts, lengths, _keys(3), ones,
        ones, shared_prefix=None, adapters=None, **static)
    flops.append(filled.cost_analysis()['flops'])
  assert flops[1] < 1.05 * flops[0]
