"""The recorded trees of a run, compressed for a report.

A report embeds the JSON of each `rollout.tree.Tree` without tokens, and a
summary that tasks are filtered by. The trees of a record form one chunk, which
the page unpacks on demand.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any
import zlib

import numpy as np

from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rl import advantages
from atgrpo_jax.rollout import tree as tree_lib

_GZIP_FORMAT = 31  # zlib's number for a gzip header.


@dataclasses.dataclass(frozen=True)
class Source:
  """The trees of a recorded step or of an evaluation."""

  name: str  # Of the evaluation, or a step such as '000010'.
  kind: str  # 'step' or 'evaluation'.
  file: str  # Path in the workdir, with all trees.
  num_trees: int  # Number of trees in the file.
  num_packed: int  # Number of leading trees in `chunk`.
  chunk: bytes  # Gzipped JSON list of trees.


def read(
    workdir: pathlib.Path, evaluations: Sequence[str],
    max_bytes: int) -> list[Source]:
  """Reads all records of a workdir.

  Args:
    workdir: the workdir of a run.
    evaluations: names of evaluations whose results exist. Training steps come
      after 'before', if it is the first name, and before the others.
    max_bytes: total size of the chunks, divided equally. A chunk that is full
      leaves out further trees, but always holds its first tree.

  Raises:
    UserError: a record is damaged.
  """
  found = [
      ('evaluation', workdir / 'evals' / f'{name}.jsonl.gz')
      for name in evaluations]
  steps = sorted((workdir / 'groups').glob('*.jsonl.gz'))
  start = int(evaluations[:1] == ['before'])
  found[start:start] = [('step', path) for path in steps]
  records = [(kind, path) for kind, path in found if path.exists()]
  rollout = workdir_lib.read_config(workdir)['rollout']
  return [
      _pack(kind, path, rollout, max_bytes // len(records))
      for kind, path in records]


def _pack(
    kind: str, path: pathlib.Path, rollout: Mapping[str, Any],
    max_bytes: int) -> Source:
  packer = zlib.compressobj(wbits=_GZIP_FORMAT)
  chunk, num_trees, num_packed = bytearray(packer.compress(b'[')), 0, 0
  for tree in tree_lib.read(path):
    num_trees += 1
    if num_packed and len(chunk) > max_bytes:
      continue
    text = json.dumps(
        to_json(tree, rollout), allow_nan=False, separators=(',', ':')).encode()
    chunk += packer.compress(b',' + text if num_packed else text)
    # The length of `chunk` only counts flushed bytes.
    chunk += packer.flush(zlib.Z_SYNC_FLUSH)
    num_packed += 1
  chunk += packer.compress(b']') + packer.flush()
  return Source(
      path.name.removesuffix('.jsonl.gz'), kind,
      f'{path.parent.name}/{path.name}', num_trees, num_packed, bytes(chunk))


def to_json(
    tree: tree_lib.Tree, rollout: Mapping[str, Any]) -> dict[str, Any]:
  """Converts a tree for the scripts of the page.

  Args:
    tree: a recorded tree.
    rollout: the section `rollout` of the config.

  Returns:
    `task`, `nodes` as in `Tree.to_json` with the `reason` of each choice, and
    `summary` with the number of `episodes` without a failure, the number of
    `solved` ones, the `outcomes` of all candidates, and `signal`, whether any
    advantage is not 0.
  """
  candidates = [
      candidate for group in tree.groups() for candidate in group.candidates]
  last_steps = [step for _, step in tree.ends()]
  return {
      'task': tree.task_id,
      'nodes': [
          record | {'reason': reason(node, rollout)} for record, node in zip(
              tree.to_json(with_tokens=False)['nodes'], tree.nodes)],
      'summary': {
          'episodes': len(last_steps),
          'solved': sum(step.success for step in last_steps),
          'outcomes': sorted({x.outcome.value for x in candidates}),
          'signal': any(bool(x.advantage) for x in candidates)}}


def reason(node: tree_lib.Node, rollout: Mapping[str, Any]) -> str:
  """Why a joint action was chosen; '' without a choice.

  `rollout` is the section of the config.
  """
  selection = rollout['selection']
  if node.chosen is None or len(node.steps) == 1:
    return ''
  if selection not in ('greedy', 'team_greedy'):
    return f'by the rule {selection}'
  name = 'reward' if rollout['return_type'] == 'immediate' else 'return'
  if rollout['mode'] == 'joint':
    name, values = 'team reward', node.team_rewards
  elif selection == 'greedy':
    values = node.groups[0].returns
  elif name == 'reward':
    name, values = 'team reward', node.team_rewards
  else:
    return 'largest team return'  # It is recorded only with local rewards.
  num_equal = np.sum(advantages.are_largest(values[np.isfinite(values)]))
  equals = f', first of {num_equal} equals' if num_equal > 1 else ''
  return f'largest {name}{equals}'
