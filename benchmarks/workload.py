"""The model, the prompts and lower bounds of the work.

Bounds are {unit: number}: GFLOP of matrix products, and GB read or written.
"""

from collections.abc import Sequence
import dataclasses

import jax.numpy as jnp
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.model import config as config_lib

# 3.3 million float32 parameters: fits a laptop, yet matrix products dominate.
MODEL = model.ModelConfig(
    vocab_size=512, hidden_size=256, intermediate_size=768, num_layers=4,
    num_heads=4, num_kv_heads=2, head_dim=64, rope_theta=1_000_000.0,
    norm_eps=1e-6, tied_head=True, max_positions=8192, init_std=0.02)

# The dimensions of SmolLM2-135M.
SMOLLM2 = model.ModelConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30,
    num_heads=9, num_kv_heads=3, head_dim=64, rope_theta=100_000.0,
    norm_eps=1e-5, tied_head=True, max_positions=8192, init_std=0.02,
    model_type='llama')

# The dimensions of Qwen2.5-Coder-0.5B.
CODER = model.ModelConfig(
    vocab_size=151936, hidden_size=896, intermediate_size=4864, num_layers=24,
    num_heads=14, num_kv_heads=2, head_dim=64, rope_theta=1_000_000.0,
    norm_eps=1e-6, tied_head=True, max_positions=32768, init_std=0.02,
    model_type='qwen2')


@dataclasses.dataclass(frozen=True)
class Load:
  """The size of a sampling task; all completions have the full length."""

  num_prompts: int  # P
  group_size: int  # G
  prompt_length: int  # S
  new_tokens: int  # T

  def __str__(self) -> str:
    return (f'{self.num_prompts} prompts x {self.group_size} samples, prompt '
            f'{self.prompt_length}, {self.new_tokens} new tokens')

  @property
  def completion_tokens(self) -> int:
    return self.num_prompts * self.group_size * self.new_tokens


def prompts(load: Load, config: model.ModelConfig, seed: int) -> np.ndarray:
  """Prompts [P, S] int32; ids below 3 are special to the peers."""
  return np.random.default_rng(seed).integers(
      3, config.vocab_size, (load.num_prompts, load.prompt_length), np.int32)


def request(
    what: str, loads: Sequence[Load], config: model.ModelConfig,
    dtype: str) -> dict:
  """A request to a peer, with a `config.json` and one load per agent."""
  return {
      'work': what, 'model': config_lib.to_hf(config, 'float32'),
      'dtype': dtype,
      'loads': [dataclasses.asdict(load) for load in loads]}


def kernel_size(config: model.ModelConfig) -> int:
  """Number of weights in the matrix products of all layers."""
  c = config
  heads = 2 * (c.num_heads + c.num_kv_heads) * c.head_dim
  return c.num_layers * c.hidden_size * (heads + 3 * c.intermediate_size)


def forward_flops(config: model.ModelConfig, load: Load) -> float:
  """FLOPs of the matrix products of one pass over prompts and completions.

  Each prompt is computed once. Its last token is the first input of its
  completions; the last token of a completion is no input. Logits are needed
  only for completions.
  """
  prefix, new = load.prompt_length - 1, load.new_tokens
  rows = load.num_prompts * load.group_size
  positions = load.num_prompts * prefix + rows * new
  # Number of visible positions, summed over all positions.
  seen = (load.num_prompts * prefix * (prefix + 1) / 2
          + rows * (new * prefix + new * (new + 1) / 2))
  return (
      2 * kernel_size(config) * positions
      + 4 * config.num_layers * config.num_heads * config.head_dim * seen
      + 2 * config.hidden_size * config.vocab_size * rows * new)


def sampling_work(
    config: model.ModelConfig, load: Load, done: int = 0,
    dtype: str = 'float32') -> dict[str, float]:
  """The work after the first `done` tokens of each candidate.

  Each new token reads the weights and the cache once. The group shares one read
  of its prompt's keys and values.
  """
  if done:
    total, before = (
        sampling_work(
            config, dataclasses.replace(load, new_tokens=new), dtype=dtype)
        for new in (load.new_tokens, done))
    return {unit: total[unit] - before[unit] for unit in total}
  prefix, new = load.prompt_length - 1, load.new_tokens
  position = 2 * config.num_layers * config.num_kv_heads * config.head_dim
  cached = load.num_prompts * (
      new * prefix + load.group_size * new * (new + 1) / 2)
  num_floats = new * num_weights(config) + position * cached
  return _work(
      forward_flops(config, load), jnp.dtype(dtype).itemsize * num_floats)


def update_work(config: model.ModelConfig, load: Load) -> dict[str, float]:
  """Forward and backward pass; reads and writes weights and moments."""
  return _work(3 * forward_flops(config, load), 4 * 2 * 3 * num_weights(config))


def num_weights(config: model.ModelConfig) -> int:
  return kernel_size(config) + config.hidden_size * config.vocab_size


def _work(flops: float, num_bytes: float) -> dict[str, float]:
  return {'GFLOP': flops / 1e9, 'GB': num_bytes / 1e9}
