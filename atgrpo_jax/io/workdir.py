"""The folder of a run: its config, whether that is the same, and its lock.

A config here is the nested dict of plain values that a ConfigDict stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import hashlib
import json
import pathlib
import shlex
from typing import Any

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files
from atgrpo_jax.io import lease as lease_lib

# What may stand in a workdir, beside the report.
_FOLDERS = ('checkpoints', 'evals', 'export', 'groups', 'tensorboard')
_FILES = ('config.json', 'metrics.jsonl')
REPORT = 'report.html'
# In a bucket, where no folder is empty: makes one of the checkpoints.
_BEGUN = 'begun'

# Parts of a config that may change between two starts of one run.
_MAY_CHANGE = ('evaluation', 'export', 'mesh', 'sandbox',
               'train.num_steps', 'train.completion_tokens', 'train.writers',
               'train.profile_steps')


def config_hash(config: Mapping[str, Any]) -> str:
  """Names what a run computes; parts that may change do not enter."""
  flat = {
      name: value for name, value in flatten(config).items()
      if not _may_change(name)}
  text = json.dumps(flat, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def print_config(config: Mapping[str, Any]) -> None:
  """Prints every value as it would be given on the command line.

  None, which cannot be given there, is left out.
  """
  for name, value in sorted(flatten(config).items()):
    if value is not None:
      print(f'--config.{name}={value}')
  print(f'config hash {config_hash(config)}')


def check_config(
    workdir: pathlib.Path, config: Mapping[str, Any]) -> bool:
  """True if the workdir holds a run of this config, False if it holds none.

  Raises UserError if it holds anything else.
  """
  path = workdir / 'config.json'
  _check_kinds(workdir)
  if not path.exists():
    begun = {files.unfinished(path), workdir / lease_lib.NAME}
    if set(workdir.glob('*')) - begun:
      raise errors.UserError(
          f'{workdir} is not empty and holds no config.json, so it is no '
          'workdir of ours; choose another --workdir.')
    return False
  theirs = flatten(read_config(workdir))
  ours = flatten(json.loads(json.dumps(config)))
  differ = [
      name for name in sorted(theirs.keys() | ours.keys())
      if theirs.get(name) != ours.get(name) and not _may_change(name)]
  if differ:
    changes = '; '.join(
        f'{name}: there {theirs.get(name)!r}, now {ours.get(name)!r}'
        for name in differ[:10])
    raise errors.UserError(
        f'{workdir} holds a run of another config ({changes}). Choose '
        'another --workdir, or start with that config to resume it.')
  return True


def read_config(workdir: pathlib.Path) -> dict[str, Any]:
  """The config of a run; a UserError if `config.json` has none."""
  path = workdir / 'config.json'
  _check_kinds(workdir)
  try:
    config = files.parse_json(path.read_text())['config']
    if not isinstance(config, dict):
      raise TypeError(f'the config is {config!r}')
    return config
  except FileNotFoundError as error:
    raise errors.UserError(
        f'There is no {path}, so {workdir} is no workdir; give that of a run.'
        ) from error
  except (ValueError, KeyError, TypeError) as error:
    raise errors.UserError(
        f'{path} is no config that was written here ({error}); choose another '
        '--workdir.') from error


def check_there(workdir: pathlib.Path) -> None:
  """Raises LostWorkdirError if a workdir in use has vanished."""
  for name in _FILES:
    if not (workdir / name).exists():
      raise errors.LostWorkdirError(
          f'{workdir / name} has vanished under the run, which cannot go on; '
          'what its workdir still holds is as it was.')


def check_checkpoints(workdir: pathlib.Path, every: int) -> None:
  """Raises UserError if steps are recorded whose checkpoints were deleted.

  A run that was killed before its first checkpoint, after `every` steps, has
  an empty folder for them and starts anew.
  """
  metrics, folder = workdir / 'metrics.jsonl', workdir / 'checkpoints'
  num_steps = metrics.read_bytes().count(b'\n') if metrics.exists() else 0
  is_empty = folder.exists() and not (
      {path.name for path in folder.iterdir()} - {_BEGUN})
  if num_steps and (not folder.exists() or is_empty and num_steps > every):
    raise errors.UserError(
        f'{metrics} has {num_steps} steps, but their checkpoints in {folder} '
        'were deleted; put them back to go on, or start afresh after `rm -r '
        f'{shlex.quote(str(workdir))}`.')


def make_checkpoints(workdir: pathlib.Path) -> None:
  """Makes the folder whose absence `check_checkpoints` refuses."""
  if not hosts.is_first():
    return
  folder = workdir / 'checkpoints'
  folder.mkdir(exist_ok=True)
  if files.is_remote(folder):
    (folder / _BEGUN).write_text('')


def _check_kinds(workdir: pathlib.Path) -> None:
  """Raises UserError where a file is that should be a folder, or vice versa."""
  try:
    for name in ('', *_FOLDERS):
      path = workdir / name
      if path.exists() and not path.is_dir():
        raise errors.UserError(
            f'{path} is a file, but must be a folder; choose another '
            '--workdir.')
    for name in (*_FILES, REPORT):
      path = workdir / name
      if path.exists() and not path.is_file():
        kind = 'a folder' if path.is_dir() else 'a pipe or device'
        raise errors.UserError(
            f'{path} is {kind}, but must be a file; choose another --workdir.')
    for parent in () if files.is_remote(workdir) else workdir.parents:
      if parent.exists() and not parent.is_dir():
        raise errors.UserError(
            f'--workdir={workdir}: {parent} is a file; choose another.')
  except OSError as error:
    raise errors.UserError(f'--workdir cannot be used: {error}.') from error


def write_config(
    workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Writes `config.json`: the resolved config and its hash."""
  hosts.barrier()  # Until all have seen what was there before.
  if not hosts.is_first():
    return
  workdir.mkdir(parents=True, exist_ok=True)
  record = {
      'hash': config_hash(config), 'config': dict(config)}
  files.write_whole(
      workdir / 'config.json', json.dumps(record, indent=2) + '\n')


class Lock:
  """Keeps other trainers out of a workdir until it is closed, or gone.

  Of several processes the first one holds it.
  """

  def __init__(self, workdir: pathlib.Path):
    """Makes the workdir if there is none; UserError if a trainer is in it."""
    self._held: contextlib.ExitStack | lease_lib.Lease | None = None
    is_ours = True
    if hosts.is_first():
      workdir.mkdir(parents=True, exist_ok=True)
      if files.is_remote(workdir):
        self._held = lease_lib.Lease(workdir)
        is_ours = self._held.take()
      else:
        self._held = files.try_lock(workdir)
        is_ours = self._held is not None
    if not all(hosts.exchange(is_ours)):
      raise errors.UserError(
          f'Another process trains in {workdir}. Wait for it, stop it, or '
          'choose another --workdir.')

  def check(self) -> None:
    """Raises LostWorkdirError if it is no longer held."""
    if isinstance(self._held, lease_lib.Lease):
      self._held.check()

  def close(self) -> None:
    if self._held is not None:
      self._held.close()


def is_in_use(workdir: pathlib.Path) -> bool:
  """Whether a trainer is in a workdir, as far as this host knows."""
  if files.is_remote(workdir):
    return lease_lib.Lease(workdir).is_held()
  held = files.try_lock(workdir)
  if held is None:
    return True
  held.close()
  return False


def _may_change(name: str) -> bool:
  return any(
      name == part or name.startswith(part + '.') for part in _MAY_CHANGE)


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """A config as 'section.key' -> value."""
  flat = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      flat |= flatten(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
