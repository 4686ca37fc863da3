"""The recorded trees of a run, compressed for a report.

A report embeds the JSON of each `rollout.tree.Tree` without tokens, and a
summary that tasks are filtered by. The trees of a record form one chunk, which
the page unpacks on demand.
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
_GZIP_FORMAT = 31  # zlib's number for a gzip header.


@dataclasses.dataclass(frozen=True)
class Source:
  """The trees of a recorded step or of an evaluation.

  Attributes:
    name: name of the evaluation, or a step such as '000010'.
    kind: 'step', 'evaluation', or 'replay' of the record with this name.
    file: path in the workdir, with all trees.
    num_trees: number of trees in the file.
    num_packed: number of leading trees in `chunk`.
    chunk: gzipped JSON list of trees.
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
  """Reads all records of a workdir, in the order of training.

  Each record is followed by its replay, if there is one.

  Args:
    workdir: of a run.
    evaluations: names of evaluations whose results exist.
    max_bytes: total size of the chunks. Each gets an equal part and leaves out
      the trees after it is full, but never the first one.

  Raises:
    UserError: a record is damaged.
  """
  evaluated = [
      (name, 'evaluation', workdir / 'evals' / f'{name}.jsonl.gz')
      for name in sorted(evaluations, key=lambda name: name != 'before')]
  steps = [
      (path.name.removesuffix('.jsonl.gz'), 'step', path)
      for path in sorted((workdir / 'groups').glob('*.jsonl.gz'))]
  num_before = sum(name == 'before' for name, *_ in evaluated)
  records = []
  for name, kind, path in (
      *evaluated[:num_before], *steps, *evaluated[num_before:]):
    if path.exists():
      records.append((name, kind, path))
      replay = workdir / 'replays' / path.name
      if replay.exists():
        records.append((name, 'replay', replay))
  return [
      _pack(name, kind, path, max_bytes // len(records))
      for name, kind, path in records]


def _pack(name: str, kind: str, path: pathlib.Path, max_bytes: int) -> Source:
  packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORMAT)
  chunk, num_trees, num_packed = bytearray(packer.compress(b'[')), 0, 0
  for tree in tree_lib.read(path):
    num_trees += 1
    if num_packed and len(chunk) > max_bytes:
      continue
    text = json.dumps(
        to_json(tree), allow_nan=False, separators=(',', ':')).encode()
    chunk += packer.compress(b',' + text if num_packed else text)
    # The length of `chunk` only counts flushed bytes.
    chunk += packer.flush(zlib.Z_SYNC_FLUSH)
    num_packed += 1
  chunk += packer.compress(b']') + packer.flush()
  return Source(
      name, kind, f'{path.parent.name}/{path.name}', num_trees, num_packed,
      bytes(chunk))


def to_json(tree: tree_lib.Tree) -> dict[str, Any]:
  """The tree as the scripts read it.

  Returns:
    `task`, `nodes` as in `Tree.to_json`, and `summary` with the number of
    `episodes` that no failure ended, how many were `solved`, and for each role
    in `roles` the `outcomes` of its candidates and whether any of them has a
    `signal`, an advantage other than 0.
  """
  roles: dict[str, Any] = {}
  for group in tree.groups():
    role = roles.setdefault(group.key.role, {'outcomes': [], 'signal': False})
    for candidate in group.candidates:
      role['signal'] |= bool(candidate.advantage)
      if candidate.outcome.value not in role['outcomes']:
        role['outcomes'].append(candidate.outcome.value)
  episodes = list(tree.episodes())
  return {
      'task': tree.task_id,
      'nodes': tree.to_json(with_tokens=False)['nodes'],
      'summary': {
          'episodes': len(episodes), 'roles': roles,
          'solved': sum(episode.success for episode in episodes)}}
