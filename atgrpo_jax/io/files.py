"""Files and folders that several processes share, here or in a bucket.

`as_path` makes of a name a `pathlib.Path`, or, of `gs://...`, an `epath.Path`,
which has the same methods. An object of a bucket is written whole or not at
all, and cannot be written on; folders are nothing but names.
"""

from collections.abc import Iterator, Sequence
import contextlib
import fcntl
import importlib.util
import io
import json
import logging
import os
import pathlib
import shutil
import tempfile
from typing import Any, BinaryIO

from etils import epath
import fsspec

from atgrpo_jax import errors

_SCHEME = 'gs://'
# What speaks with a bucket raises errors of its own, for which their packages
# would have to be imported.
_CLIENTS = ('aiohttp', 'gcsfs', 'google', 'requests')

# Others, such as tensorstore, write without gcsfs being told. It reads its
# options there.
fsspec.config.conf.setdefault('gcs', {})['use_listings_cache'] = False
# It logs what it raises, with a traceback.
logging.getLogger('gcsfs').setLevel(logging.CRITICAL)


def as_path(name: str | os.PathLike, flag: str = '--workdir') -> pathlib.Path:
  """What a name of a folder means; UserError if it cannot be used."""
  text = os.fspath(name)
  if '://' not in text:
    return pathlib.Path(text)
  if not text.startswith(_SCHEME) or not text.removeprefix(_SCHEME).strip('/'):
    raise errors.UserError(
        f'{flag}={text}: give a folder, or one of a bucket, as '
        'gs://bucket/folder.')
  if importlib.util.find_spec('gcsfs') is None:
    raise errors.UserError(
        f"{flag}={text} needs gcsfs; `pip install 'atgrpo_jax[gcs]'`.")
  return epath.Path(text)


def is_remote(path: pathlib.Path) -> bool:
  """Whether it is in a bucket."""
  return os.fspath(path).startswith(_SCHEME)


class OfBucket:
  """A context that says in one sentence what the bucket of a folder did.

  An error of it becomes a UserError. All else, and what is here, passes.
  """

  def __init__(self, folder: pathlib.Path, flag: str = '--workdir'):
    self._folder, self._flag = folder, flag

  def __enter__(self) -> pathlib.Path:
    return self._folder

  def __exit__(self, kind, error, traceback):
    if (error is None or isinstance(error, errors.UserError)
        or not is_remote(self._folder)):
      return
    client = type(error).__module__.partition('.')[0]
    bucket = os.fspath(self._folder).removeprefix(_SCHEME).partition('/')[0]
    if client in _CLIENTS or f'/{bucket}/' in str(error):
      raise errors.UserError(
          f'{self._flag}={self._folder} cannot be used '
          f'({errors.one_line(error)}); check that the bucket exists, that it '
          'can be reached, and that these credentials may use it (`gcloud auth '
          'application-default login`).') from error


def parse_json(text: str | bytes) -> Any:
  """What JSON says; nesting without an end is a ValueError, too."""
  try:
    return json.loads(text)
  except RecursionError as error:
    raise ValueError('it is nested too deep') from error


def unfinished(path: pathlib.Path) -> pathlib.Path:
  """Where `whole_file` and `whole_folder` write what becomes `path`."""
  return path.with_suffix('.unfinished')


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never half there, whenever this is killed."""
  with whole_file(path) as file:
    file.write(text.encode())


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[BinaryIO]:
  """An empty file, which takes the place of `path` when the block ends."""
  if is_remote(path):
    content = io.BytesIO()
    yield content
    path.write_bytes(content.getvalue())
    return
  with unfinished(path).open('wb') as file:
    yield file
  unfinished(path).rename(path)


@contextlib.contextmanager
def whole_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """An empty folder, which takes the place of `folder` when the block ends.

  Whenever this is killed, `folder` is what it was, or the new one, or, between
  two renames, not there. Nothing of the former one enters the new one. In a
  bucket it may also be left with some of its files; what ends in config.json
  comes last.
  """
  if is_remote(folder):
    with uploaded_folder(folder) as new:
      yield new
      if folder.exists():
        folder.rmtree()
    return
  new, former = unfinished(folder), folder.with_suffix('.former')
  shutil.rmtree(new, ignore_errors=True)  # Of a call that was killed.
  new.mkdir(parents=True)
  yield new
  if folder.exists():
    shutil.rmtree(former, ignore_errors=True)
    folder.rename(former)
  new.rename(folder)
  shutil.rmtree(former, ignore_errors=True)


@contextlib.contextmanager
def uploaded_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """`folder`; of one in a bucket one here, which is copied to it at the end."""
  if not is_remote(folder):
    yield folder
    return
  with tempfile.TemporaryDirectory() as name:
    here = pathlib.Path(name)
    yield here
    paths = [path for path in sorted(here.rglob('*')) if path.is_file()]
    for path in sorted(paths, key=lambda x: x.name.endswith('config.json')):
      with (path.open('rb') as source,
            (folder / str(path.relative_to(here))).open('wb') as target):
        shutil.copyfileobj(source, target)


def download(paths: Sequence[pathlib.Path], folder: pathlib.Path) -> None:
  """Copies files of a bucket into a folder here, several at a time."""
  fsspec.filesystem('gcs').get(
      [os.fspath(path) for path in paths],
      [os.fspath(folder / path.name) for path in paths])


class GrowingFile:
  """A file that is written on; in a bucket it is written anew each time."""

  def __init__(self, path: pathlib.Path, kept: bytes):
    """Cuts `path` to its first bytes, which are `kept`."""
    self._remote = path if is_remote(path) else None
    if self._remote:
      self._file = io.BytesIO()
      self._file.write(kept)
      self._remote.write_bytes(kept)
    else:
      self._file = path.open('ab')
      self._file.truncate(len(kept))
      self._file.seek(len(kept))  # Where `tell` counts from.

  def append(self, data: bytes) -> None:
    """Others can read it when this returns."""
    self._file.write(data)
    self._file.flush()
    if self._remote:
      self._remote.write_bytes(self._file.getvalue())

  def sync(self) -> int:
    """Puts it on the disk itself; the bytes there are now."""
    if not self._remote:
      os.fsync(self._file.fileno())
    return self._file.tell()

  def close(self) -> None:
    self._file.close()


def try_lock(folder: pathlib.Path) -> contextlib.ExitStack | None:
  """Locks a folder of a disk until the result is closed, or its process gone.

  None if another has locked it. On NFS only this host's processes are kept out.
  """
  held = contextlib.ExitStack()
  descriptor = os.open(folder, os.O_RDONLY)
  held.callback(os.close, descriptor)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    held.close()
    return None
  return held
