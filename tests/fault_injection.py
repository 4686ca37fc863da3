"""Compares the results of two runs."""

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
  newest = max(
      (path for path in (workdir / 'checkpoints').iterdir()
       if path.name.isdigit()), key=lambda path: int(path.name))
  leaves = json.loads((newest / 'meta/metadata').read_text())['leaves']
  files = {
      folder: [
          (path.name, path.read_bytes().hex())
          for path in sorted((workdir / folder).iterdir())]
      for folder in ('groups', 'evals')}
  found = files | {
      'metrics': steps(workdir), 'parameters': [newest.name, leaves]}
  assert all(found.values())
  return {
      name: hashlib.sha256(json.dumps(value).encode()).hexdigest()
      for name, value in found.items()}
