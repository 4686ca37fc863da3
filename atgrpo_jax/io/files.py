"""Files and folders on a disk or in a bucket, and the errors they raise.

`as_path` returns a `pathlib.Path` for a local name and an `epath.Path`, which
has the same methods, for `gs://...`. A bucket has no folders and no appending:
an object is written whole, under a name with slashes.
"""

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import importlib.util
import io
import logging
import os
import pathlib
import shutil
import tempfile
from typing import BinaryIO
import zlib

from absl import logging as absl_logging
from etils import epath
import fsspec

from atgrpo_jax import errors

_SCHEME = 'gs://'
# Packages whose errors mean that the bucket failed. Matching by name avoids
# importing them.
_BUCKET_CLIENTS = ('aiohttp', 'gcsfs', 'google', 'requests')
# RecursionError: JSON with very deep nesting.
_READ_ERRORS = (
    AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError,
    ValueError, zlib.error)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

# tensorstore writes without telling gcsfs, whose cached listings go stale.
fsspec.config.conf.setdefault('gcs', {})['use_listings_cache'] = False
# gcsfs logs every error it raises, with a traceback.
logging.getLogger('gcsfs').setLevel(logging.CRITICAL)


def as_path(name: str | os.PathLike, flag: str = '--workdir') -> pathlib.Path:
  """Returns a local or `gs://` path; UserError for any other scheme."""
  text = os.fspath(name)
  if '://' not in text:
    return pathlib.Path(text)
  if not text.startswith(_SCHEME) or not text.removeprefix(_SCHEME).strip('/'):
    raise errors.UserError(
        f'{flag}={text} is neither a local folder nor gs://bucket/folder; give '
        'one of these.')
  if importlib.util.find_spec('gcsfs') is None:
    raise errors.UserError(
        f"{flag}={text} needs gcsfs; `pip install 'atgrpo_jax[gcs]'`.")
  return epath.Path(text)


def make_folder(workdir: pathlib.Path) -> None:
  """Makes a workdir and its parents; UserError if that is impossible."""
  try:
    workdir.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise errors.UserError(
        f'--workdir={workdir} cannot be made ({errors.one_line(error)}); '
        'choose a folder that you can write to.') from error


def is_from_client(error: BaseException) -> bool:
  """True for an error that a package for buckets defines."""
  return type(error).__module__.partition('.')[0] in _BUCKET_CLIENTS


def is_remote(path: pathlib.Path) -> bool:
  """True for a path in a bucket."""
  return os.fspath(path).startswith(_SCHEME)


@contextlib.contextmanager
def disk_errors_as_user_errors(workdir: pathlib.Path) -> Iterator[None]:
  """Converts errors of the disk or bucket of a workdir.

  A disk that is full or read-only and a bucket that cannot be reached become a
  UserError, a deleted workdir a LostWorkdirError. Errors of other files pass
  unchanged.
  """
  logger = absl_logging.get_absl_logger()
  logger.addFilter(_is_not_raised_later)
  try:
    yield
  except errors.UserError:
    raise
  except Exception as error:  # Disks and buckets have no common type.
    if is_remote(workdir):
      bucket = os.fspath(workdir).removeprefix(_SCHEME).partition('/')[0]
      is_unusable = is_from_client(error) or f'/{bucket}/' in str(error)
      advice = (
          'check the name of the bucket, the network, and the credentials '
          '(`gcloud auth application-default login`)')
    else:
      is_unusable = _is_unusable_disk(workdir, error)
      advice = (
          'free some space there, in TMPDIR and in /dev/shm, make it writable, '
          'or choose another')
    if not is_unusable:
      raise
    raise errors.UserError(
        f'--workdir={workdir} cannot be used ({errors.one_line(error)}); '
        f'{advice}.') from error
  finally:
    logger.removeFilter(_is_not_raised_later)


def _is_unusable_disk(workdir: pathlib.Path, error: Exception) -> bool:
  """True for an error of a workdir; LostWorkdirError if it was deleted."""
  folder, text = os.path.abspath(workdir), str(error)
  is_full = any(os.strerror(number) in text for number in _DISK_FULL)
  if isinstance(error, OSError):
    if error.filename is None:  # An open file, or a lock in /dev/shm.
      return is_full
    is_here = pathlib.Path(
        os.path.abspath(error.filename)).is_relative_to(folder)
    is_missing, is_unusable = error.errno == errno.ENOENT, True
  else:  # tensorstore raises ValueError with the system's message.
    is_here = folder in text
    is_missing, is_unusable = not is_full, is_full
  # Unlike pathlib, os.path raises nothing if a folder above is unreadable.
  if is_here and is_missing and not os.path.exists(folder):
    raise errors.LostWorkdirError(
        f'{workdir} was deleted during the run, which cannot continue.'
    ) from error
  return is_here and is_unusable


def _is_not_raised_later(record: logging.LogRecord) -> bool:
  """Drops the four tracebacks that orbax logs for an error it also raises."""
  return not (record.exc_info and '/orbax/' in record.pathname)


@contextlib.contextmanager
def read_errors_as_user_errors(
    path: pathlib.Path, advice: str) -> Iterator[None]:
  """Converts errors of reading and parsing `path`; `advice` names the fix."""
  try:
    yield
  except _READ_ERRORS as error:
    raise errors.UserError(
        f'{path} is missing or damaged ({errors.one_line(error)}); {advice}.'
    ) from error


def unfinished(path: pathlib.Path) -> pathlib.Path:
  """Where `whole_file` and `whole_folder` write before they rename."""
  return path.with_suffix('.unfinished')


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file atomically."""
  with whole_file(path) as file:
    file.write(text.encode())


def append(path: pathlib.Path, data: bytes) -> None:
  """Adds bytes to the end of a file, which may not exist yet."""
  if is_remote(path):  # An object in a bucket cannot grow.
    path.write_bytes((path.read_bytes() if path.exists() else b'') + data)
    return
  with path.open('ab') as file:
    file.write(data)


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Opens a new file that replaces `path` atomically when the block ends."""
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
  """Makes a new folder that replaces `folder` when the block ends.

  If the process is killed, `folder` is the old one, the new one, or, between
  two renames, missing; it never mixes both. In a bucket it may be incomplete,
  but then it has no config.json and is not a model.
  """
  if is_remote(folder):
    with uploaded_folder(folder) as new:
      yield new
      if folder.exists():
        folder.rmtree()
    return
  new, old = unfinished(folder), folder.with_suffix('.former')
  shutil.rmtree(new, ignore_errors=True)  # Left by a killed process.
  new.mkdir(parents=True)
  yield new
  if folder.exists():
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
  new.rename(folder)
  shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def uploaded_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields `folder`, or a local folder that is uploaded to it at the end.

  Uploads config.json last.
  """
  if not is_remote(folder):
    yield folder
    return
  with tempfile.TemporaryDirectory() as name:
    local = pathlib.Path(name)
    yield local
    paths = filter(pathlib.Path.is_file, local.rglob('*'))
    for path in sorted(paths, key=lambda x: x.name.endswith('config.json')):
      with (path.open('rb') as source,
            (folder / str(path.relative_to(local))).open('wb') as target):
        shutil.copyfileobj(source, target)


def try_lock(folder: pathlib.Path) -> contextlib.ExitStack | None:
  """Locks a local folder until the result is closed or this process ends.

  Returns None if another process holds the lock. On NFS the lock excludes only
  processes of this host.
  """
  with contextlib.ExitStack() as held:
    descriptor = os.open(folder, os.O_RDONLY)
    held.callback(os.close, descriptor)
    with contextlib.suppress(BlockingIOError):
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return held.pop_all()
  return None
