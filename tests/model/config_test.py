"""Every field of a `config.json` is used or refused."""

import dataclasses
import math

import pytest
import transformers

from atgrpo_jax import errors
from atgrpo_jax.model import config as config_lib


def _without(fields, *names):
  return {name: fields[name] for name in fields if name not in names}


# Like Qwen3-0.6B, with distinct values.
FIELDS = {
    'architectures': ['Qwen3ForCausalLM'], 'attention_bias': False,
    'attention_dropout': 0.0, 'bos_token_id': 151643, 'eos_token_id': 151645,
    'head_dim': 6, 'hidden_act': 'silu', 'hidden_size': 32,
    'initializer_range': 0.03, 'intermediate_size': 44,
    'max_position_embeddings': 512, 'max_window_layers': 28,
    'model_type': 'qwen3', 'num_attention_heads': 8, 'num_hidden_layers': 3,
    'num_key_value_heads': 2, 'rms_norm_eps': 1e-5, 'rope_scaling': None,
    'rope_theta': 500000, 'sliding_window': None, 'tie_word_embeddings': True,
    'torch_dtype': 'bfloat16', 'transformers_version': '4.51.0',
    'use_cache': True, 'use_sliding_window': False, 'vocab_size': 97,
}
ROPE = {'rope_type': 'default', 'rope_theta': 5e5}
CONFIG = config_lib.ModelConfig(
    vocab_size=97, hidden_size=32, intermediate_size=44, num_layers=3,
    num_heads=8, num_kv_heads=2, head_dim=6, rope_theta=500000.0, norm_eps=1e-5,
    tied_head=True, max_positions=512, init_std=0.03)


def test_all_numbers_are_read():
  assert config_lib.from_hf(FIELDS) == CONFIG
  whole = config_lib.from_hf(
      _without(FIELDS, 'initializer_range') | {'rms_norm_eps': 1})
  assert whole == dataclasses.replace(CONFIG, norm_eps=1.0, init_std=0.02)
  # Distinct, so that no two fields can be swapped unnoticed.
  values = dataclasses.astuple(CONFIG)
  assert len(set(values)) == len(values)


@pytest.mark.parametrize('fields', [
    _without(FIELDS, 'rope_theta') | {'rope_parameters': ROPE},
    FIELDS | {'rope_parameters': None},
    FIELDS | {'layer_types': ['full_attention'] * 3},
    FIELDS | {'rope_parameters': ROPE, 'rope_scaling': {'type': 'default'}},
    FIELDS | {'rope_parameters': {}},
    FIELDS | {'sliding_window': 4096},  # `use_sliding_window` turns it off.
    _without(FIELDS, 'sliding_window')])
def test_equivalent_files(fields):
  assert config_lib.from_hf(fields) == CONFIG


# The fields of Qwen2.5, SmolLM2, Llama 3.2 and Mistral that Qwen3 lacks.
SHARED = _without(
    FIELDS, 'architectures', 'attention_bias', 'head_dim', 'max_window_layers',
    'model_type', 'rope_scaling', 'sliding_window', 'use_sliding_window')
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
LLAMA3_SCALING = config_lib.Llama3Rope(32.0, 1.0, 4.0, 8192)
MISTRAL = SHARED | {
    'architectures': ['MistralForCausalLM'], 'model_type': 'mistral',
    'head_dim': None, 'sliding_window': None}


@pytest.mark.parametrize('fields, scaling', [
    (FIELDS, None), (QWEN2, None), (LLAMA, None), (MISTRAL, None),
    (LLAMA | {'rope_scaling': LLAMA3_ROPE}, LLAMA3_SCALING),
    (_without(LLAMA, 'rope_theta') | {
        'rope_parameters': {'rope_theta': 5e5, **LLAMA3_ROPE}},
     LLAMA3_SCALING)])
def test_families_are_read_and_written(fields, scaling):
  head_dim = 6 if fields is FIELDS else 4  # hidden_size / num_attention_heads
  config = config_lib.from_hf(fields)
  assert config == dataclasses.replace(
      CONFIG, model_type=fields['model_type'], head_dim=head_dim,
      rope_scaling=scaling)
  assert config_lib.from_hf(config_lib.to_hf(config, 'float32')) == config


def _scaled(scaling):
  return LLAMA | {'rope_scaling': scaling}


@pytest.mark.parametrize('fields, words', [
    (_without(FIELDS, 'model_type'), 'lacks model_type'),
    (_without(FIELDS, 'vocab_size', 'rope_theta'),
     r'lacks rope_theta \(a number above 0.*vocab_size \(a whole number'),
    ({'model_type': 'gemma2'}, 'model_type="gemma2".*"llama"'),
    (FIELDS | {'use_sliding_window': True}, 'use_sliding_window=true'),
    (LLAMA | {'attention_bias': 0}, 'attention_bias=0: expected false'),
    (LLAMA | {'final_logit_softcapping': 30.0, 'use_qk_norm': True},
     'final_logit_softcapping=30.0, use_qk_norm=true'),
    (MISTRAL | {'sliding_window': 4096}, 'sliding_window=4096'),
    # transformers reads such a file with a window.
    (_without(MISTRAL, 'sliding_window'), 'lacks sliding_window'),
    (FIELDS | {'head_dim': 7}, 'head_dim=7'),
    (FIELDS | {'num_key_value_heads': 3}, 'num_key_value_heads=3'),
    (LLAMA | {'hidden_size': 21}, 'hidden_size=21'),
    (FIELDS | {'num_hidden_layers': 10**9}, 'num_hidden_layers=1000000000'),
    (_scaled('yarn'), 'rope_scaling="yarn"'),
    (_scaled({'type': 'linear'}), 'rope_scaling.type="linear"'),
    (_scaled(LLAMA3_ROPE | {'type': 'default'}),
     'rope_scaling.rope_type.*rope_scaling.type'),
    (_scaled(ROPE | {'partial_rotary_factor': 0.5}),
     'rope_scaling.partial_rotary_factor=0.5'),
    (_scaled(_without(LLAMA3_ROPE, 'factor')), 'lacks rope_scaling.factor'),
    (_scaled(LLAMA3_ROPE | {'factor': True}), 'rope_scaling.factor=true'),
    (_scaled(LLAMA3_ROPE | {'low_freq_factor': 4.0}), 'low_freq_factor=4.0'),
    (_scaled(LLAMA3_ROPE | {'factor': 1 - 1e-9}), 'factor=0.999'),
    (FIELDS | {'rope_theta': 1 - 1e-9}, 'rope_theta=0.999'),
    # Fields that contradict each other.
    (FIELDS | {'rope_parameters': ROPE | {'rope_theta': 5e5 + 1e-9}},
     'rope_theta.*rope_parameters.rope_theta'),
    (FIELDS | {'rope_parameters': ROPE, 'rope_scaling': LLAMA3_ROPE},
     'rope_parameters.*rope_scaling'),
    (FIELDS | {'layer_types': ['full_attention'] * 2 + ['sliding_attention']},
     'layer_types.*sliding_attention'),
    (FIELDS | {'architectures': ['LlamaForCausalLM']},
     r'architectures=\["LlamaForCausalLM"\].*\["Qwen3ForCausalLM"\]')])
def test_unsupported_model_is_refused(fields, words):
  with pytest.raises(errors.UserError, match=words):
    config_lib.from_hf(fields)


WRONG = (
    None, '20', [20], {}, -1, 0, True, 2.5, 1e-38, 10**400, math.nan, math.inf)
SUPPORTED = {
    'initializer_range': (None, 2.5), 'layer_types': (None,),
    'rms_norm_eps': (2.5,), 'rope_parameters': (None, {}), 'rope_theta': (2.5,),
    'tie_word_embeddings': (True,)}


@pytest.mark.parametrize('name', [
    'head_dim', 'hidden_size', 'intermediate_size', 'max_position_embeddings',
    'num_attention_heads', 'num_hidden_layers', 'num_key_value_heads',
    'vocab_size', *SUPPORTED])
def test_wrong_types_and_absurd_values_are_refused(name):
  for value in WRONG:
    if value not in SUPPORTED.get(name, ()):
      with pytest.raises(errors.UserError, match=name) as error:
        config_lib.from_hf(FIELDS | {name: value})
      assert len(str(error.value)) < 250, value


@pytest.mark.parametrize('fields', [FIELDS, QWEN2, LLAMA, MISTRAL])
def test_missing_fields_mean_what_transformers_assumes(fields):
  assumed = transformers.AutoConfig.for_model(fields['model_type']).to_dict()
  for name in (
      'attention_bias', 'attention_dropout', 'hidden_act', 'mlp_bias',
      'sliding_window', 'use_sliding_window'):
    rest = _without(fields, name)
    if name in assumed and (fields, name) != (MISTRAL, 'sliding_window'):
      assert config_lib.from_hf(rest) == config_lib.from_hf(
          rest | {name: assumed[name]}), name
