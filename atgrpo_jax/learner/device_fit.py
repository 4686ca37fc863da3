"""Which mesh a run fits on, and how many groups at once: an estimate.

Nothing is compiled. Memory is that of parameters, moments, keys and values,
which is exact, and of the largest intermediate results, which follows from the
dimensions; `--mode compile_check` asks the compiler. Of the meshes that fit,
the one that should decode the most tokens a second is taken: each token reads
the parameters and what is alive of keys and values, and where devices share
heads it waits for two collectives a layer.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.distributed import chips
from atgrpo_jax.learner import policy as policy_lib

_COLLECTIVE_SECONDS = 5e-6
# Of the longest prompt and completion; see `python -m benchmarks.reads`.
_SHARE_ALIVE = 0.13
_MOST_TENSOR = 4
# Of the memory; the estimate may be wrong by as much as is left.
_COMFORTABLE = 0.92
_GIB = 2**30


class DoesNotFit(errors.UserError):
  """No mesh has room for the run."""


@dataclasses.dataclass(frozen=True)
class Load:
  """What one policy, or critic, asks of the devices of its pool.

  Attributes:
    config: the model's dimensions.
    num_bytes: that are kept all the time, on all devices together.
    itemsize: bytes of a number in the matrix products.
    position_bytes: of the keys and values of a token.
    trained: 'all', 'lora' or 'none'.
    samples: whether it is sampled; of policies that are sampled together, one.
  """

  config: model.ModelConfig
  num_bytes: int
  itemsize: int
  position_bytes: int
  trained: str
  samples: bool


@dataclasses.dataclass(frozen=True)
class Pool:
  """Devices, and what is on them."""

  size: int
  loads: Sequence[Load]


@dataclasses.dataclass(frozen=True)
class Shapes:
  """The largest shapes of a run.

  Attributes:
    prompt: tokens of a prompt.
    completion: tokens of a completion.
    group_size: candidates of a prompt.
    microbatch_tokens: see `buckets.Buckets`.
  """

  prompt: int
  completion: int
  group_size: int
  microbatch_tokens: int

  @property
  def group_tokens(self) -> int:
    return self.prompt + self.group_size * self.completion


@dataclasses.dataclass(frozen=True)
class Fit:
  """A mesh for each pool, and what it takes of a device of the fullest one.

  Attributes:
    fsdp: size of that axis.
    tensor: size of that axis.
    num_groups: in flight at once.
    sampling: bytes while a rollout is played.
    learning: bytes while a gradient is computed.
    rate: groups of all policies that get a token, each second, at most.
  """

  fsdp: int
  tensor: int
  num_groups: int
  sampling: float
  learning: float
  rate: float

  @property
  def num_bytes(self) -> float:
    return max(self.sampling, self.learning)


def pools_of(
    policies: Sequence[policy_lib.Policy],
    critics: Sequence[policy_lib.Policy], keeps_start: bool,
    cache_dtype: Callable[[str], jnp.dtype]) -> list[Pool]:
  """The pools of a run.

  Args:
    policies: of the run, on meshes of any shape.
    critics: of the run.
    keeps_start: whether the model that training starts from stays, for a
      penalty or the diagnosis.
    cache_dtype: of keys and values, of the dtype of a model.
  """
  loads, seen = collections.defaultdict(list), set()
  for policy in policies:
    itemsize = jnp.dtype(policy.learner.dtype).itemsize
    is_new, keeps_whole = True, keeps_start
    if policy.trained != 'all':  # One frozen model may be under several.
      frozen = policy.pretrained.folder, itemsize, policy.mesh
      is_new = keeps_whole = frozen not in seen
      seen.add(frozen)
    num_bytes = keeps_whole * itemsize * num_params(policy.config)
    if policy.trained != 'none':
      num_bytes += _num_bytes(policy.state_template())
    loads[policy.mesh].append(Load(
        policy.config, num_bytes, itemsize, model.position_bytes(
            policy.config, cache_dtype(policy.learner.dtype)),
        policy.trained, is_new))
  for critic in critics:
    loads[critic.mesh].append(Load(
        critic.config, _num_bytes(critic.state_template()),
        jnp.dtype(critic.learner.dtype).itemsize, 0,
        'all', samples=False))
  return [Pool(mesh.size, own) for mesh, own in loads.items()]


def choose(
    pools: Sequence[Pool], shapes: Shapes, groups: Sequence[int],
    chip: chips.Chip, *, num_slices: int = 1, fsdp: int = 0,
    tensor: int = 0) -> Fit:
  """The best mesh that fits.

  Args:
    pools: of the run.
    shapes: of the run.
    groups: numbers of groups at once, of which one is taken.
    chip: each of the devices.
    num_slices: that each pool lies on; `fsdp` and `tensor` stay within one.
    fsdp: size of that axis; 0 for any.
    tensor: the same.

  Raises:
    DoesNotFit: there is no such mesh.
  """
  fits = list(_fits(
      pools, shapes, groups, chip, num_slices=num_slices, fsdp=fsdp,
      tensor=tensor))
  if not fits:
    raise errors.UserError(
        'No mesh of mesh.fsdp={} and mesh.tensor={} divides '.format(
            fsdp or 'any size', tensor or 'any size')
        + f'{_devices(pools)} and their heads; give 0 for both to have them '
        'chosen.')
  found = [
      fit for fit in fits if fit.num_bytes <= _COMFORTABLE * chip.memory]
  if found:
    return max(found, key=lambda fit: (fit.rate, -fit.tensor, -fit.fsdp))
  least = min(fits, key=lambda fit: fit.num_bytes)
  if least.num_bytes <= chip.memory:
    return least
  raise DoesNotFit(
      f'The run does not fit {_devices(pools)} of '
      f'{chip.memory / _GIB:.2f} GiB: with mesh.fsdp={least.fsdp}, '
      f'mesh.tensor={least.tensor} and {least.num_groups} groups at once it '
      f'takes about {least.num_bytes / _GIB:.2f} GiB of each, '
      + ('for sampling' if least.sampling >= least.learning
         else 'for a gradient')
      + '. ' + _nearest(
          pools, shapes, groups, chip, num_slices,
          is_given=bool(fsdp or tensor)))


def describe(fit: Fit, groups: Sequence[int], chip: chips.Chip) -> str:
  """What was chosen, and why, in a sentence."""
  more = [size for size in groups if size > fit.num_groups]
  return (
      f'mesh.fsdp={fit.fsdp} and mesh.tensor={fit.tensor}: of the '
      f'{chip.memory / _GIB:.2f} GiB of a device sampling takes about '
      f'{fit.sampling / _GIB:.1f} and a gradient {fit.learning / _GIB:.1f}, '
      f'with {fit.num_groups} groups at once'
      + (f' (buckets.groups={more} would take too much)' if more else ''))


def num_params(config: model.ModelConfig) -> int:
  """Of a model, but for the scales of its norms."""
  c = config
  attention = c.hidden_size * c.head_dim * 2 * (c.num_heads + c.num_kv_heads)
  layer = attention + 3 * c.hidden_size * c.intermediate_size
  embeddings = c.vocab_size * c.hidden_size * (1 if c.tied_head else 2)
  return c.num_layers * layer + embeddings


def _num_bytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _fits(pools, shapes, groups, chip, *, num_slices=1, fsdp=0, tensor=0):
  """Every mesh, fitting or not."""
  each = math.gcd(*(pool.size // num_slices for pool in pools))
  heads = math.gcd(*(
      load.config.num_kv_heads for pool in pools for load in pool.loads))
  for f, t in itertools.product(_powers(each), _powers(each)):
    if (each % (f * t) or heads % t or fsdp not in (0, f)
        or tensor not in (0, t) or t > max(_MOST_TENSOR, tensor)):
      continue
    for num_groups in groups:
      yield _fit(pools, shapes, chip, f, t, num_groups)


def _powers(size: int) -> Iterator[int]:
  """1, 2, 4 and so on, up to `size`; and `size`."""
  yield from sorted({*(2**i for i in range(size.bit_length())), size})


def _fit(
    pools: Sequence[Pool], shapes: Shapes, chip: chips.Chip, fsdp: int,
    tensor: int, num_groups: int) -> Fit:
  """What a mesh takes of the devices of the fullest pool."""
  sampling = learning = seconds = 0.0
  for pool in pools:
    groups = -(-num_groups // (pool.size // tensor))  # Of each shard.
    kept = sum(load.num_bytes for load in pool.loads) / (fsdp * tensor)
    sampled = [load for load in pool.loads if load.samples]
    read = [
        load.itemsize * num_params(load.config) / tensor for load in sampled]
    caches = [
        groups * shapes.group_tokens * load.position_bytes / tensor
        for load in sampled]
    sampling = max(sampling, kept + sum(read) + sum(caches) + max(
        (_prefilled(load, groups * shapes.prompt, tensor)
         for load in sampled), default=0.0))
    learning = max(learning, kept + max(
        _gradient(load, shapes, fsdp, tensor) for load in pool.loads))
    seconds = max(seconds, sum(
        (params + _SHARE_ALIVE * cache) / chip.bandwidth + (
            (2 * load.config.num_layers + 4) * _COLLECTIVE_SECONDS
            if tensor > 1 else 0.0)
        for load, params, cache in zip(sampled, read, caches)))
  num_sampled = sum(load.samples for pool in pools for load in pool.loads)
  return Fit(
      fsdp, tensor, num_groups, sampling, learning,
      num_sampled * num_groups / seconds)


def _prefilled(load, num_tokens, tensor):
  """What prefilling so many tokens takes of a device.

  Keys and values, before they are put to the others, and what a layer hands on.
  """
  c = load.config
  return num_tokens * (
      load.position_bytes / tensor + load.itemsize * (
          4 * c.hidden_size + 3 * c.intermediate_size / tensor))


def _gradient(load, shapes, fsdp, tensor):
  """The gradient of a microbatch, and its intermediate results."""
  if load.trained == 'none':
    return 0.0
  c = load.config
  num_tokens = max(shapes.microbatch_tokens, shapes.group_tokens)
  layer = 4 * num_tokens * (
      4 * c.hidden_size + 3 * c.intermediate_size / tensor)
  kept = load.itemsize * num_tokens * c.num_layers * c.hidden_size / tensor
  head = 4 * c.vocab_size * c.hidden_size / tensor
  if load.trained == 'lora':
    return layer + kept + head
  # The head has a gradient, too, and all parameters have.
  return layer + kept + 2 * head + 4 * num_params(c) / (fsdp * tensor)


def _devices(pools):
  sizes = [str(pool.size) for pool in pools]
  return (f'{sizes[0]} device{"s" * (pools[0].size > 1)}' if len(sizes) == 1
          else f'pools of {", ".join(sizes)} devices')


def _nearest(pools, shapes, groups, chip, num_slices, is_given) -> str:
  """Another mesh or the smallest larger pools that would do, or that none do.

  `is_given`: whether the config names the mesh that does not fit.
  """
  less = ('fewer buckets.groups, shorter buckets or a smaller '
          'buckets.microbatch_tokens')
  for factor in (1, 2, 4, 8, 16, 32, 64)[not is_given:]:
    larger = [dataclasses.replace(x, size=factor * x.size) for x in pools]
    found = [
        fit for fit in _fits(
            larger, shapes, groups, chip, num_slices=num_slices)
        if fit.num_bytes <= chip.memory]
    if found:
      fit = min(found, key=lambda fit: fit.num_bytes)
      return (
          f'It would fit {_devices(larger)} with mesh.fsdp={fit.fsdp} and '
          f'mesh.tensor={fit.tensor}, which takes about '
          f'{fit.num_bytes / _GIB:.2f} GiB of each; or give {less}, adapters '
          '(policies=lora_per_role) or a smaller model.')
  return f'Up to {factor} times as many would not do: give {less}.'
