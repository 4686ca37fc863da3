"""Which slot and which row everything lies in: pure functions of numpy arrays.

A slot holds a group, a row the keys and values of an unfinished candidate. Each
of the N shards of a mesh has slots and rows of its own, and nothing moves from
one shard to another.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from atgrpo_jax import model

# Fewer rows or positions would save little. Also, XLA's CPU backend rounds
# products of fewer rows in another way.
_MIN_SIZE = 64

# Shorter common beginnings of prompts are not prefilled separately.
MIN_PREFIX_LENGTH = 128

Family = tuple[str, int]  # Role and adapter of prompts that may share a prefix.


def padded_size(count: int) -> int:
  """The rows, or positions of a row, that are computed for so many."""
  return max(_MIN_SIZE, 2**(count - 1).bit_length())


def prefill_size(num_prompts: int) -> int:
  """How many of the waiting prompts are prefilled at once: 1, 4, 16, ..."""
  return 4**((num_prompts.bit_length() - 1) // 2)


def pack_slots(held: np.ndarray, num_slots: int) -> np.ndarray:
  """Slots [N, num_slots] int32 that stay, the first ones first.

  Args:
    held: [N, B] bool, whether a slot holds a group.
    num_slots: from now on, in each shard; B stands for a free one.
  """
  order = np.full((len(held), num_slots), held.shape[1], np.int32)
  for shard, row in zip(held, order):
    stay = np.flatnonzero(shard)
    row[:len(stay)] = stay
  return order


def assign_rows(
    running: np.ndarray, old: np.ndarray, num_rows: int) -> np.ndarray:
  """Row [N, C] int32 of each candidate, -1 for one that has ended.

  Args:
    running: [N, C] bool, in the order of slots and candidates.
    old: [N, C] int32, rows that they keep if they run; -1 for none.
    num_rows: of each shard.
  """
  rows = np.where(running, old, -1)
  for shard, row_of in zip(running, rows):
    new = np.flatnonzero(shard & (row_of < 0))
    row_of[new] = np.setdiff1d(np.arange(num_rows), row_of)[:len(new)]
  return rows


def candidate_of_row(
    running: np.ndarray, rows: np.ndarray, num_rows: int) -> np.ndarray:
  """Candidate [N, num_rows] int32 of each row.

  A free row stands for a candidate that has ended; there is one in each shard.
  """
  candidates = np.repeat(
      np.argmin(running, axis=1)[:, None], num_rows, axis=1)
  shard, candidate = np.nonzero(running)
  candidates[shard, rows[running]] = candidate
  return candidates.astype(np.int32)


def row_moves(
    running: np.ndarray, old: np.ndarray, rows: np.ndarray,
    num_rows: int) -> np.ndarray:
  """Former row [N, num_rows] int32 of each row; 0 for a free one."""
  moved = running & (old >= 0)
  order = np.zeros((len(rows), num_rows), np.int32)
  order[np.nonzero(moved)[0], rows[moved]] = old[moved]
  return order


@dataclasses.dataclass(frozen=True)
class SharedPrefix:
  """The beginning of many prompts, prefilled once."""

  tokens: np.ndarray  # [C] int32
  cache: model.PromptCache

  def begins(self, prompt: np.ndarray) -> bool:
    """Whether a prompt [S] starts with it and has at least one more token."""
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
