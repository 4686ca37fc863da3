"""What a report embeds of trees: their numbers, a summary, and not too many."""

import gzip
import json
import shutil

import pytest

from atgrpo_jax import errors
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.viewer import trees
from tests.rollout import scripted
from tests.viewer import runs

JOINT = {
    'mode': 'joint', 'phases': (('a', 'b'),), 'group_size': 2,
    'return_type': 'return_to_go', 'joint_actions': 'cross'}


@pytest.fixture
def make(monkeypatch, tmp_path):
  """Makes a workdir; see `runs.make`."""
  scripted.follow_scripts(monkeypatch)
  return lambda **changes: runs.make(tmp_path / 'run', **changes)


def _unpack(source):
  return json.loads(gzip.decompress(source.chunk))


def _read(workdir, max_bytes=1 << 20):
  return trees.read(workdir, ['before', 'after'], max_bytes)


@pytest.mark.parametrize('changes', [
    {}, {'mode': 'parallel', 'return_type': 'return_to_go'}, JOINT])
def test_a_tree_is_that_of_the_record_without_ids(changes, make):
  workdir = make(**changes)
  step = _read(workdir)[1]
  written = tree_lib.read(workdir / step.file)
  for tree, record in zip(_unpack(step), written, strict=True):
    assert tree['task'] == record.task_id
    assert tree['nodes'] == record.to_json(with_tokens=False)['nodes']
    assert '"ids"' not in json.dumps(tree)


def test_sources_are_in_the_order_of_training(make):
  sources = _read(make(steps=(0, 10)))
  assert [(it.kind, it.name) for it in sources] == [
      ('evaluation', 'before'), ('step', '000000'), ('step', '000010'),
      ('evaluation', 'after')]
  assert all(it.num_trees == it.num_packed == 4 for it in sources)


def test_replays_follow_their_records(make):
  workdir = make()
  (workdir / 'replays').mkdir()
  for path in ('groups/000002.jsonl.gz', 'evals/before.jsonl.gz'):
    shutil.copy(workdir / path, workdir / 'replays')
  sources = _read(workdir)
  assert [(it.kind, it.name) for it in sources] == [
      ('evaluation', 'before'), ('replay', 'before'), ('step', '000000'),
      ('step', '000002'), ('replay', '000002'), ('evaluation', 'after')]
  assert sources[4].file == 'replays/000002.jsonl.gz'
  assert _unpack(sources[4]) == _unpack(sources[3])


def test_an_evaluation_without_a_result_or_a_record_is_left_out(make):
  workdir = make()
  (workdir / 'evals/before.jsonl.gz').unlink()
  names = [it.name for it in trees.read(workdir, ['before'], 1)]
  assert names == ['000000', '000002']


def test_summary_of_a_spine(make):
  source = _read(make())[1]
  t1, t4, t9, _ = (tree['summary'] for tree in _unpack(source))
  assert (t4['episodes'], t4['solved']) == (1, 1)
  assert (t9['episodes'], t9['solved']) == (1, 0)
  # In T9 all first answers of a are alike; b's third is no number.
  assert t9['roles']['b']['outcomes'] == ['ok', 'parse_error']
  assert t1['roles'].keys() == {'a'}  # It is solved before b acts.
  assert t9['roles'].keys() == {'a', 'b'}


def test_summary_of_chains_counts_each_episode(make):
  workdir = make(mode='parallel', return_type='return_to_go')
  tree = _unpack(_read(workdir)[1])[1]
  assert tree['task'] == 'T4'
  assert tree['summary']['episodes'] == 4
  # The second answer of a is 4.
  ends = [
      step for node in tree['nodes'] for step in node['steps'] if step['done']]
  assert tree['summary']['solved'] == sum(end['success'] for end in ends) >= 1


def _tree(advantages, **step):
  """A tree of one node."""
  step = {
      'state': {}, 'team_reward': 1.0, 'local_rewards': {'a': 0.0},
      'terms': {}, 'outcomes': {'a': 'ok'}, 'done': True, 'success': True,
      'truncated': False} | step
  candidate = {
      'text': '', 'reward': 0.0, 'return': 0.0, 'weight': 1.0, 'outcome': 'ok'}
  return {'task_id': 't', 'nodes': [{
      'turn': 0, 'phase': 0, 'parent': None, 'joint_action': None,
      'chosen': None, 'state': {}, 'groups': [{
          'role': 'a', 'branch': 0, 'policy': 'p', 'baseline_id': 0,
          'messages': [],
          'candidates': [
              candidate | {'advantage': x} for x in advantages]}],
      'joint_actions': [[i] for i in range(len(advantages))],
      'steps': [step] * len(advantages)}]}


@pytest.mark.parametrize('step, episodes, solved', [
    ({}, 2, 2), ({'success': False}, 2, 0),
    ({'outcomes': {'a': 'infrastructure'}}, 0, 0),
    ({'team_reward': None}, 0, 0), ({'local_rewards': {'a': None}}, 0, 0)])
def test_an_episode_that_failed_is_not_counted(step, episodes, solved):
  record = tree_lib.Tree.from_json(_tree([0.0, 0.0], **step))
  summary = trees.tree(record)['summary']
  assert (summary['episodes'], summary['solved']) == (episodes, solved)


@pytest.mark.parametrize('advantages, signal', [
    ([0.0, 0.0], False), ([1.0, -1.0], True), ([0.0, -1.0], True)])
def test_signal_is_an_advantage(advantages, signal):
  role = trees.tree(
      tree_lib.Tree.from_json(_tree(advantages)))['summary']['roles']['a']
  assert role['signal'] is signal


def test_what_is_too_much_is_left_out_and_counted(make):
  workdir = make()
  # Four sources; nothing fits, so each has its first tree.
  least = _read(workdir, max_bytes=4)
  assert [it.num_packed for it in least] == [1] * 4
  assert [it.num_trees for it in least] == [4] * 4
  assert [tree['task'] for tree in _unpack(least[1])] == ['T1']
  # What fits is a little more than two trees of the longest source.
  sizes = [len(it.chunk) for it in _read(workdir)]
  some = _read(workdir, max_bytes=4 * max(sizes) // 2)
  assert {it.num_packed for it in some} & {2, 3}
  for it in some:
    assert len(_unpack(it)) == it.num_packed


def _without(record, path):
  *path, last = path
  for key in path:
    record = record[key]
  del record[last]


@pytest.mark.parametrize('path', [
    ['nodes'], ['nodes', 0, 'steps'], ['nodes', 0, 'groups', 0, 'messages'],
    ['nodes', 0, 'groups', 0, 'candidates', 1],
    ['nodes', 0, 'steps', 0, 'terms'], ['nodes', 0, 'joint_actions', 0]])
def test_a_record_of_another_form_is_one_sentence(path, tmp_path):
  record = _tree([1.0, -1.0])
  _without(record, path)
  _refused(record, tmp_path)


@pytest.mark.parametrize('record', [
    [], {'task_id': 't', 'nodes': 3}, {'task_id': 't', 'nodes': [7]}])
def test_what_is_no_tree_is_one_sentence(record, tmp_path):
  _refused(record, tmp_path)


def test_a_parent_that_is_not_there_is_one_sentence(tmp_path):
  record = _tree([1.0])
  record['nodes'].append(record['nodes'][0] | {'parent': 1})
  _refused(record, tmp_path)


def _refused(record, tmp_path):
  path = tmp_path / 'groups/000000.jsonl.gz'
  path.parent.mkdir()
  path.write_bytes(gzip.compress(json.dumps(record).encode()))
  with pytest.raises(errors.UserError, match='is not a record') as error:
    trees.read(tmp_path, [], 1 << 20)
  assert str(path) in str(error.value) and '\n' not in str(error.value)
