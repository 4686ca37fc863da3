"""Resolves model names to local folders and reads their config.json.

A model is a Hugging Face folder: local, in a bucket, or on the hub.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import time
from typing import Any

import huggingface_hub
from huggingface_hub import constants
import jax.numpy as jnp

from atgrpo_jax import errors
from atgrpo_jax.io import files
from atgrpo_jax.model import config as config_lib

# Repositories may hold the same weights in other formats.
_DOWNLOADED = ('*.json', '*.safetensors', '*.txt', '*.jinja', '*.model')


def resolve_folder(name: str) -> pathlib.Path:
  """The local folder of a model, which is downloaded if needed.

  Args:
    name: a folder, `gs://bucket/folder`, or a hub repository `owner/name`.

  Raises:
    UserError: for other names and failed downloads.
  """
  if '://' in name:
    return _from_bucket(name)
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
        f'{name!r} is not a folder and cannot be downloaded ({reason}); '
        f'{expected}, and a network or a filled cache.') from error


def _from_bucket(name: str) -> pathlib.Path:
  """A local copy below HF_HOME, made once by the processes of a machine.

  Its name is a hash of the sizes and times of the files.
  """
  source = files.as_path(name, 'model.folder')
  with files.bucket_errors_as_user_errors(source, 'model.folder'):
    paths = sorted({
        path for pattern in _DOWNLOADED for path in source.glob(pattern)})
    versions = [
        (path.name, stat.length, stat.mtime)
        for path, stat in ((path, path.stat()) for path in paths)]
    if not paths:
      raise errors.UserError(
          f'model.folder={name} holds no model files; give a model folder in a '
          'bucket.')
    key = hashlib.sha256(json.dumps([name, versions]).encode()).hexdigest()
    folder = pathlib.Path(constants.HF_HOME) / 'atgrpo_jax' / key[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    while (held := files.try_lock(folder.parent)) is None:
      time.sleep(0.2)
    with held:
      if not folder.is_dir():
        with files.whole_folder(folder) as new:
          files.download(paths, new)
  return folder


def load_config(folder: str | pathlib.Path) -> config_lib.ModelConfig:
  """Reads the `config.json` of a folder; UserError if it is unsupported."""
  path = pathlib.Path(folder) / 'config.json'
  try:
    return config_lib.from_hf(read_json(path))
  except config_lib.ModelConfigError as error:
    raise errors.UserError(f'{path}: {error}') from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object from a model file; UserError if it is malformed."""
  if not path.is_file():
    problem = 'is not a file' if path.exists() else 'does not exist'
    raise errors.UserError(
        f'{path} {problem}: expected a Hugging Face model folder with '
        'config.json, tokenizer.json, tokenizer_config.json and '
        'model.safetensors.')
  try:
    fields = files.parse_json(path.read_text('utf-8'))
  except ValueError as error:
    raise errors.UserError(
        f'{path} is not JSON ({error}); copy or download it again.') from error
  if not isinstance(fields, dict):
    raise errors.UserError(
        f'{path} holds a {type(fields).__name__}, expected a JSON object; copy '
        'or download it again.')
  return fields


def save_config(
    folder: pathlib.Path, config: config_lib.ModelConfig,
    dtype: jnp.dtype) -> None:
  """Writes the `config.json` of a folder with weights of `dtype`."""
  fields = config_lib.to_hf(config, jnp.dtype(dtype).name)
  (folder / 'config.json').write_text(json.dumps(fields, indent=2) + '\n')
