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


def test_evaluation_without_a_result_or_a_record_is_left_out(make):
  workdir = make()
  (workdir / 'evals/before.jsonl.gz').unlink()
  names = [it.name for it in trees.read(workdir, ['before'], 1)]
  assert names == ['000000', '000002']


def test_summary_of_a_spine(make):
  t1, t4, t9, _ = (tree['summary'] for tree in _unpack(_read(make())[1]))
  assert (t4['episodes'], t4['solved']) == (1, 1)
  assert (t9['episodes'], t9['solved']) == (1, 0)
  assert t1['roles'].keys() == {'a'}  # Solved before b acts.
  # In T9 the third candidate of b is not a number, and those of a are equal.
  assert t9['roles']['b']['outcomes'] == ['ok', 'parse_error']
  assert t4['roles']['a']['signal']


def test_summary_counts_each_chain(make):
  tree = _unpack(_read(make(**CHAINS))[1])[1]
  assert tree['task'] == 'T4'
  assert tree['summary']['episodes'] == 4
  ends = [
      step for node in tree['nodes'] for step in node['steps'] if step['done']]
  assert tree['summary']['solved'] == sum(end['success'] for end in ends) >= 1


@pytest.mark.parametrize('reward, episodes', [(1.0, 1), (None, 0)])
def test_summary_of_a_single_node(reward, episodes):
  """Equal returns have no signal; a failed episode is not counted."""
  candidate = {
      'text': '', 'reward': reward, 'return': reward, 'weight': 1.0,
      'advantage': 0.0, 'outcome': 'ok'}
  tree = tree_lib.Tree.from_json({'task_id': 't', 'nodes': [{
      'turn': 0, 'phase': 0, 'parent': None, 'joint_action': None,
      'chosen': None, 'state': {}, 'groups': [{
          'role': 'a', 'branch': 0, 'policy': 'p', 'baseline_id': 0,
          'messages': [], 'candidates': [candidate]}],
      'joint_actions': [[0]], 'steps': [{
          'state': {}, 'team_reward': reward, 'local_rewards': {'a': 0.0},
          'terms': {}, 'outcomes': {'a': 'ok'}, 'done': True, 'success': True,
          'truncated': False}]}]})
  assert trees.to_json(tree)['summary'] == {
      'episodes': episodes, 'solved': episodes,
      'roles': {'a': {'outcomes': ['ok'], 'signal': False}}}


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
