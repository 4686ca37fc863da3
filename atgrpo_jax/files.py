"""Files and folders that several processes share."""

import contextlib
import fcntl
import os
import pathlib


def unfinished(path: pathlib.Path) -> pathlib.Path:
  """Where `write_whole` writes what becomes `path`."""
  return path.with_suffix('.unfinished')


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never half there, whenever this is killed."""
  unfinished(path).write_text(text)
  unfinished(path).rename(path)


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
