"""A tree is data: it tells its own history and survives a trip through JSON."""

import collections
import gzip
import json

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from tests.rollout import scripted


def replay(environment, task, tree, index):
  """The state and position that the history of a node leads to."""
  history = []
  node = tree.nodes[index]
  while node.parent is not None:
    assert node.parent < index
    index, joint_action = node.parent, node.joint_action
    node = tree.nodes[index]
    history.append({
        group.key.role: group.candidates[joint_action].text
        for group in node.groups})
  state = environment.reset(task)
  for actions in reversed(history):
    step = environment.step(state, actions)
    assert not step.done
    state = step.state
  return state, runner_lib.positions(environment)[len(history)]


@pytest.mark.parametrize('switches', [
    *({'selection': selection} for selection in spec_lib.SELECTIONS['tree']),
    {'mode': 'parallel'}])
def test_every_node_replays_its_history(switches, monkeypatch):
  """Prompts, rewards and the end of each episode come from one chain."""
  scripted.follow_scripts(monkeypatch)
  environment = scripted.Counting(
      phases=(('a',), ('b',), ('c',)), max_turns=3)
  runner = scripted.make_runner(
      dict.fromkeys(('one', 'two'), scripted.Dice()),
      scripted.ROLES | {'c': 'one'}, environment, train_step=1)
  goals = {f'T{goal}': goal for goal in range(4, 24)}
  trees = scripted.collect(runner, goals, group_size=4, **switches)
  spine = 'mode' not in switches
  ended = set()
  for tree, task_id in zip(trees, goals, strict=True):
    assert tree.task_id == task_id
    task = scripted.task(task_id, goals[task_id])
    children = [(node.parent, node.joint_action) for node in tree.nodes]
    expected_children, expected_episodes = [(None, None)], []
    for index, node in enumerate(tree.nodes):
      state, position = replay(environment, task, tree, index)
      assert node.state == state
      assert (node.turn, node.phase) == position
      group, = node.groups
      role, = environment.phases[node.phase]
      assert group.key[:3] == (task_id, role, node.turn)
      # All candidates are samples of this one prompt.
      prompt = scripted.prompt_of(group)
      assert prompt == environment.observe(state, role)[0]['content']
      texts = scripted.texts_of(group)
      group_size = 4 if spine or index == 0 else 1
      assert list(texts) == scripted.Dice()[prompt][:group_size]
      # All are tried from this one state.
      assert node.steps == tuple(
          environment.step(state, {role: text}) for text in texts)
      np.testing.assert_allclose(
          [candidate.reward for candidate in group.candidates],
          [s.team_reward + s.local_rewards[role] for s in node.steps])
      # In a spine only the chosen one goes on, else all.
      assert (node.chosen is not None) == spine
      for i in [node.chosen] if spine else range(group_size):
        step = node.steps[i]
        if step.done:
          expected_episodes.append(tree_lib.EpisodeResult(
              task_id, node.turn + 1, step.success, step.truncated))
          ended.add((step.success, role))
        else:
          expected_children.append((index, i))
    assert collections.Counter(children) == collections.Counter(
        expected_children)
    assert list(tree.episodes()) == expected_episodes
  # Some ended by each agent, some by the number of turns.
  assert ended >= {(True, 'a'), (True, 'b'), (True, 'c'), (False, 'c')}
  groups = tree_lib.groups_of(trees)
  num_candidates = sum(len(group.candidates) for group in groups)
  assert runner.usage.environment_steps == num_candidates
  assert runner.usage.model_calls == num_candidates
  # Each group is sampled for itself.
  keys = [r.key.tobytes() for e in scripted.Engine.made for r in e.requests]
  assert len(set(keys)) == len(keys) == len(groups)
  assert len({group.key for group in groups}) == len(groups)


# The JSON form.

ONE_FAILED = {'T4/a turn 0 total 0': ['7 nan', '1', '2', '3']}


class Script(scripted.Dice):
  """Dice, except for the given prompts."""

  def __init__(self, answers):
    self.answers = answers

  def __getitem__(self, prompt):
    return self.answers.get(prompt) or super().__getitem__(prompt)


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
      {'one': Script(ONE_FAILED), 'two': scripted.Dice()},
      environment=scripted.Counting(phases))
  return scripted.collect(runner, {'T4': 4, 'T9': 9}, **request.param)


def _write(path, trees, with_tokens=True):
  tree_lib.write(
      path, trees, scripted.Counting().show, with_tokens=with_tokens)
  return path


def test_a_tree_read_from_json_is_the_tree_that_was_written(trees, tmp_path):
  path = _write(tmp_path / 'groups' / '000000.jsonl.gz', trees)
  show = scripted.Counting().show
  for tree, read in zip(trees, tree_lib.read(path), strict=True):
    assert read.to_json() == tree.to_json(show)
    assert list(read.episodes()) == list(tree.episodes())
    for node, node_read in zip(tree.nodes, read.nodes, strict=True):
      for name in ('turn', 'phase', 'parent', 'joint_action', 'chosen',
                   'joint_actions'):
        assert getattr(node_read, name) == getattr(node, name)
      assert node_read.state == show(node.state)
      np.testing.assert_array_equal(node_read.team_rewards, node.team_rewards)
      for role in (group.key.role for group in node.groups):
        np.testing.assert_array_equal(
            node_read.rewards(role, 0.5), node.rewards(role, 0.5))
      for group, group_read in zip(node.groups, node_read.groups, strict=True):
        assert (group_read.key, group_read.policy, group_read.baseline_id) == (
            group.key, group.policy, group.baseline_id)
        assert [*group_read.messages] == [*group.messages]
        np.testing.assert_array_equal(group_read.prompt, group.prompt)
        np.testing.assert_array_equal(group_read.returns, group.returns)
        np.testing.assert_array_equal(group_read.advantages, group.advantages)
        np.testing.assert_allclose(
            group_read.rewards, group.rewards, rtol=1e-7)
        for candidate, read_candidate in zip(
            group.candidates, group_read.candidates, strict=True):
          assert read_candidate.text == candidate.text
          assert read_candidate.outcome is candidate.outcome
          np.testing.assert_array_equal(
              read_candidate.completion, candidate.completion)
          np.testing.assert_allclose(
              read_candidate.behavior_logprobs, candidate.behavior_logprobs,
              atol=1e-6)


def test_unknown_rewards_are_null(trees):
  root = trees[0].to_json(scripted.Counting().show)['nodes'][0]
  assert root['groups'][0]['candidates'][0]['return'] is None
  assert root['steps'][0]['local_rewards']['a'] is None


def test_equal_trees_give_equal_bytes(trees, tmp_path):
  first, second = (_write(tmp_path / name, trees) for name in 'ab')
  assert first.read_bytes() == second.read_bytes()


def test_tokens_can_be_left_out(trees, tmp_path):
  path = _write(tmp_path / 'x.gz', trees, with_tokens=False)
  text = gzip.open(path, 'rt').read()
  assert '"ids"' not in text and '"prompt_ids"' not in text
  for tree in tree_lib.read(path):
    for group in tree.groups():
      assert not any(len(c.completion) for c in group.candidates)


@pytest.mark.parametrize('content', [
    b'', b'no gzip', gzip.compress(b'{"task_id": 1}\n', mtime=0)[:-9],
    gzip.compress(b'{"task_id": ', mtime=0), gzip.compress(b'{"a": 1}\n'),
    gzip.compress(b'{"task_id": "t", "nodes": [7]}\n')],
    ids=['empty', 'no gzip', 'cut', 'no JSON', 'no tree', 'no node'])
def test_a_damaged_file_is_refused(content, tmp_path):
  path = tmp_path / 'x.jsonl.gz'
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match=f'{path} is damaged or is not'):
    list(tree_lib.read(path))


@pytest.mark.parametrize('change', [
    lambda node: node.update(parent=99),
    lambda node: node['steps'].pop(),
    lambda node: node['joint_actions'].append([0]),
    lambda node: node['groups'][0]['candidates'].clear(),
    lambda node: node['groups'].clear()])
def test_an_inconsistent_tree_is_refused(change, trees):
  record = json.loads(json.dumps(trees[1].to_json(scripted.Counting().show)))
  change(record['nodes'][-1])
  with pytest.raises((LookupError, ValueError)):
    tree_lib.Tree.from_json(record)
