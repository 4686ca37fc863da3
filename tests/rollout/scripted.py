"""A game, a tokenizer and policies for tests that need to know every number.

A policy's parameters are its script: {prompt: answers}. It stands in the place
of the engine; prompts, requests, counters and steps are the real ones.
"""

from collections.abc import Mapping, Sequence
from concurrent import futures
import dataclasses

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import engine as engine_lib
from atgrpo_jax.rollout import interaction as interaction_lib
from environments import base

STOP = 0
CONFIG = model.ModelConfig(
    vocab_size=128, width=16, hidden_width=32, num_layers=1, num_heads=2,
    num_kv_heads=1, head_width=8, rope_theta=10_000.0, norm_eps=1e-6,
    tied_head=True, max_positions=64, init_std=0.3)


class Bytes:
  """Bytes are ids, and the last message is the prompt."""

  stop_ids = (STOP,)

  def encode_prompt(self, messages):
    text = messages[-1]['content'].encode()
    return np.frombuffer(text, np.uint8).astype(np.int32)

  def decode(self, ids):
    return bytes(int(i) for i in ids if i != STOP).decode()


@dataclasses.dataclass(frozen=True)
class State:
  task_id: str
  goal: int
  total: int = 0
  turn: int = 0


@dataclasses.dataclass(frozen=True)
class Counting:
  """Each agent adds a number; the team wants to meet the goal exactly.

  The team's reward is 1 at the goal; an agent's own is a tenth of its number.
  An answer '7 broken' is the sandbox's fault, '7 nan' a fault of the rewards.
  """

  phases: tuple[tuple[str, ...], ...] = (('a',), ('b',))
  max_turns: int = 2

  @property
  def roles(self):
    return tuple(role for phase in self.phases for role in phase)

  def reset(self, task):
    return State(task['task_id'], task['goal'])

  def observe(self, state, role):
    text = f'{state.task_id}/{role} turn {state.turn} total {state.total}'
    return [{'role': 'user', 'content': text}]

  def step(self, state, actions):
    outcomes, local = {}, {}
    total = state.total
    for role, action in actions.items():
      number, _, fault = action.partition(' ')
      outcomes[role] = base.Outcome.OK
      if not number.isdigit():
        number, outcomes[role] = '0', base.Outcome.PARSE_ERROR
      if fault == 'broken':
        outcomes[role] = base.Outcome.INFRASTRUCTURE
      local[role] = float(fault) if fault == 'nan' else int(number) / 10
      total += int(number)
    turn = state.turn + (tuple(actions) == self.phases[-1])
    success = total == state.goal
    truncated = not success and turn == self.max_turns
    return base.Step(
        state=dataclasses.replace(state, total=total, turn=turn),
        team_reward=float(success), local_rewards=local,
        reward_terms={'total': total}, done=success or truncated,
        success=success, truncated=truncated, outcomes=outcomes)


class Engine:
  """Says what the script has for a prompt, or as much of it as is asked for."""

  made = []  # Since `follow_scripts`.

  def __init__(
      self, params, mesh, *, adapters, config, spec, num_slots, prompt_length):
    del mesh, config
    assert adapters is None
    self.params, self.spec, self.num_slots = params, spec, num_slots
    self.prompt_length = prompt_length
    self.requests, self.waiting = [], []
    Engine.made.append(self)

  @property
  def busy(self):
    return bool(self.waiting)

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
    return engine_lib.Sampled(
        request, tuple(completions),
        tuple((-ids / 8).astype(np.float32) for ids in completions))


def follow_scripts(monkeypatch) -> None:
  """Puts the scripts in the place of the engine."""
  monkeypatch.setattr(Engine, 'made', [])
  monkeypatch.setattr(engine_lib, 'Engine', Engine)


def one_device() -> jax.sharding.Mesh:
  """A mesh of one device."""
  return sharding.make_meshes(
      ['a'], jax.devices()[:1], sharding.MeshSpec())['a']


def make_interaction(
    policies: Mapping[str, object], policy_map: Mapping[str, str],
    environment=Counting(), prompt_buckets: Sequence[int] = (32,),
    group_buckets: Sequence[int] = (4,), max_new_tokens: int = 12,
    seed: int = 0, tokenizer: type = Bytes) -> interaction_lib.Interaction:
  """An interaction; `policies` maps names to scripts or to parameters."""
  return interaction_lib.Interaction(
      environment=environment, policy_map=policy_map,
      policies={
          name: interaction_lib.Policy(interaction_lib.Model(
              params, CONFIG, 'float32', one_device()), tokenizer())
          for name, params in policies.items()},
      buckets=batching.Buckets(
          prompt=tuple(prompt_buckets), completion=(max_new_tokens,),
          groups=tuple(group_buckets), microbatch_tokens=1),
      max_new_tokens=max_new_tokens, temperature=1.0, seed=seed,
      executor=futures.ThreadPoolExecutor(1))


def ask(interaction, asks, **kwargs):
  """The answers, waited for."""
  return _wait(interaction, lambda: interaction.ask(asks, **kwargs))


def act(interaction, states, actions):
  """The steps, waited for."""
  return _wait(interaction, lambda: interaction.act(states, actions))


def _wait(interaction, begin):
  def episode():
    return (yield begin())

  result, = interaction.play([episode()])
  return result
