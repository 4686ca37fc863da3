"""Every group is in one batch, padded to static shapes."""

import dataclasses

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.learner import batching

BUCKETS = batching.Buckets(
    prompt=(4, 8), completion=(3, 6), groups=(2, 4), microbatch_tokens=20)


def _group(prompt_length, completion_lengths, seed=0):
  """A random group; its ids include 0."""
  rng = np.random.default_rng(seed)

  def ids(length):
    return rng.integers(0, 3, length).astype(np.int32)

  return types.Group(
      key=types.GroupKey('A', 'a', 0, 0), policy='', prompt=ids(prompt_length),
      candidates=tuple(
          types.Candidate(
              ids(length), rng.normal(size=length).astype(np.float32),
              advantage=rng.normal())
          for length in completion_lengths))


def test_smallest_bucket_that_fits():
  found = [batching.bucket(n, (4, 8), 'x') for n in (0, 1, 4, 5, 8)]
  assert found == [4, 4, 4, 8, 8]
  with pytest.raises(errors.UserError, match='buckets.prompt '):
    batching.make_batches([_group(9, [2, 2])], BUCKETS)
  with pytest.raises(errors.UserError, match='buckets.completion '):
    batching.make_batches([_group(3, [2, 7])], BUCKETS)


# `used` has pairs of the candidates that fit into a row, and those in it.
@pytest.mark.parametrize('completion, microbatch_tokens, used', [
    ((3, 6), 20, {(3, 3), (4, 4)}),
    ((3, 6), 120, {(4, 2)}),  # A smaller group.
    ((3, 48), 20, {(1, 1)})])  # Half a group.
def test_every_candidate_is_in_one_batch(completion, microbatch_tokens, used):
  buckets = dataclasses.replace(
      BUCKETS, completion=completion, microbatch_tokens=microbatch_tokens)
  groups = [
      _group(prompt, completions, seed)
      for seed, (prompt, completions) in enumerate(
          [(p, c) for p in (1, 4, 5, 8)
           for c in ([1, 3], [6, 1], [2, 2], [1, 2, 3], [0, 4], [1, 5, 1, 6])])]
  # Duplicates stay.
  groups += [groups[3], groups[3]]
  expected = [
      (group.prompt.tolist(), np.float32(c.advantage), c.completion.tolist(),
       c.behavior_logprobs.tolist())
      for group in groups for c in group.candidates if len(c.completion)]
  found, uses = [], set()
  for batch in batching.make_batches(groups, buckets):
    num_rows, size, length = batch.completions.shape
    assert num_rows == max(
        1, microbatch_tokens // (batch.prompts.shape[1] + size * length))
    for row, lengths in enumerate(batch.completion_lengths):
      uses.add((size, np.count_nonzero(lengths)))
      assert lengths.any() or batch.prompt_lengths[row] == 1  # Padding.
      found += [
          (batch.prompts[row, :batch.prompt_lengths[row]].tolist(),
           batch.advantages[row, column],
           batch.completions[row, column, :n].tolist(),
           batch.behavior_logprobs[row, column, :n].tolist())
          for column, n in enumerate(lengths) if n]
  assert sorted(found) == sorted(expected)
  assert uses >= used


def _shapes(groups, buckets=BUCKETS):
  """(groups, prompt length, completion length, candidates) of each batch."""
  return [
      (int(np.sum(batch.completion_lengths.any(axis=1))),
       batch.prompts.shape[1], *batch.completions.shape[:0:-1])
      for batch in batching.make_batches(groups, buckets)]


def test_free_rows_hold_smaller_groups():
  buckets = dataclasses.replace(BUCKETS, microbatch_tokens=80)
  # Four rows of 8 + 2 * 6 tokens, or eight of 4 + 2 * 3.
  assert _shapes([_group(8, [6, 6])] + [_group(4, [3, 3])] * 4, buckets) == [
      (4, 8, 6, 2), (1, 4, 3, 2)]
  # Their prompt or their candidates do not fit.
  assert _shapes([_group(4, [6, 6]), _group(8, [3, 3])], buckets) == [
      (1, 4, 6, 2), (1, 8, 3, 2)]
  assert _shapes([_group(8, [6, 6]), _group(4, [3, 3, 3])], buckets) == [
      (1, 8, 6, 2), (1, 4, 3, 3)]


def test_longer_candidates_get_rows_of_their_own():
  buckets = dataclasses.replace(
      BUCKETS, completion=(3, 48), microbatch_tokens=1)
  # 4 + 4 * 48 tokens, or 4 + 2 * 48 and 4 + 2 * 3.
  assert _shapes([_group(4, [3, 40, 1, 2])], buckets) == [
      (1, 4, 48, 2), (1, 4, 3, 2)]
  # 4 + 6, or twice 4 + 3.
  assert _shapes([_group(4, [3, 1])], buckets) == [(1, 4, 3, 2)]
  # 4 + 2 * 8, or 4 + 8 and 4 + 3, which saves only a twentieth.
  buckets = dataclasses.replace(buckets, completion=(3, 8))
  assert _shapes([_group(4, [8, 1])], buckets) == [(1, 4, 8, 2)]


@pytest.mark.parametrize('lengths, expected', [
    ([1, 1, 1, 1, 1], [([0, 1, 2, 3, 4], 5, 4)]),
    ([8, 1, 1, 1, 1], [([0, 1], 2, 8), ([2, 3, 4], 5, 4)])])
def test_free_rows_hold_shorter_inputs(lengths, expected):
  found = batching.pad_inputs([np.ones(n, np.int32) for n in lengths], BUCKETS)
  assert [(x, *tokens.shape) for x, tokens, _ in found] == expected


def test_shapes_are_multiples_of_the_shards():
  on_three = BUCKETS.on(3)
  assert on_three.groups == (3, 6)
  assert on_three.microbatch(4, 3, 2) == 6
  assert BUCKETS.on(16).groups == (16,)
