"""The JSON form of trees."""

import collections
import gzip

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax.rollout import tree as tree_lib
from tests.rollout import scripted

ONE_FAILED = {'T4/a turn 0 total 0': ['7 broken', '1', '2', '3']}


@pytest.fixture(name='trees', params=[
    {'group_size': 4},
    {'group_size': 4, 'mode': 'parallel'},
    {'group_size': 2, 'mode': 'joint', 'joint_actions': 'cross',
     'return_type': 'return_to_go',
     'group_key': ('env', 'agent', 'turn', 'branch')}],
                ids=['tree', 'parallel', 'joint'])
def _trees(request, monkeypatch):
  """The trees of two tasks; in the first, a candidate fails."""
  scripted.follow_scripts(monkeypatch)
  is_joint = request.param.get('mode') == 'joint'
  phases = (('a', 'b'),) if is_joint else (('a',), ('b',))
  runner = scripted.make_runner(
      {'one': scripted.Dice(ONE_FAILED), 'two': scripted.Dice()},
      environment=scripted.Counting(phases))
  return scripted.collect(runner, {'T4': 4, 'T9': 9}, **request.param)


def _write(path, trees, with_tokens=True):
  tree_lib.write(
      path, trees, scripted.Counting().show, with_tokens=with_tokens)
  return path


def test_read_inverts_write(trees, tmp_path):
  path, again = (
      _write(tmp_path / name / 'trees.gz', trees) for name in 'ab')
  assert path.read_bytes() == again.read_bytes()
  show = scripted.Counting().show
  for tree, read in zip(trees, tree_lib.read(path), strict=True):
    assert read.to_json() == tree.to_json(show)
    assert scripted.episodes(read) == scripted.episodes(tree)
    for group, group_read in zip(tree.groups(), read.groups(), strict=True):
      assert group_read.key == group.key
      np.testing.assert_array_equal(group_read.returns, group.returns)
  root = trees[0].to_json(show)['nodes'][0]
  assert root['groups'][0]['candidates'][0]['return'] is None


def test_write_can_omit_tokens(trees, tmp_path):
  path = _write(tmp_path / 'trees.gz', trees, with_tokens=False)
  text = gzip.open(path, 'rt').read()
  assert '"ids"' not in text and '"prompt_ids"' not in text
  for tree in tree_lib.read(path):
    for group in tree.groups():
      assert not any(len(c.completion) for c in group.candidates)


@pytest.mark.parametrize('content', [
    b'no gzip', gzip.compress(b'{"task_id": 1}\n', mtime=0)[:-9],
    gzip.compress(b'{"task_id": ', mtime=0), gzip.compress(b'{"a": 1}\n')],
    ids=['no gzip', 'truncated', 'no JSON', 'no tree'])
def test_damaged_file_is_refused(content, tmp_path):
  path = tmp_path / 'x.jsonl.gz'
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match=f'{path} is missing or damaged'):
    list(tree_lib.read(path))


def test_distinct_texts_of_groups_are_counted_and_samples_shown(monkeypatch):
  scripted.follow_scripts(monkeypatch)
  runner = scripted.make_runner({
      'one': collections.defaultdict(lambda: '1121'),
      'two': collections.defaultdict(lambda: '1234')})
  trees = scripted.collect(runner, {'T4': 4, 'T9': 9}, group_size=4)
  metrics = tree_lib.metrics(trees)
  assert (metrics['a/distinct'], metrics['b/distinct']) == (0.5, 1.0)
  lines = list(tree_lib.samples(trees, metrics))
  assert [line.split(', return')[0] for line in lines] == [
      'a, T4', 'b, T4', 'a, T9', 'b, T9']
  assert all(line.endswith(': 1') for line in lines)
  monkeypatch.setattr(tree_lib, '_MIN_DISTINCT', 3.0)
  assert len(list(tree_lib.samples(trees, metrics))) == 4  # The team succeeds.
  monkeypatch.setattr(tree_lib, '_MAX_FAILING', 1.1)
  lines = tree_lib.samples(trees, metrics)
  warning, = [line for line in lines if 'alike' in line]
  assert 'candidates of a' in warning and '2.0 distinct texts' in warning
