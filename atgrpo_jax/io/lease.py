"""A lease on a folder of a bucket, which keeps other trainers out.

Its holder renews an object of the folder, by writing it under the condition
that nobody else has written it since. What has not been renewed for `SECONDS`,
because its holder was killed or cut off, can be taken over: by the bucket's
clock and ours, which may differ, and by watching it for a third of that time.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import socket
import threading
import time

from atgrpo_jax import errors

NAME = 'lease'
SECONDS = 60.0
_RENEWALS = 4  # In that time.
_WATCHED = 3  # Of that time a part as large: longer than until a renewal.


class Lease:
  """The lease on a folder, held from `take` to `close`."""

  def __init__(self, folder: pathlib.Path, seconds: float | None = None):
    """Nothing is taken yet.

    Args:
      folder: `gs://bucket/...`.
      seconds: after which it can be taken over, the same for all; None for
        `SECONDS`.
    """
    seconds = seconds or SECONDS
    from google.api_core import exceptions
    from google.cloud import storage
    from google.cloud.storage import retry
    self._exceptions = exceptions
    bucket, _, name = os.fspath(folder / NAME).removeprefix(
        'gs://').partition('/')
    self._folder, self._seconds = folder, seconds
    self._retry = retry.DEFAULT_RETRY.with_timeout(seconds / _RENEWALS)
    self._blob = storage.Client().bucket(bucket).blob(name)
    self._generation = 0  # Of what was written last; 0 if that was deleted.
    self._lost = ''
    self._closed = threading.Event()
    self._renewals = threading.Thread(target=self._renew, daemon=True)

  def is_held(self) -> bool:
    """Whether it was renewed in time."""
    age = self._age()
    return age is not None and age <= self._seconds

  def take(self) -> bool:
    """Waits until it is free, and takes it; False if another renews it."""
    seen, start = None, time.monotonic()
    while (age := self._age()) is not None:
      if seen is None:
        holder = (self._blob.metadata or {}).get('holder', 'another process')
        print(f'{self._folder} is held by {holder}, last heard of '
              f'{max(0.0, age):.0f} s ago; without a sign of life it is taken '
              f'over after {self._seconds:.0f} s', flush=True)
      elif seen != self._blob.generation:
        return False
      seen = self._blob.generation
      watched = time.monotonic() - start
      if age > self._seconds and watched > self._seconds / _WATCHED:
        break
      time.sleep(min(1.0, self._seconds / 20))
    self._generation = self._blob.generation or 0
    if not self._write():
      return False
    self._renewals.start()
    return True

  def check(self) -> None:
    """Raises LostWorkdirError if it could not be renewed in time."""
    if self._lost:
      raise errors.LostWorkdirError(
          f'{self._folder} was given up: its lease {self._lost}, so another '
          'process may train there by now. What it holds is whole; the same '
          'command resumes.')

  def close(self) -> None:
    """Gives it back."""
    self._closed.set()
    if self._renewals.is_alive():
      self._renewals.join()
    if self._generation and not self._lost:
      # Or it is another one's by now.
      with contextlib.suppress(
          self._exceptions.PreconditionFailed, self._exceptions.NotFound):
        self._blob.delete(if_generation_match=self._generation)
    self._generation = 0

  def _age(self) -> float | None:
    """Seconds since it was written; None if there is none."""
    try:
      self._blob.reload()
    except self._exceptions.NotFound:
      # What was known of it must not be taken for what is there.
      self._blob = self._blob.bucket.blob(self._blob.name)
      return None
    now = datetime.datetime.now(datetime.UTC)
    return (now - self._blob.updated).total_seconds()

  def _write(self) -> bool:
    """Writes it; False if another has since the last time."""
    self._blob.metadata = {'holder': f'{socket.gethostname()}:{os.getpid()}'}
    try:
      self._blob.upload_from_string(
          '', if_generation_match=self._generation, retry=self._retry,
          timeout=self._seconds / _RENEWALS)
    except self._exceptions.PreconditionFailed:
      return False
    self._generation = self._blob.generation
    return True

  def _renew(self) -> None:
    renewed = time.monotonic()
    while not self._closed.wait(self._seconds / _RENEWALS):
      try:
        if not self._write():
          self._lost = 'was taken over, after no sign of life from here'
          return
        renewed = time.monotonic()
      except (self._exceptions.GoogleAPIError, OSError) as error:
        if time.monotonic() - renewed > self._seconds:
          self._lost = f'could not be renewed ({errors.one_line(error)})'
          return
