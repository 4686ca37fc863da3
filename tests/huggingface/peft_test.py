"""Parity with PEFT, whose outputs tests/goldens/make_peft_goldens.py stores."""

import json
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.huggingface import safetensors as safetensors_lib

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'
NAMES = ('peft_some', 'peft_all')
CONFIG = hub.load_config(GOLDENS / 'qwen3_tied')
WEIGHTS = 'adapter_model.safetensors'
LAYER = 'base_model.model.model.layers.1'


def _fields(folder):
  return json.loads((folder / 'adapter_config.json').read_text())


@jax.jit
def _logits(params, tokens):
  """Logits [B, S, V] of tokens [B, S]."""
  hidden, _ = model.forward(params, CONFIG, tokens[:, None])
  return model.unembed(params, CONFIG, hidden)[:, 0]


@pytest.mark.parametrize('name', NAMES)
def test_logits_equal_peft(name):
  weights, alpha = peft.load(GOLDENS / name, CONFIG)
  params = safetensors_lib.load_params(GOLDENS / 'qwen3_tied', CONFIG)
  with np.load(GOLDENS / 'peft_reference.npz') as file:
    prompts, expected = file[f'{name}/prompts'], file[f'{name}/logits']
  assert np.abs(_logits(params, prompts) - expected).max() > 1
  adapters = model.stack([weights], [alpha / model.describe(weights)[0]])
  np.testing.assert_allclose(
      _logits(model.with_adapters(params, adapters), prompts), expected,
      atol=1e-4, rtol=0)


@pytest.mark.parametrize('name', NAMES)
def test_export_equals_the_files_of_peft(name, tmp_path):
  weights, alpha = peft.load(GOLDENS / name, CONFIG)
  folder = tmp_path / 'new' / 'adapter'
  peft.save(
      folder, weights, alpha=alpha, base_folder='qwen3_tied',
      dtype=jnp.float32)
  exported = safetensors_numpy.load_file(folder / WEIGHTS)
  expected = safetensors_numpy.load_file(GOLDENS / name / WEIGHTS)
  assert exported.keys() == expected.keys()
  for tensor, value in expected.items():
    assert exported[tensor].dtype == value.dtype
    np.testing.assert_array_equal(exported[tensor], value)

  fields, expected = _fields(folder), _fields(GOLDENS / name)
  targets = {
      module.rpartition('.')[2] for module in expected.pop('target_modules')}
  assert set(fields.pop('target_modules')) == targets
  assert fields.pop('base_model_name_or_path') == str(
      pathlib.Path.cwd() / 'qwen3_tied')
  assert fields == {field: expected[field] for field in fields}
  assert type(fields['lora_alpha']) is int

  restored, restored_alpha = peft.load(folder, CONFIG)
  assert restored_alpha == alpha
  assert jax.tree.structure(restored) == jax.tree.structure(weights)
  jax.tree.map(np.testing.assert_array_equal, restored, weights)


def _change_weights(change_fn):
  """Applies `change_fn` to the tensors of a folder."""
  def damage(folder):
    tensors = safetensors_numpy.load_file(folder / WEIGHTS)
    safetensors_numpy.save_file(change_fn(tensors), folder / WEIGHTS)
  return damage


@pytest.mark.parametrize('damage, words', [
    (_change_weights(lambda tensors: {
        name: x * ('.down_proj.' not in name) for name, x in tensors.items()}),
     'A and B of mlp.down_proj are 0'),
    (_change_weights(lambda tensors: {}), 'adapts none of self_attn.q_proj'),
    ({'peft_type': 'LOHA'}, 'peft_type="LOHA" is not supported'),
    ({'use_rslora': True}, 'use_rslora=true is not supported'),
    ({'use_new_feature': True}, 'use_new_feature=true is not supported'),
    ({'r': 5}, f'{LAYER}.self_attn.q_proj.lora_A.weight has shape (4, 32), '
     'expected (5, 32)')])
def test_unsupported_adapters_are_refused(damage, words, tmp_path):
  folder = tmp_path / 'adapter'
  shutil.copytree(GOLDENS / 'peft_some', folder)
  if callable(damage):
    damage(folder)
  else:
    (folder / 'adapter_config.json').write_text(
        json.dumps(_fields(folder) | damage))
  with pytest.raises(errors.UserError, match=re.escape(words)) as error:
    peft.load(folder, CONFIG)
  assert str(folder) in str(error.value)
