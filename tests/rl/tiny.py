"""A tiny model and batch.

Ids follow a formula, so golden numbers do not depend on a random generator.
Padding holds junk on purpose, so reading it changes results.
"""

from collections.abc import Sequence
import math

import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs

CONFIG = model.ModelConfig(
    vocab_size=32, hidden_size=16, intermediate_size=40, num_layers=2,
    num_heads=4, num_kv_heads=2, head_dim=4, rope_theta=10_000.0, norm_eps=1e-6,
    tied_head=True, max_positions=64, init_std=0.3)


def make_params() -> model.Params:
  init = jax.jit(model.init_params, static_argnums=1)
  return init(jax.random.key(0), CONFIG)


def ids(*shape: int, seed: int = 0) -> np.ndarray:
  """Pseudorandom ids [*shape] int32, including 0."""
  counter = np.arange(math.prod(shape), dtype=np.int64) + 1000 * seed + 1
  return (counter**3 // 7 % CONFIG.vocab_size).astype(np.int32).reshape(shape)


def make_prompts() -> tuple[np.ndarray, np.ndarray]:
  """Prompts [3, 7] and their lengths."""
  return ids(3, 7), np.array([7, 4, 1], np.int32)


def make_batch() -> types.TrainBatch:
  """Three groups of four; one candidate has no tokens."""
  prompts, prompt_lengths = make_prompts()
  lengths = np.array([[5, 3, 1, 4], [2, 5, 5, 3], [4, 0, 1, 2]], np.int32)
  # One completion contains the id 0.
  completions = ids(3, 4, 5, seed=1)
  completions[1, 1, 1:3] = 0
  return types.TrainBatch(
      prompts=prompts, prompt_lengths=prompt_lengths, completions=completions,
      completion_lengths=lengths,
      behavior_logprobs=-ids(3, 4, 5, seed=2).astype(np.float32) / 8,
      advantages=np.array(
          [[1.5, -0.5, -1.5, 0.5], [-1.0, 1.0, 0.0, 0.25],
           [2.0, 9.0, -1.0, -1.0]], np.float32))


def plain_logits(params: model.Params, batch: types.TrainBatch) -> jax.Array:
  """Logits [P * G, T, V]; each row repeats its prompt."""
  _, size, length = batch.completions.shape
  starts = np.repeat(batch.prompt_lengths, size)
  tokens = np.pad(
      np.repeat(batch.prompts, size, axis=0), ((0, 0), (0, length)))
  at = starts[:, None] + np.arange(length)
  np.put_along_axis(tokens, at, batch.completions.reshape(-1, length), axis=1)
  hidden, _ = model.forward(params, CONFIG, tokens[:, None])
  logits = model.unembed(params, CONFIG, hidden[:, 0])
  return jnp.take_along_axis(logits, at[..., None] - 1, axis=1)


def drain(engine: engine_lib.Engine) -> list[engine_lib.SampledGroup]:
  """Runs an engine until it is idle; returns its groups, sorted by tag."""
  sampled = []
  while engine.busy:
    engine.dispatch()
    sampled += engine.collect()
  return sorted(sampled, key=lambda group: group.request.tag)


def sample(
    params: model.Params, mesh: jax.sharding.Mesh, prompts: np.ndarray,
    lengths: np.ndarray, key_ids: np.ndarray, *, spec: programs.SamplerSpec,
    budget: int, num_slots: Sequence[int], config: model.ModelConfig = CONFIG,
    adapters: model.Adapters | None = None,
    adapter_ids: Sequence[int] | None = None) -> list[engine_lib.SampledGroup]:
  """Samples completions of prompts [P, S] with a new engine."""
  engine = engine_lib.Engine(
      engine_lib.SampledModel(params, config, spec.dtype, mesh, adapters),
      spec=spec, num_slots=num_slots, prompt_lengths=(prompts.shape[1],))
  for index, (prompt, length, row, adapter) in enumerate(zip(
      prompts, lengths, key_ids, adapter_ids or [0] * len(prompts))):
    engine.add(engine_lib.Request(
        index, prompt[:length], row, budget, adapter))
  return drain(engine)
