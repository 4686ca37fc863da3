"""Every group is in one batch, with masks from its lengths."""

import collections
import dataclasses

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients

BUCKETS = batching.Buckets(
    prompt=(4, 8), completion=(3, 6), groups=(2, 4), microbatch_tokens=20)


def _group(prompt_length, completion_lengths, seed=0):
  """A random group; its ids include 0."""
  rng = np.random.default_rng(seed)
  def ids(length):
    return rng.integers(0, 3, length).astype(np.int32)
  return _make(
      ids(prompt_length), [ids(n) for n in completion_lengths],
      [rng.normal(size=n).astype(np.float32) for n in completion_lengths],
      rng.normal(size=len(completion_lengths)).astype(np.float32))


def _make(prompt, completions, logprobs, advantages):
  return types.Group(
      key=types.GroupKey('A', 'a', 0, 0), policy='', prompt=prompt,
      candidates=tuple(
          types.Candidate(completion, x, advantage=advantage)
          for completion, x, advantage in zip(
              completions, logprobs, advantages)))


def _content(group):
  """The content of a group, hashable."""
  return str([
      group.prompt.tolist(), group.advantages.tolist(),
      *((c.completion.tolist(), c.behavior_logprobs.tolist())
        for c in group.candidates)])


def _read_back(batches):
  """The content of all rows but padding, read by lengths."""
  return [
      _content(_make(
          batch.prompts[row, :batch.prompt_lengths[row]],
          [ids[:n] for ids, n in zip(batch.completions[row], lengths)],
          [x[:n] for x, n in zip(batch.behavior_logprobs[row], lengths)],
          batch.advantages[row]))
      for batch in batches
      for row, lengths in enumerate(batch.completion_lengths) if lengths.any()]


def test_smallest_bucket_that_fits():
  found = [batching.bucket(n, (4, 8), 'x') for n in (0, 1, 4, 5, 8)]
  assert found == [4, 4, 4, 8, 8]
  with pytest.raises(errors.UserError, match='buckets.prompt '):
    batching.make_batches([_group(9, [2, 2])], BUCKETS)
  with pytest.raises(errors.UserError, match='buckets.completion '):
    batching.make_batches([_group(3, [2, 7])], BUCKETS)


def test_every_group_is_in_one_batch():
  groups = [
      _group(prompt, completions, seed)
      for seed, (prompt, completions) in enumerate(
          [(p, c) for p in (1, 4, 5, 8)
           for c in ([1, 3], [6, 1], [2, 2], [1, 2, 3], [0, 4])])]
  # Duplicates stay.
  groups += [groups[3], groups[3]]
  batches = batching.make_batches(groups, BUCKETS)
  assert collections.Counter(_read_back(batches)) == collections.Counter(
      map(_content, groups))
  for batch in batches:
    num_rows, size, length = batch.completions.shape
    assert num_rows == max(1, 20 // (batch.prompts.shape[1] + size * length))
  assert batching.make_batches([], BUCKETS) == []


def test_masks_come_from_lengths():
  group = _make(
      prompt=np.array([0, 5, 0], np.int32),
      completions=[
          np.array(ids, np.int32) for ids in ([0, 7, 0, 0], [0], [], [4, 0])],
      logprobs=[np.full(n, -1.0, np.float32) for n in (4, 1, 0, 2)],
      advantages=np.ones(4, np.float32))
  batch, = batching.make_batches(
      [group], dataclasses.replace(BUCKETS, microbatch_tokens=60))
  mask = np.asarray(gradients.completion_mask(batch))
  np.testing.assert_array_equal(mask[0], [
      [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0],
      [1, 1, 0, 0, 0, 0]])
  np.testing.assert_array_equal(
      batch.behavior_logprobs, np.where(mask, -1.0, 0.0))
  # The padding row has a prompt of one token and no completion.
  assert batch.prompt_lengths.tolist() == [3, 1]
  assert not mask[1].any() and not batch.advantages[1].any()


def test_shapes_are_multiples_of_the_shards():
  on_three = BUCKETS.on(3)
  assert on_three.groups == (3, 6)
  assert on_three.microbatch(4, 3, 2) == 6
  assert BUCKETS.on(16).groups == (16,)
  assert (on_three.prompt, on_three.completion) == (
      BUCKETS.prompt, BUCKETS.completion)
  assert BUCKETS.on(1) == BUCKETS
