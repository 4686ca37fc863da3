"""Files and folders that several processes share."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
import shutil


def unfinished(path: pathlib.Path) -> pathlib.Path:
  """Where `write_whole` and `whole_folder` write what becomes `path`."""
  return path.with_suffix('.unfinished')


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never half there, whenever this is killed."""
  unfinished(path).write_text(text)
  unfinished(path).rename(path)


@contextlib.contextmanager
def whole_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """An empty folder, which takes the place of `folder` when the block ends.

  Whenever this is killed, `folder` is what it was, or the new one, or, between
  two renames, not there. Nothing of the former one enters the new one.
  """
  new, former = unfinished(folder), folder.with_suffix('.former')
  shutil.rmtree(new, ignore_errors=True)  # Of a call that was killed.
  new.mkdir(parents=True)
  yield new
  if folder.exists():
    shutil.rmtree(former, ignore_errors=True)
    folder.rename(former)
  new.rename(folder)
  shutil.rmtree(former, ignore_errors=True)


def try_lock(folder: pathlib.Path) -> contextlib.ExitStack | None:
  """Locks a folder until the result is closed, or its process is gone.

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
