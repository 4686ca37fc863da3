"""What a disk may do to a run: be too small, read-only, or go away.

And a bucket, which may be unknown, forbidden or out of reach.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import pathlib
import shutil
from typing import Any

from absl import logging as absl_logging
import jax

from atgrpo_jax import errors
from atgrpo_jax.io import files

_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
# Tables of the leaves, and what the file format adds.
_OVERHEAD_BYTES = 1 << 20


def num_bytes(state: Any) -> int:
  """What a checkpoint of a state, or of its template, takes on a disk."""
  return _OVERHEAD_BYTES + sum(
      math.prod(leaf.shape) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(state))


def check_space(workdir: pathlib.Path, state: Any) -> None:
  """Raises UserError if a checkpoint of a state, or its template, won't fit."""
  if files.is_remote(workdir):
    return
  needed, free = num_bytes(state), shutil.disk_usage(workdir).free
  if free < needed:
    raise errors.UserError(
        f'The disk of {workdir} has {free:,} bytes free, but a checkpoint of '
        f'this run may take {needed:,}; make room there, then run the same '
        'command again.')


class OneSentence:
  """A context that says in one sentence what the disk of a workdir did.

  A full or read-only disk becomes a UserError, as does a bucket that cannot be
  used; a workdir that has vanished a LostWorkdirError. All else passes.
  """

  def __init__(self, workdir: pathlib.Path):
    self._workdir = workdir
    self._folder = os.path.abspath(workdir)
    self._bucket = files.OfBucket(workdir)

  def __enter__(self):
    absl_logging.get_absl_logger().addFilter(_is_not_raised_as_well)

  def __exit__(self, kind, error, traceback):
    absl_logging.get_absl_logger().removeFilter(_is_not_raised_as_well)
    if error is None or isinstance(error, errors.UserError):
      return
    if files.is_remote(self._workdir):
      self._bucket.__exit__(kind, error, traceback)
      return
    is_ours = self._is_ours(error)
    number = getattr(error, 'errno', None)
    # tensorstore gives no numbers, but the words of the system.
    if is_ours and any(
        number == full or os.strerror(full) in str(error) for full in _FULL):
      raise errors.UserError(
          f'The disk of {self._workdir} is full: '
          f'{shutil.disk_usage(self._workdir).free:,} bytes are free; make '
          'room there, then run the same command again.') from error
    if is_ours and number in _READ_ONLY:
      raise errors.UserError(
          f'--workdir={self._workdir} cannot be written to '
          f'({error.strerror}: {error.filename}); make it writable, or choose '
          'another.') from error
    if is_ours and not self._workdir.exists():
      raise errors.LostWorkdirError(
          f'{self._workdir} has vanished under the run, which cannot go on.'
      ) from error

  def _is_ours(self, error: BaseException) -> bool:
    """Whether an error is of a file of the workdir, or of an open one."""
    if not isinstance(error, OSError):
      return self._folder in str(error)
    if error.filename is None:
      return error.errno in _FULL
    return os.path.abspath(error.filename).startswith(self._folder)


def _is_not_raised_as_well(record: logging.LogRecord) -> bool:
  """orbax logs with a traceback, four times, what it raises later."""
  return not (record.exc_info and '/orbax/' in record.pathname)
