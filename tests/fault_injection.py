"""What the fault-injection tests share: processes of a run, and its results."""

from __future__ import annotations

import collections
from collections.abc import Iterator
import hashlib
import json
import pathlib

# Prefixes of the metrics that differ between equal runs.
_UNEQUAL = ('time/', 'memory/', 'workers/', 'compile')


def steps(workdir: pathlib.Path) -> list[dict[str, float]]:
  """The metrics of each step, without measured times and counts of faults."""
  return [
      {name: value for name, value in json.loads(line).items()
       if not name.startswith(_UNEQUAL)}
      for line in (workdir / 'metrics.jsonl').read_text().splitlines()]


def results(workdir: pathlib.Path) -> dict[str, str]:
  """Digests of everything that must be equal in two equal runs."""
  leaves = {
      path.parent.parent.name: json.loads(path.read_text())['leaves']
      for path in sorted(workdir.glob('checkpoints/*/meta/metadata'))}
  files = {
      folder: [
          (path.name, path.read_bytes().hex())
          for path in sorted((workdir / folder).iterdir())]
      for folder in ('groups', 'evals')}
  found = {'metrics': steps(workdir), 'parameters': leaves} | files
  assert all(found.values())
  return {
      name: hashlib.sha256(json.dumps(value).encode()).hexdigest()
      for name, value in found.items()}


def processes(trainer: int) -> dict[str, list[int]]:
  """'server', 'supervisor', 'worker' -> process ids below a trainer."""
  found = collections.defaultdict(list)
  for pid, line in _children(trainer):
    if 'environments.sandbox.server' in line:
      if line.partition('\0')[0].endswith('bwrap'):
        (pid, _), = _children(pid)
      found['server'].append(pid)
      found['supervisor'] += [child for child, _ in _children(pid)]
    elif 'spawn_main' in line:
      found['worker'].append(pid)
  return found


def _children(parent: int) -> Iterator[tuple[int, str]]:
  """(process id, command line) of each child."""
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      stat = (folder / 'stat').read_text().rpartition(')')[2].split()
      if int(stat[1]) == parent:
        yield int(folder.name), (folder / 'cmdline').read_text()
    except OSError:  # The process has ended since.
      pass
