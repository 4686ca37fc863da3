"""Continuous batching whose unit is the group.

Prompts wait until a slot is free. All slots are decoded together, a chunk of
tokens at a time. After each chunk finished groups leave, waiting ones take
their slots, and the others go on. Only unfinished candidates own a row, which
holds their keys and values; `placement` says where. The attention to the prompt
is computed for whole groups, so there a finished candidate still costs its
share. (With adapters every candidate keeps its row.)

The number of slots, the number of rows and their length grow and shrink with
what is held. A prefix that many prompts of a role share is prefilled once. A
run has an engine for each model, padded prompt length and group size.

What a group samples depends on its prompt, key and budget alone, up to the
rounding of products of another shape.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.sampling import placement
from atgrpo_jax.sampling import programs

CHUNK = 16  # Tokens between two looks at who has ended.


@dataclasses.dataclass(frozen=True)
class Request:
  """A prompt to sample a group of completions for.

  Attributes:
    tag: of the caller, to know it again.
    prompt: [S] int32.
    key: key data, uint32.
    budget: longest completion, stop token included.
    adapter: which of the engine's adapters.
    role: prompts of one role may share a prefix.
  """

  tag: Any
  prompt: np.ndarray
  key: np.ndarray
  budget: int
  adapter: int = 0
  role: str = ''

  @property
  def family(self) -> placement.Family:
    """Requests of one family may share a prefix."""
    return self.role, self.adapter


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
  tokens: list[list[np.ndarray]]  # For each candidate its chunks.
  logprobs: list[list[np.ndarray]]
  running: np.ndarray  # [G] bool
  rows: np.ndarray  # [G] int32, in its shard; -1 for none
  age: int = 0  # Tokens of its longest candidate.

  @classmethod
  def of(cls, request: Request, size: int) -> _HeldGroup:
    return cls(
        request, [[] for _ in range(size)], [[] for _ in range(size)],
        np.ones(size, bool), np.full(size, -1, np.int32))


@dataclasses.dataclass
class Counts:
  """Work done by an engine, including padding."""

  prefilled_rows: int = 0  # Prompts.
  prefilled_positions: int = 0  # Of prompts and shared prefixes.
  shared_prefixes: int = 0
  decoded_rows: int = 0  # Tokens of rows.
  read_positions: int = 0  # Of rows, for each decoded token.
  read_prefix_positions: int = 0  # Of slots, for each decoded token.
  moved_positions: int = 0  # Of rows that were moved.


class DecodingParams:
  """A model's parameters prepared for decoding, shared by its engines.

  A run has an engine for each padded prompt length and group size. The prepared
  copy (see `programs.prepare`) may be the largest array on a device, so it is
  made when the first engine has work and dropped when no engine has any.
  """

  def __init__(
      self, params: model.Params, mesh: jax.sharding.Mesh,
      config: model.ModelConfig, dtype: str):
    self.mesh, self.config = mesh, config
    self.params, self._dtype = params, dtype
    self._num_users = 0
    self._prepared: model.Params | None = None
    self._decoding: model.Params | None = None

  def acquire(self) -> tuple[model.Params, model.Params]:
    """Parameters for prefill and for the decoding loop.

    Every call needs a `release`.
    """
    if not self._num_users:
      self._prepared = self._decoding = programs.prepare(
          self.params, config=self.config, dtype=self._dtype)
      if self.mesh.devices.flat[0].platform == 'cpu':
        self._decoding = programs.unstack(self._prepared, config=self.config)
    self._num_users += 1
    return self._prepared, self._decoding

  def release(self) -> None:
    """Undoes one `acquire`; the last one frees the memory."""
    self._num_users -= 1
    if not self._num_users:
      self._prepared = self._decoding = None


class Engine:
  """Samples groups of one model whose prompts have one padded length."""

  def __init__(
      self, params: DecodingParams, *,
      adapters: model.Adapters | None, spec: programs.SamplerSpec,
      num_slots: Sequence[int], prompt_length: int):
    """An engine without work.

    Args:
      params: of the model; other engines may share them.
      adapters: over the model, one for each role; None for none.
      spec: of the sampler.
      num_slots: numbers of groups in flight, ascending.
      prompt_length: that prompts are padded to.
    """
    self._params = params
    self._prepared: model.Params | None = None
    self._decoding: model.Params | None = None  # The same, as a loop reads it.
    self._mesh = params.mesh
    self._static = {'config': params.config, 'spec': spec}
    self._adapters = adapters
    self._sizes = tuple(num_slots)
    self._prompt_length = prompt_length
    self._num_shards = mesh_lib.num_data_shards(params.mesh)
    self._waiting: list[Request] = []
    self._shared_prefixes: dict[
        placement.Family, placement.SharedPrefix] = {}
    self._slots: programs.Slots | None = None
    self._held: list[_HeldGroup | None] = []  # What each slot holds.
    self._past: model.RowCache | None = None
    self._num_rows = 0  # Of each shard.
    self._capacity = 0  # Positions of a row.
    self._chunk: jax.Array | None = None
    self.counts = Counts()

  def add(self, request: Request) -> None:
    """Queues a prompt."""
    self._waiting.append(request)

  @property
  def busy(self) -> bool:
    """Whether any group is waiting or running."""
    return bool(self._waiting) or any(self._held)

  def dispatch(self) -> None:
    """Gives the device its next chunk, if it has none and there is work."""
    if self._chunk is not None or not self.busy:
      return
    with jax.set_mesh(self._mesh):
      self._resize_slots()
      self._find_shared_prefixes()
      admitted = self._admit()
      self._resize_rows()
      for slot_ids, prefix in admitted:
        self._prefill(slot_ids, prefix)
      self._decode()

  def collect(self) -> list[SampledGroup]:
    """Waits for the chunk and returns the groups that have finished."""
    if self._chunk is None:
      return []
    chunk = programs.Chunk.read(self._chunk)
    self._chunk = None
    longest = int(chunk.lengths.max())
    # A shard ends with its longest candidate; if its devices talk to each
    # other, all shards end together.
    tokens = chunk.lengths.reshape(self._num_shards, -1).max(axis=1)
    if self._mesh.shape['tensor'] > 1:
      tokens[:] = longest
    num_tokens = int(tokens.sum())
    each = len(self._held) // self._num_shards
    self.counts.decoded_rows += num_tokens * self._num_rows
    self.counts.read_positions += num_tokens * self._num_rows * self._capacity
    self.counts.read_prefix_positions += (
        num_tokens * each * self._prompt_length)
    finished = []
    for slot, group in enumerate(self._held):
      if group is None:
        continue
      group.age += longest
      for candidate in np.flatnonzero(group.running):
        row = slot // each * self._num_rows + group.rows[candidate]
        length = chunk.lengths[row]
        group.tokens[candidate].append(chunk.tokens[row, :length])
        group.logprobs[candidate].append(chunk.logprobs[row, :length])
        group.running[candidate] = chunk.running[row]
      if not group.running.any():
        finished.append(SampledGroup(
            group.request, tuple(map(np.concatenate, group.tokens)),
            tuple(map(np.concatenate, group.logprobs))))
        self._held[slot] = None
    if not self.busy:
      # Another engine, or the learner, may need the memory.
      self._prepared = self._decoding = self._slots = self._past = None
      self._params.release()
      self._held = []
    return finished

  def _put(self, tree: Any) -> Any:
    return mesh_lib.put_rows(tree, self._mesh)

  @property
  def _slots_per_shard(self) -> int:
    return len(self._held) // self._num_shards

  def _resize_slots(self) -> None:
    """Makes slots for running groups and as many waiting ones as fit."""
    held = np.array([x is not None for x in self._held], bool)
    wanted = min(held.sum() + len(self._waiting), self._sizes[-1])
    held = held.reshape(self._num_shards, -1)
    fullest = held.sum(axis=1).max(initial=0) * self._num_shards
    num_slots = next(
        size for size in self._sizes if size >= max(wanted, fullest))
    if self._slots is None:
      self._prepared, self._decoding = self._params.acquire()
      self._slots = programs.empty_slots(
          num_slots=num_slots, prompt_length=self._prompt_length,
          **self._static)
      self._held = [None] * num_slots
    elif num_slots != len(self._held):
      old = self._slots_per_shard
      order = placement.pack_slots(held, num_slots // self._num_shards)
      self._held = [
          self._held[shard * old + slot] if slot < old else None
          for shard, row in enumerate(order) for slot in row]
      self._slots = programs.move_slots(
          self._slots, self._put(order))

  def _find_shared_prefixes(self) -> None:
    """Prefills the prefixes that waiting prompts share, if they are long."""
    waiting = [(request.family, request.prompt) for request in self._waiting]
    for family, tokens in placement.new_shared_prefixes(
        waiting, self._shared_prefixes):
      prompts, lengths = batching.pad_prompts(
          [tokens] * self._num_shards, self._num_shards,
          min(placement.padded_size(len(tokens)), self._prompt_length))
      self.counts.shared_prefixes += 1
      self.counts.prefilled_positions += prompts.size
      _, adapter = family
      self._shared_prefixes[family] = placement.SharedPrefix(
          tokens, programs.prefill_shared_prefix(
              self._prepared, *self._put(
                  (prompts, lengths, np.full(len(prompts), adapter, np.int32))),
              adapters=self._adapters, **self._static))

  def _shared_prefix_of(
      self, request: Request) -> placement.SharedPrefix | None:
    known = self._shared_prefixes.get(request.family)
    return known if known and known.begins(request.prompt) else None

  def _admit(
      self) -> list[tuple[np.ndarray, placement.SharedPrefix | None]]:
    """Moves from the queue into free slots, and says into which.

    Each [N, B] is to be prefilled at once, behind one shared prefix: for each
    shard its slots, and one beyond the last for rows that only fill the shape.
    """
    size, each = self._static['spec'].group_size, self._slots_per_shard
    free = [
        [slot for slot in range(each)
         if self._held[shard * each + slot] is None]
        for shard in range(self._num_shards)]
    admitted = []
    prefixes = [self._shared_prefix_of(request) for request in self._waiting]
    while self._waiting and any(free):
      # All that go on from what the first one does.
      prefix = prefixes[0]
      alike = [
          request for request, own in zip(self._waiting, prefixes)
          if own is prefix]
      # The same number of prompts for each shard, of few sizes.
      wanted = min(
          max(map(len, free)), -(-len(alike) // self._num_shards))
      num_prompts = placement.prefill_size(wanted)
      slot_ids = np.full((self._num_shards, num_prompts), each, np.int32)
      for column in range(num_prompts):
        for shard, slots in enumerate(free):
          if slots and alike:
            slot_ids[shard, column] = slot = slots.pop(0)
            self._held[shard * each + slot] = _HeldGroup.of(alike.pop(0), size)
      admitted.append((slot_ids, prefix))
      left = {id(request) for request in alike}
      stay = [
          own is not prefix or id(request) in left
          for request, own in zip(self._waiting, prefixes)]
      self._waiting = list(itertools.compress(self._waiting, stay))
      prefixes = list(itertools.compress(prefixes, stay))
    return admitted

  def _of_candidates(self, name: str, free: Any) -> np.ndarray:
    """[N, P / N * G] of what groups have for each candidate, or `free`."""
    size = self._static['spec'].group_size
    return np.array([
        np.full(size, free) if group is None else getattr(group, name)
        for group in self._held]).reshape(self._num_shards, -1)

  def _resize_rows(self) -> None:
    """Gives each running candidate a row with capacity for the next chunk."""
    running = self._of_candidates('running', False)
    old = self._of_candidates('rows', -1)
    num_rows = placement.padded_size(int(running.sum(axis=1).max()))
    if self._adapters is not None or num_rows >= running.shape[1]:
      num_rows = running.shape[1]
      rows = np.tile(
          np.arange(num_rows, dtype=np.int32), (self._num_shards, 1))
    else:
      keep = old if num_rows == self._num_rows else np.full_like(old, -1)
      rows = placement.assign_rows(running, keep, num_rows)
    for group, own in zip(
        self._held, rows.reshape(len(self._held), -1)):
      if group is not None:
        group.rows = own
    oldest = max(group.age for group in self._held if group is not None)
    capacity = placement.padded_size(oldest + CHUNK)
    if self._past is None:
      self._past = programs.empty_rows(
          num_rows=self._num_shards * num_rows, capacity=capacity,
          **self._static)
    elif ((num_rows, capacity) != (self._num_rows, self._capacity)
          or (rows != old)[running & (old >= 0)].any()):
      order = placement.row_moves(running, old, rows, num_rows)
      self._past = programs.move_rows(
          self._past, self._put(order), capacity=capacity)
      self.counts.moved_positions += order.size * capacity
    self._num_rows, self._capacity = num_rows, capacity

  def _prefill(
      self, slot_ids: np.ndarray,
      prefix: placement.SharedPrefix | None) -> None:
    """Prefills the prompts of groups in slots, as `_admit` names them."""
    each = self._slots_per_shard
    requests = [
        self._held[shard * each + slot].request if slot < each else None
        for shard, row in enumerate(slot_ids) for slot in row]
    known, length = 0, self._prompt_length
    if prefix is not None:
      known = len(prefix.tokens)
      longest = max(len(request.prompt) for request in requests if request)
      length = min(placement.padded_size(longest - known), length)
    filler = dataclasses.replace(
        next(filter(None, requests)), prompt=np.zeros(known + 1, np.int32),
        budget=1)
    requests = [request or filler for request in requests]
    prompts, lengths = batching.pad_prompts(
        [request.prompt[known:] for request in requests], len(requests),
        length)
    keys = np.array([request.key for request in requests])
    budgets = np.array([request.budget for request in requests], np.int32)
    adapter_ids = np.array([request.adapter for request in requests], np.int32)
    self.counts.prefilled_rows += len(requests)
    self.counts.prefilled_positions += prompts.size
    slot_ids, prompts, lengths, keys, budgets, adapter_ids = self._put(
        (slot_ids, prompts, lengths, keys, budgets, adapter_ids))
    self._slots = programs.fill(
        self._prepared, self._slots, slot_ids, prompts, lengths,
        jax.random.wrap_key_data(keys), budgets, adapter_ids,
        shared_prefix=prefix and prefix.cache, adapters=self._adapters,
        **self._static)

  def _decode(self) -> None:
    running = self._of_candidates('running', False)
    candidate_of_row = None
    if self._num_rows < running.shape[1]:
      candidate_of_row = self._put(placement.candidate_of_row(
          running, self._of_candidates('rows', -1), self._num_rows))
    self._slots, self._past, self._chunk = programs.decode(
        self._decoding, self._slots, self._past, candidate_of_row,
        adapters=self._adapters, num_tokens=CHUNK, **self._static)


def drain(engines: Sequence[Engine]) -> list[list[SampledGroup]]:
  """What each engine samples until none is busy, in the order of the tags."""
  sampled = [[] for _ in engines]
  while any(engine.busy for engine in engines):
    for engine in engines:
      engine.dispatch()
    for engine, own in zip(engines, sampled):
      own.extend(engine.collect())
  for own in sampled:
    own.sort(key=lambda group: group.request.tag)
  return sampled
