"""Chooses the mesh of a run from the dimensions of its models.

Nothing is compiled and no weights are read; `--mode compile_check` asks the
compiler instead. The rule:

  tensor   4 if reading a quarter of the parameters for each token saves more
           time than the collectives between 4 devices take, otherwise 1
  groups   the largest number of concurrent groups that fits with any `fsdp`,
           perhaps with rows for half of the candidates only
  rows     one for each candidate of these groups if they fit, or else for half
  fsdp     the smallest size with which these groups and rows fit

A run fits if it needs at most 92 % of a device's memory by the estimate in
`choose`. Compared with the TPU compiler, that estimate was at most 0.9 GiB too
low on v5e and v6e, and 2.7 GiB on v5p.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import jax

from atgrpo_jax import errors

_MAX_TENSOR = 4
_MAX_MEMORY_RATIO = 0.92
_COLLECTIVE_LATENCY = 5e-6  # Seconds.
_TRAINED_BYTES = 12  # Per parameter: float32 weights and two Adam moments.
_GIB = 2**30


class DoesNotFit(errors.UserError):
  """The run needs more memory than its devices have."""


@dataclasses.dataclass(frozen=True)
class Chip:
  """The published limits of one device."""

  memory: int  # Bytes that programs may use.
  flops: float  # Peak bfloat16 FLOP/s.
  bandwidth: float  # Of the memory, in bytes/s.
  # Bytes/s sent to other chips, half of the published bidirectional number.
  link_bandwidth: float


# From docs.cloud.google.com/tpu/docs, with the memory that the compiler lets a
# program use.
TPUS = {
    'v4': Chip(int(30.75 * _GIB), 275e12, 1228e9, 300e9),
    'v5e': Chip(int(15.75 * _GIB), 197e12, 819e9, 200e9),
    'v5p': Chip(int(95.74 * _GIB), 459e12, 2765e9, 600e9),
    'v6e': Chip(int(31.25 * _GIB), 918e12, 1638e9, 400e9),
}
# SXM cards, from their data sheets. JAX allocates three quarters of the memory.
GPUS = {
    'a100': Chip(int(59.4 * _GIB), 312e12, 2039e9, 300e9),
    'h100': Chip(int(59.3 * _GIB), 989e12, 3350e9, 450e9),
    'h200': Chip(int(104.8 * _GIB), 989e12, 4800e9, 450e9),
}
# Prefix of jax's `device_kind` -> name above. Longer prefixes come first.
_KINDS = {
    'TPU v4': 'v4', 'TPU v5 lite': 'v5e', 'TPU v5e': 'v5e', 'TPU v5p': 'v5p',
    'TPU v5': 'v5p', 'TPU v6': 'v6e', 'NVIDIA A100': 'a100',
    'NVIDIA H100': 'h100', 'NVIDIA H200': 'h200'}


def published_chip(device: jax.Device) -> Chip | None:
  """The published limits of a device; None if it is unknown."""
  return next((
      (TPUS | GPUS)[name] for kind, name in _KINDS.items()
      if device.device_kind.startswith(kind)), None)


def chip_of(device: jax.Device) -> Chip | None:
  """The chip of a device, with the memory that the device reports.

  None for a CPU, whose devices share the host's memory. Other devices are
  treated as a v5e if they are unknown.
  """
  if device.platform == 'cpu':
    return None
  chip = published_chip(device) or TPUS['v5e']
  memory = (device.memory_stats() or {}).get('bytes_limit', chip.memory)
  return dataclasses.replace(chip, memory=memory)


@dataclasses.dataclass(frozen=True)
class Learner:
  """One policy or critic, before it is sharded."""

  dimensions: Any  # A `ModelConfig`, which lies above this layer.
  trained: str  # 'all', 'lora' or 'none'.
  itemsize: int  # Bytes of a number in matrix products.
  is_critic: bool = False
  lora_rank: int = 0
  has_reference: bool = False  # Keeps a copy of the initial model.
  # An earlier learner of the pool holds the same frozen model. Adapters over
  # one model are sampled together.
  shares_model: bool = False

  @property
  def is_sampled(self) -> bool:
    return not (self.is_critic or self.shares_model)

  @property
  def kv_bytes(self) -> int:
    """Bytes of the keys and values of one token."""
    d = self.dimensions
    return 2 * d.num_layers * d.num_kv_heads * d.head_dim * self.itemsize

  @property
  def state_bytes(self) -> int:
    """Bytes that stay allocated throughout training."""
    d, num_params = self.dimensions, count_params(self.dimensions)
    if self.trained == 'all':
      return num_params * (
          _TRAINED_BYTES + self.has_reference * self.itemsize)
    size = 0 if self.shares_model else self.itemsize * num_params
    if self.trained == 'lora':
      # Inputs and outputs of the seven kernels of a layer.
      size += _TRAINED_BYTES * self.lora_rank * d.num_layers * (
          7 * d.hidden_size + 3 * d.intermediate_size
          + 2 * d.head_dim * (d.num_heads + d.num_kv_heads))
    return size


@dataclasses.dataclass(frozen=True)
class Pool:
  """Devices, and the policies and critics on them."""

  num_devices: int
  # TPU slices or GPU nodes; `fsdp` and `tensor` stay within one.
  num_slices: int
  learners: Sequence[Learner]


@dataclasses.dataclass(frozen=True)
class Shapes:
  """The largest shapes of a run, in tokens."""

  prompt: int
  completion: int
  group_size: int
  microbatch_tokens: int  # On each shard.
  groups: Sequence[int]  # Possible numbers of concurrent groups, ascending.
  rows: int = 0  # Completions that are sampled together; 0 to choose.

  @property
  def group_tokens(self) -> int:
    return self.prompt + self.group_size * self.completion

  def possible_rows(self, num_groups: int) -> list[int]:
    """Numbers of rows for these groups; the best is first."""
    num_candidates = num_groups * self.group_size
    if self.rows:
      return [min(self.rows, num_candidates)]
    return [num_candidates, -(-num_candidates // 2)]


@dataclasses.dataclass(frozen=True)
class Fit:
  """A mesh and the memory that it needs on a device of the fullest pool."""

  fsdp: int
  tensor: int
  num_groups: int  # Concurrent groups.
  num_rows: int  # Their completions that are sampled together.
  num_bytes: float  # While rollouts are sampled or a gradient is computed.

  def describe(self) -> str:
    return (
        f'mesh.fsdp={self.fsdp}, mesh.tensor={self.tensor} and '
        f'{self.num_groups} concurrent groups with {self.num_rows} completions '
        f'need about {self.num_bytes / _GIB:.1f} GiB per device')


def choose(
    pools: Sequence[Pool], shapes: Shapes, chip: Chip, *, fsdp: int = 0,
    tensor: int = 0) -> Fit:
  """Chooses the sizes that are 0, by the rule above.

  Raises DoesNotFit if no mesh fits.
  """
  num_devices = math.gcd(*(
      pool.num_devices // pool.num_slices for pool in pools))
  learners = [learner for pool in pools for learner in pool.learners]
  num_heads = math.gcd(*(
      learner.dimensions.num_kv_heads for learner in learners))
  tensor = tensor or math.gcd(
      num_devices // (fsdp or 1), num_heads, _preferred_tensor(learners, chip))
  per_tensor = num_devices // tensor
  sizes = [fsdp] if fsdp else [
      size for size in range(1, per_tensor + 1) if per_tensor % size == 0]
  for num_groups in reversed(shapes.groups):
    for num_rows in shapes.possible_rows(num_groups):
      for size in sizes:
        fit = estimate(pools, shapes, size, tensor, num_groups, num_rows)
        if fit.num_bytes <= _MAX_MEMORY_RATIO * chip.memory:
          return fit
  raise DoesNotFit(
      f'The run does not fit: {fit.describe()}, but a device has '
      f'{chip.memory / _GIB:.2f} GiB, of which {_MAX_MEMORY_RATIO:.0%} may be '
      'used. Give more devices, fewer buckets.groups, shorter buckets, a '
      'smaller buckets.microbatch_tokens, adapters (policies=lora_per_role) or '
      'a smaller model.')


def count_params(dimensions: Any) -> int:
  """Parameters of a model, without the scales of its norms."""
  d = dimensions
  attention = 2 * d.hidden_size * d.head_dim * (d.num_heads + d.num_kv_heads)
  layer = attention + 3 * d.hidden_size * d.intermediate_size
  return d.num_layers * layer + (
      d.vocab_size * d.hidden_size * (1 if d.tied_head else 2))


def _preferred_tensor(learners: Sequence[Learner], chip: Chip) -> int:
  """Each decoded token reads all parameters and waits for the collectives."""
  saved = (1 - 1 / _MAX_TENSOR) * sum(
      learner.itemsize * count_params(learner.dimensions)
      for learner in learners if learner.is_sampled) / chip.bandwidth
  latency = _COLLECTIVE_LATENCY * sum(
      2 * learner.dimensions.num_layers + 4
      for learner in learners if learner.is_sampled)
  return _MAX_TENSOR if saved > latency else 1


def estimate(
    pools: Sequence[Pool], shapes: Shapes, fsdp: int, tensor: int,
    num_groups: int, num_rows: int) -> Fit:
  """The memory that a mesh needs on a device of the fullest pool.

  State, keys and values are exact. Intermediate results are those of the
  largest layer.
  """
  num_bytes = 0.0
  for pool in pools:
    num_shards = pool.num_devices // tensor
    groups_per_shard = -(-num_groups // num_shards)
    rows_per_shard = -(-num_rows // num_shards)
    tokens = (
        groups_per_shard * shapes.prompt + rows_per_shard * shapes.completion)
    sampled = [learner for learner in pool.learners if learner.is_sampled]
    state = sum(learner.state_bytes for learner in pool.learners) / (
        fsdp * tensor)
    decoding = sum(
        learner.itemsize * count_params(learner.dimensions)
        + tokens * learner.kv_bytes
        for learner in sampled) / tensor
    sampling = decoding + max((
        _prefill_bytes(learner, groups_per_shard * shapes.prompt, tensor)
        for learner in sampled), default=0.0)
    learning = max(
        _gradient_bytes(learner, shapes, fsdp, tensor)
        for learner in pool.learners)
    num_bytes = max(num_bytes, state + max(sampling, learning))
  return Fit(fsdp, tensor, num_groups, num_rows, num_bytes)


def _prefill_bytes(learner, num_tokens, tensor):
  """Keys and values before they are stored, and activations of a layer."""
  d = learner.dimensions
  return num_tokens * (
      learner.kv_bytes / tensor + learner.itemsize * (
          4 * d.hidden_size + 3 * d.intermediate_size / tensor))


def _gradient_bytes(learner, shapes, fsdp, tensor):
  """The gradient of a microbatch, and its activations."""
  if learner.trained == 'none':
    return 0.0
  d = learner.dimensions
  num_tokens = max(shapes.microbatch_tokens, shapes.group_tokens)
  layer = 4 * num_tokens * (
      4 * d.hidden_size + 3 * d.intermediate_size / tensor)
  saved = learner.itemsize * num_tokens * d.num_layers * d.hidden_size / tensor
  head = 4 * d.vocab_size * d.hidden_size / tensor
  if learner.trained == 'lora':
    return layer + saved + head
  # The head and all parameters have gradients, too.
  return layer + saved + 2 * head + 4 * count_params(d) / (fsdp * tensor)
