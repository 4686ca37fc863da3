"""From groups of any length to batches of a few static shapes."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types


@dataclasses.dataclass(frozen=True)
class Buckets:
  """The static shapes of a run.

  Attributes:
    prompt: lengths that prompts are padded to, ascending (S).
    completion: lengths that completions are padded to, ascending (T).
    groups: numbers of prompts that are sampled at once, ascending (P).
    microbatch_tokens: tokens in one microbatch of the learner, padding
      included, for each part that a mesh splits the groups into. A group that
      is larger is a microbatch by itself.
    num_parts: into how many parts the mesh splits the groups.
  """

  prompt: tuple[int, ...]
  completion: tuple[int, ...]
  groups: tuple[int, ...]
  microbatch_tokens: int
  num_parts: int = 1

  def __post_init__(self):
    for name in ('prompt', 'completion', 'groups'):
      sizes = getattr(self, name)
      if not sizes or sizes[0] < 1 or list(sizes) != sorted(sizes):
        raise errors.UserError(
            f'buckets.{name}={sizes}: give some sizes above 0, the smallest '
            'first.')
    if self.microbatch_tokens < 1:
      raise errors.UserError(
          f'buckets.microbatch_tokens={self.microbatch_tokens}, but must be at '
          'least 1.')

  def on(self, num_parts: int) -> Buckets:
    """The shapes on a mesh that splits the groups into `num_parts`."""
    groups = [-(-size // num_parts) * num_parts for size in self.groups]
    return dataclasses.replace(
        self, groups=tuple(groups), num_parts=num_parts)

  def microbatch(
      self, prompt_length: int, completion_length: int,
      group_size: int) -> int:
    """Groups of a shape (S, T, G) in one microbatch."""
    size = prompt_length + group_size * completion_length
    return max(1, self.microbatch_tokens // size) * self.num_parts


@dataclasses.dataclass(frozen=True)
class TrainGroup:
  """One group as the learner needs it; see `types.Group`."""

  prompt: np.ndarray  # [S] int32
  completions: Sequence[np.ndarray]  # G x [T] int32
  behavior_logprobs: Sequence[np.ndarray]  # G x [T] float32
  advantages: np.ndarray  # [G] float32


def bucket(length: int, sizes: Sequence[int], what: str) -> int:
  """The smallest of the ascending `sizes` that holds `length`."""
  for size in sizes:
    if length <= size:
      return size
  raise errors.UserError(
      f'A {what} of {length} does not fit the largest bucket, {sizes[-1]}; '
      f'raise buckets.{what.split()[0]} in the config.')


def pad_prompts(
    prompts: Sequence[np.ndarray], num_rows: int,
    length: int) -> tuple[np.ndarray, np.ndarray]:
  """Prompts [num_rows, length] and lengths [num_rows], both int32.

  Rows that only fill the shape have length 1.
  """
  padded = np.zeros((num_rows, length), np.int32)
  lengths = np.ones(num_rows, np.int32)
  for row, prompt in enumerate(prompts):
    padded[row, :len(prompt)] = prompt
    lengths[row] = len(prompt)
  return padded, lengths


def make_batches(
    groups: Sequence[TrainGroup], buckets: Buckets) -> list[types.TrainBatch]:
  """Microbatches of equally shaped groups, in an order that depends on shape.

  Every group of a batch has the same prompt and completion bucket, so short
  groups are not padded to the longest of the step.
  """
  by_shape = {}
  for group in groups:
    shape = (
        bucket(len(group.prompt), buckets.prompt, 'prompt length'),
        bucket(max(map(len, group.completions)), buckets.completion,
               'completion length'),
        len(group.completions))
    by_shape.setdefault(shape, []).append(group)
  batches = []
  for shape, same in sorted(by_shape.items()):
    num_rows = buckets.microbatch(*shape)
    for start in range(0, len(same), num_rows):
      batches.append(_pad(same[start:start + num_rows], num_rows, *shape))
  return batches


def _pad(
    groups: Sequence[TrainGroup], num_rows: int, prompt_length: int,
    completion_length: int, group_size: int) -> types.TrainBatch:
  """One microbatch; rows that only fill the shape have no completion tokens."""
  prompts, prompt_lengths = pad_prompts(
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
    for column, ids in enumerate(group.completions):
      batch.completions[row, column, :len(ids)] = ids
      batch.completion_lengths[row, column] = len(ids)
      batch.behavior_logprobs[row, column, :len(ids)] = (
          group.behavior_logprobs[column][:len(ids)])
  return batch
