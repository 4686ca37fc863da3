"""The schedule of an engine without a device: who is sampled when, and where.

`DryRun` takes the place of the module `programs` in an `Engine`. It computes no
token. Its candidates end when they are told to, and it counts what a device
would read of keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from atgrpo_jax.model.kernels import ragged


@dataclasses.dataclass
class Reads:
  """Keys, each with its value, that are read in a layer by all shards.

  Attributes:
    counting: that count for a token which is said: of the prompt once for all
      candidates of a group that go on, and of what each said before.
    by_room: where whole rooms are read, as without a kernel.
    by_block: where the blocks of `kernels.ragged` are read.
  """

  counting: int = 0
  by_room: int = 0
  by_block: int = 0


@dataclasses.dataclass(frozen=True)
class _Slots:
  """What `programs.Slots` holds of this, on N shards with B slots each."""

  left: np.ndarray  # [N, B, G] tokens that each candidate will still say
  prompts: np.ndarray  # [N, B] lengths
  ages: np.ndarray  # [N, B] tokens of those who go on
  size: int  # Of the rooms for prompts.


class DryRun:
  """See the module. The names are those of `programs`."""

  def __init__(
      self, num_shards: int, completions: Mapping[int, Sequence[int]]):
    """`completions` has for the last number of a request's key G lengths."""
    self._num_shards = num_shards
    self._completions = completions
    self.reads = Reads()

  def put_rows(self, tree: Any, mesh: jax.sharding.Mesh) -> Any:
    del mesh
    return tree

  def prepare(self, params, **static):
    del static
    return params

  def unstack(self, params, **static):
    del static
    return params

  def empty_slots(self, *, num_slots, prompt_length, config, spec):
    del config
    shape = self._num_shards, num_slots // self._num_shards
    return _Slots(
        np.zeros((*shape, spec.group_size), int), np.zeros(shape, int),
        np.zeros(shape, int), prompt_length)

  def move_slots(self, slots, order):
    free = order >= slots.prompts.shape[1]
    order = np.where(free, 0, order)

    def move(x):
      moved = x[np.arange(len(x))[:, None], order]
      moved[free] = 0
      return moved

    return _Slots(
        move(slots.left), move(slots.prompts), move(slots.ages), slots.size)

  def prefill_shared_prefix(
      self, params, tokens, lengths, adapter_ids, **static):
    del params, tokens, adapter_ids, static
    return int(lengths[0])

  def fill(
      self, params, slots, slot_ids, prompts, lengths, keys, budgets,
      adapter_ids, *, shared_prefix, **static):
    del params, prompts, budgets, adapter_ids, static
    left, sizes, ages = (
        x.copy() for x in (slots.left, slots.prompts, slots.ages))
    numbers = np.asarray(jax.random.key_data(keys))[:, -1]
    for at, (shard, column) in enumerate(np.ndindex(slot_ids.shape)):
      slot = slot_ids[shard, column]
      if slot < left.shape[1]:
        left[shard, slot] = self._completions[int(numbers[at])]
        sizes[shard, slot] = lengths[at] + (shared_prefix or 0)
        ages[shard, slot] = 0
    return _Slots(left, sizes, ages, slots.size)

  def empty_rows(self, *, num_rows, capacity, **static):
    del static
    return num_rows // self._num_shards, capacity

  def move_rows(self, past, order, *, capacity):
    del past
    return order.shape[1], capacity

  def decode(
      self, params, slots, past, candidate_of_row, *, num_tokens, **static):
    del params, static
    num_rows, capacity = past
    size = slots.left.shape[2]
    left = slots.left.reshape(self._num_shards, -1)
    if candidate_of_row is None:
      candidate_of_row = np.tile(np.arange(num_rows), (self._num_shards, 1))
    said = np.minimum(left, num_tokens)
    of_rows = np.take_along_axis(said, candidate_of_row, axis=1)
    for shard, own in enumerate(said):
      self._count_reads(
          own.reshape(-1, size), slots.prompts[shard], slots.ages[shard],
          slots.size, num_rows, capacity, num_tokens)
    goes_on = left > num_tokens
    running = np.take_along_axis(goes_on, candidate_of_row, axis=1)
    chunk = np.zeros((running.size, 2 * num_tokens + 2), np.int32)
    chunk[:, -2], chunk[:, -1] = of_rows.ravel(), running.ravel()
    slots = dataclasses.replace(
        slots, left=(left - said).reshape(slots.left.shape),
        ages=slots.ages + num_tokens)
    return slots, past, chunk

  def _count_reads(
      self, said, prompts, ages, room, num_rows, capacity, num_tokens):
    """Of a shard whose candidates [B, G] say so many tokens."""
    num_steps = said.max()
    for index in range(num_steps):
      speaks = said > index
      self.reads.counting += (
          prompts[speaks.any(axis=1)].sum()
          + (speaks.sum(axis=1) * (ages + index)).sum())
    # The rows of the chunk itself are read whole.
    own = num_rows * num_tokens
    self.reads.by_room += num_steps * (
        len(prompts) * room + num_rows * capacity + own)
    starts = said > 0

    def blocks(lengths, size):
      block = ragged.block_size(size)
      return -(-lengths // block) * block

    self.reads.by_block += num_steps * (
        blocks(prompts[starts.any(axis=1)], room).sum()
        + (starts.sum(axis=1) * blocks(ages, capacity)).sum() + own)
