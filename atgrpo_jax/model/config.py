"""Dimensions of a Qwen3 model, from a Hugging Face `config.json`.

Each field is used, or refused if it asks for an unsupported feature. Unknown
fields are refused too, because ignoring one may change the model silently.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from atgrpo_jax import errors


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Dimensions of Qwen3; letters as in `atgrpo_jax.model.decoder`."""

  vocab_size: int  # V
  hidden_size: int  # D
  intermediate_size: int  # F
  num_layers: int  # L
  num_heads: int  # N
  num_kv_heads: int  # K
  head_dim: int  # H
  rope_theta: float
  norm_eps: float
  tied_head: bool  # The output head is the embedding.
  max_positions: int  # Longest prompt plus completion, in tokens.
  init_std: float  # Standard deviation of random weights.

  def __post_init__(self):
    for name, ours in _FIELDS.items():
      value, kind = getattr(self, ours), _KINDS.get(name, int)
      kinds = (int, float) if kind is float else (kind,)  # JSON: 1 for 1.0.
      if type(value) not in kinds or not (kind is bool or 0 < value < math.inf):
        expected = {bool: 'true or false', int: 'a whole number above 0'}.get(
            kind, 'a finite number above 0')
        raise errors.UserError(f'{name}={value!r} must be {expected}.')
    if self.num_heads % self.num_kv_heads:
      raise errors.UserError(
          f'num_attention_heads={self.num_heads} is not a multiple of '
          f'num_key_value_heads={self.num_kv_heads}.')
    if self.head_dim % 2:
      raise errors.UserError(
          f'head_dim={self.head_dim} is odd; rotary embeddings need pairs.')


# Name in the file -> name here.
_FIELDS = {
    'vocab_size': 'vocab_size',
    'hidden_size': 'hidden_size',
    'intermediate_size': 'intermediate_size',
    'num_hidden_layers': 'num_layers',
    'num_attention_heads': 'num_heads',
    'num_key_value_heads': 'num_kv_heads',
    'head_dim': 'head_dim',
    'max_position_embeddings': 'max_positions',
    'rope_theta': 'rope_theta',
    'rms_norm_eps': 'norm_eps',
    'initializer_range': 'init_std',
    'tie_word_embeddings': 'tied_head',
}
_KINDS = {
    'rope_theta': float, 'rms_norm_eps': float, 'initializer_range': float,
    'tie_word_embeddings': bool}

# Fields that must have one of these values if present.
_REQUIRED = {
    'model_type': ('qwen3',),
    'architectures': (['Qwen3ForCausalLM'], None),
    'hidden_act': ('silu',),
    'attention_bias': (False,),
    'attention_dropout': (0.0, 0),
    'use_sliding_window': (False,),
    'sliding_window': (None,),
    'rope_scaling': (None,),
}

# Fields without effect: bookkeeping, special tokens (see the tokenizer) and
# parameters of an unused sliding window.
_WITHOUT_EFFECT = frozenset({
    '_name_or_path', 'bos_token_id', 'dtype', 'eos_token_id',
    'max_window_layers', 'pad_token_id', 'torch_dtype',
    'transformers_version', 'use_cache',
})


def from_hf(fields: dict[str, Any]) -> ModelConfig:
  """Converts the content of a `config.json`."""
  for name, allowed in _REQUIRED.items():
    if name in fields and fields[name] not in allowed:
      raise errors.UserError(
          f'{name}={fields[name]!r}: expected '
          f'{" or ".join(map(repr, allowed))}.')
  fields = fields | {'rope_theta': _rope_theta(fields)}
  if missing := sorted(_FIELDS.keys() - fields.keys()):
    raise errors.UserError(f'lacks {", ".join(missing)}.')
  known = _FIELDS.keys() | _REQUIRED.keys() | _WITHOUT_EFFECT
  known |= {'rope_parameters', 'layer_types'}
  if unknown := sorted(fields.keys() - known):
    raise errors.UserError(
        f'has unknown fields: {", ".join(unknown)}. Remove them if they do '
        'not change the model.')
  layer_types = fields.get('layer_types') or []
  if any(layer != 'full_attention' for layer in layer_types):
    raise errors.UserError(
        f'layer_types={layer_types!r}: expected only full_attention.')
  return ModelConfig(
      **{ours: fields[theirs] for theirs, ours in _FIELDS.items()})


def to_hf(config: ModelConfig, dtype: str) -> dict[str, Any]:
  """The content of a `config.json` for weights stored as `dtype`."""
  return {
      'architectures': ['Qwen3ForCausalLM'],
      'model_type': 'qwen3',
      'hidden_act': 'silu',
      'attention_bias': False,
      'attention_dropout': 0.0,
      'torch_dtype': dtype,
      **{theirs: getattr(config, ours) for theirs, ours in _FIELDS.items()},
  }


def _rope_theta(fields: dict[str, Any]) -> float:
  """The base of the rotary angles, which newer files nest."""
  rope = fields.get('rope_parameters') or {}
  supported = {'rope_theta', 'rope_type'}
  if (not isinstance(rope, dict) or rope.keys() - supported
      or rope.get('rope_type', 'default') != 'default'):
    raise errors.UserError(
        f'rope_parameters={rope!r} is not supported; expected only rope_theta '
        "and rope_type 'default'.")
  theta = rope.get('rope_theta', fields.get('rope_theta'))
  if theta is None:
    raise errors.UserError('lacks rope_theta.')
  return float(theta) if type(theta) is int else theta
