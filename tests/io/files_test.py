"""files.py: files exist whole or not at all; disk errors are one sentence."""

import errno
import itertools
import os
import pathlib

import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import files

OLD = {'adapter': 'old', 'config': 'old'}
NEW = {'weights': 'new', 'config': 'new'}


class Killed(BaseException):
  """Stands for a kill: no handler of the code under test runs."""


def _write(folder, content):
  with files.whole_folder(folder) as new:
    for name, text in content.items():
      (new / name).write_text(text)


def _content(folder):
  if not folder.exists():
    return None
  return {path.name: path.read_text() for path in folder.iterdir()}


def _kill_at(monkeypatch, number):
  """Makes the file operation `number` and all later ones raise Killed."""
  calls = itertools.count()

  def killable(do):
    def call(*args, **kwargs):
      if next(calls) >= number:
        raise Killed
      return do(*args, **kwargs)
    return call

  for owner, name in (
      (pathlib.Path, 'mkdir'), (pathlib.Path, 'rename'),
      (pathlib.Path, 'write_text'), (os, 'unlink'), (os, 'rmdir')):
    monkeypatch.setattr(owner, name, killable(getattr(owner, name)))


@pytest.mark.parametrize('old', [OLD, None])
def test_folder_is_replaced_as_a_whole(old, tmp_path, monkeypatch):
  found = []
  for number in itertools.count():
    folder = tmp_path / str(number) / 'export' / 'role'
    if old:
      _write(folder, old)
    try:
      with monkeypatch.context() as patch:
        _kill_at(patch, number)
        _write(folder, NEW)
    except Killed:
      pass
    else:
      break
    found.append(_content(folder))
    # The next call succeeds whatever the killed one left, and removes it.
    _write(folder, NEW)
    assert _content(folder) == NEW
    assert [path.name for path in folder.parent.iterdir()] == ['role']
  assert _content(folder) == NEW
  states = [state for state, _ in itertools.groupby(found)]
  assert states == ([OLD, None, NEW] if old else [None])
  assert len(found) > 5 or not old


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


@pytest.mark.parametrize('error', [None, errno.EACCES, errno.ENOENT])
def test_workdir_that_cannot_be_made_is_unusable(error, tmp_path, monkeypatch):
  workdir = tmp_path / 'file' / 'above' / 'run'
  (tmp_path / 'file').write_text('')
  if error is not None:  # The folder above is named, not the workdir.
    def mkdir(self, **unused_kwargs):
      raise _os_error(error, self.parent)
    monkeypatch.setattr(pathlib.Path, 'mkdir', mkdir)
  with pytest.raises(errors.UserError, match=f'{workdir} cannot be made'):
    with files.disk_errors_as_user_errors(workdir):
      files.make_folder(workdir)


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
