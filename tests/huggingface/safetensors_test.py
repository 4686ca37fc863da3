"""Import and export are inverse, on one and on several processes.

transformers wrote the folders in tests/goldens/: a tied model in one file, an
untied model in one file, and bfloat16 shards with an index.
"""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy
import transformers

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'
DTYPES = {
    'qwen3_tied': jnp.float32,
    'qwen3_untied': jnp.float32,
    'qwen3_sharded': jnp.bfloat16,
}
FIRST_SHARD, SECOND_SHARD = (
    f'model-{i:05}-of-00004.safetensors' for i in (1, 2))


def _tensors(folder):
  """Name -> (dtype, shape, bytes)."""
  tensors = {}
  for path in sorted(folder.glob('*.safetensors')):
    for name, tensor in safetensors_numpy.load_file(path).items():
      assert name not in tensors
      tensors[name] = tensor.dtype, tensor.shape, tensor.tobytes()
  return tensors


def _load(folder, dtype=jnp.float32):
  config = hub.load_config(folder)
  return safetensors_lib.load_params(folder, config, dtype), config


def _edit(folder, edit_fn):
  """Applies `edit_fn` to the dict of the tensors of a folder."""
  path = folder / 'model.safetensors'
  tensors = safetensors_numpy.load_file(path)
  edit_fn(tensors)
  safetensors_numpy.save_file(tensors, path, metadata={'format': 'pt'})


@pytest.mark.parametrize('name', DTYPES)
def test_export_inverts_import(name, tmp_path):
  folder, stored = tmp_path / 'new' / 'model', DTYPES[name]
  for dtype in {jnp.float32, stored}:
    params, config = _load(GOLDENS / name, dtype)
    assert jax.tree.structure(params) == jax.tree.structure(
        model.param_shapes(config))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    safetensors_lib.save(folder, params, config, stored)
    exported = _tensors(folder)
    assert exported == _tensors(GOLDENS / name)
  assert ('lm_head.weight' in exported) == (not config.tied_head)
  assert hub.load_config(folder) == config
  # transformers reads an equal config.
  found, expected = (
      transformers.AutoConfig.from_pretrained(path).to_dict()
      for path in (folder, GOLDENS / name))
  assert {field for field in expected if found[field] != expected[field]} <= {
      '_name_or_path', 'bos_token_id', 'eos_token_id', 'pad_token_id',
      'transformers_version'}


def _store_head(tensors):
  tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()


def test_redundant_head_and_unlisted_files_are_ignored(tmp_path):
  # The tied models of Qwen3 store their head.
  folder = shutil.copytree(GOLDENS / 'qwen3_tied', tmp_path / 'tied')
  expected, _ = _load(folder)
  _edit(folder, _store_head)
  params, _ = _load(folder)
  assert params.keys() == expected.keys()
  np.testing.assert_array_equal(params['embedding'], expected['embedding'])
  folder = shutil.copytree(GOLDENS / 'qwen3_sharded', tmp_path / 'sharded')
  (folder / 'adapter.safetensors').write_bytes(b'of something else')
  _load(folder)


def _misfit(tensors):
  del tensors['model.layers.1.self_attn.q_norm.weight']
  del tensors['lm_head.weight']
  tensors['model.layers.0.self_attn.q_proj.bias'] = np.zeros(64, np.float32)
  # The right size, but transposed.
  tensors['model.layers.0.mlp.up_proj.weight'] = np.zeros((32, 48), np.float32)


def _change_head(tensors):
  _store_head(tensors)
  tensors['lm_head.weight'][3, 4] += 1


@pytest.mark.parametrize('name, damage, words', [
    ('untied', lambda folder: _edit(folder, _misfit), [
        'missing lm_head.weight;',
        'missing model.layers.1.self_attn.q_norm.weight;',
        'surplus model.layers.0.self_attn.q_proj.bias;',
        'model.layers.0.mlp.up_proj.weight has shape (32, 48), expected '
        '(48, 32)', 'Take both files from the same model.']),
    ('tied', lambda folder: _edit(folder, _change_head), [
        'lm_head.weight is not model.embed_tokens.weight']),
    ('sharded', lambda folder: shutil.copy(
        folder / FIRST_SHARD, folder / SECOND_SHARD), [
            'missing model.layers.'])])
def test_damaged_folders_are_refused(name, damage, words, tmp_path):
  folder = shutil.copytree(GOLDENS / f'qwen3_{name}', tmp_path / 'model')
  damage(folder)
  with pytest.raises(errors.UserError) as error:
    _load(folder)
  for text in (*words, str(folder)):
    assert text in str(error.value) and '\n' not in str(error.value)


def test_large_models_are_split_into_files(tmp_path, monkeypatch):
  params, config = _load(GOLDENS / 'qwen3_untied')
  monkeypatch.setattr(safetensors_lib, '_MAX_FILE_BYTES', 30_000)
  old_umask = os.umask(0o027)
  safetensors_lib.save(tmp_path, params, config, jnp.float32)
  os.umask(old_umask)
  files = sorted(tmp_path.glob('*.safetensors'))
  assert len(files) > 2
  for i, path in enumerate(files, start=1):
    assert path.name == f'model-{i:05}-of-{len(files):05}.safetensors'
    assert path.stat().st_size < 30_000 + 5_000  # The header.
    # safetensors creates its files as 0600.
    assert path.stat().st_mode & 0o777 == 0o640
  expected = _tensors(GOLDENS / 'qwen3_untied')
  assert _tensors(tmp_path) == expected
  index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
  assert set(index['weight_map']) == set(expected)
  assert index['metadata']['total_size'] == sum(
      len(data) for _, _, data in expected.values())
  restored, _ = _load(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, restored, params)


CONFIG = model.ModelConfig(
    vocab_size=64, hidden_size=32, intermediate_size=96, num_layers=4,
    num_heads=4, num_kv_heads=2, head_dim=8, rope_theta=1e4, norm_eps=1e-6,
    tied_head=False, max_positions=16, init_std=0.1)
LARGE = dataclasses.replace(
    CONFIG, vocab_size=2056, hidden_size=256, intermediate_size=2000)

# Number of axes of a leaf -> its sharding over a 2 x 4 mesh.
SPECS = (
    {3: (None, 'x', 'y'), 2: ('y', 'x')},
    {3: (None, ('x', 'y')), 2: (None, ('y', 'x'))},
    {3: ('y', None, 'x'), 2: ('y', 'x'), 1: ('y',)})


def _run_in_two_processes(folder):
  """Runs `_check_process` in two processes with four devices each."""
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  processes = [
      subprocess.Popen(
          [sys.executable, '-c',
           f'import jax; jax.distributed.initialize({address!r}, 2, {i}); '
           'from tests.huggingface import safetensors_test as test; '
           f'test._check_process({str(folder)!r})'],
          cwd=GOLDENS.parents[1], text=True, stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT, env=os.environ | {
              'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '4',
              'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo'})
      for i in range(2)]
  for process in processes:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def _write_model(folder, config, dtype):
  init_params = jax.jit(model.init_params, static_argnums=1)
  safetensors_lib.save(
      folder, init_params(jax.random.key(0), config), config, dtype)


def _shardings(params, specs, devices=None):
  mesh = jax.make_mesh(
      (2, 4) if devices is None else (1, len(devices)), ('x', 'y'),
      axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=devices)
  return jax.tree.map(
      lambda leaf: jax.sharding.NamedSharding(
          mesh, jax.sharding.PartitionSpec(*specs.get(leaf.ndim, ()))),
      params)


def _check_shards(params, whole, shardings):
  """Each device holds its shard of `whole`."""
  def check(leaf, whole_leaf, sharding):
    assert leaf.sharding == sharding
    assert leaf.shape == whole_leaf.shape and leaf.dtype == whole_leaf.dtype
    for shard in leaf.addressable_shards:
      np.testing.assert_array_equal(shard.data, whole_leaf[shard.index])
  jax.tree.map(check, params, whole, shardings)


def test_processes_read_only_their_shards_and_export_together(tmp_path):
  _write_model(tmp_path / 'model', CONFIG, jnp.float32)
  _write_model(tmp_path / 'large', LARGE, jnp.bfloat16)
  _run_in_two_processes(tmp_path)
  for name in ('all', 'second process'):
    assert _tensors(tmp_path / name) == _tensors(tmp_path / 'model')


def _check_peak_memory(folder, config):
  """The host holds one parameter at a time, not a file."""
  shapes = model.param_shapes(config)
  sizes = [4 * x.size for x in jax.tree.leaves(shapes)]
  tracemalloc.start()
  params = safetensors_lib.load_params(
      folder, config, jnp.float32, _shardings(shapes, SPECS[0]))
  kept, peak = tracemalloc.get_traced_memory()  # numpy's memory only.
  tracemalloc.stop()
  del params
  assert peak < 1.5 * max(sizes) + kept < sum(sizes) + kept


def _check_process(root):
  root = pathlib.Path(root)
  shapes = model.param_shapes(CONFIG)
  load = functools.partial(
      safetensors_lib.load_params, root / 'model', CONFIG, jnp.float32)
  # Unsharded, on one local device.
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  whole = jax.device_get(load(jax.tree.map(lambda _: device, shapes)))
  num_read, make_array = [], jax.make_array_from_callback

  def counting(shape, sharding, callback, **kwargs):
    def read(index):
      piece = callback(index)
      num_read.append(piece.size)
      return piece
    return make_array(shape, sharding, read, **kwargs)

  jax.make_array_from_callback = counting
  for specs in SPECS:
    shardings = _shardings(shapes, specs)
    _check_shards(load(shardings), whole, shardings)
  _check_peak_memory(root / 'large', LARGE)

  num_read.clear()
  for name, devices in (
      ('all', None),
      # A pool without a device of the first process.
      ('second process', jax.devices()[4:])):
    shardings = _shardings(shapes, SPECS[0], devices)
    params = load(shardings)
    _check_shards(params, whole, shardings)
    if name == 'all':
      num_params = sum(x.size for x in jax.tree.leaves(whole))
      assert 0.4 < sum(num_read) / num_params < 0.6
    safetensors_lib.save(root / name, params, CONFIG, jnp.float32)
