"""Between the episodes, the engines and the environments.

An episode is a generator: it yields what it waits for, answers of a policy,
steps of its environment or a list of other episodes, and is sent the result.
Prompts of many episodes are sampled by one engine for each model and shape;
candidates are stepped in worker processes. The only caller of
`Environment.step`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from concurrent import futures
import dataclasses
import time
from typing import Any
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
from atgrpo_jax.rollout import engine as engine_lib
from atgrpo_jax.rollout import sampler
from atgrpo_jax.rollout import sampling
from environments import base


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """What is sampled; with `adapters`, for several policies at once."""

  params: model.Params
  config: model.ModelConfig
  dtype: str
  mesh: jax.sharding.Mesh
  adapters: model.Adapters | None = None


@dataclasses.dataclass(frozen=True)
class Policy:
  """A model, how it is prompted, and which of its adapters."""

  model: Model
  tokenizer: tokenizer_lib.Tokenizer
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


@dataclasses.dataclass(frozen=True)
class Asked:
  """Answers that an episode waits for; None until they are there."""

  answers: list[Answer | None]


@dataclasses.dataclass(frozen=True)
class Acted:
  """Steps that an episode waits for, a few in each part."""

  parts: list[futures.Future | None]  # None where another process takes them.


# Yields what it waits for, is sent its result, and returns what it likes.
# Episodes that one waits for run beside each other.
Episode = Generator[Asked | Acted | list['Episode'], Any, Any]


@dataclasses.dataclass
class Counters:
  """What an interaction cost; the budget ledger of a run."""

  prompt_tokens: int = 0  # A prompt counts once for all its completions.
  completion_tokens: int = 0
  model_calls: int = 0  # Completions asked for.
  cut_completions: int = 0  # Completions without a stop token.
  environment_steps: int = 0
  program_runs: int = 0
  infrastructure_failures: int = 0
  sample_seconds: float = 0.0  # That the host gave to, or waited for, devices.
  environment_seconds: float = 0.0  # That it waited for environments.

  def ledger(self) -> dict[str, int]:
    """All but the seconds."""
    return {
        name: count for name, count in dataclasses.asdict(self).items()
        if not name.endswith('_seconds')}


@dataclasses.dataclass
class Interaction:
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
  _engines: dict[
      tuple[Model, tuple[int, ...], int, int], engine_lib.Engine] = (
          dataclasses.field(default_factory=dict, init=False))
  _asked: list[tuple[engine_lib.Engine, np.ndarray, engine_lib.Request]] = (
      dataclasses.field(default_factory=list, init=False))
  _turn: int = dataclasses.field(default=0, init=False)

  def play(self, episodes: Sequence[Episode]) -> list[Any]:
    """Plays all episodes to their ends and returns what they return.

    While the devices sample a chunk for some episodes, the worker processes
    step the environments of others. Both are waited for before the next chunk,
    so what is computed together, and thus each bit of it, is the same whatever
    time a program takes, and in every process of a run.
    """
    started, results, waiting = [], {}, {}

    def begin(episodes):
      numbers = range(len(started), len(started) + len(episodes))
      started.extend(episodes)
      for index in numbers:
        go_on(index, None)
      return numbers

    def go_on(index, value):
      try:
        one = started[index].send(value)
      except StopIteration as end:
        results[index] = end.value
        waiting.pop(index, None)
      else:
        waiting[index] = begin(one) if isinstance(one, list) else one

    numbers = begin(episodes)
    while waiting:
      start = time.perf_counter()
      self._hand_over()
      for engine in self._engines.values():
        engine.dispatch()
      self.counters.sample_seconds += time.perf_counter() - start
      acted = {
          index: one for index, one in sorted(waiting.items())
          if isinstance(one, Acted)}
      for index, steps in zip(acted, self._finish(acted.values())):
        go_on(index, steps)
      self._collect()
      for index, one in sorted(waiting.items()):
        if isinstance(one, Asked) and None not in one.answers:
          go_on(index, one.answers)
      # Who was started later ends first.
      for index, one in sorted(waiting.items(), reverse=True):
        if isinstance(one, range) and results.keys() >= set(one):
          go_on(index, [results.pop(i) for i in one])
    return [results[index] for index in numbers]

  def ask(
      self, asks: Sequence[Ask], *, step: int, group_size: int) -> Asked:
    """Asks for `group_size` answers to each.

    An answer depends on the seed, the training step, the ask's key and its
    own index, not on the other asks.
    """
    prompts = [
        self._policy(ask.key.role).tokenizer.encode_prompt(
            self.environment.observe(ask.state, ask.key.role))
        for ask in asks]
    for ask, prompt in zip(asks, prompts):
      self._check_length(ask, prompt)
    answers = [None] * len(asks)
    for index, (ask, prompt) in enumerate(zip(asks, prompts)):
      policy, key = self._policy(ask.key.role), ask.key
      ids = np.array([
          step, zlib.crc32(key.task_id.encode()), key.turn,
          zlib.crc32(key.role.encode()), key.branch], np.uint32)
      engine = self._engine(policy, len(prompt), group_size)
      self._asked.append((engine, ids, engine_lib.Request(
          tag=(answers, index, policy.tokenizer), prompt=prompt,
          key=None, budget=self.max_new_tokens, adapter=policy.adapter,
          role=ask.key.role)))
    return Asked(answers)

  def act(
      self, states: Sequence[base.State],
      actions: Sequence[Mapping[str, str]]) -> Acted:
    """Steps each state with its actions, in worker processes.

    The processes of a run take turns.
    """
    parts = []
    # Few candidates per message, so that one slow program holds up little.
    for first in range(0, len(states), 4):
      share = slice(first, first + 4)
      parts.append(
          self.executor.submit(
              base.step_all, self.environment, states[share], actions[share])
          if self._turn == jax.process_index() else None)
      self._turn = (self._turn + 1) % jax.process_count()
    self.counters.environment_steps += len(states)
    return Acted(parts)

  def _collect(self) -> None:
    """Waits for the chunks that the devices are at."""
    start = time.perf_counter()
    for engine in self._engines.values():
      for sampled in engine.collect():
        answers, index, tokenizer = sampled.request.tag
        answers[index] = self._answer(tokenizer, sampled)
    self.counters.sample_seconds += time.perf_counter() - start

  def _finish(self, acted: Collection[Acted]) -> list[list[base.Step]]:
    """Waits for environments; the processes exchange what they have stepped."""
    if not acted:
      return []
    start = time.perf_counter()
    shares = hosts.exchange([
        {index: part.result() for index, part in enumerate(one.parts) if part}
        for one in acted])
    finished = []
    for number, one in enumerate(acted):
      parts = {}
      for share in shares:
        parts |= share[number]
      finished.append([
          step for index in range(len(one.parts)) for step in parts[index]])
    self.counters.program_runs += sum(
        step.program_runs for steps in finished for step in steps)
    self.counters.infrastructure_failures += sum(
        base.Outcome.INFRASTRUCTURE in step.outcomes.values()
        for steps in finished for step in steps)
    self.counters.environment_seconds += time.perf_counter() - start
    return finished

  def _policy(self, role: str) -> Policy:
    return self.policies[self.policy_map[role]]

  def _engine(
      self, policy: Policy, length: int,
      group_size: int) -> engine_lib.Engine:
    """The one that samples such prompts."""
    length = batching.bucket(length, self.buckets.prompt, 'prompt length')
    asked, stop_ids = policy.model, policy.tokenizer.stop_ids
    key = asked, stop_ids, length, group_size
    if key not in self._engines:
      spec = sampler.SamplerSpec(
          group_size=group_size, temperature=self.temperature,
          stop_ids=stop_ids, dtype=asked.dtype)
      self._engines[key] = engine_lib.Engine(
          asked.params, asked.mesh, adapters=asked.adapters,
          config=asked.config, spec=spec, prompt_length=length,
          num_slots=self.buckets.on(
              sharding.num_row_parts(asked.mesh)).groups)
    return self._engines[key]

  def _hand_over(self) -> None:
    """Gives the engines what was asked since their last chunk.

    Not before: the keys come from a device, which would be waited for while it
    computes a chunk.
    """
    if not self._asked:
      return
    # Of few shapes, each of which is compiled.
    ids = np.zeros((2**len(self._asked).bit_length(), 5), np.uint32)
    ids[:len(self._asked)] = [own for _, own, _ in self._asked]
    keys = np.asarray(jax.random.key_data(
        sampling.group_keys(jax.random.key(self.seed), ids)))
    for (engine, _, request), key in zip(self._asked, keys):
      engine.add(dataclasses.replace(request, key=key))
    self._asked.clear()

  def _answer(
      self, tokenizer: tokenizer_lib.Tokenizer,
      sampled: engine_lib.Sampled) -> Answer:
    """The answers of a group, which are counted."""
    prompt, completions = sampled.request.prompt, sampled.completions
    self.counters.prompt_tokens += len(prompt)
    self.counters.completion_tokens += sum(map(len, completions))
    self.counters.model_calls += len(completions)
    self.counters.cut_completions += sum(
        ids[-1] not in tokenizer.stop_ids for ids in completions)
    return Answer(
        prompt=prompt, completions=completions, logprobs=sampled.logprobs,
        texts=tuple(map(tokenizer.decode, completions)))

  def _check_length(self, ask: Ask, prompt: np.ndarray) -> None:
    """Nothing is cut in silence: a prompt that does not fit is an error."""
    config = self._policy(ask.key.role).model.config
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
