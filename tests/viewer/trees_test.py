"""Trees in a report: content, order, summaries and the size limit."""

import gzip
import json
import shutil

import pytest

from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.viewer import trees
from tests.rollout import scripted
from tests.viewer import runs

CHAINS = {'mode': 'parallel', 'return_type': 'return_to_go'}
JOINT = {
    'mode': 'joint', 'phases': (('a', 'b'),), 'group_size': 2,
    'return_type': 'return_to_go', 'joint_actions': 'cross'}


@pytest.fixture
def make(monkeypatch, tmp_path):
  """Writes a workdir; see `runs.make`."""
  scripted.follow_scripts(monkeypatch)
  return lambda **changes: runs.make(tmp_path / 'run', **changes)


def _unpack(source):
  return json.loads(gzip.decompress(source.chunk))


def _read(workdir, max_bytes=1 << 20):
  return trees.read(workdir, ['before', 'after'], max_bytes)


@pytest.mark.parametrize('changes', [{}, CHAINS, JOINT])
def test_trees_have_everything_but_tokens(changes, make):
  workdir = make(**changes)
  step = _read(workdir)[1]
  written = tree_lib.read(workdir / step.file)
  for tree, record in zip(_unpack(step), written, strict=True):
    assert tree['task'] == record.task_id
    assert tree['nodes'] == record.to_json(with_tokens=False)['nodes']
    assert '"ids"' not in json.dumps(tree)


def test_records_are_in_the_order_of_training_with_replays(make):
  workdir = make()
  assert [(it.kind, it.name) for it in _read(workdir)] == [
      ('evaluation', 'before'), ('step', '000000'), ('step', '000002'),
      ('evaluation', 'after')]
  (workdir / 'replays').mkdir()
  for path in ('groups/000002.jsonl.gz', 'evals/before.jsonl.gz'):
    shutil.copy(workdir / path, workdir / 'replays')
  sources = _read(workdir)
  assert [(it.kind, it.name) for it in sources] == [
      ('evaluation', 'before'), ('replay', 'before'), ('step', '000000'),
      ('step', '000002'), ('replay', '000002'), ('evaluation', 'after')]
  assert sources[4].file == 'replays/000002.jsonl.gz'
  assert _unpack(sources[4]) == _unpack(sources[3])
  assert all(it.num_trees == it.num_packed == 4 for it in sources)


def test_summary_counts_each_chain(make):
  tree = _unpack(_read(make(**CHAINS))[1])[1]
  assert tree['task'] == 'T4'
  assert tree['summary']['episodes'] == 4
  ends = [
      step for node in tree['nodes'] for step in node['steps'] if step['done']]
  assert tree['summary']['solved'] == sum(end['success'] for end in ends) >= 1
  assert tree['summary']['signal'] and 'ok' in tree['summary']['outcomes']


def test_trees_beyond_the_size_limit_are_counted(make):
  workdir = make()
  first_only = _read(workdir, max_bytes=4)
  assert [(it.num_packed, it.num_trees) for it in first_only] == [(1, 4)] * 4
  assert [tree['task'] for tree in _unpack(first_only[1])] == ['T1']
  # About half of the longest source fits.
  sizes = [len(it.chunk) for it in _read(workdir)]
  some = _read(workdir, max_bytes=4 * max(sizes) // 2)
  assert {it.num_packed for it in some} & {2, 3}
  for it in some:
    assert len(_unpack(it)) == it.num_packed
