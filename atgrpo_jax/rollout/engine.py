"""Continuous batching whose unit is the group.

Prompts wait until a slot is free. All slots are decoded together, a few tokens
at a time; then finished groups leave and waiting ones take their places, while
the others go on. A member that runs has a row, in which its keys and values
stand; one that has ended has none, so it costs nothing but its place in the
attention to the prompt, which is that of whole groups. (With adapters every
member keeps its row.) Few members move into few rows, few groups into few
slots, and rows are as long as the longest text, not as what is allowed.

What many prompts of a role begin with, such as its instructions, is prefilled
once for all that an engine is given; a run has an engine for each model, padded
prompt length and group size.

What a group samples depends on its prompt, key and budget alone, up to the
rounding of products of another shape.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import sampler

CHUNK = 16  # Tokens between two looks at who has ended.
# Fewer rows or positions would save little. Also, XLA's CPU backend rounds
# products of fewer rows in another way.
_FEWEST = 64
# The shortest common beginning of prompts that is prefilled for itself.
SHORTEST_PREAMBLE = 128


@dataclasses.dataclass(frozen=True)
class Request:
  """A prompt that wants a group of completions.

  Attributes:
    tag: of the caller, to know it again.
    prompt: [S] int32.
    key: key data, uint32.
    budget: longest completion, stop token included.
    adapter: which of the engine's adapters.
    role: whose prompts it may begin like.
  """

  tag: Any
  prompt: np.ndarray
  key: np.ndarray
  budget: int
  adapter: int = 0
  role: str = ''


@dataclasses.dataclass(frozen=True)
class Sampled:
  """The G completions of a request, each with its stop token if it has one."""

  request: Request
  completions: tuple[np.ndarray, ...]  # G x [T_g] int32
  logprobs: tuple[np.ndarray, ...]  # G x [T_g] float32


@dataclasses.dataclass(frozen=True)
class _Preamble:
  """What many prompts begin with."""

  tokens: np.ndarray  # [C] int32
  prefix: model.Prefix


@dataclasses.dataclass
class _Group:
  """What a slot holds."""

  request: Request
  tokens: list[list[np.ndarray]]  # For each member its chunks.
  logprobs: list[list[np.ndarray]]
  running: np.ndarray  # [G] bool
  rows: np.ndarray  # [G] int32, in its part of the mesh; -1 for none
  age: int = 0  # Tokens of its longest member.


@dataclasses.dataclass
class Counts:
  """What an engine has computed."""

  prefilled_rows: int = 0  # Prompts, with those that only fill a shape.
  prefilled_positions: int = 0  # Of prompts and preambles, pads too.
  preambles: int = 0
  decoded_rows: int = 0  # Tokens of members, with those that fill a shape.
  read_positions: int = 0  # Of the past, for each row and decoded token.
  # Of prompts, pads too, for each slot, however many its members, and token.
  read_prefix_positions: int = 0
  moved_positions: int = 0  # Of the past, written where rows were moved.


class Engine:
  """Samples groups of one model whose prompts have one padded length."""

  def __init__(
      self, params: model.Params, mesh: jax.sharding.Mesh, *,
      adapters: model.Adapters | None, config: model.ModelConfig,
      spec: sampler.SamplerSpec, num_slots: Sequence[int],
      prompt_length: int):
    """`num_slots` are the numbers of groups in flight, ascending."""
    self._params = params
    self._prepared: model.Params | None = None
    self._decoding: model.Params | None = None  # The same, as a loop reads it.
    self._mesh = mesh
    self._static = {'config': config, 'spec': spec}
    self._adapters = adapters
    self._sizes = tuple(num_slots)
    self._prompt_length = prompt_length
    self._num_parts = sharding.num_row_parts(mesh)
    self._on_cpu = mesh.devices.flat[0].platform == 'cpu'
    self._waiting: list[Request] = []
    self._preambles: dict[tuple[str, int], _Preamble] = {}
    self._slots: sampler.Slots | None = None
    self._held: list[_Group | None] = []  # What each slot holds.
    self._past: model.Cache | None = None
    self._num_rows = 0  # Of each part of the mesh.
    self._room = 0  # Positions of a row.
    self._chunk: jax.Array | None = None
    self.counts = Counts()

  def add(self, request: Request) -> None:
    """Puts a prompt into the queue."""
    self._waiting.append(request)

  @property
  def busy(self) -> bool:
    """Whether anything waits or runs."""
    return bool(self._waiting) or any(self._held)

  def dispatch(self) -> None:
    """Gives the device its next chunk, if it has none and there is work."""
    if self._chunk is not None or not self.busy:
      return
    with jax.set_mesh(self._mesh):
      self._place_groups()
      self._find_preambles()
      admitted = self._admit()
      self._place_rows()
      for places, preamble in admitted:
        self._prefill(places, preamble)
      self._decode()

  def collect(self) -> list[Sampled]:
    """Waits for the chunk and returns the groups that have finished."""
    if self._chunk is None:
      return []
    chunk = sampler.Chunk.read(self._chunk)
    self._chunk = None
    longest = int(chunk.lengths.max())
    # Of each part of the mesh, which ends with its longest member, or, if its
    # devices talk to each other, with the longest of all.
    tokens = chunk.lengths.reshape(self._num_parts, -1).max(axis=1)
    if self._mesh.shape['tensor'] > 1:
      tokens[:] = longest
    num_tokens = int(tokens.sum())
    each = len(self._held) // self._num_parts
    self.counts.decoded_rows += num_tokens * self._num_rows
    self.counts.read_positions += num_tokens * self._num_rows * self._room
    self.counts.read_prefix_positions += (
        num_tokens * each * self._prompt_length)
    finished = []
    for slot, group in enumerate(self._held):
      if group is None:
        continue
      group.age += longest
      for member in np.flatnonzero(group.running):
        row = slot // each * self._num_rows + group.rows[member]
        length = chunk.lengths[row]
        group.tokens[member].append(chunk.tokens[row, :length])
        group.logprobs[member].append(chunk.logprobs[row, :length])
        group.running[member] = chunk.running[row]
      if not group.running.any():
        finished.append(Sampled(
            group.request, tuple(map(np.concatenate, group.tokens)),
            tuple(map(np.concatenate, group.logprobs))))
        self._held[slot] = None
    if not self.busy:
      # Another engine, or the learner, may need the memory.
      self._prepared = self._decoding = self._slots = self._past = None
      self._held = []
    return finished

  def _place_groups(self) -> None:
    """Slots for all who run and as many as may of those who wait."""
    held = np.array([x is not None for x in self._held], bool)
    wanted = min(held.sum() + len(self._waiting), self._sizes[-1])
    in_parts = held.reshape(self._num_parts, -1)
    fullest = in_parts.sum(axis=1).max(initial=0) * self._num_parts
    num_slots = next(
        size for size in self._sizes if size >= max(wanted, fullest))
    if self._slots is None:
      config = self._static['config']
      self._prepared = self._decoding = sampler.prepare(
          self._params, config=config, dtype=self._static['spec'].dtype)
      if self._on_cpu:
        self._decoding = sampler.unstack(self._prepared, config=config)
      self._slots = sampler.empty_slots(
          num_slots=num_slots, prompt_length=self._prompt_length,
          **self._static)
      self._held = [None] * num_slots
    elif num_slots != len(self._held):
      each = num_slots // self._num_parts
      old = len(self._held) // self._num_parts
      order = np.full((self._num_parts, each), old, np.int32)
      for part, row in zip(in_parts, order):
        stay = np.flatnonzero(part)
        row[:len(stay)] = stay
      self._held = [
          self._held[part * old + slot] if slot < old else None
          for part, row in enumerate(order) for slot in row]
      self._slots = sampler.move_slots(
          self._slots, sharding.put_rows(order, self._mesh))

  def _find_preambles(self) -> None:
    """Prefills what waiting prompts of one role begin with, if that is long."""
    waiting = collections.defaultdict(list)
    for request in self._waiting:
      # The last token is never part of a prefix.
      waiting[request.role, request.adapter].append(request.prompt[:-1])
    for family, prompts in waiting.items():
      known = self._preambles.get(family)
      if known is not None:
        prompts.append(known.tokens)
      length = _common_length(prompts)
      if (len(prompts) > 1 and length >= SHORTEST_PREAMBLE
          and (known is None or length < len(known.tokens))):
        tokens = prompts[0][:length]
        self._preambles[family] = _Preamble(
            tokens, self._prefill_preamble(tokens, family[1]))

  def _prefill_preamble(
      self, tokens: np.ndarray, adapter: int) -> model.Prefix:
    prompts, lengths = batching.pad_prompts(
        [tokens] * self._num_parts, self._num_parts,
        min(padded_size(len(tokens)), self._prompt_length))
    self.counts.preambles += 1
    self.counts.prefilled_positions += prompts.size
    return sampler.prefill_preamble(
        self._prepared, *sharding.put_rows(
            (prompts, lengths, np.full(len(prompts), adapter, np.int32)),
            self._mesh), adapters=self._adapters, **self._static)

  def _preamble_of(self, request: Request) -> _Preamble | None:
    """The preamble that a prompt goes on from."""
    known = self._preambles.get((request.role, request.adapter))
    if known is None or _common_length(
        [request.prompt[:-1], known.tokens]) < len(known.tokens):
      return None
    return known

  def _admit(self) -> list[tuple[np.ndarray, _Preamble | None]]:
    """Moves from the queue into free slots, and says into which.

    Each [N, B] is to be prefilled at once, behind one preamble: for each part
    of the mesh its slots, and one beyond the last for rows that only fill the
    shape.
    """
    size = self._static['spec'].group_size
    each = len(self._held) // self._num_parts
    free = [
        [slot for slot in range(each)
         if self._held[part * each + slot] is None]
        for part in range(self._num_parts)]
    admitted = []
    preambles = [self._preamble_of(request) for request in self._waiting]
    while self._waiting and any(free):
      # All that go on from what the first one does.
      preamble = preambles[0]
      alike = [
          request for request, own in zip(self._waiting, preambles)
          if own is preamble]
      # The same number of prompts for each part of the mesh, of few sizes.
      most = max(map(len, free))
      wanted = min(most, -(-len(alike) // self._num_parts))
      count = prefill_size(wanted)
      places = np.full((self._num_parts, count), each, np.int32)
      for column in range(count):
        for part, slots in enumerate(free):
          if slots and alike:
            places[part, column] = slot = slots.pop(0)
            self._held[part * each + slot] = _Group(
                alike.pop(0), [[] for _ in range(size)],
                [[] for _ in range(size)], np.ones(size, bool),
                np.full(size, -1, np.int32))
      admitted.append((places, preamble))
      left = {id(request) for request in alike}
      stay = [
          own is not preamble or id(request) in left
          for request, own in zip(self._waiting, preambles)]
      self._waiting = list(itertools.compress(self._waiting, stay))
      preambles = list(itertools.compress(preambles, stay))
    return admitted

  def _of_members(self, name: str, free: Any) -> np.ndarray:
    """[N, P / N * G] of what groups have for each member, or `free`."""
    size = self._static['spec'].group_size
    return np.array([
        np.full(size, free) if group is None else getattr(group, name)
        for group in self._held]).reshape(self._num_parts, -1)

  def _place_rows(self) -> None:
    """A row for each member that runs, with room for the next chunk."""
    size = self._static['spec'].group_size
    running = self._of_members('running', False)
    old = self._of_members('rows', -1)
    num_rows = padded_size(int(running.sum(axis=1).max()))
    if self._adapters is not None or num_rows >= running.shape[1]:
      num_rows = running.shape[1]
      rows = np.tile(np.arange(num_rows, dtype=np.int32), (self._num_parts, 1))
    else:
      stay = running & (num_rows == self._num_rows)
      rows = np.where(stay, old, -1)
      for part, own in zip(running, rows):
        new = np.flatnonzero(part & (own < 0))
        own[new] = np.setdiff1d(np.arange(num_rows), own)[:len(new)]
    for group, own in zip(self._held, rows.reshape(-1, size)):
      if group is not None:
        group.rows = own
    oldest = max(group.age for group in self._held if group is not None)
    room = padded_size(oldest + CHUNK)
    moved = running & (old >= 0)
    if self._past is None:
      self._past = sampler.empty_rows(
          num_rows=self._num_parts * num_rows, room=room, **self._static)
    elif ((num_rows, room) != (self._num_rows, self._room)
          or (rows != old)[moved].any()):
      order = np.zeros((self._num_parts, num_rows), np.int32)
      part = np.nonzero(moved)[0]
      order[part, rows[moved]] = old[moved]
      self._past = sampler.move_rows(
          self._past, sharding.put_rows(order, self._mesh), room=room)
      self.counts.moved_positions += order.size * room
    self._num_rows, self._room = num_rows, room

  def _prefill(
      self, places: np.ndarray, preamble: _Preamble | None) -> None:
    """Prefills the prompts of groups in slots, as `_admit` names them."""
    each = len(self._held) // self._num_parts
    requests = [
        self._held[part * each + slot].request if slot < each else None
        for part, row in enumerate(places) for slot in row]
    known, length = 0, self._prompt_length
    if preamble is not None:
      known = len(preamble.tokens)
      longest = max(len(request.prompt) for request in requests if request)
      length = min(padded_size(longest - known), length)
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
    places, prompts, lengths, keys, budgets, adapter_ids = sharding.put_rows(
        (places, prompts, lengths, keys, budgets, adapter_ids), self._mesh)
    self._slots = sampler.fill(
        self._prepared, self._slots, places, prompts, lengths,
        jax.random.wrap_key_data(keys), budgets, adapter_ids,
        preamble=preamble and preamble.prefix, adapters=self._adapters,
        **self._static)

  def _decode(self) -> None:
    running = self._of_members('running', False)
    taken = None
    if self._num_rows < running.shape[1]:
      # A free row stands for a member that has ended.
      taken = np.repeat(
          np.argmin(running, axis=1)[:, None], self._num_rows, axis=1)
      part, place = np.nonzero(running)
      taken[part, self._of_members('rows', -1)[running]] = place
      taken = sharding.put_rows(taken.astype(np.int32), self._mesh)
    self._slots, self._past, self._chunk = sampler.decode(
        self._decoding, self._slots, self._past, taken,
        adapters=self._adapters, num_tokens=CHUNK, **self._static)


def padded_size(count: int) -> int:
  """The rows, or positions of a past, that are computed for so many."""
  return max(_FEWEST, 2**(count - 1).bit_length())


def _common_length(texts: Sequence[np.ndarray]) -> int:
  """How many ids all texts begin with."""
  shortest = min(map(len, texts))
  same = np.all([text[:shortest] == texts[0][:shortest] for text in texts], 0)
  return shortest if same.all() else int(np.argmin(same))


def prefill_size(num_prompts: int) -> int:
  """How many of the waiting prompts are prefilled at once: 1, 4, 16, ..."""
  return 4**((num_prompts.bit_length() - 1) // 2)


def drain(engines: Sequence[Engine]) -> list[list[Sampled]]:
  """What each engine samples until none is busy, in the order of the tags."""
  sampled = [[] for _ in engines]
  while any(engine.busy for engine in engines):
    for engine in engines:
      engine.dispatch()
    for engine, own in zip(engines, sampled):
      own.extend(engine.collect())
  for own in sampled:
    own.sort(key=lambda one: one.request.tag)
  return sampled
