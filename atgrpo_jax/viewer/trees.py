"""The recorded trees of a run, as a report embeds them.

A tree of a report is that of `rollout.records` without ids, with a summary by
which tasks are filtered. The trees of a record are one chunk, which the page
unpacks when it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import pathlib
from typing import Any
import zlib

from atgrpo_jax import errors
from atgrpo_jax.rollout import records
from environments import env_api

# What JavaScript is given of a node, a group, a candidate and a step.
_NODE = (
    'turn', 'phase', 'parent', 'joint_action', 'chosen', 'state',
    'joint_actions')
_GROUP = ('role', 'policy', 'baseline_id', 'messages')
_CANDIDATE = ('text', 'reward', 'return', 'advantage', 'weight', 'outcome')
_STEP = (
    'state', 'team_reward', 'local_rewards', 'terms', 'outcomes', 'done',
    'success', 'truncated')

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


@contextlib.contextmanager
def of_our_form(path: pathlib.Path) -> Iterator[None]:
  """Reads the record at `path`; UserError if its trees have another form."""
  try:
    yield
  except (LookupError, TypeError, ValueError, AttributeError) as error:
    if isinstance(error, errors.UserError):
      raise
    raise errors.UserError(
        f'{path} has another form than the records that are written here '
        f'({errors.one_line(error)}); delete it.') from error


def _pack(name: str, kind: str, path: pathlib.Path, max_bytes: int) -> Source:
  packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORMAT)
  chunk, num_trees, num_packed = bytearray(packer.compress(b'[')), 0, 0
  with of_our_form(path):
    for record in records.read_trees(path):
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


def tree(record: Mapping[str, Any]) -> dict[str, Any]:
  """A tree of a report from one of a record.

  Raises LookupError, TypeError, ValueError or AttributeError if that has
  another form.
  """
  nodes = [_node(index, node) for index, node in enumerate(record['nodes'])]
  return {
      'task': record['task_id'], 'nodes': nodes, 'summary': _summary(nodes)}


def _node(index: int, node: Mapping[str, Any]) -> dict[str, Any]:
  if index and not 0 <= node['parent'] < index:
    raise ValueError(f'node {index} has the parent {node["parent"]}')
  groups = [
      {name: group[name] for name in _GROUP} | {'value': group.get('value')} | {
          'candidates': [
              {name: candidate[name] for name in _CANDIDATE}
              for candidate in group['candidates']]}
      for group in node['groups']]
  steps = [{name: step[name] for name in _STEP} for step in node['steps']]
  for joint_action, _ in zip(node['joint_actions'], steps, strict=True):
    for group, candidate in zip(groups, joint_action, strict=True):
      group['candidates'][candidate]  # There must be one.
  return {name: node[name] for name in _NODE} | {
      'groups': groups, 'steps': steps}


def _summary(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """By what the trees of a record are filtered.

  Returns:
    `episodes` that no failure of the environment ended; `solved` of them; and
    of each role of `roles` the `outcomes` of its candidates, and whether any
    has a `signal`, which is an advantage that is not 0.
  """
  continued = {(node['parent'], node['joint_action']) for node in nodes}
  ends = [
      node['steps'][j] for index, node in enumerate(nodes)
      for j in (range(len(node['steps'])) if node['chosen'] is None
                else [node['chosen']])
      if (index, j) not in continued]
  known = [step for step in ends if not _failed(step)]
  roles: dict[str, Any] = {}
  for node in nodes:
    for group in node['groups']:
      role = roles.setdefault(group['role'], {'outcomes': [], 'signal': False})
      for candidate in group['candidates']:
        role['signal'] |= bool(candidate['advantage'])
        if candidate['outcome'] not in role['outcomes']:
          role['outcomes'].append(candidate['outcome'])
  return {
      'episodes': len(known), 'solved': sum(step['success'] for step in known),
      'roles': roles}


def _failed(step: Mapping[str, Any]) -> bool:
  """As `rollout.tree.failed`, of a recorded step."""
  return (
      env_api.Outcome.INFRASTRUCTURE.value in step['outcomes'].values()
      or None in (step['team_reward'], *step['local_rewards'].values()))
