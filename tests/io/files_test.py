"""files.py: files exist whole or not at all; disk errors are one sentence."""

import errno
import os
import pathlib

import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import files


def _write(folder, text):
  with files.whole_folder(folder) as new:
    (new / text).write_text(text)
    (new / 'config').write_text(text)


def _content(folder):
  return folder.exists() and {
      path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize('num_renames, is_there', [(0, True), (1, False)])
def test_folder_is_replaced_as_a_whole(
    num_renames, is_there, tmp_path, monkeypatch):
  folder, renames = tmp_path / 'export' / 'role', iter(range(num_renames))
  _write(folder, 'old')
  (tmp_path / 'export' / 'role.former').mkdir()  # Left by a killed process.

  def rename(source, target):
    if next(renames, None) is None:
      raise KeyboardInterrupt
    os.rename(source, target)

  with monkeypatch.context() as patch:
    patch.setattr(pathlib.Path, 'rename', rename)
    with pytest.raises(KeyboardInterrupt):
      _write(folder, 'new')
  assert _content(folder) == (
      is_there and {'old': 'old', 'config': 'old'})
  # The next call succeeds whatever the killed one left, and removes it.
  _write(folder, 'new')
  assert _content(folder) == {'new': 'new', 'config': 'new'}
  assert [path.name for path in folder.parent.iterdir()] == ['role']


def _os_error(number, path=None):
  return OSError(number, os.strerror(number), path and str(path))


@pytest.mark.parametrize('error', [
    lambda folder: _os_error(errno.ENOSPC),  # Writing to an open file.
    lambda folder: _os_error(errno.EACCES, folder / 'config.unfinished'),
    # As orbax raises it.
    lambda folder: ValueError(
        'RESOURCE_EXHAUSTED: Error writing "w/0.0" in OCDBT database at local '
        f'file "{folder}/checkpoints/2.orbax-checkpoint-tmp/": Failed to write '
        "2942679 bytes to file 4: No space left on device [os_error_code='28']"
    )])
def test_unusable_disk_is_one_sentence(error, tmp_path):
  with pytest.raises(errors.UserError) as raised:
    with files.disk_errors_as_user_errors(tmp_path):
      raise error(tmp_path)
  message = str(raised.value)
  assert f'--workdir={tmp_path} cannot be used' in message
  assert 'free some space' in message and '\n' not in message


def test_deleted_workdir_is_a_lost_workdir(tmp_path):
  workdir = tmp_path / 'run'
  with pytest.raises(errors.LostWorkdirError, match=str(workdir)):
    with files.disk_errors_as_user_errors(workdir):
      (workdir / 'groups').mkdir()


@pytest.mark.parametrize('error', [
    ValueError('shapes differ'), KeyboardInterrupt(),
    _os_error(errno.ENOSPC, '/elsewhere/x'),
    _os_error(errno.EACCES, '{workdir}2/x'),
    _os_error(errno.ENOENT, '{workdir}-old'),
    errors.UserError('No space left on device')])
def test_unrelated_errors_pass_unchanged(error, tmp_path):
  if isinstance(error, OSError):
    error.filename = error.filename.format(workdir=tmp_path)
  with pytest.raises(type(error)) as raised:
    with files.disk_errors_as_user_errors(tmp_path):
      raise error
  assert raised.value is error
