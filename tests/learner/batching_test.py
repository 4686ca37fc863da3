"""Every group is in one batch, padded to static shapes."""

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


def test_every_group_is_in_one_batch():
  groups = [
      _group(prompt, completions, seed)
      for seed, (prompt, completions) in enumerate(
          [(p, c) for p in (1, 4, 5, 8)
           for c in ([1, 3], [6, 1], [2, 2], [1, 2, 3], [0, 4])])]
  # Duplicates stay.
  groups += [groups[3], groups[3]]
  expected = [
      (group.prompt.tolist(), group.advantages.tolist(),
       [(c.completion.tolist(), c.behavior_logprobs.tolist())
        for c in group.candidates])
      for group in groups]
  found = []
  for batch in batching.make_batches(groups, BUCKETS):
    num_rows, size, length = batch.completions.shape
    assert num_rows == max(1, 20 // (batch.prompts.shape[1] + size * length))
    for row, lengths in enumerate(batch.completion_lengths):
      if not lengths.any():  # Padding.
        assert batch.prompt_lengths[row] == 1
        assert not batch.advantages[row].any()
        continue
      found.append((
          batch.prompts[row, :batch.prompt_lengths[row]].tolist(),
          batch.advantages[row].tolist(),
          [(batch.completions[row, i, :n].tolist(),
            batch.behavior_logprobs[row, i, :n].tolist())
           for i, n in enumerate(lengths)]))
  assert sorted(found) == sorted(expected)


def test_shapes_are_multiples_of_the_shards():
  on_three = BUCKETS.on(3)
  assert on_three.groups == (3, 6)
  assert on_three.microbatch(4, 3, 2) == 6
  assert BUCKETS.on(16).groups == (16,)
