"""Our side of the sampling benchmarks, through the engine of a training run.

One policy has all devices; several policies share them equally.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import time
from typing import Any

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from benchmarks import workload


@dataclasses.dataclass(frozen=True)
class Policy:
  """A randomly initialised model on its mesh."""

  params: model.Params
  config: model.ModelConfig
  mesh: jax.sharding.Mesh

  def place(self, tree: Any) -> Any:
    """Shards parameters, or a tree of the same form."""
    return jax.device_put(tree, mesh_lib.tree_shardings(
        tree, self.mesh, mesh_lib.param_rules(self.config.tied_head)))


def make_policies(config: model.ModelConfig, num: int) -> list[Policy]:
  """Policies on disjoint devices, if there are enough."""
  names = [f'policy{i}' for i in range(num)]
  pools = ()
  if each := jax.device_count() // num:
    pools = tuple(
        (name, i * each, (i + 1) * each) for i, name in enumerate(names))
  meshes = mesh_lib.make_meshes(
      names, jax.devices(), mesh_lib.MeshSpec(pools=pools))
  init = jax.jit(model.init_params, static_argnums=1)
  policies = [Policy({}, config, meshes[name]) for name in names]
  return [
      dataclasses.replace(
          policy, params=policy.place(init(jax.random.key(i), config)))
      for i, policy in enumerate(policies)]


def make_engine(
    policy: Policy, prompts: np.ndarray, keys: jax.Array, *, group_size: int,
    budget: int, stop_ids: Sequence[int] = (),
    num_slots: Sequence[int] = ()) -> engine_lib.Engine:
  """An engine with requests for prompts [P, S]; P slots by default."""
  engine = engine_lib.Engine(
      engine_lib.DecodingParams(
          policy.params, policy.mesh, policy.config, 'float32'),
      adapters=None, spec=programs.SamplerSpec(
          group_size=group_size, temperature=1.0, stop_ids=tuple(stop_ids),
          dtype='float32'),
      num_slots=num_slots or (len(prompts),), prompt_length=prompts.shape[1])
  for index, (prompt, key) in enumerate(
      zip(prompts, np.asarray(jax.random.key_data(keys)))):
    engine.add(engine_lib.Request(index, prompt, key, budget))
  return engine


def sample(*args, **kwargs) -> list[engine_lib.SampledGroup]:
  """Samples completions; see `make_engine`."""
  sampled, = engine_lib.drain([make_engine(*args, **kwargs)])
  return sampled


def lengths(sampled: Sequence[engine_lib.SampledGroup]) -> np.ndarray:
  """Lengths [P, G] of the completions."""
  return np.array([
      [len(ids) for ids in group.completions] for group in sampled])


class _Groups:
  """Prompts [P, S] of one load; each engine has new keys."""

  def __init__(self, config: model.ModelConfig, load: workload.Load):
    self._load = load
    self._policy, = make_policies(config, 1)
    self._prompts = workload.prompts(load, config, seed=0)
    self._seeds = itertools.count()

  def _make_engine(self, prompts: np.ndarray) -> engine_lib.Engine:
    ids = np.arange(len(prompts), dtype=np.uint32)[:, None]
    keys = programs.group_keys(jax.random.key(next(self._seeds)), ids)
    return make_engine(
        self._policy, prompts, keys, group_size=self._load.group_size,
        budget=self._load.new_tokens)

  def _drain(self, engine: engine_lib.Engine) -> list[engine_lib.SampledGroup]:
    sampled, = engine_lib.drain([engine])
    assert (lengths(sampled) == self._load.new_tokens).all()
    return sampled


class Sampling(_Groups):
  """Samples one load, with new keys at each call."""

  def __call__(self) -> None:
    self._drain(self._make_engine(self._prompts))


class Turns(_Groups):
  """Samples a load for several turns.

  Each turn appends the first candidate of a group to its prompt. As in
  training, no cache is kept between turns. Padding, environments and tokenizers
  are left out.
  """

  def __init__(
      self, config: model.ModelConfig, load: workload.Load, num_turns: int):
    super().__init__(config, load)
    self._num_turns = num_turns

  def __call__(self) -> None:
    prompts = self._prompts
    for _ in range(self._num_turns):
      sampled = self._drain(self._make_engine(prompts))
      prompts = np.concatenate(
          [prompts, [group.completions[0] for group in sampled]], axis=1)


class Decoding(_Groups):
  """Samples a load and returns the seconds after its first chunk.

  This excludes prefill. Work of the host between chunks and moves of the cache
  are included.
  """

  done = engine_lib.CHUNK  # Untimed tokens of each candidate.

  def __call__(self) -> float:
    engine = self._make_engine(self._prompts)
    engine.dispatch()
    engine.collect()
    assert engine.busy  # Otherwise nothing is left to time.
    start = time.perf_counter()
    self._drain(engine)
    return time.perf_counter() - start


class Stopping:
  """Samples a load that stops after `new_tokens`, with a larger budget.

  All rows share one prompt and one key, so they are equal. The stop id is the
  last token of a completion in which it does not occur earlier.
  """

  def __init__(
      self, config: model.ModelConfig, load: workload.Load, budget: int):
    rows = load.num_prompts * load.group_size
    prompt = workload.prompts(load, config, seed=0)[:1]
    policy, = make_policies(config, 1)
    for seed in itertools.count():
      keys = programs.group_keys(
          jax.random.key(seed), np.zeros((rows, 1), np.uint32))
      self._sample = functools.partial(
          sample, policy, np.repeat(prompt, rows, 0), keys, group_size=1)
      *before, last = self._sample(
          budget=load.new_tokens)[0].completions[0].tolist()
      if last not in before:
        break
    self._budget, self._stop_id, self._length = budget, last, load.new_tokens

  def __call__(self) -> None:
    sampled = self._sample(budget=self._budget, stop_ids=[self._stop_id])
    assert (lengths(sampled) == self._length).all()


class Uneven:
  """Completions of geometric lengths, truncated at the load's `new_tokens`.

  No completion is shorter than `shortest`: each group uses its first key
  without an earlier stop. The geometric distribution is memoryless, so
  `mean_length` is the mean before truncation.
  """

  def __init__(
      self, config: model.ModelConfig, load: workload.Load,
      num_slots: Sequence[int], mean_length: int, shortest: int):
    self._prompts = workload.prompts(load, config, seed=0)
    self._batch_size = num_slots[-1]
    self._sample = functools.partial(
        sample, *make_policies(config, 1), group_size=load.group_size,
        num_slots=num_slots)
    self._stop_ids = range(
        round(config.vocab_size / (mean_length - shortest + 1)))
    self._budget = load.new_tokens
    ids = np.zeros((load.num_prompts, 2), np.uint32)
    ids[:, 0] = np.arange(load.num_prompts)
    early = True
    while np.any(early):
      self._keys = programs.group_keys(jax.random.key(0), ids)
      early = (self.continuous(shortest) < shortest).any(axis=1)
      ids[:, 1] += early
    self.lengths = self.continuous()  # [P, G]

  def continuous(self, budget: int | None = None) -> np.ndarray:
    """Lengths [P, G] with continuous batching."""
    return lengths(self._sample(
        self._prompts, self._keys, budget=budget or self._budget,
        stop_ids=self._stop_ids))

  def lockstep(self) -> None:
    """Decodes all slots until the longest candidate is finished."""
    for first in range(0, len(self._prompts), self._batch_size):
      batch = slice(first, first + self._batch_size)
      self._sample(
          self._prompts[batch], self._keys[batch],
          budget=int(self.lengths[batch].max()))
