"""Dimensions and family of a model, from a Hugging Face `config.json`.

Each field is used, or refused if it asks for an unsupported feature or
contradicts another field. Unknown fields are refused too, because ignoring one
may change the model silently.
"""

from collections.abc import Collection
import dataclasses
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
    errors.check_number('factor', self.factor, min_value=1)
    if self.low_freq_factor >= self.high_freq_factor:
      raise errors.UserError(
          f'low_freq_factor={self.low_freq_factor} must be below '
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
    if self.num_heads % self.num_kv_heads:
      raise errors.UserError(
          f'num_attention_heads={self.num_heads} is not a multiple of '
          f'num_key_value_heads={self.num_kv_heads}.')
    if self.head_dim % 2:
      raise errors.UserError(
          f'head_dim={self.head_dim} is odd; rotary embeddings need pairs.')
    errors.check_number('rope_theta', self.rope_theta, min_value=1)
    if self.num_layers > _MAX_LAYERS:
      raise errors.UserError(
          f'num_hidden_layers={self.num_layers}: expected at most '
          f'{_MAX_LAYERS}.')


_MAX_LAYERS = 10_000  # Every layer has a dozen named tensors.

# Name in the file -> (name here, kind).
_FIELDS = {
    'vocab_size': ('vocab_size', int),
    'hidden_size': ('hidden_size', int),
    'intermediate_size': ('intermediate_size', int),
    'num_hidden_layers': ('num_layers', int),
    'num_attention_heads': ('num_heads', int),
    'num_key_value_heads': ('num_kv_heads', int),
    'head_dim': ('head_dim', int),
    'max_position_embeddings': ('max_positions', int),
    'rope_theta': ('rope_theta', float),
    'rms_norm_eps': ('norm_eps', float),
    'initializer_range': ('init_std', float),
    'tie_word_embeddings': ('tied_head', bool),
}

# `rope_type` -> the kinds of the fields beside it.
_ROPES = {
    'default': {},
    'llama3': {
        'factor': float, 'low_freq_factor': float, 'high_freq_factor': float,
        'original_max_position_embeddings': int}}

# Fields that must have this value if present.
_REQUIRED = {
    'hidden_act': 'silu',
    'attention_bias': False,
    'attention_dropout': 0,
    'mlp_bias': False,
    'quantization_config': None,
    'rope_interleaved': False,
    'sliding_window': None,
    'use_mrope': False,
    'use_sliding_window': False,
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
    given = f'model_type={errors.as_json(model_type)}'
    raise errors.UserError(
        f'{"lacks model_type" if model_type is None else given}: expected '
        f'{" or ".join(map(errors.as_json, FAMILIES))}.')
  known = _FIELDS.keys() | _REQUIRED.keys() | _WITHOUT_EFFECT | {
      'architectures', 'layer_types', 'model_type', 'rope_parameters',
      'rope_scaling'}
  _check_values(fields, model_type)
  _refuse_unknown(fields, known)

  values = {
      name: errors.json_value(name, fields[name], kind)
      for name, (_, kind) in _FIELDS.items() if fields.get(name) is not None}
  values.setdefault('initializer_range', 0.02)  # Only for random weights.
  theta, scaling = _rope(fields)
  if theta is not None:
    values['rope_theta'] = theta
  size, heads = map(values.get, ('hidden_size', 'num_attention_heads'))
  if model_type != 'qwen3' and 'head_dim' not in values and size and heads:
    if size % heads:
      raise errors.UserError(
          f'hidden_size={size} is not a multiple of num_attention_heads='
          f'{heads}, and head_dim is missing.')
    values['head_dim'] = size // heads
  _refuse_missing(
      values, {name: kind for name, (_, kind) in _FIELDS.items()})
  config = ModelConfig(model_type=model_type, rope_scaling=scaling, **{
      ours: values[name] for name, (ours, _) in _FIELDS.items()})
  layer_types = fields.get('layer_types')
  if layer_types not in (None, ['full_attention'] * config.num_layers):
    raise errors.UserError(
        f'layer_types={errors.as_json(layer_types)}: expected "full_attention" '
        f'for each of the {config.num_layers} layers.')
  return config


def to_hf(config: ModelConfig, dtype: str) -> dict[str, Any]:
  """The content of a `config.json` for weights stored as `dtype`."""
  fields = {
      'architectures': [config.family.architecture],
      'model_type': config.model_type,
      'hidden_act': 'silu',
      'attention_bias': False,
      'attention_dropout': 0.0,
      'torch_dtype': dtype,
      **{name: getattr(config, ours) for name, (ours, _) in _FIELDS.items()},
  }
  if config.model_type == 'mistral':
    fields['sliding_window'] = None  # transformers has a window by default.
  if config.rope_scaling:
    fields['rope_scaling'] = {
        'rope_type': 'llama3', **dataclasses.asdict(config.rope_scaling)}
  return fields


def _check_values(fields: dict[str, Any], model_type: str) -> None:
  """Raises UserError for fields with an unsupported value."""
  required = dict(_REQUIRED)
  if fields.get('architectures') is not None:
    required['architectures'] = [FAMILIES[model_type].architecture]
  if model_type.startswith('qwen'):  # `use_sliding_window` turns it off.
    del required['sliding_window']
  if model_type == 'mistral' and 'sliding_window' not in fields:
    raise errors.UserError(
        'lacks sliding_window, for which transformers assumes 4096: expected '
        'null.')
  for name, expected in required.items():
    value = fields.get(name, expected)
    # In Python False equals 0.
    if value != expected or isinstance(value, bool) != (
        isinstance(expected, bool)):
      raise errors.UserError(
          f'{name}={errors.as_json(value)}: expected '
          f'{errors.as_json(expected)}.')


def _refuse_unknown(
    fields: dict[str, Any], known: Collection[str], prefix: str = '') -> None:
  if unknown := sorted(fields.keys() - known):
    given = ', '.join(
        f'{prefix}{name}={errors.as_json(fields[name])}' for name in unknown)
    raise errors.UserError(
        f'unknown fields {given}: expected a model without them; remove only '
        'fields that do not change the model.')


def _refuse_missing(
    fields: dict[str, Any], kinds: dict[str, type], prefix: str = '') -> None:
  if missing := sorted(kinds.keys() - fields.keys()):
    expected = ', '.join(
        f'{prefix}{name} ({errors.JSON_KINDS[kinds[name]]})'
        for name in missing)
    raise errors.UserError(
        f'lacks {expected}; copy the file from the source of the model.')


def _single(values: dict[str, Any], default: Any = None) -> Any:
  """The value that all fields have; UserError if they differ."""
  if len(set(values.values())) > 1:
    raise errors.UserError(
        f'{" and ".join(values)} contradict each other; copy the file from the '
        'source of the model.')
  return next(iter(values.values()), default)


def _rope(fields: dict[str, Any]) -> tuple[float | None, Llama3Rope | None]:
  """The base of the rotary angles, None if missing, and their scaling.

  Older files have `rope_theta` and `rope_scaling`, newer ones both in
  `rope_parameters`.
  """
  thetas, scalings = {'rope_theta': fields.get('rope_theta')}, {}
  for name in ('rope_parameters', 'rope_scaling'):
    if (rope := fields.get(name)) is not None:
      scalings[name] = _rope_scaling(name, rope)
      thetas[f'{name}.rope_theta'] = rope.get('rope_theta')
  thetas = {
      name: errors.json_value(name, theta, float)
      for name, theta in thetas.items() if theta is not None}
  return _single(thetas), _single(scalings)


def _rope_scaling(name: str, rope: Any) -> Llama3Rope | None:
  """The scaling that the field `name` asks for."""
  if not isinstance(rope, dict):
    raise errors.UserError(
        f'{name}={errors.as_json(rope)}: expected null or an object.')
  types = {
      f'{name}.{key}': rope[key]
      for key in ('rope_type', 'type') if key in rope}  # `type` is older.
  for key, value in types.items():
    if value not in (*_ROPES,):
      raise errors.UserError(
          f'{key}={errors.as_json(value)}: expected '
          f'{" or ".join(map(errors.as_json, _ROPES))}.')
  kinds = _ROPES[_single(types, 'default')]
  _refuse_unknown(
      rope, kinds.keys() | {'rope_theta', 'rope_type', 'type'}, f'{name}.')
  _refuse_missing(rope, kinds, f'{name}.')
  values = {
      key: errors.json_value(f'{name}.{key}', rope[key], kinds[key])
      for key in kinds}
  return Llama3Rope(**values) if values else None
