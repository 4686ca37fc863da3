"""Assigns groups to slots and candidates to rows; functions of numpy arrays.

A slot holds a group, a row the keys and values of an unfinished candidate. Each
of the N shards of a mesh has separate slots and rows, and nothing moves between
shards.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from atgrpo_jax import model

NO_ROW = -1  # The row of a finished candidate.

# Fewer rows or positions would save little, and XLA's CPU backend rounds
# products of fewer rows differently.
_MIN_SIZE = 64

# Shorter common beginnings of prompts are not prefilled separately.
MIN_PREFIX_LENGTH = 128

Family = tuple[str, int]  # Role and adapter of prompts that may share a prefix.


def padded_size(count: int) -> int:
  """`count` rows, or positions of a row, rounded up to a static shape."""
  return max(_MIN_SIZE, 2**(count - 1).bit_length())


def prefill_size(num_prompts: int) -> int:
  """Prompts of one prefill: 1, 4, 16, ..., at most `num_prompts`."""
  return 4**((num_prompts.bit_length() - 1) // 2)


def pack_slots(held: np.ndarray, num_slots: int) -> np.ndarray:
  """The old slot [N, num_slots] int32 of each new slot; B if it is free.

  Args:
    held: [N, B] bool, True if a slot holds a group.
    num_slots: new number of slots per shard.
  """
  order = np.full((len(held), num_slots), held.shape[1], np.int32)
  for shard, row in zip(held, order):
    stay = np.flatnonzero(shard)
    row[:len(stay)] = stay
  return order


def assign_rows(
    running: np.ndarray, old: np.ndarray, num_rows: int) -> np.ndarray:
  """The row [N, C] int32 of each candidate; `NO_ROW` if it has finished.

  Args:
    running: [N, C] bool, in the order of slots and candidates.
    old: [N, C] int32, the rows that running candidates keep; `NO_ROW` for
      candidates that need a new one.
    num_rows: number of rows per shard.
  """
  rows = np.where(running, old, NO_ROW)
  for shard, row_of in zip(running, rows):
    new = np.flatnonzero(shard & (row_of == NO_ROW))
    row_of[new] = np.setdiff1d(np.arange(num_rows), row_of)[:len(new)]
  return rows


def candidate_of_row(
    running: np.ndarray, rows: np.ndarray, num_rows: int) -> np.ndarray:
  """The candidate [N, num_rows] int32 of each row.

  A free row names a finished candidate of its shard; there must be one.
  """
  candidates = np.repeat(
      np.argmin(running, axis=1)[:, None], num_rows, axis=1)
  shard, candidate = np.nonzero(running)
  candidates[shard, rows[running]] = candidate
  return candidates.astype(np.int32)


def row_moves(
    running: np.ndarray, old: np.ndarray, rows: np.ndarray,
    num_rows: int) -> np.ndarray:
  """The old row [N, num_rows] int32 of each new row; 0 if it is free."""
  moved = running & (old != NO_ROW)
  order = np.zeros((len(rows), num_rows), np.int32)
  order[np.nonzero(moved)[0], rows[moved]] = old[moved]
  return order


@dataclasses.dataclass(frozen=True)
class SharedPrefix:
  """The beginning of many prompts, prefilled once."""

  tokens: np.ndarray  # [C] int32
  cache: model.PromptCache

  def begins(self, prompt: np.ndarray) -> bool:
    """Whether a prompt [S] starts with the prefix and is longer."""
    length = len(self.tokens)
    return len(prompt) > length and np.array_equal(
        prompt[:length], self.tokens)


def new_shared_prefixes(
    waiting: Sequence[tuple[Family, np.ndarray]],
    known: dict[Family, SharedPrefix]) -> Iterator[tuple[Family, np.ndarray]]:
  """Families with a new or shorter common prefix, and its tokens [C]."""
  by_family = collections.defaultdict(list)
  for family, prompt in waiting:
    # A prefix never includes the last token of a prompt.
    by_family[family].append(prompt[:-1])
  for family, prompts in by_family.items():
    if family in known:
      prompts.append(known[family].tokens)
    length = common_length(prompts)
    if (len(prompts) > 1 and length >= MIN_PREFIX_LENGTH
        and (family not in known or length < len(known[family].tokens))):
      yield family, prompts[0][:length]


def common_length(prompts: Sequence[np.ndarray]) -> int:
  """Length of the longest common prefix of all prompts."""
  shortest = min(map(len, prompts))
  same = np.all(
      [prompt[:shortest] == prompts[0][:shortest] for prompt in prompts], 0)
  return shortest if same.all() else int(np.argmin(same))
