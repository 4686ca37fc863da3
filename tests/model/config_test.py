"""model/config.py: each field of a `config.json` is used or refused."""

import dataclasses
import json
import pathlib

import pytest

from atgrpo_jax import errors
from atgrpo_jax.model import config as config_lib

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'

# As in Qwen3-0.6B, but every number that is read is another one.
FIELDS = {
    'architectures': ['Qwen3ForCausalLM'],
    'attention_bias': False,
    'attention_dropout': 0.0,
    'bos_token_id': 151643,
    'eos_token_id': 151645,
    'head_dim': 6,
    'hidden_act': 'silu',
    'hidden_size': 20,
    'initializer_range': 0.03,
    'intermediate_size': 44,
    'max_position_embeddings': 512,
    'max_window_layers': 28,
    'model_type': 'qwen3',
    'num_attention_heads': 8,
    'num_hidden_layers': 3,
    'num_key_value_heads': 2,
    'rms_norm_eps': 1e-5,
    'rope_scaling': None,
    'rope_theta': 500000,
    'sliding_window': None,
    'tie_word_embeddings': True,
    'torch_dtype': 'bfloat16',
    'transformers_version': '4.51.0',
    'use_cache': True,
    'use_sliding_window': False,
    'vocab_size': 97,
}
CONFIG = config_lib.ModelConfig(
    vocab_size=97, hidden_size=20, intermediate_size=44, num_layers=3,
    num_heads=8, num_kv_heads=2, head_dim=6, rope_theta=500000.0, norm_eps=1e-5,
    tied_head=True, max_positions=512, init_std=0.03)


def _message(fields):
  """The one line that says why the fields are refused."""
  with pytest.raises(errors.UserError) as error:
    config_lib.from_hf(fields)
  assert '\n' not in str(error.value)
  return str(error.value)


def _without(*names):
  return {name: value for name, value in FIELDS.items() if name not in names}


def test_every_number_is_read():
  assert config_lib.from_hf(FIELDS) == CONFIG
  # No two of them could be exchanged in silence.
  values = dataclasses.astuple(CONFIG)
  assert len(set(values)) == len(values)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_what_is_written_is_read_again(dtype):
  fields = json.loads(json.dumps(config_lib.to_hf(CONFIG, dtype)))
  assert config_lib.from_hf(fields) == CONFIG
  assert fields['torch_dtype'] == dtype
  # Nothing but what a Qwen3 of the hub says too.
  assert fields.keys() <= FIELDS.keys()


def test_files_of_transformers_are_read():
  folders = [path.parent for path in GOLDENS.glob('qwen3_*/config.json')]
  assert len(folders) == 3
  for folder in folders:
    fields = json.loads((folder / 'config.json').read_text())
    config = config_lib.from_hf(fields)
    # The newer form: the angles have a sub-dict.
    assert 'rope_theta' not in fields
    assert config.rope_theta == fields['rope_parameters']['rope_theta']


@pytest.mark.parametrize('name', [
    'head_dim', 'hidden_size', 'initializer_range', 'intermediate_size',
    'max_position_embeddings', 'num_attention_heads', 'num_hidden_layers',
    'num_key_value_heads', 'rms_norm_eps', 'rope_theta',
    'tie_word_embeddings', 'vocab_size'])
def test_a_missing_number_is_named(name):
  assert _message(_without(name)) == f'config.json lacks {name}.'


def test_unknown_fields_are_named():
  message = _message(FIELDS | {'num_experts': 8, 'attn_output_gate': True})
  assert 'attn_output_gate, num_experts' in message


@pytest.mark.parametrize('name, value', [
    ('model_type', 'qwen2'),
    ('architectures', ['Qwen3ForSequenceClassification']),
    ('hidden_act', 'gelu'),
    ('attention_bias', True),
    ('attention_dropout', 0.1),
    ('use_sliding_window', True),
    ('sliding_window', 4096),
    ('rope_scaling', {'rope_type': 'yarn', 'factor': 4.0}),
])
def test_what_is_not_supported_is_refused(name, value):
  message = _message(FIELDS | {name: value})
  assert f'{name}={value!r} is not supported; expected ' in message


@pytest.mark.parametrize('name', [
    'architectures', 'attention_bias', 'bos_token_id', 'sliding_window',
    'torch_dtype', 'use_cache'])
def test_fields_that_change_nothing_may_be_left_out(name):
  assert config_lib.from_hf(_without(name)) == CONFIG


def test_layer_types():
  full = ['full_attention'] * 3
  assert config_lib.from_hf(FIELDS | {'layer_types': full}) == CONFIG
  assert config_lib.from_hf(FIELDS | {'layer_types': None}) == CONFIG
  mixed = ['full_attention', 'sliding_attention', 'full_attention']
  assert 'sliding_attention' in _message(FIELDS | {'layer_types': mixed})


def test_rope_parameters():
  old = _without('rope_theta')
  new = old | {'rope_parameters': {'rope_type': 'default', 'rope_theta': 5e5}}
  assert config_lib.from_hf(new) == CONFIG
  assert config_lib.from_hf(new | {'rope_theta': 500000}) == CONFIG
  # Beside the sub-dict, or without it.
  assert config_lib.from_hf(FIELDS | {'rope_parameters': {}}) == CONFIG
  assert config_lib.from_hf(FIELDS | {'rope_parameters': None}) == CONFIG
  message = _message(new | {'rope_theta': 10000})
  assert 'rope_theta=10000 contradicts' in message


@pytest.mark.parametrize('extra, words', [
    ({'rope_type': 'yarn', 'factor': 4.0}, "expected rope_type 'default'"),
    ({'partial_rotary_factor': 0.5}, 'partial_rotary_factor'),
])
def test_rope_parameters_that_are_not_supported(extra, words):
  rope = {'rope_type': 'default', 'rope_theta': 5e5} | extra
  message = _message(_without('rope_theta') | {'rope_parameters': rope})
  assert words in message


def test_heads_that_do_not_divide():
  message = _message(FIELDS | {'num_key_value_heads': 3})
  assert 'num_attention_heads=8' in message
  assert 'num_key_value_heads=3' in message
  assert 'head_dim=7 is odd' in _message(FIELDS | {'head_dim': 7})
