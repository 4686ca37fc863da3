"""Which folder a model's name means, and the sizes that its config.json gives.

A model is an ordinary Hugging Face folder, here or on the hub.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import huggingface_hub
import jax.numpy as jnp

from atgrpo_jax import errors
from atgrpo_jax.model import config as config_lib

# A repository may hold the same weights in other formats.
_DOWNLOADED = ('*.json', '*.safetensors', '*.txt', '*.jinja', '*.model')


def resolve_folder(name: str) -> pathlib.Path:
  """The model folder that `name` means, downloaded if it names one of the hub.

  Args:
    name: a folder, or else the `owner/name` of a Hugging Face repository.

  Raises:
    UserError: `name` is neither, or cannot be downloaded.
  """
  folder = pathlib.Path(name)
  if name and folder.is_dir():
    return folder
  expected = 'expected a model folder or a hub name such as Qwen/Qwen3-0.6B'
  if folder.exists() or not re.fullmatch(r'[\w.-]+/[\w.-]+', name):
    raise errors.UserError(f'{name!r} is not a folder; {expected}.')
  try:
    return pathlib.Path(huggingface_hub.snapshot_download(
        name, allow_patterns=_DOWNLOADED))
  except (OSError, huggingface_hub.errors.HFValidationError) as error:
    reason = ' '.join(str(error).split()).rstrip('.')
    raise errors.UserError(
        f'{name!r} is not a folder and cannot be downloaded; {expected}, and '
        f'for the latter a network or a filled cache ({reason}).') from error


def load_config(folder: str | pathlib.Path) -> config_lib.ModelConfig:
  """Reads the folder's `config.json`; UserError if it is missing or refused."""
  path = pathlib.Path(folder) / 'config.json'
  try:
    return config_lib.from_hf(read_json(path))
  except config_lib.ModelConfigError as error:
    raise errors.UserError(f'{path}: {error}') from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The JSON object in a file of a model; UserError if there is none."""
  if not path.is_file():
    raise errors.UserError(
        f'{path} does not exist: expected a Hugging Face model folder with '
        'config.json, tokenizer.json, tokenizer_config.json and '
        'model.safetensors.')
  try:
    fields = json.loads(path.read_text('utf-8'))
  except ValueError as error:
    raise errors.UserError(
        f'{path} is no JSON ({error}); copy or download it again.') from error
  if not isinstance(fields, dict):
    raise errors.UserError(
        f'{path} holds a {type(fields).__name__}, but must hold a JSON object; '
        'copy or download it again.')
  return fields


def save_config(
    folder: pathlib.Path, config: config_lib.ModelConfig,
    dtype: jnp.dtype) -> None:
  """Writes the folder's `config.json`; its weights are stored as `dtype`."""
  fields = config_lib.to_hf(config, jnp.dtype(dtype).name)
  (folder / 'config.json').write_text(json.dumps(fields, indent=2) + '\n')
