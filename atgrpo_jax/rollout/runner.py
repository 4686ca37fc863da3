"""Schedules many episodes at once, on engines and environment workers.

An episode is a coroutine. It yields requests for candidates, environment steps,
or other episodes, and is sent the results. One engine per model and sampler
samples the prompts of all episodes; worker processes step the environments.
`contract` calls the functions of the environments.
"""

import collections
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent import futures
import dataclasses
import functools
import itertools
import math
import time
from typing import Any
import zlib

import jax
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.distributed import hosts
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.io import progress
from atgrpo_jax.io import signals
from atgrpo_jax.learner import batching
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from environments import env_api

# Chunks between two stop checks if there are several processes. A check waits
# for the devices; eight chunks take a few seconds.
_CHUNKS_PER_STOP_CHECK = 8
# At most so many per message to a worker: a slow program delays few others.
_STEPS_PER_BATCH = 4
NUM_KEY_IDS = 2 + len(types.GroupKey._fields)  # With the seed and the step.


@dataclasses.dataclass(frozen=True)
class PendingSamples:
  """Groups that an episode waits for; each is None until it is sampled."""

  groups: list[engine_lib.SampledGroup | None]


@dataclasses.dataclass(frozen=True)
class PendingSteps:
  """Steps that an episode waits for."""

  indices: list[int]  # Of each step among the requests of all episodes.


# Yields requests, receives their results, and returns a result. Episodes that
# are yielded as a list run concurrently.
EpisodeCoroutine = Generator[
    PendingSamples | PendingSteps | list['EpisodeCoroutine'], Any, Any]


@dataclasses.dataclass
class Usage:
  """The cost of a runner's episodes; counts are logged as `budget/...`."""

  prompt_tokens: int = 0  # Counted once for all completions of a prompt.
  completion_tokens: int = 0
  model_calls: int = 0  # Completions.
  cut_completions: int = 0  # See `EpisodeRunner.is_cut`.
  overlong_prompts: int = 0  # Each ended an episode, which is truncated.
  environment_steps: int = 0  # Requested; equal ones are computed once.
  program_runs: int = 0
  infrastructure_failures: int = 0
  # The share of decoded rows that held an unfinished completion.
  rows_at_work: float = 0.0
  sample_seconds: float = 0.0  # Host time for dispatching and waiting.
  environment_seconds: float = 0.0  # Host time waiting for environments.

  def counts(self) -> dict[str, int]:
    return {
        name: value for name, value in dataclasses.asdict(self).items()
        if isinstance(value, int)}


@dataclasses.dataclass
class EpisodeRunner:
  """Plays an environment with a map from roles to policies."""

  environment: env_api.Environment
  policy_map: policies_lib.PolicyMap
  policies: Mapping[str, policies_lib.SamplingPolicy]
  buckets: batching.Buckets
  max_new_tokens: int  # Longest completion, stop token included.
  temperature: float
  seed: int  # Begins every random key, followed by the training step.
  train_step: int
  executor: futures.Executor | workers_lib.Workers  # Steps environments.
  alpha: float = 1.0  # Weight of the team reward in a candidate's reward.
  # If False, the environment reads '' instead of a completion that was cut.
  keep_truncated: bool = True
  step_seconds: float = math.inf  # Of `contract.step_all`.
  top_k: int = 0  # Of `programs.SamplerSpec`.
  top_p: float = 1.0
  stop: Sequence[str] = ()  # Strings that end a completion and belong to it.
  # Policy or role -> its own temperature, top_k, top_p, max_new_tokens or stop.
  per_policy: Mapping[str, Mapping[str, Any]] = dataclasses.field(
      default_factory=dict)
  # True abandons the episodes; checked between chunks.
  is_stopped: Callable[[], bool] = lambda: False
  # Whether the inputs of critics fit; has the arguments of `has_room`.
  critics_fit: Callable[[str, contract.Position, env_api.State], bool] = (
      lambda *_: True)
  usage: Usage = dataclasses.field(default_factory=Usage)
  _engines: dict[tuple, engine_lib.Engine] = dataclasses.field(
      default_factory=dict, init=False)
  # Not yet sent to the workers.
  _step_requests: list[contract.StepRequest] = dataclasses.field(
      default_factory=list, init=False)

  def play(self, episodes: Sequence[EpisodeCoroutine]) -> list[Any]:
    """Plays all episodes to their ends and returns their results.

    While the devices sample a chunk for some episodes, the workers step the
    environments of others. The next chunk waits for both. The duration of
    environment steps therefore changes no bit of the result, and all processes
    of a run sample the same batches.

    Raises Stopped in all processes if `is_stopped` returns True in one.
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

    def describe():
      num_finished = sum(index in results for index in indices)
      return (f'sampling: {num_finished} of {len(indices)} episodes, '
              f'{self.usage.completion_tokens:,} tokens')

    indices = begin(episodes)
    with progress.activity(describe):
      num_chunks = itertools.count()
      while waiting:
        self._check_stopped(next(num_chunks))
        batches = self._start_steps()
        start = time.perf_counter()
        for engine in self._engines.values():
          engine.dispatch()
        self.usage.sample_seconds += time.perf_counter() - start
        steps = self._finish_steps(batches)
        for index, pending in sorted(waiting.items()):
          if isinstance(pending, PendingSteps):
            finished = [steps[i] for i in pending.indices]
            self.usage.infrastructure_failures += sum(
                map(tree_lib.failed, finished))
            resume(index, finished)
        self._collect_samples()
        for index, pending in sorted(waiting.items()):
          if isinstance(pending, PendingSamples) and None not in pending.groups:
            resume(index, pending.groups)
        # Nested episodes, which have larger indices, finish first.
        for index, pending in sorted(waiting.items(), reverse=True):
          if isinstance(pending, range) and results.keys() >= set(pending):
            resume(index, [results.pop(i) for i in pending])
    engines = self._engines.values()
    self.usage.rows_at_work = sum(x.num_at_work for x in engines) / max(
        1, sum(x.num_decoded for x in engines))
    return [results[index] for index in indices]

  def reset(self, task: env_api.Task) -> env_api.State:
    return contract.reset(self.environment, task)

  def observe(
      self, state: env_api.State,
      key: types.GroupKey) -> Sequence[env_api.Message]:
    return contract.observe(
        self.environment, state, key.role, task_id=key.task_id, turn=key.turn,
        seconds=self.step_seconds)

  def check_repeats(
      self, key: types.GroupKey, messages: Sequence[env_api.Message],
      prompt: np.ndarray) -> None:
    """Raises UserError unless messages are those of a sampled prompt [S]."""
    ids = self.policy_of(key.role).tokenizer.encode_prompt(messages)
    if not np.array_equal(ids, prompt):
      raise errors.UserError(
          f'{type(self.environment).__name__}.observe returned different '
          f'messages for the same state, for role {key.role!r} in turn '
          f'{key.turn + 1} of task {key.task_id!r}; draw random numbers in '
          'reset or step, and change no state in observe.')

  def has_room(
      self, task_id: str, position: contract.Position,
      state: env_api.State) -> bool:
    """Whether the prompts of a position fit, and the inputs of critics.

    A prompt that the chat template refuses does not fit.
    """
    def fits(role):
      policy = self.policy_of(role)
      key = types.GroupKey(task_id, role, position.turn, branch=0)
      messages = self.observe(state, key)
      try:  # `sample` finds the prompt in the cache of the tokenizer.
        ids = policy.tokenizer.encode_prompt(messages)
      except errors.TemplateError as error:  # A completion may be the reason.
        if not self.usage.overlong_prompts:
          print(f'warning: an episode of task {task_id!r} ends before turn '
                f'{position.turn + 1} of role {role!r}: {error}')
        return False
      return len(ids) <= policies_lib.prompt_limit(
          self.buckets, self.max_new_tokens, policy.model.config)

    return all(map(
        fits, self.environment.phases[position.phase])) and self.critics_fit(
            task_id, position, state)

  def sample(
      self, states: Mapping[types.GroupKey, env_api.State], *,
      group_size: int) -> PendingSamples:
    """Requests `group_size` candidates for the prompt of each key.

    A candidate is a function of the seed, the training step, the key of its
    group and its index in the group, up to rounding.
    """
    groups = [None] * len(states)
    for index, (key, state) in enumerate(states.items()):
      policy, find_end = self.policy_of(key.role), None
      if self.setting(key.role, 'stop'):
        find_end = functools.partial(self._find_stop, key.role)
      prompt = policy.tokenizer.encode_prompt(self.observe(state, key))
      policies_lib.check_prompt(
          len(prompt), key, buckets=self.buckets,
          max_new_tokens=self.max_new_tokens, config=policy.model.config)
      key_ids = np.array([
          self.seed, self.train_step, zlib.crc32(key.task_id.encode()),
          key.turn, zlib.crc32(key.role.encode()), key.branch], np.uint32)
      self._engine(key.role, group_size).add(engine_lib.Request(
          tag=(groups, index, key.role), prompt=prompt,
          key_ids=key_ids, budget=self.setting(key.role, 'max_new_tokens'),
          adapter=policy.adapter, find_end=find_end))
    return PendingSamples(groups)

  def step_environments(
      self, states: Sequence[env_api.State],
      actions: Sequence[Mapping[str, str]], *, task_id: str,
      turn: int) -> PendingSteps:
    """Steps each state of a task and turn with its actions, in workers.

    Equal actions on one state are stepped once.
    """
    places, indices = {}, []  # `places` has the index of each distinct request.
    for state, texts in zip(states, actions, strict=True):
      key = id(state), *sorted(texts.items())
      if key not in places:
        places[key] = len(self._step_requests)
        self._step_requests.append(
            contract.StepRequest(state, texts, task_id, turn))
      indices.append(places[key])
    self.usage.environment_steps += len(states)
    return PendingSteps(indices)

  def node_rng(self, key: types.GroupKey) -> np.random.Generator:
    """A generator that depends on the seed, step, task, turn and role."""
    return np.random.default_rng([
        self.seed, self.train_step, key.turn,
        zlib.crc32(key.task_id.encode()), zlib.crc32(key.role.encode())])

  def policy_of(self, role: str) -> policies_lib.SamplingPolicy:
    return self.policies[self.policy_map[role]]

  def text_of(self, role: str, completion: np.ndarray) -> str:
    """The text of a role's completion [T] int32 for the environment.

    It begins with `<think>` if the prompt ends with that.
    """
    if not self.keep_truncated and self.is_cut(role, completion):
      return ''
    tokenizer = self.policy_of(role).tokenizer
    return tokenizer.opening + tokenizer.decode(completion)

  def is_cut(self, role: str, completion: np.ndarray) -> bool:
    """Whether a completion [T] int32 ends without a stop token or string."""
    return (
        completion[-1] not in self.policy_of(role).tokenizer.stop_ids
        and not self._find_stop(role, completion, num_new=1))

  def _find_stop(self, role: str, tokens: np.ndarray, num_new: int) -> int:
    """The number of tokens up to a stop string in the new ones, or 0."""
    stop = self.setting(role, 'stop')
    if not stop:
      return 0
    decode = self.policy_of(role).tokenizer.decode
    first_new = len(tokens) - num_new
    # A token has at least one byte.
    longest = max(len(x.encode()) for x in stop)
    tokens = tokens[(start := max(0, first_new - longest)):]

    def has_stop(end):
      text = decode(tokens[:end])
      return any(x in text for x in stop)

    if not has_stop(len(tokens)):
      return 0
    ends = range(first_new - start + 1, len(tokens) + 1)
    return start + next(filter(has_stop, ends))

  def _collect_samples(self) -> None:
    """Waits for the chunks that the devices are computing."""
    start = time.perf_counter()
    for engine in self._engines.values():
      for sampled in engine.collect():
        groups, index, role = sampled.request.tag
        groups[index] = sampled
        self.usage.prompt_tokens += len(sampled.request.prompt)
        self.usage.completion_tokens += sum(map(len, sampled.completions))
        self.usage.model_calls += len(sampled.completions)
        self.usage.cut_completions += sum(
            self.is_cut(role, ids) for ids in sampled.completions)
    self.usage.sample_seconds += time.perf_counter() - start

  def _start_steps(self) -> list[futures.Future | workers_lib.StepBatch | None]:
    """Sends the requested steps to the workers, a few in each message.

    The messages are dealt to the processes of a run in turn; those of other
    processes are None.
    """
    requests, self._step_requests = self._step_requests, []
    num_workers = jax.process_count()
    if isinstance(self.executor, workers_lib.Workers):
      num_workers *= self.executor.num_workers
    # No worker is idle while another has several steps.
    size = max(1, min(_STEPS_PER_BATCH, len(requests) // num_workers))
    step_all = functools.partial(contract.step_all, seconds=self.step_seconds)
    return [
        self.executor.submit(
            step_all, self.environment, requests[first:first + size])
        if i % jax.process_count() == jax.process_index() else None
        for i, first in enumerate(range(0, len(requests), size))]

  def _finish_steps(
      self, batches: Sequence[futures.Future | workers_lib.StepBatch | None],
  ) -> list[env_api.Step]:
    """Waits for environments and exchanges their steps between processes.

    A failure in one process stops every process.
    """
    if not batches:
      return []
    start = time.perf_counter()
    failure, computed = None, {}
    try:
      computed = {
          i: batch.result() for i, batch in enumerate(batches) if batch}
    except (errors.InfrastructureError, signals.Stopped) as error:
      failure = error
    failures, all_computed = zip(*hosts.exchange((failure, computed)))
    for failure in filter(None, failures):
      raise failure
    by_batch = collections.ChainMap(*all_computed)
    steps = [step for i in range(len(batches)) for step in by_batch[i]]
    self.usage.program_runs += sum(step.program_runs for step in steps)
    self.usage.environment_seconds += time.perf_counter() - start
    return steps

  def _check_stopped(self, num_chunks: int) -> None:
    is_due = num_chunks % _CHUNKS_PER_STOP_CHECK == 0
    if (is_due or jax.process_count() == 1) and any(
        hosts.exchange(self.is_stopped())):
      raise signals.Stopped

  def setting(self, role: str, name: str) -> Any:
    """The value of a role, of its policy, or of this runner.

    The name of a policy never means the role of this name.
    """
    own = dict(self.per_policy.get(self.policy_map[role], {}))
    if role not in self.policies:
      own |= self.per_policy.get(role, {})
    return own.get(name, getattr(self, name))

  def _engine(self, role: str, group_size: int) -> engine_lib.Engine:
    """The engine for a role's groups of this size.

    Roles that are sampled in the same way share it.
    """
    policy = self.policy_of(role)
    sampled = policy.model
    spec = programs.SamplerSpec(
        group_size=group_size, stop_ids=policy.tokenizer.stop_ids,
        dtype=sampled.dtype, **{
            name: self.setting(role, name)
            for name in ('temperature', 'top_k', 'top_p')})
    if (sampled, spec) not in self._engines:
      buckets = self.buckets.on(mesh_lib.num_data_shards(sampled.mesh))
      self._engines[sampled, spec] = engine_lib.Engine(
          sampled, spec=spec, prompt_lengths=buckets.prompt,
          num_slots=buckets.groups, num_rows=buckets.rows)
    return self._engines[sampled, spec]


def worker_metrics(
    executor: futures.Executor | workers_lib.Workers) -> dict[str, int]:
  """Restarts and repeated steps of all processes since the last call.

  Empty for an executor of the caller, which restarts nothing.
  """
  if isinstance(executor, futures.Executor):
    return {}
  counts = hosts.exchange(executor.take_counts())
  return {
      f'workers/{name}': sum(count[name] for count in counts)
      for name in counts[0]}
