"""Pads groups and critic inputs to batches of a few static shapes."""

from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types


@dataclasses.dataclass(frozen=True)
class Buckets:
  """The static shapes of a run; sizes ascend."""

  prompt: tuple[int, ...]  # Padded lengths (S).
  completion: tuple[int, ...]  # Padded lengths (T).
  groups: tuple[int, ...]  # Prompts that are sampled together (P).
  # Tokens of a learner microbatch on each shard, with padding. A larger group
  # forms a microbatch alone.
  microbatch_tokens: int
  num_shards: int = 1  # Shards that the mesh splits the groups into.

  def __post_init__(self):
    for name in ('prompt', 'completion', 'groups'):
      errors.check_sizes(f'buckets.{name}', getattr(self, name))
    errors.check_number(
        'buckets.microbatch_tokens', self.microbatch_tokens, min_value=1)

  def on(self, num_shards: int) -> 'Buckets':
    """The shapes on a mesh that splits the groups into `num_shards`."""
    groups = {-(-size // num_shards) * num_shards for size in self.groups}
    return dataclasses.replace(
        self, groups=tuple(sorted(groups)), num_shards=num_shards)

  def microbatch(
      self, prompt_length: int, completion_length: int = 0,
      group_size: int = 0) -> int:
    """Number of groups (or critic inputs) of this shape in a microbatch."""
    size = prompt_length + group_size * completion_length
    return max(1, self.microbatch_tokens // size) * self.num_shards


def bucket(length: int, sizes: Sequence[int], name: str) -> int:
  """The smallest of the ascending `sizes` that holds `length`."""
  for size in sizes:
    if length <= size:
      return size
  raise errors.UserError(
      f'A {name} of {length} exceeds the largest bucket, {sizes[-1]}; raise '
      f'buckets.{name.split()[0]} in the config.')


def pad_prompts(
    prompts: Sequence[np.ndarray], num_rows: int,
    length: int) -> tuple[np.ndarray, np.ndarray]:
  """Prompts [num_rows, length] and lengths, int32; padding has length 1."""
  padded = np.zeros((num_rows, length), np.int32)
  lengths = np.ones(num_rows, np.int32)
  for row, prompt in enumerate(prompts):
    padded[row, :len(prompt)] = prompt
    lengths[row] = len(prompt)
  return padded, lengths


def make_batches(
    groups: Sequence[types.Group], buckets: Buckets) -> list[types.TrainBatch]:
  """Microbatches of groups, each padded to the smallest bucket that fits."""
  by_shape = {}
  for group in groups:
    shape = (
        bucket(len(group.prompt), buckets.prompt, 'prompt length'),
        bucket(
            max(len(c.completion) * c.valid for c in group.candidates),
            buckets.completion, 'completion length'),
        len(group.candidates))
    by_shape.setdefault(shape, []).append(group)
  batches = []
  for shape, same in sorted(by_shape.items()):
    num_rows = buckets.microbatch(*shape)
    batches += [_pad(x, num_rows, *shape) for x in _chunks(same, num_rows)]
  return batches


def make_value_batches(
    examples: Sequence[types.ValueExample],
    buckets: Buckets) -> list[types.ValueBatch]:
  """Microbatches of critic examples; padding rows have weight 0."""
  batches = []
  for indices, inputs, lengths in pad_inputs(
      [example.inputs for example in examples], buckets):
    targets, weights = np.zeros((2, len(inputs)), np.float32)
    targets[:len(indices)] = [examples[i].target for i in indices]
    weights[:len(indices)] = 1.0
    batches.append(types.ValueBatch(inputs, lengths, targets, weights))
  return batches


def pad_inputs(
    inputs: Sequence[np.ndarray], buckets: Buckets,
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
  """Yields indices of the inputs, their ids [B, S] and lengths [B]."""
  by_length = {}
  for index, ids in enumerate(inputs):
    length = bucket(len(ids), buckets.prompt, 'prompt length')
    by_length.setdefault(length, []).append(index)
  for length, same in sorted(by_length.items()):
    num_rows = buckets.microbatch(length)
    for indices in _chunks(same, num_rows):
      yield indices, *pad_prompts(
          [inputs[i] for i in indices], num_rows, length)


def _chunks(items, size):
  return [items[start:start + size] for start in range(0, len(items), size)]


def _pad(
    groups: Sequence[types.Group], num_rows: int, prompt_length: int,
    completion_length: int, group_size: int) -> types.TrainBatch:
  """A microbatch; padding rows and invalid candidates have no tokens."""
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
    for column, candidate in enumerate(group.candidates):
      if not candidate.valid:
        continue
      length = len(candidate.completion)
      batch.completions[row, column, :length] = candidate.completion
      batch.completion_lengths[row, column] = length
      batch.behavior_logprobs[row, column, :length] = (
          candidate.behavior_logprobs)
  return batch
