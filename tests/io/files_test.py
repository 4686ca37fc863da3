"""files.py: what is written is there whole or not at all."""

import itertools
import os
import pathlib

import pytest

from atgrpo_jax.io import files

FORMER = {'adapter': 'former', 'config': 'former'}
NEW = {'weights': 'new', 'config': 'new'}


class Killed(BaseException):
  """Nothing runs after it."""


def _write(folder, content):
  with files.whole_folder(folder) as new:
    for name, text in content.items():
      (new / name).write_text(text)


def _content(folder):
  if not folder.exists():
    return None
  return {path.name: path.read_text() for path in folder.iterdir()}


def _kill_at(monkeypatch, number):
  """The call with this number that changes files, and what follows, fails."""
  calls = itertools.count()

  def killed_in_time(do):
    def call(*args, **kwargs):
      if next(calls) >= number:
        raise Killed
      return do(*args, **kwargs)
    return call

  for owner, name in (
      (pathlib.Path, 'mkdir'), (pathlib.Path, 'rename'),
      (pathlib.Path, 'write_text'), (os, 'unlink'), (os, 'rmdir')):
    monkeypatch.setattr(owner, name, killed_in_time(getattr(owner, name)))


@pytest.mark.parametrize('former', [FORMER, None])
def test_a_folder_is_replaced_as_a_whole(former, tmp_path, monkeypatch):
  # Bite: files that are written into `folder` itself, or one that is emptied
  # before the new one is complete.
  found = []
  for number in itertools.count():
    folder = tmp_path / str(number) / 'export' / 'role'
    if former:
      _write(folder, former)
    try:
      with monkeypatch.context() as patch:
        _kill_at(patch, number)
        _write(folder, NEW)
    except Killed:
      pass
    else:
      break
    found.append(_content(folder))
    # The next call goes on from whatever is left, and leaves nothing else.
    _write(folder, NEW)
    assert _content(folder) == NEW
    assert [path.name for path in folder.parent.iterdir()] == ['role']
  assert _content(folder) == NEW
  states = [state for state, _ in itertools.groupby(found)]
  assert states == ([FORMER, None, NEW] if former else [None])
  assert len(found) > 5 or not former
