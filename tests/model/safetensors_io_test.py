"""model/safetensors_io.py: what was read is written again, byte for byte.

The folders in tests/goldens/ were written by transformers: one file, a tied
model; one file, untied; bfloat16 shards with an index.
"""

import dataclasses
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
from atgrpo_jax.model import safetensors_io

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'
DTYPES = {
    'qwen3_tied': jnp.float32,
    'qwen3_untied': jnp.float32,
    'qwen3_sharded': jnp.bfloat16,
}
FIRST_SHARD = 'model-00001-of-00004.safetensors'


def _tensors(folder):
  """Name -> (type, shape, bytes), read without a library."""
  tensors = {}
  for path in sorted(folder.glob('*.safetensors')):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], 'little')
    header = json.loads(data[8:8 + size])
    assert header.pop('__metadata__') == {'format': 'pt'}
    for name, entry in header.items():
      start, end = entry['data_offsets']
      assert name not in tensors
      tensors[name] = (
          entry['dtype'], entry['shape'], data[8 + size:][start:end])
  return tensors


def _load(folder, dtype=jnp.float32):
  config = safetensors_io.load_config(folder)
  return safetensors_io.load_params(folder, config, dtype), config


def _message(folder):
  """The one line that says why a folder cannot be loaded."""
  with pytest.raises(errors.UserError) as error:
    _load(folder)
  message = str(error.value)
  assert str(folder) in message and '\n' not in message
  return message


@pytest.fixture
def copy(tmp_path):
  """Copies a golden folder, to be damaged."""
  return lambda name: pathlib.Path(
      shutil.copytree(GOLDENS / name, tmp_path / name))


def _edit(folder, edit_fn):
  """Applies `edit_fn` to the dict of the tensors of a folder."""
  path = folder / 'model.safetensors'
  tensors = safetensors_numpy.load_file(path)
  edit_fn(tensors)
  safetensors_numpy.save_file(tensors, path, metadata={'format': 'pt'})


@pytest.mark.parametrize('name', DTYPES)
@pytest.mark.parametrize('through', ['stored', 'float32'])
def test_export_is_the_inverse_of_import(name, through, tmp_path):
  # Bite: a transposition in one direction only, gate and up exchanged in one,
  # a second rounding.
  stored = DTYPES[name]
  params, config = _load(
      GOLDENS / name, stored if through == 'stored' else jnp.float32)
  safetensors_io.save(tmp_path / 'new' / 'model', params, config, stored)
  exported = _tensors(tmp_path / 'new' / 'model')
  assert exported == _tensors(GOLDENS / name)
  assert ('lm_head.weight' in exported) == (not config.tied_head)
  assert safetensors_io.load_config(tmp_path / 'new' / 'model') == config
  fields = json.loads((tmp_path / 'new' / 'model' / 'config.json').read_text())
  assert fields['torch_dtype'] == jnp.dtype(stored).name


@pytest.mark.parametrize('tied', [True, False])
def test_import_is_the_inverse_of_export(tied, tmp_path):
  config = dataclasses.replace(
      safetensors_io.load_config(GOLDENS / 'qwen3_untied'), tied_head=tied)
  shapes = jax.eval_shape(
      lambda: model.init_params(jax.random.key(0), config))
  rng = np.random.default_rng(0)
  params = jax.tree.map(
      lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
  safetensors_io.save(tmp_path, params, config, jnp.float32)
  restored, restored_config = _load(tmp_path)
  assert restored_config == config
  assert jax.tree.structure(restored) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, restored, params)


def test_weights_come_as_the_type_that_is_asked_for():
  name = 'qwen3_sharded'
  for dtype in (jnp.float32, jnp.bfloat16):
    params, _ = _load(GOLDENS / name, dtype)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {
        jnp.dtype(dtype)}


def test_one_error_lists_all_that_does_not_fit(copy):
  folder = copy('qwen3_untied')

  def edit(tensors):
    del tensors['model.layers.1.self_attn.q_norm.weight']
    del tensors['lm_head.weight']
    tensors['model.layers.0.self_attn.q_proj.bias'] = np.zeros(64, np.float32)
    # As many numbers as it should have, but transposed.
    tensors['model.layers.0.mlp.up_proj.weight'] = np.zeros(
        (32, 48), np.float32)

  _edit(folder, edit)
  message = _message(folder)
  for part in (
      'missing lm_head.weight;',
      'missing model.layers.1.self_attn.q_norm.weight;',
      'surplus model.layers.0.self_attn.q_proj.bias;',
      'model.layers.0.mlp.up_proj.weight has shape (32, 48), expected '
      '(48, 32)'):
    assert part in message
  assert len(re.findall('missing|surplus|has shape', message)) == 4


def test_many_problems_are_counted(copy):
  folder = copy('qwen3_tied')
  _edit(folder, lambda tensors: tensors.clear())
  message = _message(folder)
  (more,) = re.findall(r'and (\d+) more', message)
  # 11 tensors in each of 2 layers, the embedding and the last norm.
  assert message.count('missing') + int(more) == 24


def test_weights_of_another_size_do_not_fit(copy):
  folder = copy('qwen3_tied')
  shutil.copy(GOLDENS / 'qwen3_untied' / 'config.json', folder)
  message = _message(folder)
  assert 'missing lm_head.weight' in message
  assert 'Take both files from the same model.' in message


def test_a_tied_model_may_store_its_head(copy):
  # Qwen3-0.6B and 1.7B do.
  folder = copy('qwen3_tied')
  expected, _ = _load(folder)

  def store_head(tensors):
    tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()

  _edit(folder, store_head)
  params, _ = _load(folder)
  assert params.keys() == expected.keys()
  np.testing.assert_array_equal(params['embedding'], expected['embedding'])

  def change_head(tensors):
    tensors['lm_head.weight'][3, 4] += 1

  _edit(folder, change_head)
  assert 'lm_head.weight is not model.embed_tokens.weight' in _message(folder)

  def drop_embedding(tensors):
    del tensors['model.embed_tokens.weight']

  _edit(folder, drop_embedding)
  assert 'missing model.embed_tokens.weight' in _message(folder)


def test_missing_files(copy, tmp_path):
  missing = tmp_path / 'qwen3-nano'
  assert f'{missing}/config.json does not exist' in _message(missing)

  folder = copy('qwen3_tied')
  (folder / 'model.safetensors').unlink()
  assert 'neither model.safetensors nor model.safetensors.index.json' in (
      _message(folder))

  folder = copy('qwen3_sharded')
  (folder / FIRST_SHARD).unlink()
  assert FIRST_SHARD in _message(folder)


def test_the_index_says_which_files_count(copy):
  folder = copy('qwen3_sharded')
  (folder / 'adapter.safetensors').write_bytes(b'of something else')
  _load(folder)
  index = folder / 'model.safetensors.index.json'
  fields = json.loads(index.read_text())
  fields['weight_map'] = {
      name: file for name, file in fields['weight_map'].items()
      if file != FIRST_SHARD}
  index.write_text(json.dumps(fields))
  message = _message(folder)
  assert 'missing model.layers.0.self_attn.v_proj.weight' in message


def test_a_config_that_is_refused_is_named_with_its_folder(copy):
  folder = copy('qwen3_tied')
  path = folder / 'config.json'
  fields = json.loads(path.read_text()) | {'attention_bias': True}
  path.write_text(json.dumps(fields))
  assert 'attention_bias=True' in _message(folder)
