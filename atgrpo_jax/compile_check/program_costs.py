"""What a call of each program of a policy takes, at any shape.

Products and bytes are counted in a trace (`work`); what devices send each other
is that of the compiled program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses

import jax
import ml_collections
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.compile_check import calls as calls_lib
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import work
from atgrpo_jax.distributed import chips
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.sampling import engine as engine_lib


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a call takes of each device.

  Attributes:
    flops: of matrix products.
    traffic: bytes that they read and write.
    sent: bytes that go to other devices.
    talks: collectives.
  """

  flops: float = 0.0
  traffic: float = 0.0
  sent: float = 0.0
  talks: float = 0.0

  def __mul__(self, factor: float) -> Cost:
    return Cost(*(factor * x for x in dataclasses.astuple(self)))

  def seconds(self, chip: chips.Chip, talk_seconds: float) -> tuple[float, str]:
    """At least, and what takes them."""
    parts = work.min_seconds(self.flops, self.traffic, self.sent, chip)
    longest = max(parts, key=parts.get)
    return parts[longest] + self.talks * talk_seconds, longest


class Programs:
  """The work of each program of a policy, at any shape."""

  def __init__(
      self, config: ml_collections.ConfigDict, policy: policy_lib.Policy,
      small: Sequence[policy_lib.Policy],
      compiled: Mapping[str, lower.Program]):
    """`policy` and `compiled` as of `whole_step.predict`.

    `small` is the policy with one layer, and with two.
    """
    self._config, self._policy = config, policy
    self._small = [_Traced(config, policy) for policy in small]
    self._whole = _Traced(config, policy)
    self._compiled, self._known = compiled, {}
    self.mesh = policy.mesh
    self.position_bytes = model.position_bytes(
        policy.config, model.cache_dtype(
            config.rollout.kv_cache_dtype, policy.learner.dtype))

  def prepare(self) -> Cost:
    """The parameters are read and written once."""
    return dataclasses.replace(
        self._of_compiled('prepare', 1.0),
        traffic=2 * calls_lib.num_bytes(self._whole.params))

  def prefill(self, *shape: int) -> Cost:
    """Prompts; see `_Traced.prefill`."""
    _, _, num_prompts, length, known, _ = shape
    full = self._config.buckets.groups[-1] * self._config.buckets.prompt[-1]
    return self._count(
        'prefill suffix' if known else 'prefill', _Traced.prefill, shape,
        num_prompts * length / full)

  def decode(self, *shape: int) -> Cost:
    """A whole chunk that reads whole rooms; see `_Traced.decode`."""
    full = self._config.buckets.groups[-1] * self._config.rollout.group_size
    num_rows = shape[2] * mesh_lib.num_data_shards(self.mesh)
    return self._count('decode', _Traced.decode, shape, num_rows / full)

  def gradient(self, *shape: int) -> Cost:
    """A microbatch; see `_Traced.gradient`."""
    return self._count('gradient', _Traced.gradient, shape, 1.0)

  def update(self) -> Cost:
    """Parameters and moments are read and written."""
    return dataclasses.replace(
        self._of_compiled('update', 1.0),
        traffic=2 * calls_lib.num_bytes(self._whole.state))

  def _count(self, name, trace, shape, share):
    """The work of a program; collectives as a share of the largest one.

    What a layer adds is what two layers have more than one, so that a large
    model is traced in no time.
    """
    if (name, shape) not in self._known:
      with jax.set_mesh(self.mesh):
        one, two = (
            np.array(work.count_work(
                call.function.trace(*call.args, **call.kwargs).jaxpr,
                engine_lib.CHUNK))
            for call in (trace(small, *shape) for small in self._small))
      flops, traffic = (
          one + (self._policy.config.num_layers - 1) * (two - one)
      ) / self.mesh.size
      self._known[name, shape] = dataclasses.replace(
          self._of_compiled(name, share), flops=flops, traffic=traffic)
    return self._known[name, shape]

  def _of_compiled(self, name, share):
    """What devices send, if the program was compiled; as often, but less."""
    found = self._compiled.get(f'{name} {self._policy.name}')
    if found is None:
      return Cost()
    return Cost(sent=share * found.num_sent, talks=sum(
        collective.times for collective in found.collectives))


class _Traced:
  """The calls of one policy, to be traced in its mesh."""

  def __init__(
      self, config: ml_collections.ConfigDict, policy: policy_lib.Policy):
    self._config, self._policy = config, policy
    self.state, self._frozen = calls_lib.state_and_frozen_params(policy)
    self.params, self._adapters = calls_lib.sampled_params(
        policy, self.state, self._frozen)

  def prefill(
      self, num_slots: int, prompt_length: int, num_prompts: int, length: int,
      known: int, group_size: int) -> calls_lib.Call:
    sampler = self._sampler(group_size)
    return sampler.prefill(
        sampler.slots(num_slots, prompt_length), None, num_prompts, length,
        known)

  def decode(
      self, num_slots: int, prompt_length: int, num_rows: int, capacity: int,
      group_size: int) -> calls_lib.Call:
    sampler = self._sampler(group_size)
    each = num_slots * group_size // sampler.num_shards
    return sampler.decode(
        sampler.slots(num_slots, prompt_length),
        sampler.rows(sampler.num_shards * num_rows, capacity),
        num_rows if num_rows < each else None)

  def gradient(
      self, length: int, longest: int, group_size: int) -> calls_lib.Call:
    return calls_lib.gradient(
        self._config, self._policy, self.state, self._frozen, length, longest,
        group_size)

  def _sampler(self, group_size):
    return calls_lib.Sampler(
        self._config, self._policy, self.params, self._adapters, group_size)
