"""disk.py: what a disk does to a run is said in one sentence."""

import errno
import logging
import os
import pathlib
import shutil
import types

from absl import logging as absl_logging
import jax
import jax.numpy as jnp
import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import disk
from atgrpo_jax.io import workdir as workdir_lib


def test_a_checkpoint_must_fit(tmp_path, monkeypatch):
  template = {
      'w': jax.ShapeDtypeStruct((3, 5), jnp.float32),
      'step': jax.ShapeDtypeStruct((), jnp.uint32)}
  needed = disk.num_bytes(template)
  assert needed - disk.num_bytes({}) == 4 * 16

  def set_free(free):
    monkeypatch.setattr(
        shutil, 'disk_usage', lambda path: types.SimpleNamespace(free=free))

  set_free(needed)
  disk.check_space(tmp_path, template)
  set_free(needed - 1)
  with pytest.raises(errors.UserError) as error:
    disk.check_space(tmp_path, template)
  assert (f'{tmp_path} has {needed - 1:,} bytes free, but a checkpoint of this '
          f'run may take {needed:,}') in str(error.value)


def _os_error(number, path=None):
  return OSError(number, os.strerror(number), path and str(path))


@pytest.mark.parametrize('error', [
    # Of a file that is open.
    lambda folder: _os_error(errno.ENOSPC),
    lambda folder: _os_error(errno.EDQUOT, folder / 'metrics.jsonl'),
    # As orbax raises it.
    lambda folder: ValueError(
        'RESOURCE_EXHAUSTED: Error writing "w/0.0" in OCDBT database at local '
        f'file "{folder}/checkpoints/2.orbax-checkpoint-tmp/": Failed to write '
        "2942679 bytes to file 4: No space left on device [os_error_code='28']"
    )])
def test_full_disk(error, tmp_path):
  with pytest.raises(errors.UserError) as told:
    with disk.OneSentence(tmp_path):
      raise error(tmp_path)
  assert f'The disk of {tmp_path} is full: ' in str(told.value)
  assert ' bytes are free; make room there' in str(told.value)
  assert '\n' not in str(told.value)


@pytest.mark.parametrize('number', [errno.EROFS, errno.EACCES, errno.EPERM])
def test_read_only(number, tmp_path):
  with pytest.raises(errors.UserError) as told:
    with disk.OneSentence(tmp_path):
      raise _os_error(number, tmp_path / 'config.unfinished')
  assert f'--workdir={tmp_path} cannot be written to' in str(told.value)
  assert 'make it writable, or choose another' in str(told.value)


def test_a_folder_that_nobody_may_make():
  # Not even root makes one there.
  workdir = pathlib.Path('/sys/run')
  with pytest.raises(errors.UserError, match='/sys/run cannot be written to'):
    with disk.OneSentence(workdir):
      workdir_lib.Lock(workdir)


def test_vanished(tmp_path):
  workdir = tmp_path / 'run'
  with pytest.raises(errors.LostWorkdirError, match='run has vanished'):
    with disk.OneSentence(workdir):
      (workdir / 'groups').mkdir()


@pytest.mark.parametrize('error', [
    ValueError('shapes differ'), errors.InfrastructureError('broken'),
    _os_error(errno.EACCES, '/elsewhere/x'), _os_error(errno.ENOENT, '/no/x'),
    _os_error(errno.ENOSPC, '/elsewhere/x'), KeyboardInterrupt(),
    errors.UserError('No space left on device')])
def test_all_else_passes(error, tmp_path):
  with pytest.raises(type(error)) as told:
    with disk.OneSentence(tmp_path):
      raise error
  assert told.value is error


def test_what_orbax_raises_later_is_not_logged_as_well(tmp_path):
  lines = []
  handler = logging.Handler()
  handler.emit = lines.append
  logger = absl_logging.get_absl_logger()
  logger.addHandler(handler)

  def log(path):
    logger.handle(logging.LogRecord(
        'absl', logging.ERROR, path, 1, 'failed', (), (None, None, None)))

  with disk.OneSentence(tmp_path):
    log('/x/orbax/checkpoint/_src/futures/future.py')
    assert not lines
    log('/x/other.py')
    assert len(lines) == 1
  log('/x/orbax/checkpoint/_src/futures/future.py')
  logger.removeHandler(handler)
  assert len(lines) == 2
