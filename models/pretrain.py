"""Trains the small models of `models/` on generated demonstrations.

A demonstration is a group: several completions of one prompt. The learner of
the rollouts trains on it with every advantage set to 1, so the loss is the mean
negative log-likelihood of the completions.

Reinforcement learning can improve a base model that is sometimes right and
mostly wrong, so completions are drawn from several *kinds* of behaviour. Drills
of single skills come first. Then the model practises every kind until it writes
each without a mistake. The last phase has the proportions of the finished
model.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import inspect
import pathlib
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np
import tokenizers

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
from environments import env_api

_SAVE_DTYPE = 'bfloat16'
_LOG_EVERY = 20  # Steps.
_CACHED_COMPLETIONS = 4096

# Qwen3's ChatML without tools. `enable_thinking=False` closes the thinking part
# before the completion starts.
_CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content"
    " + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}")


class Demonstration(NamedTuple):
  """Several completions of the prompt that a role gets in `state`."""

  state: Any
  messages: list[env_api.Message]
  completions: tuple[str, ...]


# (rng, role or drill, {kind of behaviour: probability}, group_size)
Demonstrate = Callable[
    [np.random.Generator, str, Mapping[str, float], int], Demonstration]
# (groups of one role in each step of a phase, {kind: probability})
Lesson = tuple[int, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Phase:
  """A number of steps with the same lessons: task -> role -> lesson."""

  num_steps: int
  group_size: int
  lessons: Mapping[str, Mapping[str, Lesson]]


@dataclasses.dataclass(frozen=True)
class BytePairs:
  """A byte-level BPE tokenizer that is trained on demonstrations."""

  vocab_size: int
  token_pattern: str  # A regex; no token crosses the ends of a match.
  num_steps: int  # Steps of the last phase whose texts are used.


@dataclasses.dataclass(frozen=True)
class Words:
  """A tokenizer that splits texts at blanks. Its prompts have no markup."""

  words: tuple[str, ...]

  @property
  def vocab_size(self) -> int:
    return 1 + len(self.words)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Everything that decides the weights of a small model."""

  tasks: Mapping[str, Demonstrate]
  phases: Mapping[str, Phase]  # In the order of training.
  tokenizer: BytePairs | Words
  prompt_buckets: tuple[int, ...]  # Padded lengths in tokens.
  completion_buckets: tuple[int, ...]
  groups_per_batch: int
  seed: int = 0  # For the weights and all demonstrations.
  # Fields of `model.ModelConfig` except `vocab_size`.
  dims: Mapping[str, Any] = dataclasses.field(default_factory=lambda: dict(
      hidden_size=128, intermediate_size=384, num_layers=4, num_heads=4,
      num_kv_heads=2, head_dim=32, rope_theta=10000.0, norm_eps=1e-6,
      tied_head=True, max_positions=2048, init_std=0.02))
  # Fields of `OptimizerSpec` except `decay_updates`.
  optimizer: Mapping[str, float] = dataclasses.field(
      default_factory=lambda: dict(
          learning_rate=2e-3, warmup_updates=30, final_lr_ratio=0.03,
          weight_decay=0.0, max_grad_norm=1.0, b1=0.9, b2=0.95))


def main(make_recipe: Callable[..., Recipe], description: str) -> None:
  """Trains a recipe; its parameters are options, all of them integers."""
  parser = argparse.ArgumentParser(
      description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  for name, parameter in inspect.signature(make_recipe).parameters.items():
    parser.add_argument(f'--{name}', type=int, default=parameter.default)
  parser.add_argument(
      '--out', type=pathlib.Path, required=True,
      help='New folder for weights and tokenizer.')
  args = vars(parser.parse_args())
  out = args.pop('out')
  if out.exists():
    parser.error(f'--out={out} exists; name a new folder.')
  train(make_recipe(**args), out)
  print(f'The model is in {out}.')


def train(recipe: Recipe, folder: pathlib.Path) -> None:
  """Trains a tokenizer and a model from scratch and saves them."""
  steps = [
      name for name, phase in recipe.phases.items()
      for _ in range(phase.num_steps)]
  spec = policy_lib.LearnerSpec(
      optimizer=policy_lib.OptimizerSpec(
          decay_updates=len(steps), **recipe.optimizer), loss=None,
      dtype='float32', remat=False, adapter_scale=None)
  config = model.ModelConfig(
      vocab_size=recipe.tokenizer.vocab_size, **recipe.dims)
  mesh, = mesh_lib.make_meshes(['all'], jax.devices()).values()
  buckets = batching.Buckets(
      prompt=recipe.prompt_buckets, completion=recipe.completion_buckets,
      groups=(recipe.groups_per_batch,), microbatch_tokens=1024,
  ).on(mesh_lib.num_data_shards(mesh))
  tokenizer = _make_tokenizer(recipe)
  params = model.init_params(jax.random.key(recipe.seed), config)
  state = policy_lib.TrainState.create(params, spec.optimizer)
  state = jax.device_put(state, mesh_lib.tree_shardings(
      state, mesh, mesh_lib.param_rules(config.tied_head)))
  rng = np.random.default_rng([recipe.seed, 2])
  encode_completion = functools.lru_cache(_CACHED_COMPLETIONS)(
      tokenizer.encode_completion)
  for step, phase in enumerate(steps):
    groups = [
        types.Group(
            key=types.GroupKey('', '', 0, 0), policy='',
            prompt=tokenizer.encode_prompt(demonstration.messages),
            candidates=tuple(
                types.Candidate(ids, np.zeros(len(ids)), advantage=1.0)
                for ids in map(encode_completion, demonstration.completions)))
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
      state, metrics = update_lib.apply_update(
          state, sums, num_tokens, num_tokens, config=config, spec=spec)
    if step % _LOG_EVERY == 0:
      print(f'{phase} {step}/{len(steps)}  loss {metrics["loss"]:.4f}',
            flush=True)

  with files.whole_folder(folder) as new:
    safetensors_lib.save(new, state.params, config, np.dtype(_SAVE_DTYPE))
    tokenizer.save(new)


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
  """Yields the demonstrations of one step, sorted by task and role."""
  group_size = recipe.phases[phase].group_size
  for task, lessons in sorted(recipe.phases[phase].lessons.items()):
    for role, (num_groups, kinds) in sorted(lessons.items()):
      for _ in range(num_groups):
        yield recipe.tasks[task](rng, role, kinds, group_size)


def _make_tokenizer(recipe: Recipe) -> tokenizer_lib.Tokenizer:
  spec = recipe.tokenizer
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    if isinstance(spec, Words):
      _write_word_tokenizer(spec.words, folder)
    else:
      train_tokenizer(
          _texts(recipe, spec.num_steps), spec.vocab_size, spec.token_pattern,
          folder)
    return tokenizer_lib.Tokenizer(folder)


def _texts(recipe: Recipe, num_steps: int) -> list[str]:
  """Texts of the demonstrations of the last phase."""
  rng = np.random.default_rng([recipe.seed, 1])
  *_, phase = recipe.phases
  texts = []
  for _ in range(num_steps):
    for demonstration in draw(recipe, phase, rng):
      texts += [
          f'{message["role"]}\n{message["content"]}\n'
          for message in demonstration.messages]
      texts += ['assistant\n', *demonstration.completions]
  return texts


def _write_word_tokenizer(
    words: Sequence[str], folder: pathlib.Path) -> None:
  end = '<end>'
  word_level = tokenizers.Tokenizer(tokenizers.models.WordLevel(
      {word: i for i, word in enumerate((end, *words))}, unk_token=end))
  word_level.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  tokenizer_lib.write(
      folder, word_level,
      '{% for message in messages %}{{ message.content }} {% endfor %}', (0,),
      eos_token=end, pad_token=end)


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, token_pattern: str,
    folder: pathlib.Path) -> None:
  """Trains the tokenizer of `BytePairs` and saves it."""
  pre_tokenizers = tokenizers.pre_tokenizers
  bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
  bpe.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Split(
          tokenizers.Regex(token_pattern), behavior='isolated'),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
  bpe.decoder = tokenizers.decoders.ByteLevel()
  end_of_text, turn_end = '<|endoftext|>', '<|im_end|>'
  bpe.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
      vocab_size=vocab_size, show_progress=False,
      special_tokens=[
          end_of_text, '<|im_start|>', turn_end, '<think>', '</think>'],
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      max_token_length=16))  # Bytes.
  stop_ids = bpe.token_to_id(turn_end), bpe.token_to_id(end_of_text)
  tokenizer_lib.write(
      folder, bpe, _CHAT_TEMPLATE, stop_ids, eos_token=turn_end,
      pad_token=end_of_text)
