"""A game, a tokenizer and scripted policies for the real runner.

The parameters of a policy are its script, {prompt: texts}.
"""

from collections.abc import Mapping, Sequence
from concurrent import futures
import dataclasses
import zlib

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import play
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.sampling import engine as engine_lib
from environments import env_api
from tests import specs
from tests.rollout import programs

State, Counting = programs.State, programs.Counting
STOP = 0
ROLES = {'a': 'one', 'b': 'two'}  # role -> policy
CONFIG = model.ModelConfig(
    vocab_size=128, hidden_size=16, intermediate_size=32, num_layers=1,
    num_heads=2, num_kv_heads=1, head_dim=8, rope_theta=10_000.0, norm_eps=1e-6,
    tied_head=True, max_positions=64, init_std=0.3)


class Dice:
  """A script of pseudorandom digits for any prompt but those of `texts`."""

  def __init__(self, texts: Mapping[str, Sequence[str]] | None = None):
    self._texts = texts or {}

  def __getitem__(self, prompt):
    if prompt in self._texts:
      return self._texts[prompt]
    rng = np.random.default_rng(zlib.crc32(prompt.encode()))
    return [str(n) for n in rng.integers(0, 4, 4)]


DICE = dict.fromkeys(ROLES.values(), Dice())


class Bytes:
  """A tokenizer whose ids are bytes; the last message is the prompt."""

  stop_ids, opening = (STOP,), ''

  def encode_prompt(self, messages):
    text = messages[-1]['content'].encode()
    return np.frombuffer(text, np.uint8).astype(np.int32)

  def decode(self, ids):
    return bytes(int(i) for i in ids if i != STOP).decode()


class Engine:
  """Samples the texts of a script, truncated to the budget."""

  made = []  # Since `follow_scripts`.
  num_decoded = num_at_work = 0

  def __init__(self, sampled, *, spec, **shapes):
    self.params, self.spec = sampled.params, spec
    self.requests, self.waiting = [], []
    Engine.made.append(self)

  def add(self, request):
    self.requests.append(request)
    self.waiting.append(request)

  def dispatch(self):
    pass

  def collect(self):
    waiting, self.waiting = self.waiting, []
    return [self._sample(request) for request in waiting]

  def _sample(self, request):
    size = self.spec.group_size
    texts = self.params[Bytes().decode(request.prompt)][:size]
    assert len(texts) == size
    completions = [
        np.array([*text.encode(), STOP][:request.budget], np.int32)
        for text in texts]
    return engine_lib.SampledGroup(
        request, tuple(completions),
        tuple((-ids / 8).astype(np.float32) for ids in completions))


def follow_scripts(monkeypatch) -> None:
  """Replaces the engine by the scripts."""
  monkeypatch.setattr(Engine, 'made', [])
  monkeypatch.setattr(engine_lib, 'Engine', Engine)


def one_device() -> jax.sharding.Mesh:
  """A mesh of one device."""
  return mesh_lib.make_meshes(['a'], jax.devices()[:1])['a']


def make_runner(
    policies: Mapping[str, object] = DICE,
    policy_map: Mapping[str, str] = ROLES,
    environment=None, prompt_buckets: Sequence[int] = (32,),
    group_buckets: Sequence[int] = (4,), max_new_tokens: int = 12,
    tokenizer: type = Bytes, **changes) -> runner_lib.EpisodeRunner:
  """A runner; `policies` maps names to scripts or to parameters."""
  changes.setdefault('executor', futures.ThreadPoolExecutor(1))
  return runner_lib.EpisodeRunner(
      environment=environment or Counting(), policy_map=policy_map,
      policies={
          name: policies_lib.SamplingPolicy(engine_lib.SampledModel(
              params, CONFIG, 'float32', one_device()), tokenizer())
          for name, params in policies.items()},
      buckets=batching.Buckets(
          prompt=tuple(prompt_buckets), completion=(max_new_tokens,),
          groups=tuple(group_buckets), microbatch_tokens=1),
      max_new_tokens=max_new_tokens,
      **{'temperature': 1.0, 'seed': 0, 'train_step': 0} | changes)


def wait_for(runner: runner_lib.EpisodeRunner, pending):
  """The result of `runner.sample` or `runner.step_environments`."""
  def episode():
    return (yield pending)

  result, = runner.play([episode()])
  return result


def collect(
    runner: runner_lib.EpisodeRunner, goals: Mapping[str, int],
    group_key: tuple[str, ...] = ('env', 'agent', 'turn'), scale: str = 'std',
    **switches) -> list[tree_lib.Tree]:
  """The trees of the tasks {task_id: goal} of `Counting`."""
  rollout = specs.rollout(**switches)
  runner = dataclasses.replace(runner, alpha=rollout.alpha)
  return credit.assign_advantages(
      play.play(runner, [task(*pair) for pair in goals.items()], rollout),
      specs.advantage(group_key=group_key, scale=scale), rollout)


def task(task_id: str, goal: int) -> env_api.Task:
  return {'task_id': task_id, 'goal': goal}


def episodes(tree: tree_lib.Tree) -> list[tuple[str, int, bool, bool]]:
  """Task, number of turns, success and truncated of each episode."""
  return [
      (tree.task_id, node.turn + 1, step.success, step.truncated)
      for node, step in tree.ends()]


def prompt_of(group: types.Group) -> str:
  return Bytes().decode(group.prompt)


def texts_of(group: types.Group) -> tuple[str, ...]:
  return tuple(candidate.text for candidate in group.candidates)
