"""batching.py: every group in one batch, once, with masks from its lengths."""

import collections
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import train_step
from atgrpo_jax.runtime import buckets as buckets_lib

BUCKETS = buckets_lib.Buckets(
    prompt=(4, 8), completion=(3, 6), groups=(2, 4), microbatch_tokens=20)


def _group(prompt_length, completion_lengths, seed=0):
  """A group whose ids include 0, at the ends as well."""
  rng = np.random.default_rng(seed)
  def ids(length):
    return rng.integers(0, 3, length).astype(np.int32)
  return _make(
      prompt=ids(prompt_length),
      completions=[ids(length) for length in completion_lengths],
      logprobs=[
          rng.normal(size=length).astype(np.float32)
          for length in completion_lengths],
      advantages=rng.normal(size=len(completion_lengths)).astype(np.float32))


def _make(prompt, completions, logprobs, advantages):
  return types.Group(
      key=types.GroupKey('A', 'a', 0, 0), policy='', prompt=prompt,
      candidates=tuple(
          types.Candidate(completion, own, advantage=advantage)
          for completion, own, advantage in zip(
              completions, logprobs, advantages)))


def _content(group):
  """All that a group says, hashable."""
  return (
      tuple(group.prompt.tolist()),
      tuple(tuple(c.completion.tolist()) for c in group.candidates),
      tuple(tuple(c.behavior_logprobs.tolist()) for c in group.candidates),
      tuple(group.advantages.tolist()))


def _read_back(batches):
  """The content of every row that is not a filler, by lengths alone."""
  found = []
  for batch in batches:
    for row, lengths in enumerate(batch.completion_lengths):
      if lengths.any():
        found.append(_content(_make(
            batch.prompts[row, :batch.prompt_lengths[row]],
            [ids[:n] for ids, n in zip(batch.completions[row], lengths)],
            [x[:n] for x, n in zip(batch.behavior_logprobs[row], lengths)],
            batch.advantages[row])))
  return found


@pytest.mark.parametrize('length, expected', [
    (0, 4), (1, 4), (4, 4), (5, 8), (8, 8)])
def test_bucket(length, expected):
  assert buckets_lib.bucket(length, (4, 8), 'prompt length') == expected


def test_what_does_not_fit():
  with pytest.raises(errors.UserError) as error:
    buckets_lib.bucket(9, (4, 8), 'prompt length')
  message = str(error.value)
  assert 'prompt length of 9' in message
  assert 'largest bucket, 8;' in message
  assert 'raise buckets.prompt ' in message


@pytest.mark.parametrize('group, field', [
    (_group(9, [2, 2]), 'prompt'), (_group(3, [2, 7]), 'completion')])
def test_groups_that_do_not_fit(group, field):
  size = {'prompt': 9, 'completion': 7}[field]
  with pytest.raises(errors.UserError, match=f'{field} length of {size} does'):
    batching.make_batches([_group(3, [2, 2]), group], BUCKETS)


def test_every_group_appears_once():
  groups = [
      _group(prompt, completions, seed)
      for seed, (prompt, completions) in enumerate(
          [(p, c) for p in (1, 4, 5, 8)
           for c in ([1, 3], [6, 1], [2, 2], [1, 2, 3], [0, 4])])]
  # A group that occurs twice stays two.
  groups += [groups[3], groups[3]]
  batches = batching.make_batches(groups, BUCKETS)
  assert collections.Counter(_read_back(batches)) == collections.Counter(
      map(_content, groups))
  for batch in batches:
    num_rows, size, length = batch.completions.shape
    assert num_rows == max(1, 20 // (batch.prompts.shape[1] + size * length))
    assert batch.prompts.shape[1] in BUCKETS.prompt
    assert batch.completions.shape[2] in BUCKETS.completion


def test_shapes_are_the_smallest_and_no_two_share_a_batch():
  groups = [_group(3, [2, 3]), _group(5, [2, 3]), _group(3, [2, 4]),
            _group(3, [2, 3, 1]), _group(2, [1, 1])]
  shapes = [
      (*batch.prompts.shape, *batch.completions.shape)
      for batch in batching.make_batches(groups, BUCKETS)]
  assert sorted(shapes) == [
      (1, 4, 1, 2, 6), (1, 4, 1, 3, 3), (1, 8, 1, 2, 3),
      # The first and the last group are together.
      (2, 4, 2, 2, 3)]


def test_number_of_batches():
  groups = [_group(3, [2, 2], seed) for seed in range(5)]
  batches = batching.make_batches(groups, BUCKETS)
  assert len(batches) == 3
  # The filler has a prompt of one token, and no token that counts.
  last = batches[-1]
  assert last.prompt_lengths.tolist() == [3, 1]
  assert last.completion_lengths.tolist() == [[2, 2], [0, 0]]
  assert last.advantages[1].tolist() == [0, 0]


def test_masks_come_from_lengths_and_not_from_ids():
  group = _make(
      prompt=np.array([0, 5, 0], np.int32),
      completions=[
          np.array(ids, np.int32) for ids in ([0, 7, 0, 0], [0], [], [4, 0])],
      logprobs=[
          np.full(n, -1.0, np.float32) for n in (4, 1, 0, 2)],
      advantages=np.ones(4, np.float32))
  batch, = batching.make_batches(
      [group], dataclasses.replace(BUCKETS, microbatch_tokens=60))
  assert batch.prompt_lengths[0] == 3
  mask = np.asarray(train_step.completion_mask(batch))
  np.testing.assert_array_equal(mask[0], [
      [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0],
      [1, 1, 0, 0, 0, 0]])
  assert not mask[1].any()
  np.testing.assert_array_equal(
      batch.behavior_logprobs, np.where(mask, -1.0, 0.0))


def test_types():
  batch, = batching.make_batches([_group(3, [2, 2])], BUCKETS)
  for field in ('prompts', 'prompt_lengths', 'completions',
                'completion_lengths'):
    assert vars(batch)[field].dtype == jnp.int32, field
  for field in ('behavior_logprobs', 'advantages'):
    assert vars(batch)[field].dtype == jnp.float32, field


def test_no_groups_give_no_batches():
  assert batching.make_batches([], BUCKETS) == []


def test_pad_prompts():
  prompts = [np.array([5, 0, 6], np.int32), np.array([7], np.int32)]
  padded, lengths = buckets_lib.pad_prompts(prompts, 3, 4)
  assert lengths.tolist() == [3, 1, 1]
  assert padded[0, :3].tolist() == [5, 0, 6]
  assert padded[1, 0] == 7
  assert padded.shape == (3, 4)
  assert padded.dtype == lengths.dtype == np.int32


def test_shapes_of_a_mesh_can_be_split_evenly():
  on_three = BUCKETS.on(3)
  assert on_three.groups == (3, 6)
  assert on_three.microbatch(4, 3, 2) == 6
  assert (on_three.prompt, on_three.completion) == (
      BUCKETS.prompt, BUCKETS.completion)
  assert BUCKETS.on(1) == BUCKETS
