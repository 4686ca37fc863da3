"""The few static shapes of a run, which prompts and answers are padded to."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

from atgrpo_jax import errors


@dataclasses.dataclass(frozen=True)
class Buckets:
  """The static shapes of a run.

  Attributes:
    prompt: lengths that prompts are padded to, ascending (S).
    completion: lengths that completions are padded to, ascending (T).
    groups: numbers of prompts that are sampled at once, ascending (P).
    microbatch_tokens: tokens in one microbatch of the learner, padding
      included, for each shard that a mesh splits the groups into. A group that
      is larger is a microbatch by itself.
    num_shards: into how many shards the mesh splits the groups.
  """

  prompt: tuple[int, ...]
  completion: tuple[int, ...]
  groups: tuple[int, ...]
  microbatch_tokens: int
  num_shards: int = 1

  def __post_init__(self):
    for name in ('prompt', 'completion', 'groups'):
      sizes = getattr(self, name)
      check_sizes(f'buckets.{name}', sizes)
      if not sizes:
        raise errors.UserError(
            f'buckets.{name}={sizes}: give some sizes above 0, the smallest '
            'first.')
    if self.microbatch_tokens < 1:
      raise errors.UserError(
          f'buckets.microbatch_tokens={self.microbatch_tokens}, but must be at '
          'least 1.')

  def on(self, num_shards: int) -> Buckets:
    """The shapes on a mesh that splits the groups into `num_shards`."""
    groups = sorted({
        -(-size // num_shards) * num_shards for size in self.groups})
    return dataclasses.replace(
        self, groups=tuple(groups), num_shards=num_shards)

  def microbatch(
      self, prompt_length: int, completion_length: int,
      group_size: int) -> int:
    """Groups of a shape (S, T, G) in one microbatch."""
    size = prompt_length + group_size * completion_length
    return max(1, self.microbatch_tokens // size) * self.num_shards


def check_sizes(name: str, sizes: Sequence[int]) -> None:
  """Raises UserError unless these are sizes above 0 that ascend; () is fine."""
  if (any(type(size) is not int or size < 1 for size in sizes)
      or list(sizes) != sorted(set(sizes))):
    raise errors.UserError(
        f'{name}={sizes}: give whole numbers above 0, the smallest first and '
        'each once.')


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
