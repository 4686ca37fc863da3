"""Pads groups and critic inputs to batches of a few static shapes."""

from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types

# Padded lengths of prompt and completions, and number of candidates.
_Shape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Buckets:
  """The static shapes of a run; sizes ascend."""

  prompt: tuple[int, ...]  # Padded lengths (S).
  completion: tuple[int, ...]  # Padded lengths (T).
  groups: tuple[int, ...]  # Prompts that are sampled together (P).
  # Tokens of a learner microbatch on each shard, with padding. A larger group
  # forms a microbatch alone.
  microbatch_tokens: int
  rows: int = 0  # Completions that are sampled together; 0 for all of P groups.
  num_shards: int = 1  # Shards that the mesh splits the groups into.

  def __post_init__(self):
    for name in ('prompt', 'completion', 'groups'):
      errors.check_sizes(f'buckets.{name}', getattr(self, name))
    errors.check_number(
        'buckets.microbatch_tokens', self.microbatch_tokens, min_value=1)
    errors.check_number('buckets.rows', self.rows, min_value=0)

  def on(self, num_shards: int) -> 'Buckets':
    """The shapes on a mesh that splits the groups into `num_shards`."""
    groups = {-(-size // num_shards) * num_shards for size in self.groups}
    return dataclasses.replace(
        self, groups=tuple(sorted(groups)), num_shards=num_shards)

  def microbatch(
      self, prompt_length: int, completion_length: int = 0,
      group_size: int = 0) -> int:
    """Number of groups (or critic inputs) of this shape in a microbatch."""
    size = row_tokens(prompt_length, completion_length, group_size)
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
  """Microbatches of groups, each padded to the smallest buckets that fit.

  A microbatch has one temperature. Rows that would stay free hold smaller
  groups. If it saves an eighth of all tokens, the shorter and the longer
  candidates of groups are in different rows, both with the prompt. These shapes
  need other programs.
  """
  temperatures = {group.temperature for group in groups}
  if len(temperatures) > 1:
    return [
        batch for temperature in sorted(temperatures)
        for batch in make_batches(
            [x for x in groups if x.temperature == temperature], buckets)]
  whole = _plan(groups, buckets)
  halved = _plan([
      half for group in groups for half in _halves(group, buckets)], buckets)
  if _num_tokens(halved, buckets) > 7 / 8 * _num_tokens(whole, buckets):
    halved = whole
  return [_pad(same, buckets.microbatch(*shape), *shape)
          for shape, same in halved]


def _plan(
    groups: Sequence[types.Group], buckets: Buckets,
) -> list[tuple[_Shape, list[types.Group]]]:
  """The shape and the groups of each microbatch, the largest shape first."""
  by_shape = {}
  for group in groups:
    by_shape.setdefault(_shape(group, buckets), []).append(group)
  shapes = sorted(by_shape, key=lambda x: (row_tokens(*x), x), reverse=True)
  plan = []
  for i, shape in enumerate(shapes):
    num_rows, same = buckets.microbatch(*shape), by_shape[shape]
    for other in shapes[i + 1:]:
      if all(x <= y for x, y in zip(other, shape)):
        num_free = -len(same) % num_rows
        same += by_shape[other][:num_free]
        del by_shape[other][:num_free]
    plan += [
        (shape, same[start:start + num_rows])
        for start in range(0, len(same), num_rows)]
  return plan


def _shape(group: types.Group, buckets: Buckets) -> _Shape:
  return (
      bucket(len(group.prompt), buckets.prompt, 'prompt length'),
      bucket(
          max(map(_length, group.candidates)), buckets.completion,
          'completion length'),
      len(group.candidates))


def _length(candidate: types.Candidate) -> int:
  return len(candidate.completion) * candidate.valid


def row_tokens(
    prompt_length: int, completion_length: int, group_size: int) -> int:
  """Tokens of a group of this padded shape."""
  return prompt_length + group_size * completion_length


def _num_tokens(
    plan: Sequence[tuple[_Shape, list[types.Group]]], buckets: Buckets) -> int:
  """The tokens of all microbatches, with padding."""
  return sum(
      buckets.microbatch(*shape) * row_tokens(*shape) for shape, _ in plan)


def _halves(group: types.Group, buckets: Buckets) -> list[types.Group]:
  """The shorter and the longer candidates, or the group if this is smaller.

  Half a group without any token is left out.
  """
  candidates = sorted(group.candidates, key=_length)
  half, rest = divmod(len(candidates), 2)
  if rest:
    return [group]
  halves = [
      dataclasses.replace(group, candidates=tuple(part))
      for part in (candidates[:half], candidates[half:])
      if any(map(_length, part))]
  whole, *shapes = (_shape(x, buckets) for x in (group, *halves))
  if sum(row_tokens(*x) for x in shapes) < row_tokens(*whole):
    return halves
  return [group]


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
  """Yields indices of the inputs, their ids [B, S] and lengths [B].

  Rows that would stay free hold shorter inputs.
  """
  lengths = [bucket(len(x), buckets.prompt, 'prompt length') for x in inputs]
  waiting = sorted(range(len(inputs)), key=lambda i: -lengths[i])
  while waiting:
    length = lengths[waiting[0]]
    num_rows = buckets.microbatch(length)
    indices, waiting = waiting[:num_rows], waiting[num_rows:]
    yield indices, *pad_prompts([inputs[i] for i in indices], num_rows, length)


def _pad(
    groups: Sequence[types.Group], num_rows: int, prompt_length: int,
    completion_length: int, group_size: int) -> types.TrainBatch:
  """A microbatch; padding and invalid candidates have no tokens."""
  prompts, prompt_lengths = pad_prompts(
      [group.prompt for group in groups], num_rows, prompt_length)
  shape = (num_rows, group_size)
  batch = types.TrainBatch(
      prompts=prompts, prompt_lengths=prompt_lengths,
      completions=np.zeros((*shape, completion_length), np.int32),
      completion_lengths=np.zeros(shape, np.int32),
      behavior_logprobs=np.zeros((*shape, completion_length), np.float32),
      advantages=np.zeros(shape, np.float32),
      temperature=groups[0].temperature)
  for row, group in enumerate(groups):
    batch.advantages[row, :len(group.candidates)] = group.advantages
    for column, candidate in enumerate(group.candidates):
      if not candidate.valid:
        continue
      length = len(candidate.completion)
      batch.completions[row, column, :length] = candidate.completion
      batch.completion_lengths[row, column] = length
      batch.behavior_logprobs[row, column, :length] = (
          candidate.behavior_logprobs)
  return batch
