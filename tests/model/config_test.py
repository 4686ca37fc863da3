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
    FIELDS | {'sliding_window': 4096},  # `use_sliding_window` turns it off.
    {name: FIELDS[name] for name in FIELDS if name != 'sliding_window'}])
def test_equivalent_files(fields):
  assert config_lib.from_hf(fields) == CONFIG


@pytest.mark.parametrize('fields, words', [
    *(({k: v for k, v in FIELDS.items() if k != name}, f'lacks {name}.')
      for name in ('head_dim', 'rope_theta')),
    *((FIELDS | {name: value}, f'{name}={value!r}') for name, value in (
        ('attention_bias', True), ('use_sliding_window', True),
        ('rope_scaling', {'rope_type': 'yarn'}), ('rope_scaling', 'yarn'),
        ('layer_types', ['full_attention', 'sliding_attention']),
        ('head_dim', 7), ('vocab_size', True), ('rope_theta', math.inf),
        ('num_key_value_heads', 3),
        ('rope_parameters', ROPE | {'partial_rotary_factor': 0.5})))])
def test_unsupported_fields_are_refused(fields, words):
  with pytest.raises(errors.UserError) as error:
    config_lib.from_hf(fields)
  assert words in str(error.value)


# The fields of Qwen2.5, SmolLM2, Llama 3.2 and Mistral that Qwen3 lacks.
SHARED = {
    name: FIELDS[name] for name in FIELDS if name not in (
        'architectures', 'attention_bias', 'head_dim', 'max_window_layers',
        'model_type', 'rope_scaling', 'sliding_window', 'use_sliding_window')}
QWEN2 = SHARED | {
    'architectures': ['Qwen2ForCausalLM'], 'model_type': 'qwen2',
    'max_window_layers': 70, 'sliding_window': 32768, 'use_mrope': False,
    'use_sliding_window': False}
LLAMA = SHARED | {
    'architectures': ['LlamaForCausalLM'], 'model_type': 'llama',
    'attention_bias': False, 'is_llama_config': True, 'mlp_bias': False,
    'pretraining_tp': 1, 'rope_interleaved': False, 'rope_scaling': None}
LLAMA3_ROPE = {
    'factor': 32.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0,
    'original_max_position_embeddings': 8192, 'rope_type': 'llama3'}
MISTRAL = SHARED | {
    'architectures': ['MistralForCausalLM'], 'model_type': 'mistral',
    'head_dim': None, 'sliding_window': None}


@pytest.mark.parametrize('fields', [
    FIELDS, QWEN2, LLAMA, MISTRAL, LLAMA | {'rope_scaling': LLAMA3_ROPE}])
def test_families_are_read_and_written(fields):
  head_dim = 6 if fields is FIELDS else 2  # hidden_size / num_attention_heads
  config = config_lib.from_hf(fields)
  assert config == dataclasses.replace(
      CONFIG, model_type=fields['model_type'], head_dim=head_dim,
      rope_scaling=config.rope_scaling)
  assert (config.rope_scaling is None) != (
      fields.get('rope_scaling') == LLAMA3_ROPE)
  assert config_lib.from_hf(config_lib.to_hf(config, 'float32')) == config


def test_llama3_rope_is_read():
  scaling = config_lib.Llama3Rope(32.0, 1.0, 4.0, 8192)
  old = config_lib.from_hf(LLAMA | {'rope_scaling': LLAMA3_ROPE})
  new = config_lib.from_hf(
      {name: LLAMA[name] for name in LLAMA if name != 'rope_theta'}
      | {'rope_parameters': {'rope_theta': 500000.0, **LLAMA3_ROPE}})
  assert old == new and old.rope_scaling == scaling


@pytest.mark.parametrize('fields, words', [
    ({'model_type': 'gemma2'}, "model_type='gemma2': expected llama or"),
    ({'model_type': 'qwen3_moe', 'num_experts': 8}, "model_type='qwen3_moe'"),
    ({'model_type': 'gpt2', 'n_embd': 8}, "model_type='gpt2'"),
    ({'vocab_size': 9}, 'model_type=None'),
    (MISTRAL | {'sliding_window': 4096}, 'sliding_window=4096: expected None'),
    (LLAMA | {'rope_scaling': {'type': 'linear', 'factor': 2.0}},
     "rope_scaling={'type': 'linear', 'factor': 2.0}: expected rope_type"),
    (LLAMA | {'rope_scaling': {**LLAMA3_ROPE, 'low_freq_factor': 4.0}},
     'low_freq_factor=4.0'),
    (LLAMA | {'rope_scaling': {**LLAMA3_ROPE, 'factor': 0}}, 'factor=0'),
    (LLAMA | {'attention_bias': True}, 'attention_bias=True: expected False'),
    (LLAMA | {'mlp_bias': True}, 'mlp_bias=True'),
    (LLAMA | {'num_attention_heads': 0}, 'num_attention_heads=0 must be'),
    (LLAMA | {'hidden_size': '20'}, "hidden_size='20' must be"),
    ({name: LLAMA[name] for name in LLAMA if name != 'hidden_size'},
     'lacks hidden_size.')])
def test_unsupported_models_are_refused(fields, words):
  with pytest.raises(errors.UserError) as error:
    config_lib.from_hf(fields)
  assert words in str(error.value)
