"""Import and export are inverse, on one and on several processes.

transformers wrote the folders in tests/goldens/: a tied model in one file, an
untied model in one file, and bfloat16 shards with an index.
"""

import json
import os
import pathlib
import shutil
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
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from tests import commands

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'


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


@pytest.mark.parametrize('name, dtype, stored', [
    ('qwen3_tied', 'float32', 'float32'),
    ('qwen3_untied', 'float32', 'float32'),
    ('qwen3_sharded', 'float32', 'bfloat16'),
    ('qwen3_sharded', 'bfloat16', 'bfloat16'),
    ('qwen2_untied', 'float32', 'float32'),
    ('llama_tied', 'float32', 'float32'),
    ('mistral_untied', 'float32', 'float32')])
def test_export_inverts_import(name, dtype, stored, tmp_path):
  folder = tmp_path / 'new' / 'model'
  params, config = _load(GOLDENS / name, dtype)
  assert jax.tree.structure(params) == jax.tree.structure(
      model.param_shapes(config))
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
  safetensors_lib.save(folder, params, config, stored)
  assert _tensors(folder) == _tensors(GOLDENS / name)
  assert hub.load_config(folder) == config


def test_redundant_heads_and_unlisted_files_are_ignored(tmp_path):
  # The tied models of Qwen3 store their head.
  folder = shutil.copytree(GOLDENS / 'qwen3_tied', tmp_path / 'tied')
  _edit(folder, lambda tensors: tensors.update(
      {'lm_head.weight': tensors['model.embed_tokens.weight'].copy()}))
  jax.tree.map(
      np.testing.assert_array_equal, _load(folder)[0],
      _load(GOLDENS / 'qwen3_tied')[0])
  _edit(folder, lambda tensors: tensors['lm_head.weight'].__iadd__(1))
  with pytest.raises(errors.UserError, match='lm_head.weight differs from'):
    _load(folder)
  _edit(folder, lambda tensors: tensors['lm_head.weight'].fill(np.nan))
  with pytest.raises(errors.UserError, match='lm_head.weight holds NaN'):
    _load(folder)
  folder = shutil.copytree(GOLDENS / 'qwen3_sharded', tmp_path / 'sharded')
  (folder / 'adapter.safetensors').write_bytes(b'not listed in the index')
  _load(folder)


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
  assert index['weight_map'].keys() == expected.keys()
  jax.tree.map(np.testing.assert_array_equal, _load(tmp_path)[0], params)


CONFIG = model.ModelConfig(
    vocab_size=2056, hidden_size=256, intermediate_size=2000, num_layers=4,
    num_heads=4, num_kv_heads=2, head_dim=8, rope_theta=1e4, norm_eps=1e-6,
    tied_head=False, max_positions=16, init_std=0.1)


def test_processes_read_only_their_shards_and_export_together(tmp_path):
  init_params = jax.jit(model.init_params, static_argnums=1)
  safetensors_lib.save(
      tmp_path / 'model', init_params(jax.random.key(0), CONFIG), CONFIG,
      jnp.bfloat16)
  processes = commands.start_together(
      lambda address, index: [
          sys.executable, '-c',
          f'import jax; jax.distributed.initialize({address!r}, 2, {index}); '
          'from tests.huggingface import safetensors_test as test; '
          f'test._check_process({str(tmp_path)!r})'],
      num_processes=2, num_devices=8,
      JAX_CPU_COLLECTIVES_IMPLEMENTATION='gloo')
  for process in processes:
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
  for name in ('all', 'second process'):
    assert _tensors(tmp_path / name) == _tensors(tmp_path / 'model')


def _check_process(root):
  """Loads shards in one of two processes, and exports them."""
  root = pathlib.Path(root)
  shapes = model.param_shapes(CONFIG)
  whole, _ = _load(root / 'model')
  for name, devices, specs in (
      ('all', jax.devices(), {3: (None, 'x', 'y'), 2: ('y', 'x')}),
      ('layers', jax.devices(), {3: ('y', None, 'x'), 1: ('y',)}),
      # A pool without a device of the first process.
      ('second process', jax.devices()[4:], {3: (None, 'y'), 2: ('y',)})):
    mesh = jax.make_mesh(
        (len(devices) // 4, 4), ('x', 'y'), devices=devices,
        axis_types=(jax.sharding.AxisType.Auto,) * 2)
    shardings = jax.tree.map(
        lambda leaf: jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec(*specs.get(leaf.ndim, ()))),
        shapes)
    tracemalloc.start()
    params = safetensors_lib.load_params(
        root / 'model', CONFIG, jnp.float32, shardings)
    kept, peak = tracemalloc.get_traced_memory()  # numpy's memory only.
    tracemalloc.stop()
    jax.tree.map(_check_shards, params, whole, shardings)
    if name == 'all':  # Each process reads half of one parameter at a time.
      largest = max(x.nbytes for x in jax.tree.leaves(whole))
      assert peak - kept < 0.75 * largest
    safetensors_lib.save(root / name, params, CONFIG, jnp.bfloat16)


def _check_shards(leaf, whole, sharding):
  assert leaf.sharding == sharding
  assert leaf.shape == whole.shape and leaf.dtype == whole.dtype
  for shard in leaf.addressable_shards:
    np.testing.assert_array_equal(shard.data, whole[shard.index])
