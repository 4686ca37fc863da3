"""LoRA adapters from and to the folders of the PEFT library.

A folder holds one adapter: `adapter_config.json` and
`adapter_model.safetensors`. Here the adapters of all roles are stacked, see
`atgrpo_jax.model.lora`. Both add `(alpha / R) * (x @ a) @ b`.
"""

import json
import pathlib

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.huggingface import families
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import decoder
from atgrpo_jax.model import lora

_CONFIG = 'adapter_config.json'
_WEIGHTS = 'adapter_model.safetensors'

# Name of a linear layer -> path of its adapter, as in `attention.q`.
_LINEAR = {
    name.removesuffix('.weight'): path.removesuffix('.kernel')
    for name, (path, transposed) in families.LAYER.items()
    if transposed}

_SUPPORTED = {
    'peft_type': ('LORA',),
    'task_type': ('CAUSAL_LM', None),
    'bias': ('none',),
    'init_lora_weights': (True, False, 'gaussian'),  # Others change the base.
}
# Fields that are read here, or have no effect on a trained adapter. All other
# fields must be absent, null, false, 0 or empty. The names of the tensors tell
# which layers are adapted.
_ALLOWED = frozenset({
    'auto_mapping', 'base_model_name_or_path', 'ensure_weight_tying',
    'inference_mode', 'lora_alpha', 'lora_dropout', 'megatron_core',
    'peft_version', 'qalora_group_size', 'r', 'revision', 'target_modules',
})


def load(
    folder: str | pathlib.Path,
    config: config_lib.ModelConfig) -> tuple[lora.Weights, float]:
  """The adapter in a folder, with A = 1, and its alpha.

  Raises UserError for unsupported features and for tensors that do not fit the
  base model.
  """
  folder = pathlib.Path(folder).absolute()
  rank, alpha = _read_config(folder / _CONFIG)
  tensors = safetensors_lib.open_tensors(folder / _WEIGHTS)
  names = [
      name for name in _LINEAR if any(f'.{name}.' in x for x in tensors)]
  if not names:
    raise errors.UserError(
        f'{folder / _WEIGHTS} adapts none of {", ".join(_LINEAR)}; give the '
        'folder of another adapter.')
  shapes = traverse_util.flatten_dict(
      decoder.param_shapes(config)['layers'], sep='.')
  expected = {}
  for name in names:
    num_layers, num_in, num_out = shapes[f'{_LINEAR[name]}.kernel'].shape
    for i in range(num_layers):
      expected[_tensor(i, name, 'A')] = (rank, num_in)
      expected[_tensor(i, name, 'B')] = (num_out, rank)
  safetensors_lib.compare(
      folder, tensors, expected, fit=f'{_CONFIG} and base model')

  weights = {}
  for name in names:
    for leaf, letter in (('a', 'A'), ('b', 'B')):
      stacked = np.stack([
          tensors[_tensor(i, name, letter)][:].T.astype(np.float32)
          for i in range(config.num_layers)])
      safetensors_lib.check_finite(
          folder / _WEIGHTS, f'the adapter of {name}', stacked)
      weights[f'{_LINEAR[name]}.{leaf}'] = jnp.asarray(stacked[None])
    if not any(weights[f'{_LINEAR[name]}.{leaf}'].any() for leaf in 'ab'):
      raise errors.UserError(
          f'{folder / _WEIGHTS}: A and B of {name} are 0, so it would have no '
          'gradient; start from an adapter whose A is not 0.')
  return traverse_util.unflatten_dict(weights, sep='.'), alpha


def save(
    folder: str | pathlib.Path, weights: lora.Weights, *, alpha: float,
    base_folder: str | pathlib.Path, dtype: jnp.dtype) -> None:
  """Writes an adapter for PEFT.

  All processes call this; the first that holds `weights` writes.

  Args:
    folder: created if needed.
    weights: leaves [1, L, in, R] and [1, L, R, out], stored as `dtype`.
    alpha: scale of the adapter times R.
    base_folder: folder of the base model, whose name is stored for PEFT.
  """
  processes = hosts.holders(weights)
  if jax.process_index() not in processes:
    return
  folder, tensors = pathlib.Path(folder), {}
  weights = traverse_util.flatten_dict(weights, sep='.')
  names = [name for name, path in _LINEAR.items() if f'{path}.a' in weights]
  for name in names:
    for leaf, letter in (('a', 'A'), ('b', 'B')):
      stacked = safetensors_lib.fetch(
          weights[f'{_LINEAR[name]}.{leaf}'][0].astype(dtype))
      for i, layer in enumerate(stacked):
        tensors[_tensor(i, name, letter)] = layer.T
  if jax.process_index() != processes[0]:
    return
  folder.mkdir(parents=True, exist_ok=True)
  safetensors_lib.write_tensors(folder / _WEIGHTS, tensors)
  fields = {
      'peft_type': 'LORA',
      'task_type': 'CAUSAL_LM',
      'base_model_name_or_path': hub.base_name(pathlib.Path(base_folder)),
      'inference_mode': True,
      'r': weights[f'{_LINEAR[names[0]]}.a'].shape[-1],
      # PEFT declares an integer.
      'lora_alpha': int(alpha) if alpha == int(alpha) else alpha,
      'target_modules': [name.rpartition('.')[2] for name in names],
  }
  (folder / _CONFIG).write_text(json.dumps(fields, indent=2) + '\n')


def _tensor(layer: int, name: str, letter: str) -> str:
  return f'base_model.model.model.layers.{layer}.{name}.lora_{letter}.weight'


def _read_config(path: pathlib.Path) -> tuple[int, float]:
  """The rank and alpha; UserError for unsupported features."""
  fields = hub.read_json(path)
  for name, value in fields.items():
    if name in _SUPPORTED and value not in _SUPPORTED[name]:
      raise errors.UserError(
          f'{path}: {name}={errors.as_json(value)} is not supported; expected '
          f'{" or ".join(map(errors.as_json, _SUPPORTED[name]))}.')
    if value and name not in _ALLOWED | _SUPPORTED.keys():
      raise errors.UserError(
          f'{path}: {name}={errors.as_json(value)} is not supported; expected '
          'null or false, or an adapter without this feature.')
  rank, alpha = (
      errors.json_value(f'{path}: {name}', fields.get(name), kind)
      for name, kind in (('r', int), ('lora_alpha', float)))
  return rank, alpha
