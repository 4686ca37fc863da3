"""What is sampled is what is scored, row by row on its own.

programs.py, through the engine that calls it.
"""

import dataclasses

import jax
import numpy as np
import pytest

from atgrpo_jax import types
from atgrpo_jax.learner import train_step
from atgrpo_jax.sampling import categorical
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
  return categorical.group_keys(
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
  return np.asarray(train_step.score(
      params, batch, config=tiny.CONFIG, spec=spec))


def _score_all(params, prompts, prompt_lengths, temperature):
  """Log-probabilities [P, V] of every id as the next one."""
  every = np.broadcast_to(
      np.arange(tiny.CONFIG.vocab_size, dtype=np.int32)[:, None],
      (len(prompts), tiny.CONFIG.vocab_size, 1))
  return _score(params, prompts, prompt_lengths, every, temperature)[..., 0]


def _wide_prompts():
  """Prompts with capacity for a completion."""
  prompts, lengths = tiny.make_prompts()
  return np.pad(prompts, ((0, 0), (0, BUDGET))), lengths


def _tokens(samples):
  """The completions without what stands behind them."""
  return [
      [row[:n].tolist() for row, n in zip(rows, lengths)]
      for rows, lengths in zip(samples.completions, samples.lengths)]


def _mask(samples):
  return np.arange(samples.completions.shape[2]) < samples.lengths[..., None]


@pytest.mark.parametrize('temperature', [1.0, 0.7])
def test_sampled_logprobs_are_those_of_the_learner(params, temperature):
  samples = _sample(params, temperature=temperature)
  mask = _mask(samples)
  assert mask.sum() > 30
  prompts = tiny.make_prompts()
  scores = _score(params, *prompts, samples.completions, temperature)
  assert np.abs(scores - samples.logprobs)[mask].max() <= 1e-5
  other = _score(params, *prompts, samples.completions, 1.7 - temperature)
  assert np.abs(other - samples.logprobs)[mask].max() > 0.1


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_a_loop_over_the_learner_samples_the_same(params, temperature):
  samples = _sample(params, temperature=temperature, stop_ids=(NEVER,))
  candidate = 2
  tokens, lengths = _wide_prompts()
  for index in range(BUDGET):
    scores = _score_all(params, tokens, lengths, 1.0)
    if temperature:
      keys = jax.vmap(lambda key: jax.random.fold_in(
          jax.random.fold_in(key, candidate), index))(_keys(3))
      expected = np.asarray(
          categorical.sample_tokens(scores, keys, temperature))
    else:
      expected = np.argmax(scores, axis=1)
    np.testing.assert_array_equal(
        samples.completions[:, candidate, index], expected)
    np.testing.assert_allclose(
        samples.logprobs[:, candidate, index], scores[np.arange(3), expected],
        atol=1e-5)
    tokens[np.arange(3), lengths] = expected
    lengths = lengths + 1


def test_frequencies_match_the_learner(params):
  num = 4000
  samples = _sample(params, temperature=0.5, group_size=num, budget=1)
  def distances(temperature):
    """Total variation between what was drawn and what the learner says."""
    expected = np.exp(_score_all(params, *_wide_prompts(), temperature))
    found = np.stack([
        np.bincount(rows.ravel(), minlength=32) / num
        for rows in samples.completions])
    return np.abs(found - expected).sum(axis=1) / 2
  assert distances(0.5).max() < 0.04
  assert distances(1.0).min() > 0.1


# A row on its own.


def test_neighbours_change_nothing(params):
  together = _tokens(_sample(params))
  assert together[1:2] == _tokens(_sample(params, rows=(1,)))
  shuffled = _tokens(_sample(params, rows=(2, 0, 1)))
  assert shuffled == [together[2], together[0], together[1]]
  without = _tokens(_sample(params, rows=(0, 2)))
  assert without == [together[0], together[2]]
  # They are not all the same by chance.
  assert len({str(x) for group in together for x in group}) > 9


def test_padding_changes_nothing(params):
  plain = _tokens(_sample(params))
  # Longer prompts, more slots, and capacity for longer completions.
  longer = _tokens(_sample(
      params, rows=(0, 1, 2, 0), width=12, budget=9, num_slots=(16,)))
  cut = [[row[:5] for row in group] for group in longer]
  assert plain == cut[:3] != longer[:3]


def test_other_members_change_nothing(params):
  larger = _tokens(_sample(params, group_size=6))
  assert _tokens(_sample(params)) == [group[:4] for group in larger]


def test_the_key_alone_tells_candidates_and_groups_apart(params):
  one, same, other = _sample(
      params, rows=(0, 0, 0), keys=(0, 0, 1), stop_ids=(NEVER,)).completions
  np.testing.assert_array_equal(one, same)
  assert not np.array_equal(one, other)
  assert len(np.unique(one, axis=0)) == 4


# Ends.


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


def test_a_key_of_a_token_is_that_of_its_place(params):
  """Also behind the end of a chunk, and whatever the others do."""
  budget = 2 * engine_lib.CHUNK + 3
  long = _sample(params, stop_ids=(NEVER,), budget=budget)
  assert (long.lengths == budget).all()
  prompts, lengths = tiny.make_prompts()
  scores = _score(params, prompts, lengths, long.completions, 1.0)
  assert np.abs(scores - long.logprobs).max() <= 1e-5
  short = _sample(params, stop_ids=(NEVER,), budget=engine_lib.CHUNK - 1)
  np.testing.assert_array_equal(
      short.completions, long.completions[..., :engine_lib.CHUNK - 1])


@pytest.mark.parametrize('size', [1, 8])
def test_a_prompt_is_computed_once_for_its_group(params, size):
  prompts, lengths = tiny.make_prompts()
  spec = dataclasses.replace(SPEC, group_size=size)
  ones = np.ones(3, np.int32)
  static = {'config': tiny.CONFIG, 'spec': spec}
  slots = programs.empty_slots(num_slots=3, prompt_length=7, **static)
  past = programs.empty_rows(num_rows=3 * size, capacity=8, **static)
  static['adapters'] = None

  def fill(params):
    return programs.fill(
        params, slots, np.arange(3)[None], prompts, lengths, _keys(3), ones,
        ones, shared_prefix=None, **static)

  def decode(params):
    return programs.decode(params, slots, past, None, num_tokens=8, **static)

  # The candidates read its last token again; no other is repeated.
  for fn, rows in ((fill, 3 * 7), (decode, 3 * size * 8)):
    assert tiny.count_rows(fn, [params], tiny.EMBEDDING, 8) == rows
    # Two products in each of two layers.
    assert tiny.count_rows(fn, [params], tiny.MLP_KERNEL, 8) == 4 * rows
