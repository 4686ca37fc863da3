"""Between the environments and the sampler: asks and actions, batched.

The only caller of `Environment.step`. Prompts of many episodes are sampled in
one call per model and shape; their candidates are stepped in worker
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import dataclasses
import itertools
import time
import zlib

import jax
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import hosts
from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax import tokenizer as tokenizer_lib
from atgrpo_jax import types
from atgrpo_jax.rl import policy_map as policy_map_lib
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import sampler
from atgrpo_jax.rollout import sampling
from environments import base


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """What is sampled; with `adapters`, for several policies at once."""

  params: model.Params
  config: model.ModelConfig
  tokenizer: tokenizer_lib.Tokenizer
  dtype: str
  mesh: jax.sharding.Mesh
  adapters: model.Adapters | None = None


@dataclasses.dataclass(frozen=True)
class Policy:
  """A model, and which of its adapters."""

  model: Model
  adapter: int = 0


@dataclasses.dataclass(frozen=True)
class Ask:
  """One prompt that wants a group of answers."""

  key: types.GroupKey
  state: base.State


@dataclasses.dataclass(frozen=True)
class Answer:
  """The G answers to one prompt."""

  prompt: np.ndarray  # [S] int32
  completions: tuple[np.ndarray, ...]  # G x [T_g] int32
  logprobs: tuple[np.ndarray, ...]  # G x [T_g] float32
  texts: tuple[str, ...]


@dataclasses.dataclass
class Counters:
  """What an interaction cost; the budget ledger of a run."""

  prompt_tokens: int = 0
  completion_tokens: int = 0
  model_calls: int = 0  # Completions asked for.
  cut_completions: int = 0  # Completions without a stop token.
  environment_steps: int = 0
  infrastructure_failures: int = 0
  sample_seconds: float = 0.0
  environment_seconds: float = 0.0


@dataclasses.dataclass
class Interaction:
  """Plays an environment with a map from roles to policies.

  Attributes:
    environment: the task.
    policy_map: role -> policy.
    policies: policy -> what is sampled for it; policies with one model are
      sampled in one call.
    buckets: static shapes.
    max_new_tokens: longest completion.
    temperature: of the sampler.
    seed: of all sampling.
    executor: steps environments; a pool of processes in a run.
    counters: grow with every call.
  """

  environment: base.Environment
  policy_map: policy_map_lib.PolicyMap
  policies: Mapping[str, Policy]
  buckets: batching.Buckets
  max_new_tokens: int
  temperature: float
  seed: int
  executor: futures.Executor
  counters: Counters = dataclasses.field(default_factory=Counters)

  def ask(
      self, asks: Sequence[Ask], *, step: int,
      group_size: int) -> list[Answer]:
    """Samples `group_size` answers to each ask.

    An answer depends on the seed, the training step, the ask's key and its
    own index, not on the other asks.
    """
    return self.start(asks, step=step, group_size=group_size)()

  def start(
      self, asks: Sequence[Ask], *, step: int,
      group_size: int) -> Callable[[], list[Answer]]:
    """Dispatches `ask`; what is returned waits for the answers."""
    start = time.perf_counter()
    prompts = [
        self._policy(ask.key.role).model.tokenizer.encode_prompt(
            self.environment.observe(ask.state, ask.key.role))
        for ask in asks]
    by_shape = {}
    for index, (ask, prompt) in enumerate(zip(asks, prompts)):
      asked = self._policy(ask.key.role).model
      self._check_length(ask, prompt, asked.config)
      length = batching.bucket(
          len(prompt), self.buckets.prompt, 'prompt length')
      by_shape.setdefault((asked, length), []).append(index)
    started = []
    for (asked, length), indices in by_shape.items():
      largest = self._group_sizes(asked)[-1]
      for first in range(0, len(indices), largest):
        part = indices[first:first + largest]
        started.append((part, self._sample(
            asked, [asks[i].key for i in part], [prompts[i] for i in part],
            length, step, group_size)))
    self.counters.sample_seconds += time.perf_counter() - start

    def finish() -> list[Answer]:
      start = time.perf_counter()
      answers = [None] * len(asks)
      for indices, samples in started:
        samples = jax.device_get(samples)
        for row, index in enumerate(indices):
          asked = self._policy(asks[index].key.role).model
          answers[index] = self._answer(
              asked.tokenizer, prompts[index], samples, row)
      self.counters.sample_seconds += time.perf_counter() - start
      return answers

    return finish

  def apply(
      self, states: Sequence[base.State],
      actions: Sequence[Mapping[str, str]]) -> list[base.Step]:
    """Steps each state with its actions, in worker processes.

    Each process of the run steps its share.
    """
    start = time.perf_counter()
    own = slice(jax.process_index(), None, jax.process_count())
    # Few candidates per message, so that one slow program holds up little.
    shares = hosts.exchange(list(self.executor.map(
        self.environment.step, states[own], actions[own], chunksize=4)))
    steps = [
        step for row in itertools.zip_longest(*shares) for step in row
        if step is not None]
    self.counters.environment_steps += len(steps)
    self.counters.infrastructure_failures += sum(
        base.Outcome.INFRASTRUCTURE in step.outcomes.values()
        for step in steps)
    self.counters.environment_seconds += time.perf_counter() - start
    return steps

  def _group_sizes(self, asked: Model) -> tuple[int, ...]:
    return self.buckets.on(sharding.num_row_parts(asked.mesh)).groups

  def _policy(self, role: str) -> Policy:
    return self.policies[self.policy_map[role]]

  def _sample(
      self, asked: Model, group_keys: Sequence[types.GroupKey],
      prompts: Sequence[np.ndarray], length: int, step: int,
      group_size: int) -> sampler.Samples:
    """One call of the compiled sampler, padded to a bucket of groups."""
    num_rows = batching.bucket(
        len(prompts), self._group_sizes(asked), 'groups in flight')
    padded, lengths = batching.pad_prompts(prompts, num_rows, length)
    ids = np.zeros((num_rows, 5), np.uint32)
    adapter_ids = np.zeros(num_rows, np.int32)
    for row, key in enumerate(group_keys):
      ids[row] = (
          step, zlib.crc32(key.task_id.encode()), key.turn,
          zlib.crc32(key.role.encode()), key.branch)
      adapter_ids[row] = self._policy(key.role).adapter
    spec = sampler.SamplerSpec(
        group_size=group_size, max_new_tokens=self.max_new_tokens,
        temperature=self.temperature, stop_ids=asked.tokenizer.stop_ids,
        dtype=asked.dtype)
    keys = sampling.group_keys(jax.random.key(self.seed), ids)
    active = np.arange(num_rows) < len(prompts)
    padded, lengths, keys, active, adapter_ids = sharding.put_rows(
        (padded, lengths, np.asarray(jax.random.key_data(keys)), active,
         adapter_ids), asked.mesh)
    with jax.set_mesh(asked.mesh):
      return sampler.sample_groups(
          asked.params, padded, lengths, jax.random.wrap_key_data(keys),
          active, adapters=asked.adapters, adapter_ids=adapter_ids,
          config=asked.config, spec=spec)

  def _answer(
      self, tokenizer: tokenizer_lib.Tokenizer, prompt: np.ndarray,
      samples: sampler.Samples, row: int) -> Answer:
    """The answers in one row, which are counted."""
    sizes = samples.lengths[row]
    completions = tuple(
        ids[:size] for ids, size in zip(samples.completions[row], sizes))
    self.counters.prompt_tokens += len(prompt)
    self.counters.completion_tokens += int(sizes.sum())
    self.counters.model_calls += len(completions)
    self.counters.cut_completions += sum(
        ids[-1] not in tokenizer.stop_ids for ids in completions)
    return Answer(
        prompt=prompt, completions=completions,
        logprobs=tuple(
            row[:size] for row, size in zip(samples.logprobs[row], sizes)),
        texts=tuple(map(tokenizer.decode, completions)))

  def _check_length(
      self, ask: Ask, prompt: np.ndarray, config: model.ModelConfig) -> None:
    """Nothing is cut in silence: a prompt that does not fit is an error."""
    limit = min(
        self.buckets.prompt[-1], config.max_positions - self.max_new_tokens)
    if len(prompt) > limit:
      raise errors.UserError(
          f'The prompt of role {ask.key.role!r} in task {ask.key.task_id!r}, '
          f'turn {ask.key.turn + 1}, has {len(prompt)} tokens, but only '
          f'{limit} fit: raise buckets.prompt (its largest is '
          f'{self.buckets.prompt[-1]}) or lower rollout.max_new_tokens '
          f'({self.max_new_tokens} of the {config.max_positions} positions of '
          'the model).')
