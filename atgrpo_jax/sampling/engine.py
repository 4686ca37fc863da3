"""Continuous batching whose unit is the group.

A slot holds the keys and values of a prompt. A row holds the keys and values of
the completion of one unfinished candidate. Prompts wait until a slot is free,
and candidates until a row is free; the oldest groups come first. All rows are
decoded together, a chunk of tokens at a time. After each chunk, finished
candidates leave their rows and finished groups their slots. Attention to a
prompt is computed for all G candidates of its group, even for finished ones.
Each of the N shards of the mesh has separate slots and rows. Arrays [N, C] hold
a value for each of the C candidates of each shard.

The numbers of slots and rows, and the length of rows, grow and shrink with the
load. So does the length of slots, unless a kernel skips padding. A runner has
one engine per model and sampler spec. The engines of a model share the memory
of its groups in flight: an engine gets no more slots and rows than the others
leave.

The completions of a request depend only on it and the weights, up to
rounding: matrix products of other shapes round differently.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.distributed import hosts
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.sampling import programs

CHUNK = 16  # Tokens decoded between two checks for finished candidates.
NO_ROW = -1  # For a candidate without a row.

# Smallest number of rows. Fewer would save little, and XLA's CPU backend rounds
# products of fewer rows differently.
_MIN_ROWS = 64
# On accelerators, fewer rows save no time: reading the weights takes longer
# than the products, and each number of rows is compiled.
_MIN_ROWS_ON_ACCELERATORS = 256
# In bfloat16, a CPU needs less time for fewer rows: a token of
# Qwen2.5-Coder-0.5B took 190 ms with 32 rows and 107 ms with 8.
_MIN_ROWS_OF_BFLOAT16 = 8
_PREFILL_MULTIPLE = 128  # Of padded lengths, for the kernels of accelerators.
# Tokens of one prefill on a CPU. More are no faster, and 32,768 of that model
# took 6 GiB.
_MAX_CPU_PREFILL = 8192
# Bound of the keys and values of prompts on a CPU, unless few slots hold more.
_MAX_CPU_PROMPT_BYTES = 4 * 2**30
# Smallest number of positions of a row. Each power of two is compiled, and TPUs
# pad fewer positions to this number. With bfloat16 on a CPU, attention to the
# others takes less time than the compilation of another program.
_MIN_CAPACITY, _MIN_CAPACITY_OF_BFLOAT16 = 128, 256


@dataclasses.dataclass(frozen=True)
class Request:
  """A prompt to sample a group of completions for."""

  tag: Any  # Lets the caller recognise the request.
  prompt: np.ndarray  # [S] int32
  key_ids: np.ndarray  # [K] uint32, see `programs.group_keys`
  budget: int  # Longest completion, stop token included.
  adapter: int = 0  # Index in the adapters of the engine.
  # Maps the tokens of a candidate [T] int32 and the number of new ones, which
  # are the last, to the number of tokens that are kept; 0 if it goes on.
  find_end: Callable[[np.ndarray, int], int] | None = None


@dataclasses.dataclass(frozen=True)
class SampledGroup:
  """The G completions of a request, each with its stop token if it has one."""

  request: Request
  completions: tuple[np.ndarray, ...]  # G x [T_g] int32
  logprobs: tuple[np.ndarray, ...]  # G x [T_g] float32


@dataclasses.dataclass
class _HeldGroup:
  """The group in a slot."""

  request: Request
  tokens: list[list[np.ndarray]]  # The chunks of each candidate.
  logprobs: list[list[np.ndarray]]
  running: np.ndarray  # [G] bool
  rows: np.ndarray  # [G] int32, rows of its shard or `NO_ROW`
  lengths: np.ndarray  # [G] int32, tokens of each candidate
  number: int  # Groups are numbered in the order of admission.

  def end_early(self, candidate: int, num_new: int) -> bool:
    """Ends a candidate where its request says; True if it does."""
    if self.request.find_end is None:
      return False
    tokens = np.concatenate(self.tokens[candidate])
    end = self.request.find_end(tokens, num_new)
    if not end:
      return False
    self.tokens[candidate] = [tokens[:end]]
    logprobs = np.concatenate(self.logprobs[candidate])
    self.logprobs[candidate] = [logprobs[:end]]
    self.running[candidate] = False
    return True


@dataclasses.dataclass
class _Share:
  """What an engine holds of its model's memory."""

  num_slots: int
  num_candidates: int  # On each shard, as the rows.
  num_rows: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class SampledModel:
  """A model in the sampler; with `adapters`, it serves several policies.

  Its engines share the prepared parameters, which may be the largest arrays on
  a device. They are freed with this object, after a rollout.
  """

  params: model.Params
  config: model.ModelConfig
  dtype: str
  mesh: jax.sharding.Mesh
  adapters: model.Adapters | None = None
  shares: dict[int, _Share] = dataclasses.field(
      default_factory=dict)  # By the engine's id.

  @functools.cached_property
  def prepared(self) -> model.Params:
    """Parameters for prefill; on CPUs the given ones if they can be used."""
    shardings = mesh_lib.tree_shardings(
        self.params, self.mesh, mesh_lib.decoding_rules(self.config.tied_head))
    if self.is_on_cpu and jax.tree.all(jax.tree.map(
        lambda x, sharding: (
            x.dtype == self.dtype
            and x.sharding.is_equivalent_to(sharding, x.ndim)),
        self.params, shardings)):
      return self.params
    return programs.prepare(self.params, config=self.config, dtype=self.dtype)

  @functools.cached_property
  def decoding(self) -> model.Params:
    """Parameters for the decoding loop."""
    if self.is_on_cpu:
      return programs.prepare_for_cpu(self.prepared, config=self.config)
    return self.prepared

  @property
  def is_on_cpu(self) -> bool:
    return self.mesh.devices.flat[0].platform == 'cpu'


class Engine:
  """Samples groups of one model in one way."""

  def __init__(
      self, sampled: SampledModel, *, spec: programs.SamplerSpec,
      num_slots: Sequence[int], prompt_lengths: Sequence[int],
      num_rows: int = 0, chunk_length: int = CHUNK):
    """Both sequences ascend.

    `num_slots` are the allowed numbers of groups in flight. The largest, and
    the number of rows (0 for one per candidate), apply to all engines of the
    model together. `prompt_lengths` are those of padded prompts. Finished
    candidates are noticed after each `chunk_length` tokens.
    """
    self._model = sampled
    self._mesh = sampled.mesh
    self._static = {'config': sampled.config, 'spec': spec}
    self._sizes = tuple(num_slots)
    self._prompt_lengths = tuple(prompt_lengths)
    self._chunk_length = chunk_length
    self._num_shards = mesh_lib.num_data_shards(sampled.mesh)
    self._waiting: list[Request] = []
    self._slots: programs.Slots | None = None
    self._held: list[_HeldGroup | None] = []  # The group in each slot.
    self._past: model.RowCache | None = None
    self._max_rows = -(-num_rows // self._num_shards) or math.inf
    self._min_rows, self._min_capacity = _MIN_ROWS, _MIN_CAPACITY
    if not sampled.is_on_cpu:
      self._min_rows = _MIN_ROWS_ON_ACCELERATORS
    elif sampled.dtype == 'bfloat16':
      self._min_rows = _MIN_ROWS_OF_BFLOAT16
      self._min_capacity = _MIN_CAPACITY_OF_BFLOAT16
    with jax.set_mesh(self._mesh):
      self._skips_padding = model.skips_padding(
          sampled.config, sampled.dtype, self._prompt_lengths[-1])
    c = sampled.config
    token_bytes = 4 * 2 * c.num_layers * c.num_kv_heads * c.head_dim
    self._max_tokens = (  # Of the prompts in all slots.
        _MAX_CPU_PROMPT_BYTES // token_bytes if sampled.is_on_cpu else math.inf)
    self._num_rows = 0  # Rows per shard.
    self._capacity = 0  # Positions per row.
    self._chunk: jax.Array | None = None
    self._num_admitted = 0
    # These count the rows of all chunks, and those of running candidates.
    self.num_decoded = self.num_at_work = 0

  def add(self, request: Request) -> None:
    """Queues a prompt."""
    self._waiting.append(request)

  @property
  def busy(self) -> bool:
    """Whether any group is waiting or running."""
    return bool(self._waiting) or any(self._held)

  def dispatch(self) -> None:
    """Starts the next chunk on the device unless one is running.

    Samples nothing if the model's other engines leave no memory.
    """
    if self._chunk is not None or not self.busy:
      return
    with jax.set_mesh(self._mesh):
      num_ready = self._resize_slots()
      if not self._held:
        return
      admitted = self._admit(num_ready)
      candidate_of_row = self._resize_rows()
      for slot_ids in admitted:
        self._prefill(slot_ids)
      if not self._num_rows:
        return
      self._slots, self._past, self._chunk = programs.decode(
          self._model.decoding, self._slots, self._past, candidate_of_row,
          adapters=self._model.adapters, num_tokens=self._chunk_length,
          **self._static)

  def collect(self) -> list[SampledGroup]:
    """Waits for the chunk and returns the groups that have finished."""
    if self._chunk is None:
      return []
    chunk = programs.Chunk.split(hosts.fetch(self._chunk))
    self._chunk = None
    self.num_decoded += len(chunk.lengths)
    self.num_at_work += np.count_nonzero(chunk.lengths)
    slots_per_shard = self._slots_per_shard
    finished, ends_early = [], False
    for slot, group in enumerate(self._held):
      if group is None:
        continue
      for candidate in np.flatnonzero(group.rows != NO_ROW):
        row = slot // slots_per_shard * self._num_rows + group.rows[candidate]
        length = chunk.lengths[row]
        group.lengths[candidate] += length
        group.tokens[candidate].append(chunk.tokens[row, :length])
        group.logprobs[candidate].append(chunk.logprobs[row, :length])
        group.running[candidate] = chunk.running[row]
        ends_early |= group.end_early(candidate, length)
      if not group.running.any():
        finished.append(SampledGroup(
            group.request, tuple(map(np.concatenate, group.tokens)),
            tuple(map(np.concatenate, group.logprobs))))
        self._held[slot] = None
    if ends_early:
      running = self._per_candidate('running', False)
      self._slots = self._slots.replace(
          running=self._put(running.reshape(self._slots.running.shape)))
    if not self.busy:
      # Another engine may need the memory.
      self._slots = self._past = None
      self._held = []
      del self._model.shares[id(self)]
    return finished

  def _put(self, tree: Any) -> Any:
    return mesh_lib.put_rows(tree, self._mesh)

  @property
  def _others(self) -> list[_Share]:
    """The shares of the model's other engines."""
    return [
        share for engine, share in self._model.shares.items()
        if engine != id(self)]

  @property
  def _slots_per_shard(self) -> int:
    return len(self._held) // self._num_shards

  def _resize_slots(self) -> int:
    """Makes slots for running groups and as many waiting ones as fit.

    Returns the number of these waiting groups.
    """
    room = self._sizes[-1] - sum(share.num_slots for share in self._others)
    largest = max((size for size in self._sizes if size <= room), default=0)
    if not largest:
      return 0
    held = np.array([x is not None for x in self._held], bool)
    num_held, held = int(held.sum()), held.reshape(self._num_shards, -1)
    fullest = int(held.sum(axis=1).max(initial=0)) * self._num_shards
    max_ready = min(len(self._waiting), largest - num_held)
    # At least one group, or the ones that run.
    for num_ready in range(max_ready, -1 if num_held else 0, -1):
      num_slots = next(
          size for size in self._sizes
          if size >= max(num_held + num_ready, fullest))
      length = self._slot_length(num_ready)
      if num_slots * length <= self._max_tokens:
        break
    if self._slots is None:
      self._slots = programs.empty_slots(
          num_slots=num_slots, prompt_length=length, **self._static)
      self._held = [None] * num_slots
    elif num_slots != len(self._held) or length != self._slots.prompt_length:
      old, new = self._slots_per_shard, num_slots // self._num_shards
      # Held groups move to the first slots; index `old` is a new, empty slot.
      order = np.argsort(~held, axis=1, kind='stable').astype(np.int32)[:, :new]
      order = np.pad(
          order, ((0, 0), (0, max(new - old, 0))), constant_values=old)
      self._held = [
          self._held[shard * old + slot] if slot < old else None
          for shard, row in enumerate(order) for slot in row]
      self._slots = programs.move_slots(
          self._slots, self._put(order), prompt_length=length)
    share = self._model.shares.setdefault(id(self), _Share(0, 0))
    share.num_slots = num_slots
    share.num_candidates = self._static['spec'].group_size * (
        self._slots_per_shard)
    return num_ready

  def _slot_length(self, num_ready: int) -> int:
    """The length of the prompts in slots, with the first waiting ones.

    If a kernel skips padding, it is the longest, which needs fewer programs.
    """
    if self._skips_padding:
      return self._prompt_lengths[-1]
    held = [group.request for group in self._held if group is not None]
    return max(map(self._bucket, held + self._waiting[:num_ready]))

  def _bucket(self, request: Request) -> int:
    return batching.bucket(
        len(request.prompt), self._prompt_lengths, 'prompt length')

  def _admit(self, num_ready: int) -> list[np.ndarray]:
    """Moves the first requests of the queue into free slots.

    Returns:
      The slots [N, B] int32 of each prefill, by shard. Padding is the number
      of slots, which is out of range.
    """
    size, num_slots = self._static['spec'].group_size, self._slots_per_shard
    free = [
        [slot for slot in range(num_slots)
         if self._held[shard * num_slots + slot] is None]
        for shard in range(self._num_shards)]
    ready, self._waiting = self._waiting[:num_ready], self._waiting[num_ready:]
    admitted = []
    for length, same in itertools.groupby(
        sorted(ready, key=self._bucket), self._bucket):
      max_prompts = (
          max(1, _MAX_CPU_PREFILL // length) if self._model.is_on_cpu
          else num_slots)
      same = list(same)
      while same:
        # The shards with most free slots come first.
        shards = sorted(range(len(free)), key=lambda x: -len(free[x]))
        # Every shard prefills as many prompts; few numbers are compiled.
        num_prompts = prefill_size(min(
            len(free[shards[0]]), -(-len(same) // self._num_shards),
            max_prompts))
        slot_ids = np.full((self._num_shards, num_prompts), num_slots, np.int32)
        for column in range(num_prompts):
          for shard in shards:
            if free[shard] and same:
              slot_ids[shard, column] = slot = free[shard].pop(0)
              self._held[shard * num_slots + slot] = _HeldGroup(
                  same.pop(0), tokens=[[] for _ in range(size)],
                  logprobs=[[] for _ in range(size)],
                  running=np.ones(size, bool),
                  rows=np.full(size, NO_ROW, np.int32),
                  lengths=np.zeros(size, np.int32),
                  number=self._num_admitted)
              self._num_admitted += 1
        admitted.append(slot_ids)
    return admitted

  def _per_candidate(self, name: str, default: Any) -> np.ndarray:
    """Attribute `name` of each candidate [N, C]; `default` in free slots."""
    size = self._static['spec'].group_size
    return np.array([
        np.full(size, default if group is None else getattr(group, name))
        for group in self._held]).reshape(self._num_shards, -1)

  def _resize_rows(self) -> jax.Array | None:
    """Gives running candidates rows with capacity for the next chunk.

    Returns `candidate_of_row` for `programs.decode`.
    """
    running = self._per_candidate('running', False)
    old = self._per_candidate('rows', NO_ROW)
    moved = running & (old != NO_ROW)
    limit, num_moved = self._max_num_rows(), int(moved.sum(axis=1).max())
    num_rows = min(
        _padded_size(int(running.sum(axis=1).max()), self._min_rows), limit)
    if num_rows < num_moved:  # Another engine has started.
      num_rows = min(
          -(-num_moved // self._row_unit) * self._row_unit, self._max_rows)
    if num_rows >= running.shape[1]:
      num_rows = running.shape[1]
      rows = np.tile(
          np.arange(num_rows, dtype=np.int32), (self._num_shards, 1))
      candidate_of_row = None
    else:
      keep = old if num_rows == self._num_rows else np.full_like(
          old, NO_ROW)
      rank = np.where(moved, -1, self._per_candidate('number', 0))
      rows = _assign_rows(
          running, keep, num_rows, rank, max(limit, num_moved))
      # Free rows get the index of an idle candidate of their shard. If none is
      # idle, no row is free.
      finished = np.argmin(running, axis=1).astype(np.int32)
      candidate_of_row = self._put(_by_row(
          np.broadcast_to(np.arange(running.shape[1]), running.shape), rows,
          rows != NO_ROW, np.repeat(finished[:, None], num_rows, axis=1)))
    rows = np.where(running, rows, NO_ROW)
    for group, group_rows in zip(self._held, rows.reshape(len(self._held), -1)):
      if group is not None:
        group.rows = group_rows
    self._model.shares[id(self)].num_rows = num_rows
    if not num_rows:
      self._past, self._num_rows = None, 0
      return None
    held = [group for group in self._held if group is not None]
    longest = self._per_candidate('lengths', 0)[rows != NO_ROW].max(initial=0)
    capacity = _padded_size(
        int(longest) + self._chunk_length,
        min(self._min_capacity, row_capacity(
            max(group.request.budget for group in held))))
    if self._past is None:
      self._past = programs.empty_rows(
          num_rows=self._num_shards * num_rows, capacity=capacity,
          **self._static)
    elif ((num_rows, capacity) != (self._num_rows, self._capacity)
          or (rows != old)[moved].any()):
      # The old row of each new row; 0 if it had none.
      order = _by_row(
          old, rows, moved, np.zeros((len(rows), num_rows), np.int32))
      self._past = programs.move_rows(
          self._past, self._put(order), capacity=capacity)
    self._num_rows, self._capacity = num_rows, capacity
    return candidate_of_row

  def _max_num_rows(self) -> float:
    """Rows per shard that this engine may have beside the model's others.

    Each may have an equal part, and what the others cannot use. Few numbers are
    compiled.
    """
    if self._max_rows == math.inf or not self._others:
      return self._max_rows
    equal = self._max_rows // len(self._model.shares)
    claimed = sum(min(x.num_candidates, equal) for x in self._others)
    held = sum(x.num_rows for x in self._others)
    unit = self._row_unit
    return max(0, self._max_rows - max(claimed, held)) // unit * unit

  @property
  def _row_unit(self) -> int:
    return max(1, self._max_rows // max(4, len(self._model.shares)))

  def _prefill(self, slot_ids: np.ndarray) -> None:
    """Prefills the prompts that `_admit` has placed in slots."""
    num_slots = self._slots_per_shard
    requests = [
        self._held[shard * num_slots + slot].request
        if slot < num_slots else None
        for shard, row in enumerate(slot_ids) for slot in row]
    filler = dataclasses.replace(
        next(filter(None, requests)), prompt=np.zeros(1, np.int32), budget=1)
    requests = [request or filler for request in requests]
    arrays = (
        slot_ids,
        *batching.pad_prompts(
            [request.prompt for request in requests], len(requests),
            prefill_length(requests, self._prompt_lengths)),
        np.array([request.key_ids for request in requests], np.uint32),
        np.array([request.budget for request in requests], np.int32),
        np.array([request.adapter for request in requests], np.int32))
    self._slots = programs.fill(
        self._model.prepared, self._slots, *self._put(arrays),
        adapters=self._model.adapters, **self._static)


# ---- Rows -------------------------------------------------------------------


def row_capacity(num_tokens: int) -> int:
  """Positions of a row for `num_tokens`, of which few numbers are compiled."""
  return _padded_size(num_tokens, _MIN_CAPACITY)


def _padded_size(count: int, smallest: int) -> int:
  """The next power of two, at least `smallest`."""
  return max(smallest, 2**(count - 1).bit_length())


def prefill_size(num_prompts: int) -> int:
  """Prompts of one prefill: 1, 4, 16, ..., at most `num_prompts`."""
  return 4**((num_prompts.bit_length() - 1) // 2)


def prefill_length(
    requests: Sequence[Request], prompt_lengths: Sequence[int]) -> int:
  """Padded length for these prompts, in quarters of the one that fits."""
  longest = max(len(request.prompt) for request in requests)
  length = batching.bucket(longest, prompt_lengths, 'prompt length')
  step = length // 4
  return length if step % _PREFILL_MULTIPLE else -(-longest // step) * step


def _assign_rows(
    running: np.ndarray, old: np.ndarray, num_rows: int, rank: np.ndarray,
    limit: float) -> np.ndarray:
  """The row [N, C] int32 of each candidate; `NO_ROW` if it has none.

  `running` [N, C] bool, `old` and `rank` [N, C] int32 are in the order of slots
  and candidates. A running candidate keeps its old row unless it is `NO_ROW`;
  those of lower rank get free rows first. Beyond `limit`, none get new rows
  unless all run: a free row needs an idle candidate.
  """
  rows = np.where(running, old, NO_ROW)
  for shard, row_of, rank_of in zip(running, rows, rank):
    new = np.flatnonzero(shard & (row_of == NO_ROW))
    free = np.setdiff1d(np.arange(num_rows), row_of)
    if not shard.all():
      free = free[:max(0, min(limit, num_rows) - (num_rows - len(free)))]
    new = new[np.argsort(rank_of[new], kind='stable')][:len(free)]
    row_of[new] = free[:len(new)]
  return rows


def _by_row(
    values: np.ndarray, rows: np.ndarray, mask: np.ndarray,
    free: np.ndarray) -> np.ndarray:
  """Arranges values [N, C] of the candidates in `mask` by their rows.

  Returns [N, num_rows], with the values of `free` in the remaining rows.
  """
  arranged = free.copy()
  arranged[np.nonzero(mask)[0], rows[mask]] = values[mask]
  return arranged
