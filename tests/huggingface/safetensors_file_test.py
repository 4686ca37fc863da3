"""safetensors_file.py and qwen3_names.py: what was read is written again.

The folders in tests/goldens/ were written by transformers: one file, a tied
model; one file, untied; bfloat16 shards with an index. What needs several
devices runs in processes of its own.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
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

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors_file

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
  config = hub.load_config(folder)
  return safetensors_file.load_params(folder, config, dtype), config


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
  assert jax.tree.structure(params) == jax.tree.structure(
      model.param_shapes(config))
  safetensors_file.save(tmp_path / 'new' / 'model', params, config, stored)
  exported = _tensors(tmp_path / 'new' / 'model')
  assert exported == _tensors(GOLDENS / name)
  assert ('lm_head.weight' in exported) == (not config.tied_head)
  assert hub.load_config(tmp_path / 'new' / 'model') == config
  fields = json.loads((tmp_path / 'new' / 'model' / 'config.json').read_text())
  assert fields['torch_dtype'] == jnp.dtype(stored).name


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
  assert message.endswith('Take both files from the same model.')


def test_many_problems_are_counted(copy):
  folder = copy('qwen3_tied')
  _edit(folder, lambda tensors: tensors.clear())
  message = _message(folder)
  (more,) = re.findall(r'and (\d+) more', message)
  # 11 tensors in each of 2 layers, the embedding and the last norm.
  assert message.count('missing') + int(more) == 24


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


def test_missing_files(copy):
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


def test_numbers_that_are_no_weights_are_refused(copy):
  folder = copy('qwen3_tied')

  def quantise(tensors):
    tensors['model.norm.weight'] = tensors['model.norm.weight'].astype(np.int8)

  _edit(folder, quantise)
  assert 'model.norm.weight has type I8, expected one of F32' in (
      _message(folder))


@pytest.mark.parametrize('damage_fn', [
    lambda data: data[:-1],
    lambda data: b'',
    lambda data: b'version https://git-lfs.github.com/spec/v1',
])
def test_a_damaged_file_is_named(copy, damage_fn):
  folder = copy('qwen3_tied')
  path = folder / 'model.safetensors'
  path.write_bytes(damage_fn(path.read_bytes()))
  assert f'{path} is not a whole safetensors file' in _message(folder)


def test_a_tensor_is_stored_once(copy):
  folder = copy('qwen3_sharded')
  second = 'model-00002-of-00004.safetensors'
  shutil.copy(folder / FIRST_SHARD, folder / second)
  assert f'in {second} and in another file' in _message(folder)


def test_a_large_model_is_cut_into_files(tmp_path, monkeypatch):
  params, config = _load(GOLDENS / 'qwen3_untied')
  monkeypatch.setattr(safetensors_file, '_FILE_BYTES', 30_000)
  safetensors_file.save(tmp_path, params, config, jnp.float32)
  assert not (tmp_path / 'model.safetensors').exists()
  files = sorted(path.name for path in tmp_path.glob('*.safetensors'))
  assert len(files) > 2
  assert files == [
      f'model-{i + 1:05}-of-{len(files):05}.safetensors'
      for i in range(len(files))]
  expected = _tensors(GOLDENS / 'qwen3_untied')
  assert _tensors(tmp_path) == expected
  for file in files:
    assert (tmp_path / file).stat().st_size < 30_000 + 5_000  # The header.
  index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
  assert set(index['weight_map']) == set(expected)
  assert index['metadata']['total_size'] == sum(
      len(data) for _, _, data in expected.values())
  restored, _ = _load(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, restored, params)


@pytest.mark.parametrize('umask, mode', [(0o022, 0o644), (0o027, 0o640)])
def test_the_umask_says_who_may_read(umask, mode, tmp_path):
  # Bite: the mode that safetensors gives its file.
  params, config = _load(GOLDENS / 'qwen3_tied')
  before = os.umask(umask)
  try:
    safetensors_file.save(tmp_path / 'model', params, config, jnp.float32)
  finally:
    os.umask(before)
  assert {
      path.name: path.stat().st_mode & 0o777
      for path in (tmp_path / 'model').iterdir()
  } == {'config.json': mode, 'model.safetensors': mode}


# Several devices.


CONFIG = model.ModelConfig(
    vocab_size=64, hidden_size=32, intermediate_size=96, num_layers=4,
    num_heads=4, num_kv_heads=2, head_dim=8, rope_theta=1e4, norm_eps=1e-6,
    tied_head=False, max_positions=16, init_std=0.1)

# Number of axes of a leaf -> its sharding over a mesh of 2 x 4.
SPECS = {
    'everywhere': {},
    'last axis': {3: (None, None, 'y'), 2: (None, 'y'), 1: ('y',)},
    'two axes': {3: (None, 'x', 'y'), 2: ('y', 'x')},
    'one over all': {3: (None, ('x', 'y')), 2: (None, ('y', 'x'))},
    'tensors are halved': {3: (None, None, 'x'), 2: (None, 'x')},
    'layers': {3: ('y', None, 'x'), 2: ('y', 'x')},
}


def _run(function, *args, num_processes=1, num_devices=8):
  """Runs a function of this file in processes of their own."""
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  processes = []
  for i in range(num_processes):
    start = ''
    if num_processes > 1:
      start = (
          'import jax; jax.distributed.initialize('
          f'{address!r}, {num_processes}, {i}); ')
    code = (
        f'{start}from tests.huggingface import safetensors_file_test as here; '
        f'here.{function}(*{args!r})')
    processes.append(subprocess.Popen(
        [sys.executable, '-c', code], cwd=GOLDENS.parents[1],
        env={
            **os.environ, 'JAX_PLATFORMS': 'cpu',
            'JAX_NUM_CPU_DEVICES': str(num_devices),
            'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo'},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
  try:
    outputs = [process.communicate(timeout=900)[0] for process in processes]
  finally:
    for process in processes:
      process.kill()
  for process, output in zip(processes, outputs):
    assert process.returncode == 0, output


def _write_model(folder, config, dtype):
  init_params = jax.jit(model.init_params, static_argnums=1)
  safetensors_file.save(
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
  """Each device holds its part of `whole`, where it should."""
  def check(leaf, whole_leaf, sharding):
    assert leaf.sharding == sharding
    assert leaf.shape == whole_leaf.shape and leaf.dtype == whole_leaf.dtype
    for shard in leaf.addressable_shards:
      np.testing.assert_array_equal(shard.data, whole_leaf[shard.index])
  jax.tree.map(check, params, whole, shardings)


def test_every_sharding_gives_the_same_weights(tmp_path):
  # Bite: axes of a transposed leaf exchanged, a part read from row 0, the
  # wrong layer's place.
  _write_model(tmp_path, CONFIG, jnp.bfloat16)
  _run('_check_every_sharding', str(tmp_path))


def _check_every_sharding(folder):
  # Rows that no block divides.
  safetensors_file._BLOCK_SIZE = 5 * 32
  whole, config = _load(folder)
  for specs in SPECS.values():
    shardings = _shardings(whole, specs)
    params = safetensors_file.load_params(
        folder, config, jnp.float32, shardings)
    _check_shards(params, whole, shardings)
  device = jax.sharding.SingleDeviceSharding(jax.devices()[3])
  shardings = jax.tree.map(lambda _: device, whole)
  _check_shards(
      safetensors_file.load_params(folder, config, jnp.float32, shardings),
      whole, shardings)


def test_processes_read_their_part_and_write_together(tmp_path):
  # Bite: each process writes what it holds, or reads all.
  _write_model(tmp_path / 'model', CONFIG, jnp.float32)
  _run(
      '_check_process', str(tmp_path), num_processes=2, num_devices=4)
  for name in ['all', 'last axis', 'everywhere']:
    assert _tensors(tmp_path / name) == _tensors(tmp_path / 'model')


def _check_process(root):
  root = pathlib.Path(root)
  config = hub.load_config(root / 'model')
  # Whole on one device of its own.
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  shapes = jax.eval_shape(
      lambda: model.init_params(jax.random.key(0), config))
  whole = jax.device_get(safetensors_file.load_params(
      root / 'model', config, jnp.float32,
      jax.tree.map(lambda _: device, shapes)))

  num_read = 0
  blocks = safetensors_file._blocks

  def counted(*args):
    nonlocal num_read
    for row, block in blocks(*args):
      num_read += block.size
      yield row, block

  safetensors_file._blocks = counted
  shardings = _shardings(shapes, SPECS['tensors are halved'] | {
      2: ('x',)})
  params = safetensors_file.load_params(
      root / 'model', config, jnp.float32, shardings)
  _check_shards(params, whole, shardings)
  assert num_read < 0.6 * sum(x.size for x in jax.tree.leaves(shapes))
  safetensors_file.save(root / 'all', params, config, jnp.float32)

  # A pool that the first process has no part of.
  for name in ['last axis', 'everywhere']:
    shardings = _shardings(shapes, SPECS[name], jax.devices()[4:])
    params = safetensors_file.load_params(
        root / 'model', config, jnp.float32, shardings)
    _check_shards(params, whole, shardings)
    safetensors_file.save(root / name, params, config, jnp.float32)


def test_the_host_holds_little_more_than_one_tensor(tmp_path):
  # Bite: a stack of all layers, a whole file, or a copy for each device.
  config = dataclasses.replace(
      CONFIG, vocab_size=8192, hidden_size=128, intermediate_size=1024,
      num_layers=24, tied_head=True)
  _write_model(tmp_path, config, jnp.bfloat16)
  _run('_check_host_memory', str(tmp_path))


def _check_host_memory(folder):
  config = hub.load_config(folder)
  shapes = jax.eval_shape(
      lambda: model.init_params(jax.random.key(0), config))
  largest = 8192 * 128 * 4
  total = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) * 4
  assert total > 9 * largest  # 45 MB
  for specs in [SPECS['everywhere'], SPECS['two axes']]:
    shardings = _shardings(shapes, specs)
    for _ in range(2):  # The first time compiles.
      # numpy's memory is counted; devices of the host may keep some of it.
      tracemalloc.start()
      params = safetensors_file.load_params(
          folder, config, jnp.float32, shardings)
      kept, peak = tracemalloc.get_traced_memory()
      tracemalloc.stop()
      print(f'{peak / largest:.2f} of the largest tensor, '
            f'{kept / largest:.2f} kept by devices')
      del params
    assert largest < peak < 1.5 * largest + kept
