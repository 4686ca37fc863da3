"""Our side of the benchmarks: the calls that a training run makes."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import itertools

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax import types
from atgrpo_jax.rl import advantages as advantages_lib
from atgrpo_jax.rl import losses
from atgrpo_jax.rl import optimizer
from atgrpo_jax.rl import train_state
from atgrpo_jax.rl import train_step
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import engine as engine_lib
from atgrpo_jax.rollout import sampler
from atgrpo_jax.rollout import sampling
from benchmarks import workload

_LEARNER = train_step.LearnerSpec(
    optimizer=optimizer.OptimizerSpec(learning_rate=1e-6),
    loss=losses.LossSpec())


@functools.partial(jax.jit, static_argnums=1)
def make_params(seed: int, config: model.ModelConfig) -> model.Params:
  return model.init_params(jax.random.key(seed), config)


def make_engine(
    params: model.Params, config: model.ModelConfig, prompts: np.ndarray,
    keys: jax.Array, *, group_size: int, budget: int,
    stop_ids: Sequence[int] = (),
    num_slots: int | None = None) -> engine_lib.Engine:
  """To sample for prompts [P, S], in P slots unless told otherwise."""
  mesh, = sharding.make_meshes(
      ['ours'], jax.devices()[:1], sharding.MeshSpec()).values()
  engine = engine_lib.Engine(
      params, mesh, adapters=None, config=config, spec=sampler.SamplerSpec(
          group_size=group_size, temperature=1.0, stop_ids=tuple(stop_ids)),
      num_slots=(num_slots or len(prompts),), prompt_length=prompts.shape[1])
  for index, (prompt, key) in enumerate(
      zip(prompts, np.asarray(jax.random.key_data(keys)))):
    engine.add(engine_lib.Request(index, prompt, key, budget))
  return engine


def sample(*args, **kwargs) -> list[engine_lib.Sampled]:
  """From prompts to completions; see `make_engine`."""
  sampled, = engine_lib.drain([make_engine(*args, **kwargs)])
  return sampled


def lengths(sampled: Sequence[engine_lib.Sampled]) -> np.ndarray:
  """Tokens of each completion [P, G]."""
  return np.array([[len(ids) for ids in one.completions] for one in sampled])


class Sampling:
  """Samples one load; each call draws other tokens."""

  def __init__(self, config: model.ModelConfig, load: workload.Load):
    self._config, self._load = config, load
    self._params = make_params(0, config)
    self._prompts = workload.prompts(load, config, seed=0)
    self._seeds = itertools.count()

  def __call__(self) -> None:
    ids = np.arange(len(self._prompts), dtype=np.uint32)[:, None]
    keys = sampling.group_keys(jax.random.key(next(self._seeds)), ids)
    sampled = sample(
        self._params, self._config, self._prompts, keys,
        group_size=self._load.group_size, budget=self._load.new_tokens)
    assert (lengths(sampled) == self._load.new_tokens).all()


class Stopping:
  """Samples a load whose rows all stop at its last token, with any budget.

  Rows of one prompt and one key are the same row, so one stop id ends all of
  them at once: the last token of a sample in which it is new.
  """

  def __init__(
      self, config: model.ModelConfig, load: workload.Load, budget: int):
    rows = load.num_prompts * load.group_size
    prompt = workload.prompts(load, config, seed=0)[:1]
    for seed in itertools.count():
      keys = sampling.group_keys(
          jax.random.key(seed), np.zeros((rows, 1), np.uint32))
      self._sample = functools.partial(
          sample, make_params(0, config), config, np.repeat(prompt, rows, 0),
          keys, group_size=1)
      *before, last = self._sample(
          budget=load.new_tokens)[0].completions[0].tolist()
      if last not in before:
        break
    self._budget, self._stop_id, self._length = budget, last, load.new_tokens

  def __call__(self) -> None:
    sampled = self._sample(budget=self._budget, stop_ids=[self._stop_id])
    assert (lengths(sampled) == self._length).all()


class Uneven:
  """Completions of geometric lengths, cut at the load's `new_tokens`.

  With `lockstep` the slots are filled and emptied together, and all rows are
  decoded until the longest ends.
  """

  def __init__(
      self, config: model.ModelConfig, load: workload.Load, num_slots: int,
      mean_length: int, lockstep: bool):
    ids = np.arange(load.num_prompts, dtype=np.uint32)[:, None]
    self._prompts = workload.prompts(load, config, seed=0)
    self._keys = sampling.group_keys(jax.random.key(0), ids)
    self._num_slots = num_slots
    self._sample = functools.partial(
        sample, make_params(0, config), config, group_size=load.group_size,
        num_slots=num_slots)
    self._stop_ids = range(config.vocab_size // mean_length)
    self._budget = load.new_tokens
    self.lengths = lengths(self._sample(
        self._prompts, self._keys, budget=self._budget,
        stop_ids=self._stop_ids))
    self._lockstep = lockstep

  def __call__(self) -> None:
    if not self._lockstep:
      self._sample(
          self._prompts, self._keys, budget=self._budget,
          stop_ids=self._stop_ids)
      return
    for first in range(0, len(self._prompts), self._num_slots):
      batch = slice(first, first + self._num_slots)
      self._sample(
          self._prompts[batch], self._keys[batch],
          budget=int(self.lengths[batch].max()))


class Team:
  """Agents with a model each, which share a reward: sampled, then updated.

  With one agent this is a GRPO step.
  """

  def __init__(self, config: model.ModelConfig, loads: Sequence[workload.Load]):
    self._config, self._loads = config, loads
    self._prompts = [
        workload.prompts(load, config, seed=agent)
        for agent, load in enumerate(loads)]
    self._states = [
        train_state.create(make_params(agent, config), _LEARNER.optimizer)
        for agent in range(len(loads))]
    self._seeds = itertools.count()

  def sample(self) -> list[types.TrainBatch]:
    """The rollout, and from its rewards a batch for each agent."""
    seed = jax.random.key(next(self._seeds))
    engines = []
    for agent, load in enumerate(self._loads):
      ids = np.stack([
          np.arange(load.num_prompts), np.full(load.num_prompts, agent)], 1)
      engines.append(make_engine(
          self._states[agent].params, self._config, self._prompts[agent],
          sampling.group_keys(seed, ids.astype(np.uint32)),
          group_size=load.group_size, budget=load.new_tokens))
    samples = engine_lib.drain(engines)
    # Candidate c of every agent makes joint action c; odd ids are rewarded.
    rewards = np.mean(
        [[[np.mean(ids % 2) for ids in one.completions] for one in own]
         for own in samples], axis=0)
    advantages = advantages_lib.group_advantages(
        rewards.ravel(), np.repeat(np.arange(len(rewards)), rewards.shape[1]),
        np.ones(rewards.size, bool), normaliser='std').reshape(rewards.shape)
    return [
        _make_batch(load, prompts, own, advantages)
        for load, prompts, own in zip(self._loads, self._prompts, samples)]

  def update(self, batches: Sequence[types.TrainBatch]) -> None:
    static = {'config': self._config, 'spec': _LEARNER}
    for agent, batch in enumerate(batches):
      state = self._states[agent]
      sums = train_step.zero_sums(state.params, **static)
      sums = train_step.accumulate(state.params, sums, batch, **static)
      self._states[agent], _, _ = train_step.apply_update(
          state, sums, **static)
    jax.block_until_ready(self._states)

  def step(self) -> None:
    self.update(self.sample())


def _make_batch(load, prompts, samples, advantages):
  groups = [
      batching.TrainGroup(prompt, one.completions, one.logprobs, advantage)
      for prompt, one, advantage in zip(prompts, samples, advantages)]
  batch, = batching.make_batches(groups, batching.Buckets(
      prompt=(load.prompt_length,), completion=(load.new_tokens,),
      groups=(load.num_prompts,), microbatch=load.num_prompts))
  return batch
