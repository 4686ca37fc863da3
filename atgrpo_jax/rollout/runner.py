"""Runs many episodes at once, between the engines and the environments.

An episode is a coroutine: it yields what it waits for, samples of a policy,
steps of its environment or a list of other episodes, and is sent the result.
Prompts of many episodes are sampled by one engine for each model and shape;
candidates are stepped in worker processes. The only caller of
`Environment.step`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent import futures
import dataclasses
import itertools
import time
from typing import Any
import zlib

import jax
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import hosts
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.io import signals
from atgrpo_jax.learner import batching
from atgrpo_jax.rollout import policy_map as policy_map_lib
from atgrpo_jax.rollout import prompt_limits
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.sampling import categorical
from atgrpo_jax.sampling import decoding_params
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from environments import env_api

# Chunks between two looks whether another process is stopped: it must be asked,
# and waits for its devices. Seconds, as a chunk is 16 tokens.
_CHUNKS_TO_LOOK = 8


@dataclasses.dataclass(frozen=True, eq=False)
class SampledModel:
  """What is sampled; with `adapters`, for several policies at once."""

  params: model.Params
  config: model.ModelConfig
  dtype: str
  mesh: jax.sharding.Mesh
  adapters: model.Adapters | None = None


@dataclasses.dataclass(frozen=True)
class SamplingPolicy:
  """A model, how it is prompted, and which of its adapters."""

  model: SampledModel
  tokenizer: tokenizer_lib.Tokenizer
  adapter: int = 0


@dataclasses.dataclass(frozen=True)
class SampleRequest:
  """One prompt that wants a group of samples."""

  key: types.GroupKey
  state: env_api.State


@dataclasses.dataclass(frozen=True)
class PendingSamples:
  """Groups that an episode waits for; None until they are there."""

  groups: list[engine_lib.SampledGroup | None]


@dataclasses.dataclass(frozen=True)
class PendingSteps:
  """Steps that an episode waits for, a few in each part."""

  # None where another process takes them.
  parts: list[futures.Future | workers_lib.Call | None]
  # Of each step that was asked for: its index among those of the parts.
  indices: list[int]


# Yields what it waits for, is sent its result, and returns what it likes.
# Episodes that it waits for run beside each other.
EpisodeCoroutine = Generator[
    PendingSamples | PendingSteps | list['EpisodeCoroutine'], Any, Any]


@dataclasses.dataclass
class Counters:
  """What the episodes of a runner cost; the budget ledger of a run."""

  prompt_tokens: int = 0  # A prompt counts once for all its completions.
  completion_tokens: int = 0
  model_calls: int = 0  # Completions asked for.
  cut_completions: int = 0  # Completions without a stop token.
  environment_steps: int = 0  # Asked for; equal ones are made once.
  program_runs: int = 0
  infrastructure_failures: int = 0
  sample_seconds: float = 0.0  # That the host gave to, or waited for, devices.
  environment_seconds: float = 0.0  # That it waited for environments.

  def metrics(self) -> dict[str, int]:
    """The ledger with the names of the log."""
    return {f'budget/{name}': count for name, count in self.ledger().items()}

  def ledger(self) -> dict[str, int]:
    """All but the seconds."""
    return {
        name: count for name, count in dataclasses.asdict(self).items()
        if not name.endswith('_seconds')}

  def seconds(self) -> dict[str, float]:
    """What took them -> seconds."""
    return {
        'sample': self.sample_seconds, 'environment': self.environment_seconds}


@dataclasses.dataclass
class EpisodeRunner:
  """Plays an environment with a map from roles to policies.

  Attributes:
    environment: the task.
    policy_map: role -> policy.
    policies: policy -> what is sampled for it; policies with one model are
      sampled together.
    buckets: static shapes.
    max_new_tokens: longest completion.
    temperature: of the sampler.
    seed: of all sampling.
    train_step: the training step that the policies come from.
    executor: steps environments; in a run `workers.Workers`.
    alpha: weight of the team reward in a candidate's reward.
    kv_cache_dtype: see `programs.SamplerSpec`.
    reads_cut: whether the environment reads an answer that did not end within
      `max_new_tokens`; else it is given an empty one.
    is_stopped: whether to drop what is played; asked before every chunk.
    device_of: what computes for the engine of a model; see `Engine`.
    counters: grow with every call.
  """

  environment: env_api.Environment
  policy_map: policy_map_lib.PolicyMap
  policies: Mapping[str, SamplingPolicy]
  buckets: batching.Buckets
  max_new_tokens: int
  temperature: float
  seed: int
  train_step: int
  executor: futures.Executor | workers_lib.Workers
  alpha: float = 1.0
  kv_cache_dtype: str = 'auto'
  reads_cut: bool = True
  is_stopped: Callable[[], bool] = lambda: False
  device_of: Callable[[SampledModel], Any] = lambda model: programs
  counters: Counters = dataclasses.field(default_factory=Counters)
  _engines: dict[
      tuple[SampledModel, tuple[int, ...], int, int],
      engine_lib.Engine] = dataclasses.field(default_factory=dict, init=False)
  _decoding_params: dict[SampledModel, decoding_params.DecodingParams] = (
      dataclasses.field(default_factory=dict, init=False))
  _requests: list[tuple[engine_lib.Engine, np.ndarray, engine_lib.Request]] = (
      dataclasses.field(default_factory=list, init=False))
  _next_process: int = dataclasses.field(default=0, init=False)

  def play(self, episodes: Sequence[EpisodeCoroutine]) -> list[Any]:
    """Plays all episodes to their ends and returns what they return.

    While the devices sample a chunk for some episodes, the worker processes
    step the environments of others. Both are waited for before the next chunk,
    so what is computed together, and thus each bit of it, is the same whatever
    time a program takes, and in every process of a run.

    Raises Stopped in all processes when `is_stopped` says so in one.
    """
    started, results, waiting = [], {}, {}

    def begin(episodes):
      indices = range(len(started), len(started) + len(episodes))
      started.extend(episodes)
      for index in indices:
        resume(index, None)
      return indices

    def resume(index, value):
      try:
        pending = started[index].send(value)
      except StopIteration as end:
        results[index] = end.value
        waiting.pop(index, None)
      else:
        waiting[index] = (
            begin(pending) if isinstance(pending, list) else pending)

    indices, num_chunks = begin(episodes), itertools.count()
    while waiting:
      self._check_stopped(next(num_chunks))
      start = time.perf_counter()
      self._submit_requests()
      for engine in self._engines.values():
        engine.dispatch()
      self.counters.sample_seconds += time.perf_counter() - start
      steps = {
          index: pending for index, pending in sorted(waiting.items())
          if isinstance(pending, PendingSteps)}
      for index, finished in zip(steps, self._finish_steps(steps.values())):
        resume(index, finished)
      self._collect_samples()
      for index, pending in sorted(waiting.items()):
        if isinstance(pending, PendingSamples) and None not in pending.groups:
          resume(index, pending.groups)
      # Who was started later ends first.
      for index, pending in sorted(waiting.items(), reverse=True):
        if isinstance(pending, range) and results.keys() >= set(pending):
          resume(index, [results.pop(i) for i in pending])
    return [results[index] for index in indices]

  def sample(
      self, requests: Sequence[SampleRequest], *,
      group_size: int) -> PendingSamples:
    """Asks for `group_size` candidates of each prompt.

    A candidate depends on the seed, the training step, the group's key and its
    own index, not on other requests.
    """
    prompts = [
        self.policy_of(request.key.role).tokenizer.encode_prompt(
            self.environment.observe(request.state, request.key.role))
        for request in requests]
    for request, prompt in zip(requests, prompts):
      self._limits(request.key.role).check(len(prompt), request.key)
    groups = [None] * len(requests)
    for index, (request, prompt) in enumerate(zip(requests, prompts)):
      key = request.key
      policy = self.policy_of(key.role)
      counters = np.array([
          self.train_step, zlib.crc32(key.task_id.encode()), key.turn,
          zlib.crc32(key.role.encode()), key.branch], np.uint32)
      engine = self.engine(policy, len(prompt), group_size)
      self._requests.append((engine, counters, engine_lib.Request(
          tag=(groups, index, policy.tokenizer), prompt=prompt, key=None,
          budget=self.max_new_tokens, adapter=policy.adapter, role=key.role)))
    return PendingSamples(groups)

  def step_environments(
      self, states: Sequence[env_api.State],
      actions: Sequence[Mapping[str, str]]) -> PendingSteps:
    """Steps each state with its actions, in worker processes.

    What candidates do alike is done once, as a step is a function of its state
    and actions. The processes of a run take turns.
    """
    keys = [
        (id(state), *sorted(texts.items()))
        for state, texts in zip(states, actions)]
    distinct = dict(zip(keys, zip(states, actions)))
    parts = []
    # Few candidates per message, so that one slow program holds up little.
    for first in range(0, len(distinct), 4):
      few = zip(*list(distinct.values())[first:first + 4])
      parts.append(
          self.executor.submit(
              env_api.step_all, self.environment, *map(list, few))
          if self._next_process == jax.process_index() else None)
      self._next_process = (self._next_process + 1) % jax.process_count()
    self.counters.environment_steps += len(states)
    return PendingSteps(parts, list(map(list(distinct).index, keys)))

  def policy_of(self, role: str) -> SamplingPolicy:
    return self.policies[self.policy_map[role]]

  def text_of(self, role: str, completion: np.ndarray) -> str:
    """What the environment reads of a completion [T] int32 of the role."""
    tokenizer = self.policy_of(role).tokenizer
    if not self.reads_cut and completion[-1] not in tokenizer.stop_ids:
      return ''
    return tokenizer.decode(completion)

  def _collect_samples(self) -> None:
    """Waits for the chunks that the devices are at."""
    start = time.perf_counter()
    for engine in self._engines.values():
      for sampled in engine.collect():
        groups, index, tokenizer = sampled.request.tag
        groups[index] = sampled
        self._count(sampled, tokenizer.stop_ids)
    self.counters.sample_seconds += time.perf_counter() - start

  def _finish_steps(
      self, pending: Collection[PendingSteps]) -> list[list[env_api.Step]]:
    """Waits for environments; the processes exchange what they have stepped.

    What fails in one of them stops all.
    """
    if not pending:
      return []
    start = time.perf_counter()
    problem, share, is_stopped = '', None, False
    try:
      share = [
          {index: part.result()
           for index, part in enumerate(steps.parts) if part}
          for steps in pending]
    except env_api.ContractError as error:
      raise errors.UserError(str(error)) from error
    except errors.InfrastructureError as error:
      problem = str(error)
    except signals.Stopped:
      is_stopped = True
    problems, shares, stopped = zip(*hosts.exchange(
        (problem, share, is_stopped)))
    if any(stopped):
      raise signals.Stopped
    if any(problems):
      raise errors.InfrastructureError(max(problems))
    finished = []
    for number, steps in enumerate(pending):
      parts = {}
      for share in shares:
        parts |= share[number]
      distinct = [
          _with_outcome(step)
          for index in range(len(steps.parts)) for step in parts[index]]
      self.counters.program_runs += sum(
          step.program_runs for step in distinct)
      finished.append([distinct[index] for index in steps.indices])
    self.counters.infrastructure_failures += sum(
        env_api.Outcome.INFRASTRUCTURE in step.outcomes.values()
        for steps in finished for step in steps)
    self.counters.environment_seconds += time.perf_counter() - start
    return finished

  def _check_stopped(self, num_chunks: int) -> None:
    is_time = jax.process_count() == 1 or num_chunks % _CHUNKS_TO_LOOK == 0
    if is_time and hosts.any_process(self.is_stopped()):
      raise signals.Stopped

  def engine(
      self, policy: SamplingPolicy, length: int,
      group_size: int) -> engine_lib.Engine:
    """The one that samples prompts of a length for groups of a size."""
    length = batching.bucket(length, self.buckets.prompt, 'prompt length')
    sampled, stop_ids = policy.model, policy.tokenizer.stop_ids
    key = sampled, stop_ids, length, group_size
    if key not in self._engines:
      if sampled not in self._decoding_params:
        self._decoding_params[sampled] = decoding_params.DecodingParams(
            sampled.params, sampled.mesh, sampled.config, sampled.dtype)
      spec = programs.SamplerSpec(
          group_size=group_size, temperature=self.temperature,
          stop_ids=stop_ids, dtype=sampled.dtype,
          kv_cache_dtype=self.kv_cache_dtype)
      self._engines[key] = engine_lib.Engine(
          self._decoding_params[sampled], adapters=sampled.adapters,
          spec=spec, prompt_length=length, device=self.device_of(sampled),
          num_slots=self.buckets.on(
              mesh_lib.num_data_shards(sampled.mesh)).groups)
    return self._engines[key]

  def _submit_requests(self) -> None:
    """Gives the engines what was asked since their last chunk.

    Not before: the keys come from a device, which would be waited for while it
    computes a chunk.
    """
    if not self._requests:
      return
    # Of few shapes, each of which is compiled.
    counters = np.zeros((2**len(self._requests).bit_length(), 5), np.uint32)
    counters[:len(self._requests)] = [row for _, row, _ in self._requests]
    keys = np.asarray(jax.random.key_data(
        categorical.group_keys(jax.random.key(self.seed), counters)))
    for (engine, _, request), key in zip(self._requests, keys):
      engine.add(dataclasses.replace(request, key=key))
    self._requests.clear()

  def _count(
      self, sampled: engine_lib.SampledGroup, stop_ids: Sequence[int]) -> None:
    self.counters.prompt_tokens += len(sampled.request.prompt)
    self.counters.completion_tokens += sum(map(len, sampled.completions))
    self.counters.model_calls += len(sampled.completions)
    self.counters.cut_completions += sum(
        ids[-1] not in stop_ids for ids in sampled.completions)

  def _limits(self, role: str) -> prompt_limits.Limits:
    return prompt_limits.Limits(
        self.buckets.prompt[-1], self.max_new_tokens,
        self.policy_of(role).model.config.max_positions)


def worker_metrics(workers: workers_lib.Workers) -> dict[str, int]:
  """Restarts and repeated steps of all processes since the last call."""
  counts = hosts.exchange(workers.take_counts())
  return {
      f'workers/{name}': sum(count[name] for count in counts)
      for name in counts[0]}


def _with_outcome(step: env_api.Step) -> env_api.Step:
  """A step whose reward is not known says so to all who acted."""
  failure = env_api.Outcome.INFRASTRUCTURE
  if failure in step.outcomes.values() or not tree_lib.failed(step):
    return step
  return dataclasses.replace(
      step, outcomes=dict.fromkeys(step.outcomes, failure))
