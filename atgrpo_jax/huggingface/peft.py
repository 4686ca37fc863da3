"""LoRA adapters from and to the folders of the PEFT library.

A folder holds one adapter: `adapter_config.json` and
`adapter_model.safetensors`. Here the adapters of all roles are stacked, see
`atgrpo_jax.model.lora`; an adapter adds `(alpha / R) * (x @ a) @ b`, there as
here. As in `atgrpo_jax.model.config`, every field of the config is either
used, or refused when it asks for something that these adapters do not do.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import qwen3_names
from atgrpo_jax.huggingface import safetensors_file
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import decoder
from atgrpo_jax.model import lora

_CONFIG = 'adapter_config.json'
_WEIGHTS = 'adapter_model.safetensors'

# Name of a linear layer -> path of its adapter, as in `attention.q`.
_LINEAR = {
    name: path.removesuffix('.kernel')
    for name, (path, transposed) in qwen3_names.LAYER.items()
    if transposed}

_USED = ('peft_type', 'r', 'lora_alpha', 'target_modules')

# Fields that must have one of these values, where they are given.
_REQUIRED = {
    'task_type': ('CAUSAL_LM', None),
    'bias': ('none',),
    'fan_in_fan_out': (False,),
    # Others change the base model, too.
    'init_lora_weights': (True, False, 'gaussian'),
    'use_rslora': (False,),
    'use_dora': (False,),
    'use_qalora': (False,),
    'use_bdlora': (None, False),
    'lora_bias': (False,),
    'rank_pattern': ({}, None),
    'alpha_pattern': ({}, None),
    'loftq_config': ({}, None),
    'modules_to_save': (None, []),
    'exclude_modules': (None, []),
    'layers_to_transform': (None, []),
    'layers_pattern': (None, []),
    'layer_replication': (None, []),
    'target_parameters': (None, []),
    'trainable_token_indices': (None, []),
    'alora_invocation_tokens': (None, []),
    'arrow_config': (None,),
    'corda_config': (None,),
    'eva_config': (None,),
    'kasa_config': (None,),
    'lora_ga_config': (None,),
    'megatron_config': (None,),
    'monteclora_config': (None,),
    'velora_config': (None,),
}

# Fields that say nothing about what the adapter computes once it is trained;
# some of them belong to one that is refused.
_WITHOUT_EFFECT = frozenset({
    'auto_mapping', 'base_model_name_or_path', 'ensure_weight_tying',
    'inference_mode', 'lora_dropout', 'megatron_core', 'peft_version',
    'qalora_group_size', 'revision',
})


def load(
    folder: str | pathlib.Path,
    config: config_lib.ModelConfig) -> tuple[lora.Weights, float]:
  """The adapter of a folder, with A = 1, and its alpha.

  Args:
    folder: written by PEFT, or by `save`.
    config: of the base model.
  """
  folder = pathlib.Path(folder)
  for name in (_CONFIG, _WEIGHTS):
    if not (folder / name).is_file():
      raise errors.UserError(
          f'{folder / name} does not exist: expected the folder of a PEFT '
          f'adapter with {_CONFIG} and {_WEIGHTS}.')
  fields = hub.read_json(folder / _CONFIG)
  _check(folder, fields)
  names = _adapted(folder, fields['target_modules'], config)
  shapes = decoder.param_shapes(config)['layers']
  expected = {}
  for name in names:
    num_layers, num_in, num_out = qwen3_names.get(
        shapes, f'{_LINEAR[name]}.kernel').shape
    for i in range(num_layers):
      expected[_tensor(i, name, 'A')] = (fields['r'], num_in)
      expected[_tensor(i, name, 'B')] = (num_out, fields['r'])
  tensors = safetensors_file.read_header(folder / _WEIGHTS)
  safetensors_file.compare(
      folder, tensors, expected, fit=f'{_CONFIG} and base model')

  weights = {}
  for name in names:
    for leaf, letter in (('a', 'A'), ('b', 'B')):
      stacked = np.stack([
          safetensors_file.read_all(
              tensors[_tensor(i, name, letter)], np.dtype(np.float32)).T
          for i in range(config.num_layers)])
      if not np.isfinite(stacked).all():
        raise errors.UserError(
            f'{folder / _WEIGHTS}: the adapter of {name} holds NaN or '
            'infinity; take the weights from another place, or train them '
            'again.')
      qwen3_names.put(
          weights, f'{_LINEAR[name]}.{leaf}', jnp.asarray(stacked[None]))
  return weights, float(fields['lora_alpha'])


def save(
    folder: str | pathlib.Path, weights: lora.Weights, index: int, *,
    alpha: float, base_folder: str | pathlib.Path, dtype: jnp.dtype) -> None:
  """Writes adapter `index` for PEFT, as `dtype`.

  On several processes all of them call this; the first of those that hold
  `weights` writes.

  Args:
    folder: is created.
    weights: leaves [A, L, in, R] and [A, L, R, out].
    index: which of the A adapters.
    alpha: the scale of the adapter times R, the rank of the arrays.
    base_folder: the base model, by folder or hub name, for PEFT to find.
    dtype: of what is stored.
  """
  processes = safetensors_file.holders(weights)
  if jax.process_index() not in processes:
    return
  folder = pathlib.Path(folder)
  safetensors_file.refuse_nonfinite(folder, weights)
  names = _names(weights)
  tensors = {}
  for name in names:
    adapter = qwen3_names.get(weights, _LINEAR[name])
    for leaf, letter in (('a', 'A'), ('b', 'B')):
      stacked = safetensors_file.fetch(adapter[leaf][index].astype(dtype))
      for i, layer in enumerate(stacked):
        tensors[_tensor(i, name, letter)] = layer.T
  if jax.process_index() != processes[0]:
    return
  folder.mkdir(parents=True, exist_ok=True)
  safetensors_file.write_tensors(folder / _WEIGHTS, tensors)
  fields = {
      'peft_type': 'LORA',
      'task_type': 'CAUSAL_LM',
      'base_model_name_or_path': str(base_folder),
      'inference_mode': True,
      'r': adapter['a'].shape[-1],
      # PEFT declares an integer.
      'lora_alpha': int(alpha) if alpha == int(alpha) else alpha,
      'lora_dropout': 0.0,
      'target_modules': [name.rpartition('.')[2] for name in names],
      'bias': 'none',
      'fan_in_fan_out': False,
      'init_lora_weights': True,
      'use_rslora': False,
      'use_dora': False,
      'modules_to_save': None,
      'rank_pattern': {},
      'alpha_pattern': {},
  }
  (folder / _CONFIG).write_text(json.dumps(fields, indent=2) + '\n')


def merge(
    params: decoder.Params, weights: lora.Weights, index: int,
    alpha: float) -> decoder.Params:
  """The parameters of the base with adapter `index` added to its kernels.

  Args:
    params: of the base; what has no adapter is shared with the result.
    weights: leaves [A, L, in, R] and [A, L, R, out].
    index: which of the A adapters.
    alpha: the scale of the adapter times R, the rank of the arrays.
  """
  layers = jax.tree.map(lambda x: x, params['layers'])
  for name in _names(weights):
    adapter = qwen3_names.get(weights, _LINEAR[name])
    path = f'{_LINEAR[name]}.kernel'
    qwen3_names.put(layers, path, _merge_kernel(
        qwen3_names.get(layers, path), adapter['a'], adapter['b'], index,
        alpha / adapter['a'].shape[-1]))
  return params | {'layers': layers}


@jax.jit
def _merge_kernel(kernel, a, b, index, scale):
  delta = jnp.einsum(
      'lir,lro->lio', a[index], b[index], precision='highest')
  return (kernel.astype(jnp.float32) + scale * delta).astype(kernel.dtype)


def _tensor(layer: int, name: str, letter: str) -> str:
  return f'base_model.model.model.layers.{layer}.{name}.lora_{letter}.weight'


def _names(weights: lora.Weights) -> list[str]:
  """The linear layers that have an adapter."""
  adapted = {
      jax.tree_util.keystr(path[:-1], simple=True, separator='.')
      for path, _ in jax.tree_util.tree_leaves_with_path(weights)}
  return [name for name, path in _LINEAR.items() if path in adapted]


def _check(folder: pathlib.Path, fields: Mapping[str, Any]) -> None:
  """Refuses what these adapters do not do."""
  path = folder / _CONFIG
  missing = [name for name in _USED if name not in fields]
  if missing:
    raise errors.UserError(f'{path} lacks {", ".join(missing)}.')
  unknown = sorted(
      fields.keys() - _REQUIRED.keys() - _WITHOUT_EFFECT - set(_USED))
  if unknown:
    raise errors.UserError(
        f'{path} has fields that are not known here: {", ".join(unknown)}. '
        'Remove them if they change nothing.')
  for name, allowed in ({'peft_type': ('LORA',)} | _REQUIRED).items():
    if name in fields and fields[name] not in allowed:
      raise errors.UserError(
          f'{path}: {name}={fields[name]!r} is not supported; expected '
          f'{" or ".join(repr(value) for value in allowed)}.')
  rank, alpha = fields['r'], fields['lora_alpha']
  if type(rank) is not int or rank < 1:
    raise errors.UserError(
        f'{path}: r={rank!r} must be a whole number of at least 1.')
  if type(alpha) not in (int, float) or not 0 < alpha < math.inf:
    raise errors.UserError(
        f'{path}: lora_alpha={alpha!r} must be a finite number above 0.')
  targets = fields['target_modules']
  if (not isinstance(targets, list)
      or not all(isinstance(target, str) for target in targets)):
    raise errors.UserError(
        f'{path}: target_modules={targets!r} is not supported; expected a list '
        'of modules, such as ["q_proj"].')


def _adapted(
    folder: pathlib.Path, targets: list[str],
    config: config_lib.ModelConfig) -> list[str]:
  """The linear layers that `target_modules` means, each in every layer."""
  def hits(target, name):
    return [
        i for i in range(config.num_layers)
        if f'.model.layers.{i}.{name}'.endswith(f'.{target}')]

  found = {
      name: {i for target in targets for i in hits(target, name)}
      for name in _LINEAR}
  strange = sorted(
      target for target in targets
      if not any(hits(target, name) for name in _LINEAR))
  partial = [
      name for name, layers in found.items()
      if 0 < len(layers) < config.num_layers]
  if strange or partial or not targets:
    raise errors.UserError(
        f'{folder / _CONFIG}: target_modules={targets!r} is not supported; '
        'expected some of the linear layers '
        f'{", ".join(name.rpartition(".")[2] for name in _LINEAR)}, each in '
        f'all {config.num_layers} layers.')
  return [name for name, layers in found.items() if layers]
