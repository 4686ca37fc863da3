"""Trains the small models of `models/` on generated demonstrations.

A demonstration is a group: several completions of one prompt. The learner that
trains on groups of a rollout also trains on these, with every advantage set to
1, so the loss is the mean negative log-likelihood of the completions.

A base model that reinforcement learning can improve must be able to do the
right thing and mostly not do it. So completions are drawn from several *kinds*
of behaviour. Training has phases: drills of single skills, practice of every
kind until it is spelled without a mistake, and last the kinds in the
proportions that the finished model should have.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator, Mapping
import dataclasses
import json
import pathlib
import tempfile
from typing import Any, Protocol

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.io import files
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from environments import env_api
from models import train_tokenizer

_SAVE_DTYPE = 'bfloat16'
_LOG_EVERY = 20  # Steps.


@dataclasses.dataclass(frozen=True)
class Demonstration:
  """Several completions of one prompt.

  Attributes:
    role: the role that acts, or the name of a drill.
    state: the state from which the prompt was rendered.
    messages: the prompt.
    completions: the texts.
    kinds: the kind of each completion.
  """

  role: str
  state: Any
  messages: list[env_api.Message]
  completions: tuple[str, ...]
  kinds: tuple[str, ...]


class Task(Protocol):
  """Draws the demonstrations of one task."""

  def demonstrate(
      self, rng: np.random.Generator, role: str, kinds: Mapping[str, float],
      group_size: int) -> Demonstration:
    """Draws a prompt and `group_size` completions; kinds: probabilities."""

  def kind_of(
      self, demonstration: Demonstration, completion: str) -> str | None:
    """The kind of any completion of this prompt; None if it is malformed."""


@dataclasses.dataclass(frozen=True)
class Lesson:
  """What one role of a task learns in each step of a phase."""

  num_groups: int
  kinds: Mapping[str, float]  # Kind -> probability.


@dataclasses.dataclass(frozen=True)
class Phase:
  """A number of steps with the same lessons: task -> role -> lesson."""

  num_steps: int
  group_size: int
  lessons: Mapping[str, Mapping[str, Lesson]]


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a small model is made.

  Attributes:
    tasks: name -> task.
    phases: name -> phase, in order.
    vocab_size: ids of the tokenizer.
    token_pattern: a regular expression; no token crosses the ends of a match.
    num_tokenizer_steps: steps of the last phase whose demonstrations train the
      tokenizer.
    prompt_buckets, completion_buckets: padded lengths in tokens.
    groups_per_batch: groups of a batch; chunks have 1024 tokens.
    seed: of the weights and of every draw.
    dims: sizes of the model beside `vocab_size`.
    optimizer: sizes of the optimizer beside `decay_updates`.
    num_checked: prompts of each role on which skills are measured.
  """

  tasks: Mapping[str, Task]
  phases: Mapping[str, Phase]
  vocab_size: int
  token_pattern: str
  num_tokenizer_steps: int
  prompt_buckets: tuple[int, ...]
  completion_buckets: tuple[int, ...]
  groups_per_batch: int
  seed: int = 0
  dims: Mapping[str, Any] = dataclasses.field(default_factory=lambda: dict(
      hidden_size=128, intermediate_size=384, num_layers=4, num_heads=4,
      num_kv_heads=2, head_dim=32, rope_theta=10000.0, norm_eps=1e-6,
      tied_head=True, max_positions=2048, init_std=0.02))
  optimizer: Mapping[str, float] = dataclasses.field(
      default_factory=lambda: dict(
          learning_rate=2e-3, warmup_updates=30, final_lr_ratio=0.03,
          weight_decay=0.0, max_grad_norm=1.0, b1=0.9, b2=0.95))
  num_checked: int = 128

  def lessons(self, phase: str) -> list[tuple[str, str, Lesson]]:
    """(task, role, lesson), sorted: draws ignore the order of the recipe."""
    return [
        (name, role, lesson)
        for name, lessons in sorted(self.phases[phase].lessons.items())
        for role, lesson in sorted(lessons.items())]


def main(recipe: Recipe) -> None:
  parser = argparse.ArgumentParser(
      description='Trains the model from scratch and prints its skills.')
  parser.add_argument(
      '--out', type=pathlib.Path, required=True,
      help='New folder for weights and tokenizer.')
  out = parser.parse_args().out
  if out.exists():
    parser.error(f'--out={out} exists; name a new folder.')
  skills = train(recipe, out)
  print(json.dumps(skills, indent=2))
  print(f'The model is in {out}.')


def train(recipe: Recipe, folder: pathlib.Path) -> dict[str, dict[str, float]]:
  """Trains a model from nothing, saves it, and returns its skills."""
  steps = [
      name for name, phase in recipe.phases.items()
      for _ in range(phase.num_steps)]
  spec = policy_lib.LearnerSpec(
      optimizer=policy_lib.OptimizerSpec(
          decay_updates=len(steps), **recipe.optimizer), loss=None,
      temperature=1.0, dtype='float32', remat=False, adapter_scale=None)
  config = model.ModelConfig(vocab_size=recipe.vocab_size, **recipe.dims)
  mesh, = mesh_lib.make_meshes(
      ['all'], jax.devices(), mesh_lib.MeshSpec()).values()
  buckets = batching.Buckets(
      prompt=recipe.prompt_buckets, completion=recipe.completion_buckets,
      groups=(recipe.groups_per_batch,), microbatch_tokens=1024,
  ).on(mesh_lib.num_data_shards(mesh))
  tokenizer = _train_tokenizer(recipe)

  def put_on_mesh(params):
    return jax.device_put(params, mesh_lib.tree_shardings(
        params, mesh, mesh_lib.param_rules(config.tied_head)))

  params = model.init_params(jax.random.key(recipe.seed), config)
  state = put_on_mesh(policy_lib.TrainState.create(params, spec.optimizer))
  rng = np.random.default_rng([recipe.seed, 2])
  for step, phase in enumerate(steps):
    groups = [
        _encode(tokenizer, demonstration)
        for demonstration in draw(recipe, phase, rng)]
    with jax.set_mesh(mesh):
      sums = gradients.zero_sums(state.params, config=config, spec=spec)
      for batch in batching.make_batches(groups, buckets):
        sums = mesh_lib.throttle_cpu_dispatch(gradients.accumulate(
            state.params, sums, mesh_lib.put_rows(batch, mesh),
            config=config, spec=spec), mesh)
      num_tokens = np.float32(sum(
          len(candidate.completion)
          for group in groups for candidate in group.candidates))
      state, metrics, _ = update_lib.apply_update(
          state, sums, num_tokens, num_tokens, config=config, spec=spec)
    if step % _LOG_EVERY == 0:
      print(f'{phase} {step}/{len(steps)}  loss {metrics["loss"]:.4f}',
            flush=True)

  with files.whole_folder(folder) as new:
    safetensors_lib.save(new, state.params, config, np.dtype(_SAVE_DTYPE))
    tokenizer.save(new)
  # Measured with the saved weights, which are rounded.
  saved = put_on_mesh(safetensors_lib.load_params(folder, config))
  return measure_skills(
      engine_lib.DecodingParams(saved, mesh, config, spec.dtype),
      tokenizer, recipe, steps[-1], buckets)


def measure_skills(
    params: engine_lib.DecodingParams, tokenizer: tokenizer_lib.Tokenizer,
    recipe: Recipe, phase: str,
    buckets: batching.Buckets) -> dict[str, dict[str, float]]:
  """Ratios of the kinds that the model samples, for each role of a phase.

  Eight completions for each of `num_checked` prompts that were not trained on,
  at temperature 1. 'well_formed' is the ratio of those that have a kind.
  """
  spec = programs.SamplerSpec(
      group_size=8, temperature=1.0, stop_ids=tokenizer.stop_ids,
      dtype='float32')
  num_shards = mesh_lib.num_data_shards(params.mesh)
  num_slots = -(-recipe.num_checked // num_shards) * num_shards
  rng = np.random.default_rng([recipe.seed, 3])
  skills = {}
  for name, role, lesson in recipe.lessons(phase):
    task = recipe.tasks[name]
    shown = [
        task.demonstrate(rng, role, lesson.kinds, 1)
        for _ in range(recipe.num_checked)]
    prompts = [tokenizer.encode_prompt(d.messages) for d in shown]
    length = batching.bucket(
        max(map(len, prompts)), buckets.prompt, 'prompt length')
    keys = np.asarray(jax.random.key_data(programs.group_keys(
        jax.random.key(recipe.seed),
        np.arange(recipe.num_checked, dtype=np.uint32)[:, None])))
    engine = engine_lib.Engine(
        params, adapters=None, spec=spec, num_slots=[num_slots],
        prompt_length=length)
    for index, (prompt, key) in enumerate(zip(prompts, keys)):
      engine.add(engine_lib.Request(
          index, prompt, key, buckets.completion[-1]))
    sampled, = engine_lib.drain([engine])
    counts = collections.Counter(
        task.kind_of(demonstration, tokenizer.decode(ids))
        for demonstration, group in zip(shown, sampled)
        for ids in group.completions)
    skills[f'{name}/{role}'] = {
        'well_formed': 1 - counts[None] / counts.total(),
        **{kind: counts[kind] / counts.total()
           for kind in sorted(lesson.kinds)}}
  return skills


def draw_kinds(
    rng: np.random.Generator, kinds: Mapping[str, float],
    group_size: int) -> tuple[str, ...]:
  """Draws kinds in alphabetical order, however `kinds` is ordered."""
  names = sorted(kinds)
  probabilities = [kinds[name] for name in names]
  return tuple(map(str, rng.choice(names, size=group_size, p=probabilities)))


def draw(
    recipe: Recipe, phase: str,
    rng: np.random.Generator) -> Iterator[Demonstration]:
  """The demonstrations of one step."""
  group_size = recipe.phases[phase].group_size
  for name, role, lesson in recipe.lessons(phase):
    for _ in range(lesson.num_groups):
      yield recipe.tasks[name].demonstrate(rng, role, lesson.kinds, group_size)


def _train_tokenizer(recipe: Recipe) -> tokenizer_lib.Tokenizer:
  rng = np.random.default_rng([recipe.seed, 1])
  *_, phase = recipe.phases
  texts = [
      text for _ in range(recipe.num_tokenizer_steps)
      for demonstration in draw(recipe, phase, rng)
      for text in tokenizer_texts(demonstration)]
  with tempfile.TemporaryDirectory() as folder:
    train_tokenizer.train(
        texts, recipe.vocab_size, recipe.token_pattern, pathlib.Path(folder))
    return tokenizer_lib.Tokenizer(folder)


def tokenizer_texts(demonstration: Demonstration) -> Iterator[str]:
  """The texts from which the tokenizer learns."""
  for message in demonstration.messages:
    yield f'{message["role"]}\n{message["content"]}\n'
  yield 'assistant\n'
  yield from demonstration.completions


def _encode(
    tokenizer: tokenizer_lib.Tokenizer,
    demonstration: Demonstration) -> types.Group:
  completions = [
      tokenizer.encode_completion(text) for text in demonstration.completions]
  return types.Group(
      key=types.GroupKey('', demonstration.role, 0, 0), policy='',
      prompt=tokenizer.encode_prompt(demonstration.messages),
      candidates=tuple(
          types.Candidate(ids, np.zeros(len(ids)), advantage=1.0)
          for ids in completions))
