"""Resolves model names to local folders and reads their config.json.

A model is a Hugging Face folder: local, in a bucket, or on the hub.
"""

import difflib
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import tempfile
from typing import Any

import fsspec
import huggingface_hub
from huggingface_hub import constants

from atgrpo_jax import errors
from atgrpo_jax.io import files
from atgrpo_jax.model import config as config_lib

# Prefix of a repository's folder in the cache of huggingface_hub.
_CACHED = 'models--'
# Folder in HF_HOME: COPIES/<digest>/<bucket>/<folder>.
_COPIES = 'atgrpo_jax_buckets'
# With a checkout or an editable install, the folder that contains models/.
_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_PACKAGED = ('smollm2', 'qwen25_coder')  # Models that models/wheels.py makes.
# Repositories may hold the same weights in other formats.
_DOWNLOADED = (
    '*.json', '*.safetensors', '*.txt', '*.jinja', '*.model',
    'additional_chat_templates/*.jinja')


def resolve_folder(name: str) -> pathlib.Path:
  """The absolute path of a model folder, which is downloaded if needed.

  `name` is a folder, `gs://bucket/folder`, or a hub repository `owner/name`. A
  relative folder is looked up in the working directory, and then in the
  checkout that this package is in. Raises UserError for other names and failed
  downloads.
  """
  if '://' in name:
    return _copy(files.as_path(name, 'model.folder'))
  folder = pathlib.Path(name)
  for parent in pathlib.Path.cwd(), _CHECKOUT:
    if name and (parent / folder).is_dir():
      return parent / folder
  is_in_models = folder.parts[:1] == ('models',)
  near = difflib.get_close_matches(folder.name, [
      found.name for parent in (pathlib.Path.cwd(), _CHECKOUT)
      for found in (parent / folder.parent).glob('*/')])
  expected = 'expected a model folder or a hub name such as Qwen/Qwen3-0.6B.'
  if folder.name in _PACKAGED:
    expected = f'`python -m models.{folder.name}` makes .cache/{folder.name}.'
  elif near:
    expected = f'did you mean {folder.parent / near[0]}?'
  elif is_in_models:
    expected = 'models/ is in the checkout, not in the installed package.'
  if is_in_models or folder.exists() or not re.fullmatch(
      r'\w[\w.-]*/[\w.-]+', name):
    raise errors.UserError(f'{name!r} is not a folder; {expected}')
  try:
    return pathlib.Path(huggingface_hub.snapshot_download(
        name, allow_patterns=_DOWNLOADED))
  except Exception as error:  # Also those of proxies and of hf-xet.
    reason = ' '.join(str(error).split()).rstrip('.')
    raise errors.UserError(
        f'{name!r} is not a folder, and cannot be downloaded without a network '
        f'or a filled cache ({reason}); {expected}') from error


def _copy(folder: pathlib.Path) -> pathlib.Path:
  """The local copy of a folder in a bucket; a changed folder is copied anew."""
  bucket = fsspec.filesystem('gs')
  try:
    found = bucket.find(os.fspath(folder), maxdepth=1, detail=True).values()
    listing = sorted(
        (file['name'], file['size'], str(file.get('mtime'))) for file in found
        if any(fnmatch.fnmatch(file['name'], x) for x in _DOWNLOADED))
    if not listing:
      raise FileNotFoundError('it has no file of a model')
    digest = hashlib.sha256(repr(listing).encode()).hexdigest()[:16]
    copies = pathlib.Path(constants.HF_HOME, _COPIES, digest)
    copy = copies / os.fspath(folder).partition('://')[2]
    if not copy.is_dir():
      copy.parent.mkdir(parents=True, exist_ok=True)
      with tempfile.TemporaryDirectory(dir=copies) as parent:
        new = pathlib.Path(parent, 'new')
        new.mkdir()
        for name, *_ in listing:
          bucket.get_file(name, str(new / name.rpartition('/')[2]))
        try:
          new.rename(copy)
        except OSError:
          if not copy.is_dir():  # No other process was faster.
            raise
  except Exception as error:
    if not (isinstance(error, OSError) or files.is_from_client(error)):
      raise
    raise errors.UserError(
        f'{folder} cannot be copied ({errors.one_line(error)}); check its '
        'name, the network and the credentials.') from error
  return copy


def digest(folder: pathlib.Path) -> str:
  """Digest of all files of a model but the weights and their index."""
  paths = {
      path for pattern in _DOWNLOADED for path in folder.glob(pattern)
      if '.safetensors' not in path.name}
  contents = [(path.name, path.read_bytes()) for path in sorted(paths)]
  return hashlib.sha256(repr(contents).encode()).hexdigest()[:16]


def base_name(folder: pathlib.Path) -> str:
  """The name of a downloaded model, or the absolute path of its folder."""
  folder = folder.resolve()  # A link may lead into the cache.
  copies = pathlib.Path(constants.HF_HOME, _COPIES).resolve()
  if folder.is_relative_to(copies):
    _, *parts = folder.relative_to(copies).parts
    return 'gs://' + '/'.join(parts)
  repository = folder.parent.parent.name
  if folder.parent.name == 'snapshots' and repository.startswith(_CACHED):
    return repository.removeprefix(_CACHED).replace('--', '/', 1)
  return str(folder)


def load_config(folder: str | pathlib.Path) -> config_lib.ModelConfig:
  """Reads the `config.json` of a folder; UserError if it is unsupported."""
  path = pathlib.Path(folder) / 'config.json'
  fields = read_json(path)
  try:
    return config_lib.from_hf(fields)
  except errors.UserError as error:
    raise errors.UserError(f'{path}: {error}') from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object from a model file; UserError if it is malformed."""
  if not path.is_file():
    raise errors.UserError(
        f'{path} is not a file: expected a Hugging Face model folder with '
        'config.json, tokenizer.json and model.safetensors, or a PEFT adapter.')
  with files.read_errors_as_user_errors(path, 'copy or download it again'):
    fields = json.loads(path.read_text('utf-8'))
  if not isinstance(fields, dict):
    raise errors.UserError(
        f'{path} holds {errors.as_json(fields)}, expected a JSON object; copy '
        'or download it again.')
  return fields
