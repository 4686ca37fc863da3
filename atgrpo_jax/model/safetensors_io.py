"""Qwen3 weights from and to ordinary Hugging Face folders.

One table maps each Hugging Face tensor to one leaf (or one layer of a stacked
leaf); it is used in both directions, so import and export are inverse. A
missing, surplus or mis-shaped tensor is an error that lists them.
"""

from __future__ import annotations

import json
import pathlib

import jax
import jax.numpy as jnp
from safetensors import flax as safetensors

from atgrpo_jax import errors
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import qwen3

# Hugging Face name -> (path of the leaf, transposed). Linear layers are
# [out, in] there and [in, out] here.
_LAYER = {
    'self_attn.q_proj': ('attention.q.kernel', True),
    'self_attn.k_proj': ('attention.k.kernel', True),
    'self_attn.v_proj': ('attention.v.kernel', True),
    'self_attn.o_proj': ('attention.o.kernel', True),
    'self_attn.q_norm': ('attention.q_norm.scale', False),
    'self_attn.k_norm': ('attention.k_norm.scale', False),
    'input_layernorm': ('attention_norm.scale', False),
    'post_attention_layernorm': ('mlp_norm.scale', False),
    'mlp.gate_proj': ('gate.kernel', True),
    'mlp.up_proj': ('up.kernel', True),
    'mlp.down_proj': ('down.kernel', True),
}

_WEIGHTS = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'


def load_config(folder: str | pathlib.Path) -> config_lib.ModelConfig:
  """Reads the folder's `config.json`."""
  path = pathlib.Path(folder) / 'config.json'
  if not path.exists():
    raise errors.UserError(
        f'{path} does not exist: expected a Hugging Face model folder with '
        'config.json, tokenizer.json and model.safetensors.')
  try:
    return config_lib.from_hf(json.loads(path.read_text()))
  except config_lib.ModelConfigError as error:
    raise errors.UserError(f'{folder}: {error}') from error


def load_params(
    folder: str | pathlib.Path, config: config_lib.ModelConfig,
    dtype: jnp.dtype = jnp.float32) -> qwen3.Params:
  """Reads the folder's weights as `dtype`."""
  folder = pathlib.Path(folder)
  tensors = {}
  for path in _weight_files(folder):
    tensors.update(safetensors.load_file(path))
  if config.tied_head and 'lm_head.weight' in tensors:
    # Qwen3-0.6B and 1.7B are tied and store the head all the same.
    head = tensors.pop('lm_head.weight')
    embedding = tensors.get('model.embed_tokens.weight', head)
    if not jnp.array_equal(head, embedding):
      raise errors.UserError(
          f'{folder}: config.json has tie_word_embeddings=true, but '
          'lm_head.weight is not model.embed_tokens.weight; set it to false '
          'to keep both.')
  shapes = _expected_shapes(config)
  _compare(folder, {n: t.shape for n, t in tensors.items()}, shapes)

  def take(name, transposed):
    tensor = tensors[f'{name}.weight'].astype(dtype)
    return tensor.T if transposed else tensor

  layers = {}
  for name, (path, transposed) in _LAYER.items():
    _set(layers, path, jnp.stack([
        take(f'model.layers.{i}.{name}', transposed)
        for i in range(config.num_layers)]))
  params = {
      'embedding': take('model.embed_tokens', False),
      'layers': layers,
      'norm': {'scale': take('model.norm', False)},
  }
  if not config.tied_head:
    params['head'] = take('lm_head', True)
  return params


def save(
    folder: str | pathlib.Path, params: qwen3.Params,
    config: config_lib.ModelConfig, dtype: jnp.dtype) -> None:
  """Writes `config.json` and `model.safetensors`, the weights as `dtype`."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  params = jax.tree.map(lambda x: jnp.asarray(x, dtype), params)
  tensors = {
      'model.embed_tokens.weight': params['embedding'],
      'model.norm.weight': params['norm']['scale'],
  }
  if not config.tied_head:
    tensors['lm_head.weight'] = params['head'].T
  for name, (path, transposed) in _LAYER.items():
    stacked = _get(params['layers'], path)
    for i in range(config.num_layers):
      tensors[f'model.layers.{i}.{name}.weight'] = (
          stacked[i].T if transposed else stacked[i])
  safetensors.save_file(
      tensors, folder / _WEIGHTS, metadata={'format': 'pt'})
  fields = config_lib.to_hf(config, jnp.dtype(dtype).name)
  (folder / 'config.json').write_text(json.dumps(fields, indent=2) + '\n')


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
  if (folder / _WEIGHTS).exists():
    return [folder / _WEIGHTS]
  if (folder / _INDEX).exists():
    index = json.loads((folder / _INDEX).read_text())['weight_map']
    paths = [folder / name for name in sorted(set(index.values()))]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
      raise errors.UserError(
          f'{folder} lacks {", ".join(missing)}, which {_INDEX} names; '
          'download the model again.')
    return paths
  raise errors.UserError(
      f'{folder} has neither {_WEIGHTS} nor {_INDEX}: expected the weights of '
      'a Hugging Face model.')


def _expected_shapes(
    config: config_lib.ModelConfig) -> dict[str, tuple[int, ...]]:
  """Every tensor that the folder of such a model holds."""
  params = jax.eval_shape(
      lambda: qwen3.init_params(jax.random.key(0), config))
  shapes = {
      'model.embed_tokens.weight': params['embedding'].shape,
      'model.norm.weight': params['norm']['scale'].shape,
  }
  if not config.tied_head:
    shapes['lm_head.weight'] = params['head'].shape[::-1]
  for name, (path, transposed) in _LAYER.items():
    shape = _get(params['layers'], path).shape[1:]
    for i in range(config.num_layers):
      shapes[f'model.layers.{i}.{name}.weight'] = (
          shape[::-1] if transposed else shape)
  return shapes


def _compare(folder, found, expected) -> None:
  problems = [f'missing {name}' for name in sorted(expected.keys() - found)]
  problems += [f'surplus {name}' for name in sorted(found.keys() - expected)]
  problems += [
      f'{name} has shape {found[name]}, expected {expected[name]}'
      for name in sorted(found.keys() & expected)
      if tuple(found[name]) != tuple(expected[name])]
  if problems:
    shown = '; '.join(problems[:10])
    more = f'; and {len(problems) - 10} more' if len(problems) > 10 else ''
    raise errors.UserError(
        f'The weights in {folder} do not fit its config.json: {shown}{more}. '
        'Take both files from the same model.')


def _get(tree, path):
  for part in path.split('.'):
    tree = tree[part]
  return tree


def _set(tree, path, value) -> None:
  *parents, leaf = path.split('.')
  for part in parents:
    tree = tree.setdefault(part, {})
  tree[leaf] = value
