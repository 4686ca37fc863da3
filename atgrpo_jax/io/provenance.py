"""Records what made a run, in `provenance.jsonl` of its workdir.

Each start and each end of a training adds a line. A start names the command,
the commits of this package and of the working directory, the versions of
libraries, the devices and the hosts. Changes since a commit, with imported
modules that are in no commit, are in `changes/<sha256>.diff`. A copy without a
repository has the commit that $SOURCE_COMMIT gives. A run that resumes with
other code warns; nothing else reads the record but people and the report.
"""

import datetime
import hashlib
from importlib import metadata
import json
import os
import pathlib
import platform
import shlex
import socket
import subprocess
import sys
from typing import Any

import jax

from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files

_PACKAGES = 'atgrpo_jax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax'
_MAX_DIFF = 1 << 20  # Characters.


def start(workdir: pathlib.Path, step: int) -> None:
  """Records that a training starts or resumes after `step` finished steps."""
  names = hosts.exchange(socket.gethostname())
  if not hosts.is_first():
    return
  devices = jax.devices()
  versions = {
      distribution.name: distribution.version for name in _PACKAGES
      for distribution in metadata.distributions(name=name)}
  folders = pathlib.Path(__file__).parents[2], pathlib.Path.cwd()
  roots = [_git(x, 'rev-parse', '--show-toplevel').strip() for x in folders]
  commits = {
      root: _commit(root, workdir) for root in dict.fromkeys(roots) if root}
  if not commits and (source := os.environ.get('SOURCE_COMMIT')):
    commits = {str(folders[0]): {'commit': source}}
  earlier = [x['commits'] for x in read(workdir) if x.get('commits')]
  if step and earlier and _code(earlier[-1]) != _code(commits):
    print('warning: the code has changed since the last start, from '
          f'{_code(earlier[-1])} to {_code(commits)}; see provenance.jsonl')
  _append(workdir, {
      'event': 'resumed' if step else 'started', 'step': step,
      'command': shlex.join([sys.executable, *sys.orig_argv[1:]]),
      'folder': os.getcwd(),
      'commits': commits,
      'versions': {'python': platform.python_version()} | versions,
      'devices': f'{len(devices)} x {devices[0].device_kind}',
      'hosts': names})


def end(workdir: pathlib.Path, step: int, reason: str) -> None:
  """Records that a training ended after `step` steps."""
  if hosts.is_first():
    _append(workdir, {'event': reason, 'step': step})


def read(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The events of a run; empty if none was recorded."""
  path = workdir / 'provenance.jsonl'
  if not path.exists():
    return []
  with files.read_errors_as_user_errors(path, 'delete it'):
    return [*map(json.loads, path.read_text().splitlines())]


def _append(workdir: pathlib.Path, event: dict[str, Any]) -> None:
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  files.append(
      workdir / 'provenance.jsonl',
      json.dumps({'time': now} | event).encode() + b'\n')


def _code(commits: dict[str, Any]) -> str:
  """The commits, and the files with changes since them."""
  return ', '.join(sorted({
      x['commit'][:8] + (f' with {x["changes"]}' if 'changes' in x else '')
      for x in commits.values()})) or 'no commit'


def _commit(root: str, workdir: pathlib.Path) -> dict[str, Any]:
  """The commit of a repository, and how its files differ from it."""
  listed = _git(root, 'ls-files', '--others', '--exclude-standard')
  untracked = [x for x in listed.splitlines() if '/site-packages/' not in x]
  imported = {
      os.path.realpath(file) for module in [*sys.modules.values()]
      if (file := getattr(module, '__file__', None))}
  diff = _git(root, 'diff', 'HEAD') + ''.join(
      _git(root, 'diff', '--no-index', '/dev/null', name) for name in untracked
      if os.path.realpath(os.path.join(root, name)) in imported)
  found = {
      'commit': _git(root, 'rev-parse', 'HEAD').strip(),
      'untracked': untracked[:100]}
  if diff:
    name = hashlib.sha256(diff.encode()).hexdigest()[:16]
    found['changes'] = f'changes/{name}.diff'
    (workdir / 'changes').mkdir(exist_ok=True)
    (workdir / found['changes']).write_text(diff[:_MAX_DIFF])
  return found


def _git(folder: str | pathlib.Path, *arguments: str) -> str:
  """The output of git; '' if it fails or is not installed."""
  try:
    return subprocess.run(
        ['git', '-C', folder, *arguments], text=True, errors='replace',
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout
  except (OSError, subprocess.TimeoutExpired):
    return ''
