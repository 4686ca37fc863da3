"""Between the environments and the sampler: asks and actions, batched.

The only caller of `Environment.step`. Prompts of many episodes are sampled in
one call per policy and shape; their candidates are stepped in worker
processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent import futures
import dataclasses
import time
import zlib

import jax
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import tokenizer as tokenizer_lib
from atgrpo_jax import types
from atgrpo_jax.rl import policy_map as policy_map_lib
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import sampler
from atgrpo_jax.rollout import sampling
from environments import base


@dataclasses.dataclass(frozen=True)
class Policy:
  """What is sampled for one policy."""

  params: model.Params
  config: model.ModelConfig
  tokenizer: tokenizer_lib.Tokenizer
  dtype: str


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
    policies: policy -> what is sampled for it.
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
    start = time.perf_counter()
    prompts = []
    for ask in asks:
      policy = self.policies[self.policy_map[ask.key.role]]
      prompts.append(policy.tokenizer.encode_prompt(
          self.environment.observe(ask.state, ask.key.role)))
    by_shape = {}
    for index, (ask, prompt) in enumerate(zip(asks, prompts)):
      name = self.policy_map[ask.key.role]
      self._check_length(ask, prompt, self.policies[name].config)
      length = batching.bucket(
          len(prompt), self.buckets.prompt, 'prompt length')
      by_shape.setdefault((name, length), []).append(index)
    answers = [None] * len(asks)
    largest = self.buckets.groups[-1]
    for (name, length), indices in by_shape.items():
      for first in range(0, len(indices), largest):
        part = indices[first:first + largest]
        sampled = self._sample(
            self.policies[name], [asks[i].key for i in part],
            [prompts[i] for i in part], length, step, group_size)
        for index, answer in zip(part, sampled):
          answers[index] = answer
    self.counters.sample_seconds += time.perf_counter() - start
    return answers

  def apply(
      self, states: Sequence[base.State],
      actions: Sequence[Mapping[str, str]]) -> list[base.Step]:
    """Steps each state with its actions, in worker processes."""
    start = time.perf_counter()
    # Few candidates per message, so that one slow program holds up little.
    steps = list(self.executor.map(
        self.environment.step, states, actions, chunksize=4))
    self.counters.environment_steps += len(steps)
    self.counters.infrastructure_failures += sum(
        base.Outcome.INFRASTRUCTURE in step.outcomes.values()
        for step in steps)
    self.counters.environment_seconds += time.perf_counter() - start
    return steps

  def _sample(
      self, policy: Policy, keys: Sequence[types.GroupKey],
      prompts: Sequence[np.ndarray], length: int, step: int,
      group_size: int) -> list[Answer]:
    """One call of the compiled sampler, padded to a bucket of groups."""
    num_rows = batching.bucket(
        len(prompts), self.buckets.groups, 'groups in flight')
    padded, lengths = batching.pad_prompts(prompts, num_rows, length)
    ids = np.zeros((num_rows, 5), np.uint32)
    for row, key in enumerate(keys):
      ids[row] = (
          step, zlib.crc32(key.task_id.encode()), key.turn,
          zlib.crc32(key.role.encode()), key.branch)
    spec = sampler.SamplerSpec(
        group_size=group_size, max_new_tokens=self.max_new_tokens,
        temperature=self.temperature, stop_ids=policy.tokenizer.stop_ids,
        dtype=policy.dtype)
    samples = jax.device_get(sampler.sample_groups(
        policy.params, padded, lengths,
        sampling.group_keys(jax.random.key(self.seed), ids),
        np.arange(num_rows) < len(prompts), config=policy.config, spec=spec))

    answers = []
    for row, prompt in enumerate(prompts):
      sizes = samples.lengths[row]
      completions = tuple(
          samples.completions[row, g, :sizes[g]] for g in range(group_size))
      answers.append(Answer(
          prompt=prompt, completions=completions,
          logprobs=tuple(
              samples.logprobs[row, g, :sizes[g]] for g in range(group_size)),
          texts=tuple(map(policy.tokenizer.decode, completions))))
      self.counters.prompt_tokens += len(prompt)
      self.counters.completion_tokens += int(sizes.sum())
      self.counters.model_calls += group_size
      self.counters.cut_completions += sum(
          ids[-1] not in spec.stop_ids for ids in completions)
    return answers

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
