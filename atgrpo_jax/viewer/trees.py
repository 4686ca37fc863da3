"""The recorded trees of a run, as a report embeds them.

A tree of a report is the JSON of a `rollout.tree.Tree` without tokens, with a
summary by which tasks are filtered. The trees of a record are one chunk, which
the page unpacks when it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
import pathlib
from typing import Any
import zlib

from atgrpo_jax.rollout import tree as tree_lib

_GZIP_LEVEL = 6
_GZIP_FORMAT = 31  # As zlib calls it.


@dataclasses.dataclass(frozen=True)
class Source:
  """The trees of a recorded step or of an evaluation.

  Attributes:
    name: of the evaluation, or '000010' of a step.
    kind: 'step', 'evaluation', or 'replay' of the one of that name.
    file: in the workdir, with all trees.
    num_trees: in the file.
    num_packed: of them, the first ones, in `chunk`.
    chunk: a JSON list of trees, compressed by gzip.
  """

  name: str
  kind: str
  file: str
  num_trees: int
  num_packed: int
  chunk: bytes


def read(
    workdir: pathlib.Path, evaluations: Sequence[str],
    max_bytes: int) -> list[Source]:
  """What `groups/` and `evals/` of a workdir have, in the order of training.

  Each is followed by its replay, if there is one.

  Args:
    workdir: of a run.
    evaluations: names of those whose results are there.
    max_bytes: of all chunks. Each has an equal part, and leaves out the trees
      that come when it is full. The first tree of each is always there.

  Raises:
    UserError: a record cannot be read.
  """
  of_evaluations = {
      name: path for name in evaluations
      if (path := workdir / 'evals' / f'{name}.jsonl.gz').exists()}
  before = {
      name: of_evaluations.pop(name)
      for name in ('before',) if name in of_evaluations}
  steps = {
      path.name.removesuffix('.jsonl.gz'): path
      for path in sorted((workdir / 'groups').glob('*.jsonl.gz'))}
  found = [
      *((name, 'evaluation', path) for name, path in before.items()),
      *((name, 'step', path) for name, path in steps.items()),
      *((name, 'evaluation', path) for name, path in of_evaluations.items())]
  with_replays = []
  for name, kind, path in found:
    with_replays.append((name, kind, path))
    if (replay := workdir / 'replays' / path.name).exists():
      with_replays.append((name, 'replay', replay))
  return [
      _pack(name, kind, path, max_bytes // len(with_replays))
      for name, kind, path in with_replays]


def _pack(name: str, kind: str, path: pathlib.Path, max_bytes: int) -> Source:
  packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORMAT)
  chunk, num_trees, num_packed = bytearray(packer.compress(b'[')), 0, 0
  for record in tree_lib.read(path):
    num_trees += 1
    if num_packed and len(chunk) > max_bytes:
      continue
    text = json.dumps(
        tree(record), allow_nan=False, separators=(',', ':')).encode()
    chunk += packer.compress(b',' + text if num_packed else text)
    # So that its length tells what is in it.
    chunk += packer.flush(zlib.Z_SYNC_FLUSH)
    num_packed += 1
  chunk += packer.compress(b']') + packer.flush()
  return Source(
      name, kind, f'{path.parent.name}/{path.name}', num_trees, num_packed,
      bytes(chunk))


def tree(record: tree_lib.Tree) -> dict[str, Any]:
  """A tree as JavaScript reads it: its JSON without tokens, and a summary."""
  return {
      'task': record.task_id,
      'nodes': record.to_json(with_tokens=False)['nodes'],
      'summary': _summary(record)}


def _summary(record: tree_lib.Tree) -> dict[str, Any]:
  """What the trees of a page are filtered by.

  Returns:
    `episodes` that no failure of the environment ended; `solved`, how many of
    them succeeded; and for each role in `roles` the `outcomes` of its
    candidates and whether any has a `signal`, an advantage other than 0.
  """
  roles: dict[str, Any] = {}
  for group in record.groups():
    role = roles.setdefault(group.key.role, {'outcomes': [], 'signal': False})
    for candidate in group.candidates:
      role['signal'] |= bool(candidate.advantage)
      if candidate.outcome.value not in role['outcomes']:
        role['outcomes'].append(candidate.outcome.value)
  episodes = list(record.episodes())
  return {
      'episodes': len(episodes),
      'solved': sum(episode.success for episode in episodes), 'roles': roles}
