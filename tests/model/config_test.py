"""Every field of a `config.json` is used or refused."""

import dataclasses
import math

import pytest

from atgrpo_jax import errors
from atgrpo_jax.model import config as config_lib

# Like Qwen3-0.6B, with distinct values.
FIELDS = {
    'architectures': ['Qwen3ForCausalLM'], 'attention_bias': False,
    'attention_dropout': 0.0, 'bos_token_id': 151643, 'eos_token_id': 151645,
    'head_dim': 6, 'hidden_act': 'silu', 'hidden_size': 20,
    'initializer_range': 0.03, 'intermediate_size': 44,
    'max_position_embeddings': 512, 'max_window_layers': 28,
    'model_type': 'qwen3', 'num_attention_heads': 8, 'num_hidden_layers': 3,
    'num_key_value_heads': 2, 'rms_norm_eps': 1e-5, 'rope_scaling': None,
    'rope_theta': 500000, 'sliding_window': None, 'tie_word_embeddings': True,
    'torch_dtype': 'bfloat16', 'transformers_version': '4.51.0',
    'use_cache': True, 'use_sliding_window': False, 'vocab_size': 97,
}
WITHOUT_THETA = {
    name: value for name, value in FIELDS.items() if name != 'rope_theta'}
ROPE = {'rope_type': 'default', 'rope_theta': 5e5}
CONFIG = config_lib.ModelConfig(
    vocab_size=97, hidden_size=20, intermediate_size=44, num_layers=3,
    num_heads=8, num_kv_heads=2, head_dim=6, rope_theta=500000.0, norm_eps=1e-5,
    tied_head=True, max_positions=512, init_std=0.03)


def test_all_numbers_are_read():
  assert config_lib.from_hf(FIELDS) == CONFIG
  whole = config_lib.from_hf(FIELDS | {'rms_norm_eps': 1})
  assert whole == dataclasses.replace(CONFIG, norm_eps=1.0)
  # Distinct, so that no two fields can be swapped unnoticed.
  values = dataclasses.astuple(CONFIG)
  assert len(set(values)) == len(values)


@pytest.mark.parametrize('fields', [
    WITHOUT_THETA | {'rope_parameters': ROPE},
    FIELDS | {'rope_parameters': None},
    FIELDS | {'layer_types': ['full_attention'] * 3},
    {name: FIELDS[name] for name in FIELDS if name != 'sliding_window'}])
def test_equivalent_files(fields):
  assert config_lib.from_hf(fields) == CONFIG


@pytest.mark.parametrize('fields, words', [
    *(({k: v for k, v in FIELDS.items() if k != name}, f'lacks {name}.')
      for name in ('head_dim', 'rope_theta')),
    *((FIELDS | {name: value}, f'{name}={value!r}') for name, value in (
        ('attention_bias', True), ('sliding_window', 4096),
        ('rope_scaling', {'rope_type': 'yarn'}),
        ('layer_types', ['full_attention', 'sliding_attention']),
        ('head_dim', 7), ('vocab_size', True), ('rope_theta', math.inf),
        ('num_key_value_heads', 3),
        ('rope_parameters', ROPE | {'partial_rotary_factor': 0.5})))])
def test_unsupported_fields_are_refused(fields, words):
  with pytest.raises(errors.UserError) as error:
    config_lib.from_hf(fields)
  assert words in str(error.value)
