"""A tree is data: its nodes tell the history that led to each prompt."""

import collections

import numpy as np
import pytest

from atgrpo_jax.algorithms import play
from atgrpo_jax.algorithms import spec as spec_lib
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
  return state, play.positions(environment)[len(history)]


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
  assert runner.counters.environment_steps == num_candidates
  assert runner.counters.model_calls == num_candidates
  # Each group is sampled for itself.
  keys = [r.key.tobytes() for e in scripted.Engine.made for r in e.requests]
  assert len(set(keys)) == len(keys) == len(groups)
  assert len({group.key for group in groups}) == len(groups)
