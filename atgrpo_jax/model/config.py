"""Dimensions and family of a model, from a Hugging Face `config.json`.

Each field is used, or refused if it asks for an unsupported feature. Unknown
fields are refused too, because ignoring one may change the model silently.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from atgrpo_jax import errors


@dataclasses.dataclass(frozen=True)
class Family:
  """What distinguishes the models of one `model_type`."""

  architecture: str
  qkv_bias: bool = False  # The projections of q, k and v have a bias.
  qk_norm: bool = False  # Queries and keys are normalised.


FAMILIES = {
    'llama': Family('LlamaForCausalLM'),
    'mistral': Family('MistralForCausalLM'),
    'qwen2': Family('Qwen2ForCausalLM', qkv_bias=True),
    'qwen3': Family('Qwen3ForCausalLM', qk_norm=True),
}


@dataclasses.dataclass(frozen=True)
class Llama3Rope:
  """Longer wavelengths for the rotary embeddings of Llama 3.1 and later."""

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position_embeddings: int

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      errors.check_number(f'rope_scaling.{field.name}', value, greater_than=0)
    if self.low_freq_factor >= self.high_freq_factor:
      raise errors.UserError(
          f'rope_scaling.low_freq_factor={self.low_freq_factor} must be below '
          f'high_freq_factor={self.high_freq_factor}.')


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Dimensions of a model; letters as in `atgrpo_jax.model.decoder`."""

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
  model_type: str = 'qwen3'  # A key of `FAMILIES`.
  rope_scaling: Llama3Rope | None = None

  @property
  def family(self) -> Family:
    return FAMILIES[self.model_type]

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
    'hidden_act': ('silu',),
    'attention_bias': (False,),
    'attention_dropout': (0.0, 0),
    'mlp_bias': (False,),
    'rope_interleaved': (False,),
    'sliding_window': (None,),
    'use_mrope': (False,),
    'use_sliding_window': (False,),
}

# Fields without effect: bookkeeping and special tokens (see the tokenizer).
_WITHOUT_EFFECT = frozenset({
    '_name_or_path', 'bos_token_id', 'dtype', 'eos_token_id', 'is_llama_config',
    'max_window_layers', 'pad_token_id', 'pretraining_tp', 'torch_dtype',
    'transformers.js_config', 'transformers_version', 'unk_token_id',
    'use_cache',
})


def from_hf(fields: dict[str, Any]) -> ModelConfig:
  """Converts the content of a `config.json`."""
  model_type = fields.get('model_type')
  if str(model_type) not in FAMILIES:
    raise errors.UserError(
        f'model_type={model_type!r}: expected {" or ".join(FAMILIES)}.')
  required = _REQUIRED | {
      'architectures': ([FAMILIES[model_type].architecture], None)}
  if model_type.startswith('qwen'):  # `use_sliding_window` turns it off.
    del required['sliding_window']
  for name, allowed in required.items():
    if name in fields and fields[name] not in allowed:
      raise errors.UserError(
          f'{name}={fields[name]!r}: expected '
          f'{" or ".join(map(repr, allowed))}.')
  layer_types = fields.get('layer_types') or []
  if any(layer != 'full_attention' for layer in layer_types):
    raise errors.UserError(
        f'layer_types={layer_types!r}: expected only full_attention.')
  theta, scaling = _rope(fields)
  fields = fields | {'rope_theta': theta}
  if model_type != 'qwen3' and fields.get('head_dim') is None:
    size, heads = fields.get('hidden_size'), fields.get('num_attention_heads')
    is_valid = type(size) is type(heads) is int and heads > 0
    # Otherwise the message below names the wrong field.
    fields['head_dim'] = size // heads if is_valid else None
  if missing := sorted(_FIELDS.keys() - fields.keys()):
    raise errors.UserError(f'lacks {", ".join(missing)}.')
  known = _FIELDS.keys() | required.keys() | _WITHOUT_EFFECT | {
      'layer_types', 'model_type', 'rope_parameters', 'rope_scaling',
      'sliding_window'}
  if unknown := sorted(fields.keys() - known):
    raise errors.UserError(
        f'has unknown fields: {", ".join(unknown)}. Remove them if they do '
        'not change the model.')
  return ModelConfig(
      model_type=model_type, rope_scaling=scaling,
      **{ours: fields[theirs] for theirs, ours in _FIELDS.items()})


def to_hf(config: ModelConfig, dtype: str) -> dict[str, Any]:
  """The content of a `config.json` for weights stored as `dtype`."""
  fields = {
      'architectures': [config.family.architecture],
      'model_type': config.model_type,
      'hidden_act': 'silu',
      'attention_bias': False,
      'attention_dropout': 0.0,
      'torch_dtype': dtype,
      **{theirs: getattr(config, ours) for theirs, ours in _FIELDS.items()},
  }
  if config.model_type == 'mistral':
    fields['sliding_window'] = None  # transformers has a window by default.
  if config.rope_scaling:
    fields['rope_scaling'] = {
        'rope_type': 'llama3', **dataclasses.asdict(config.rope_scaling)}
  return fields


def _rope(fields: dict[str, Any]) -> tuple[float, Llama3Rope | None]:
  """The base of the rotary angles and their scaling.

  Older files have `rope_theta` and `rope_scaling`, newer ones both in
  `rope_parameters`.
  """
  name = 'rope_parameters' if fields.get('rope_parameters') else 'rope_scaling'
  rope = fields.get(name) or {}
  scaled = {field.name for field in dataclasses.fields(Llama3Rope)}
  if isinstance(rope, dict):
    rope_type = rope.get('rope_type', rope.get('type', 'default'))
    needed = {'default': set(), 'llama3': scaled}.get(str(rope_type))
    given = rope.keys() - {'rope_theta', 'rope_type', 'type'}
  if not isinstance(rope, dict) or given != needed:
    raise errors.UserError(
        f"{name}={rope!r}: expected rope_type 'default', or 'llama3' with "
        f'{", ".join(sorted(scaled))}.')
  theta = rope.get('rope_theta', fields.get('rope_theta'))
  if theta is None:
    raise errors.UserError('lacks rope_theta.')
  scaling = Llama3Rope(**{key: rope[key] for key in needed}) if needed else None
  return float(theta) if type(theta) is int else theta, scaling
