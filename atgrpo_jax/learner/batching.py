"""From groups of any length to batches of a few static shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atgrpo_jax import types
from atgrpo_jax.learner import buckets as buckets_lib


def make_batches(
    groups: Sequence[types.Group],
    buckets: buckets_lib.Buckets) -> list[types.TrainBatch]:
  """Microbatches of equally shaped groups, in an order that depends on shape.

  Every group of a batch has the same prompt and completion bucket, so short
  groups are not padded to the longest of the step.
  """
  return [
      _pad(same, buckets.microbatch(*shape), *shape)
      for shape, same in split(groups, buckets)]


def split(
    groups: Sequence[types.Group], buckets: buckets_lib.Buckets,
) -> list[tuple[tuple[int, int, int], Sequence[types.Group]]]:
  """The padded shape (S, T, G) of each microbatch, and its groups."""
  by_shape = {}
  for group in groups:
    shape = (
        buckets_lib.bucket(len(group.prompt), buckets.prompt, 'prompt length'),
        buckets_lib.bucket(
            max(len(c.completion) * c.valid for c in group.candidates),
            buckets.completion, 'completion length'),
        len(group.candidates))
    by_shape.setdefault(shape, []).append(group)
  found = []
  for shape, same in sorted(by_shape.items()):
    num_rows = buckets.microbatch(*shape)
    for start in range(0, len(same), num_rows):
      found.append((shape, same[start:start + num_rows]))
  return found


def _pad(
    groups: Sequence[types.Group], num_rows: int, prompt_length: int,
    completion_length: int, group_size: int) -> types.TrainBatch:
  """One microbatch.

  Rows that only fill the shape, and candidates that have left their group, have
  no completion tokens.
  """
  prompts, prompt_lengths = buckets_lib.pad_prompts(
      [group.prompt for group in groups], num_rows, prompt_length)
  shape = (num_rows, group_size)
  batch = types.TrainBatch(
      prompts=prompts, prompt_lengths=prompt_lengths,
      completions=np.zeros((*shape, completion_length), np.int32),
      completion_lengths=np.zeros(shape, np.int32),
      behavior_logprobs=np.zeros((*shape, completion_length), np.float32),
      advantages=np.zeros(shape, np.float32))
  for row, group in enumerate(groups):
    batch.advantages[row] = group.advantages
    for column, candidate in enumerate(group.candidates):
      if not candidate.valid:
        continue
      length = len(candidate.completion)
      batch.completions[row, column, :length] = candidate.completion
      batch.completion_lengths[row, column] = length
      batch.behavior_logprobs[row, column, :length] = (
          candidate.behavior_logprobs)
  return batch
