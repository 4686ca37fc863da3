"""The workdir of a run: its config and its lock.

A config is a nested dict here, as returned by `ConfigDict.to_dict`. One trainer
at a time may use a workdir: a file lock ensures this on a disk, a lease in a
bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import shlex
import threading
import time
from typing import Any

from flax import traverse_util

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files

REPORT = 'report.html'
LEASE = 'lease'
LEASE_SECONDS = 60.0

# Keys, and sections of keys, that may change when a run is resumed.
_MAY_CHANGE = ('evaluation', 'export', 'mesh', 'sandbox',
               'train.num_steps', 'train.completion_tokens', 'train.writers',
               'train.profile_steps')


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Nested config -> {'section.key': value}."""
  return traverse_util.flatten_dict(tree, sep='.')


def changed_keys(
    before: Mapping[str, Any],
    after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
  """'section.key' -> (value before, value after); None for a missing key.

  Tuples equal lists, because `before` or `after` may have been JSON.
  """
  before, after = (
      flatten(json.loads(json.dumps(config))) for config in (before, after))
  return {
      name: (before.get(name), after.get(name))
      for name in sorted(before.keys() | after.keys())
      if before.get(name) != after.get(name)}


def is_key_of(name: str, sections: Sequence[str]) -> bool:
  """True if 'section.key' is one of `sections` or lies in one."""
  return any(
      name == section or name.startswith(section + '.') for section in sections)


def config_hash(config: Mapping[str, Any]) -> str:
  """Hash of all values that determine what a run computes."""
  flat = {
      name: value for name, value in flatten(config).items()
      if not is_key_of(name, _MAY_CHANGE)}
  text = json.dumps(flat, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def print_config(config: Mapping[str, Any]) -> None:
  """Prints every value as a command-line flag, and the hash.

  None is left out: a flag cannot express it.
  """
  for name, value in sorted(flatten(config).items()):
    if value is not None:
      print(f'--config.{name}={value}')
  print(f'config hash {config_hash(config)}')


def check_config(
    workdir: pathlib.Path, config: Mapping[str, Any]) -> bool:
  """True if the workdir holds a run of this config, False if it is empty.

  Raises UserError if it holds anything else.
  """
  path = workdir / 'config.json'
  if not path.exists():
    for folder in (
        () if files.is_remote(workdir) else (workdir, *workdir.parents)):
      if folder.exists() and not folder.is_dir():
        raise errors.UserError(
            f'--workdir={workdir}: {folder} is a file; choose another.')
    begun = {files.unfinished(path), workdir / LEASE}
    if set(workdir.glob('*')) - begun:
      raise errors.UserError(
          f'{workdir} is not empty and holds no config.json, so it is not a '
          'workdir; choose another --workdir.')
    return False
  changes = {
      name: values
      for name, values in changed_keys(read_config(workdir), config).items()
      if not is_key_of(name, _MAY_CHANGE)}
  if changes:
    listed = '; '.join(
        f'{name} was {before!r}, is now {after!r}'
        for name, (before, after) in list(changes.items())[:10])
    raise errors.UserError(
        f'{workdir} holds a run of another config ({listed}). Choose another '
        '--workdir, or resume it with that config.')
  return True


def read_config(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads the config of a run; UserError if `config.json` is unusable."""
  path = workdir / 'config.json'
  with files.read_errors_as_user_errors(path, 'give the workdir of a run'):
    config = json.loads(path.read_text())['config']
    if not isinstance(config, dict):
      raise TypeError(f'the config is {config!r}')
  return config


def write_config(
    workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Writes the resolved config and its hash to `config.json`."""
  hosts.barrier()  # All processes check the old file before it is replaced.
  if not hosts.is_first():
    return
  workdir.mkdir(parents=True, exist_ok=True)
  record = {'hash': config_hash(config), 'config': dict(config)}
  files.write_whole(
      workdir / 'config.json', json.dumps(record, indent=2) + '\n')


def check_exists(workdir: pathlib.Path) -> None:
  """Raises LostWorkdirError if the files of a running run were deleted."""
  for name in ('config.json', 'metrics.jsonl'):
    if not (workdir / name).exists():
      raise errors.LostWorkdirError(
          f'{workdir / name} was deleted during the run, which cannot '
          'continue; the rest of the workdir is untouched.')


def check_checkpoints(workdir: pathlib.Path, every: int) -> None:
  """Raises UserError if steps are recorded but their checkpoints are deleted.

  A run killed before its first checkpoint, after `every` steps, starts again
  from step 0.
  """
  metrics, folder = workdir / 'metrics.jsonl', workdir / 'checkpoints'
  num_steps = metrics.read_bytes().count(b'\n') if metrics.exists() else 0
  if num_steps > every and not any(folder.glob('*')):
    raise errors.UserError(
        f'{metrics} has {num_steps} steps, but their checkpoints in {folder} '
        'were deleted; restore them to resume, or start again after `rm -r '
        f'{shlex.quote(str(workdir))}`.')


class Lock:
  """Keeps other trainers out of a workdir until `close` or the process ends.

  With several processes, the first one holds the lock.
  """

  def __init__(self, workdir: pathlib.Path):
    """Makes the workdir; UserError if another trainer uses it."""
    self._held: contextlib.ExitStack | Lease | None = None
    is_ours = True
    if hosts.is_first():
      workdir.mkdir(parents=True, exist_ok=True)
      if files.is_remote(workdir):
        self._held = Lease(workdir)
        is_ours = self._held.take()
      else:
        self._held = files.try_lock(workdir)
        is_ours = self._held is not None
    if not all(hosts.exchange(is_ours)):
      raise errors.UserError(
          f'Another process trains in {workdir}. Wait for it, stop it, or '
          'choose another --workdir.')

  def check(self) -> None:
    """Raises LostWorkdirError if the lease was lost."""
    if isinstance(self._held, Lease):
      self._held.check()

  def close(self) -> None:
    if self._held is not None:
      self._held.close()


def is_in_use(workdir: pathlib.Path) -> bool:
  """True if a trainer holds the lock; on NFS, only if it is on this host."""
  if files.is_remote(workdir):
    return Lease(workdir).is_held()
  held = files.try_lock(workdir)
  if held is None:
    return True
  held.close()
  return False


class Lease:
  """The lock of a folder in a bucket, held from `take` to `close`.

  The holder rewrites an object every quarter of the lifetime, on condition
  that its generation is still the holder's. Another process may take over a
  lease that it has watched for a lifetime without a renewal. Clocks are not
  compared.
  """

  def __init__(self, folder: pathlib.Path, seconds: float | None = None):
    """`seconds` is the lifetime, by default `LEASE_SECONDS`."""
    from google.api_core import exceptions
    from google.cloud import storage
    from google.cloud.storage import retry
    self._exceptions = exceptions
    self._folder, self._seconds = folder, seconds or LEASE_SECONDS
    self._interval = self._seconds / 4
    self._retry = retry.DEFAULT_RETRY.with_timeout(self._interval)
    bucket, _, self._name = os.fspath(folder / LEASE).removeprefix(
        'gs://').partition('/')
    self._bucket = storage.Client().bucket(bucket)
    self._generation = 0  # The object's version that we wrote; 0 for none.
    self._lost = ''
    self._closed = threading.Event()
    self._renewals = threading.Thread(target=self._renew, daemon=True)

  def is_held(self) -> bool:
    """True if it was renewed within a lifetime, by the clock of this host."""
    blob = self._bucket.get_blob(self._name)
    if blob is None:
      return False
    age = datetime.datetime.now(datetime.UTC) - blob.updated
    return age.total_seconds() <= self._seconds

  def take(self) -> bool:
    """Takes the lease when it is free; False if another process renews it."""
    blob = self._bucket.get_blob(self._name)
    if blob:
      print(f'{self._folder} has a lease; it is taken over after '
            f'{self._seconds:.0f} s without a renewal', flush=True)
      deadline = time.monotonic() + self._seconds
      self._generation = blob.generation
      while blob and time.monotonic() < deadline:
        time.sleep(self._seconds / 20)
        blob = self._bucket.get_blob(self._name)
        if blob and blob.generation != self._generation:
          return False
    self._generation = blob.generation if blob else 0
    if not self._write():
      return False
    self._renewals.start()
    return True

  def check(self) -> None:
    """Raises LostWorkdirError if the lease could not be renewed in time."""
    if self._lost:
      raise errors.LostWorkdirError(
          f'The run in {self._folder} stops: its lease {self._lost}, so '
          'another process may train there. The files are complete; the same '
          'command resumes.')

  def close(self) -> None:
    """Deletes the lease, unless another process has taken it over."""
    self._closed.set()
    if self._renewals.is_alive():
      self._renewals.join()
      with contextlib.suppress(
          self._exceptions.PreconditionFailed, self._exceptions.NotFound):
        self._bucket.blob(self._name).delete(
            if_generation_match=self._generation)

  def _write(self) -> bool:
    """Writes the object; False if another process has written it since."""
    blob = self._bucket.blob(self._name)
    try:
      blob.upload_from_string(
          '', if_generation_match=self._generation, retry=self._retry,
          timeout=self._interval)
    except self._exceptions.PreconditionFailed:
      return False
    self._generation = blob.generation
    return True

  def _renew(self) -> None:
    renewed = time.monotonic()
    while not self._closed.wait(self._interval):
      try:
        if not self._write():
          self._lost = 'was taken over because it was not renewed in time'
          return
        renewed = time.monotonic()
      except (self._exceptions.GoogleAPIError, OSError) as error:
        if time.monotonic() - renewed > self._seconds:
          self._lost = f'could not be renewed ({errors.one_line(error)})'
          return
