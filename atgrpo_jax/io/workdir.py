"""The workdir of a run: its config and its lock.

A config is a nested dict here, as returned by `ConfigDict.to_dict`.
"""

from collections.abc import Mapping
import contextlib
import hashlib
import json
import pathlib
import shlex
from typing import Any

from flax import traverse_util

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files

REPORT = 'report.html'

# Keys that the terminal shows.
_MAIN_KEYS = (
    'environment.module', 'environment.team', 'model.folder', 'policies',
    'rollout.mode', 'rollout.num_tasks', 'rollout.group_size',
    'optimizer.learning_rate', 'train.num_steps', 'seed')
# Keys, and sections of keys, that may change when a run is resumed.
_MAY_CHANGE = ('evaluation', 'export', 'mesh', 'sandbox',
               'train.num_steps', 'train.completion_tokens', 'train.writers',
               'train.profile_steps',
               'environment.num_workers', 'environment.program_slots',
               'environment.step_seconds')


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Nested config -> {'section.key': value}."""
  return traverse_util.flatten_dict(tree, sep='.')


def fixed_values(config: Mapping[str, Any]) -> dict[str, Any]:
  """'section.key' -> value, for all that a resumed run must not change."""
  def is_fixed(name):
    return not f'{name}.'.startswith(tuple(f'{key}.' for key in _MAY_CHANGE))

  values = {
      name: value for name, value in flatten(config).items() if is_fixed(name)}
  if 'per_policy' in values:
    values['per_policy'] = [
        item for item in values['per_policy'] if is_fixed(item[1])]
  return values


def config_hash(config: Mapping[str, Any]) -> str:
  """Hash of all values that determine what a run computes."""
  text = json.dumps(fixed_values(config), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def print_config(config: Mapping[str, Any]) -> None:
  """Prints the main values as command-line flags, and the hash of all."""
  values = flatten(config)
  for name in _MAIN_KEYS:
    print(f'--config.{name}={values[name]}')
  print(f'config hash {config_hash(config)}; all {len(values)} keys are in '
        'config.json')


def check_config(
    workdir: pathlib.Path, config: Mapping[str, Any]) -> bool:
  """True if the workdir holds a run of this config, False if it is empty.

  Raises UserError if it holds anything else, or lost its checkpoints.
  """
  path = workdir / 'config.json'
  if not path.exists():
    if set(workdir.glob('*')) - {files.unfinished(path)}:
      raise errors.UserError(
          f'{workdir} is not empty and holds no config.json, so it is not a '
          'workdir; choose another --workdir.')
    return False
  before, after = (  # JSON has lists for tuples.
      json.loads(json.dumps(fixed_values(x)))
      for x in (read_config(workdir), config))
  changes = [
      f'{name} was {before.get(name)!r}, is now {after.get(name)!r}'
      for name in sorted(before.keys() | after.keys())
      if before.get(name) != after.get(name)]
  if changes:
    raise errors.UserError(
        f'{workdir} holds a run of another config ({"; ".join(changes[:10])}). '
        'Choose another --workdir, or resume it with that config.')
  # A run that was killed before its first checkpoint starts again from step 0.
  # A finished run has always saved a checkpoint.
  metrics, folder = workdir / 'metrics.jsonl', workdir / 'checkpoints'
  num_steps = metrics.read_bytes().count(b'\n') if metrics.exists() else 0
  had_checkpoint = (
      num_steps > config['train']['checkpoint_every']
      or (workdir / 'evals/after.json').exists())
  if had_checkpoint and not any(folder.glob('*')):
    raise errors.UserError(
        f'{metrics} has {num_steps} steps, but their checkpoints in {folder} '
        'were deleted; restore them to resume, or start again after `rm -r '
        f'{shlex.quote(str(workdir))}`.')
  return True


def read_config(workdir: pathlib.Path) -> dict[str, Any]:
  """The config of a run; UserError if `config.json` is unusable."""
  path = workdir / 'config.json'
  with files.read_errors_as_user_errors(path, 'give the workdir of a run'):
    config = json.loads(path.read_text())['config']
    if not isinstance(config, dict):
      raise TypeError(f'the config is {config!r}')
  return config


def write_config(
    workdir: pathlib.Path, config: Mapping[str, Any],
    digests: Mapping[str, str]) -> None:
  """Writes `config.json`: the resolved config, its hash, and `digests`.

  The digests are those of the user's code; see `rules.module_digest`.
  """
  hosts.barrier()  # All processes check the old file before it is replaced.
  if not hosts.is_first():
    return
  files.make_folder(workdir)
  record = {
      'hash': config_hash(config), 'code': dict(digests),
      'config': dict(config)}
  files.write_whole(
      workdir / 'config.json', json.dumps(record, indent=2) + '\n')


def check_exists(workdir: pathlib.Path) -> None:
  """Raises LostWorkdirError if the files of a running run were deleted."""
  for name in ('config.json', 'metrics.jsonl'):
    if not (workdir / name).exists():
      raise errors.LostWorkdirError(
          f'{workdir / name} was deleted during the run, which cannot '
          'continue; the rest of the workdir is untouched.')


def lock(workdir: pathlib.Path) -> contextlib.ExitStack:
  """Makes a workdir; UserError if another process trains in it.

  The lock ends with `close` or with this process. With several processes, the
  first one holds it. A bucket has no lock: `MetricsWriter.write` notices a
  second trainer at its first step.
  """
  held = contextlib.ExitStack()
  if hosts.is_first():
    files.make_folder(workdir)
    if not files.is_remote(workdir):
      held = files.try_lock(workdir)
  if not all(hosts.exchange(held is not None)):
    raise errors.UserError(
        f'Another process trains in {workdir}. Wait for it, stop it, or '
        'choose another --workdir.')
  return held


def is_in_use(workdir: pathlib.Path) -> bool:
  """True if a trainer holds the lock; a bucket has none.

  On NFS only a lock of this host is seen.
  """
  if files.is_remote(workdir):
    return False
  held = files.try_lock(workdir)
  if held is None:
    return True
  held.close()
  return False
