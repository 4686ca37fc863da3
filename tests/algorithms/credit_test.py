"""Hand-worked baselines for every group key."""

import dataclasses

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import types
from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import tree as tree_lib
from tests import specs
from tests.rollout import scripted

# (role, turn, branch) -> returns; a role has one return per episode.
UNEVEN = {  # Episode 1 ends with the first action; the others have two turns.
    ('a', 0, 0): (.6, 1, .15), ('b', 0, 0): (.65,), ('b', 0, 2): (.25,),
    ('a', 1, 0): (.6,), ('a', 1, 2): (.15,),
    ('b', 1, 0): (.65,), ('b', 1, 2): (.25,)}


def make_tree(task_id, returns):
  """A tree with keys and returns only."""
  none = np.zeros(0)
  return tree_lib.Tree(task_id, tuple(
      tree_lib.Node(turn, 'ab'.index(role), None, (types.Group(
          types.GroupKey(task_id, role, turn, branch), '', none, tuple(
              types.Candidate(none, none, return_=value)
              for value in values)),), (), ())
      for (role, turn, branch), values in returns.items()))


def assign(
    trees, group_key, baseline='mean', scale='none', return_type='immediate'):
  """The groups with advantages."""
  return tree_lib.groups_of(credit.assign_advantages(
      trees, specs.advantage(
          group_key=group_key, baseline=baseline, scale=scale),
      specs.rollout('parallel', return_type=return_type)))


@pytest.mark.parametrize('return_type, group_key, baselines', [
    # Baselines of a and b in turn 0, then in turn 1. Each action has weight 1:
    ('return_to_go', ('env',), (4.3 / 9,) * 4),
    ('return_to_go', ('env', 'agent'), (2.5 / 5, 1.8 / 4) * 2),
    ('return_to_go', ('env', 'turn'),
     (2.65 / 5, 2.65 / 5, 1.65 / 4, 1.65 / 4)),
    ('return_to_go', ('env', 'agent', 'turn'),
     (1.75 / 3, .9 / 2, .75 / 2, .9 / 2)),
    # Each return has weight 1: a's .6, 1 and .15, and b's .65 and .25.
    ('episode_return', ('env',), (2.65 / 5,) * 4),
    ('episode_return', ('env', 'agent'), (1.75 / 3, .9 / 2) * 2),
])
def test_baselines(return_type, group_key, baselines):
  baselines = dict(zip((('a', 0), ('b', 0), ('a', 1), ('b', 1)), baselines))
  for group in assign(
      [make_tree('A', UNEVEN)], group_key, return_type=return_type):
    np.testing.assert_allclose(
        group.advantages,
        group.returns - baselines[group.key.role, group.key.turn], atol=1e-6)


@pytest.mark.parametrize('baseline, scale, a, b', [
    # Minus the mean of .53, the returns are .07, .47, -.38, .12 and -.28; their
    # squares sum to .463, so the std is sqrt(.463 / 5) = .30430.
    ('mean', 'std', (.23003, 1.54452, -1.24876), (.39434, -.92014)),
    # Means of the other episodes: (1 + .15 + .25) / 3 for episode 0,
    # (.6 + .65 + .15 + .25) / 4 = .4125 for 1, (.6 + .65 + 1) / 3 = .75 for 2.
    ('leave_one_out', 'none', (.6 - 1.4 / 3, .5875, -.6), (.65 - 1.4 / 3, -.5)),
])
def test_actions_of_a_role_share_the_advantage_of_its_return(
    baseline, scale, a, b):
  tree = make_tree('A', UNEVEN)
  groups = assign([tree], ('env',), baseline, scale, 'episode_return')
  np.testing.assert_allclose(
      np.concatenate([group.advantages for group in groups]),
      (*a, *b, a[0], a[2], *b), atol=1e-5)
  assert [c.weight for group in groups for c in group.candidates] == [
      .5, 1, .5, .5, .5, .5, .5, .5, .5]
  assert {
      c.weight for group in assign([tree], ('env',))
      for c in group.candidates} == {1}


@pytest.mark.parametrize('kind', [
    *({'selection': selection} for selection in spec_lib.SELECTIONS['tree']),
    {'return_type': 'monte_carlo', 'num_continuations': 2},
    {'mode': 'parallel', 'return_type': 'return_to_go'},
    {'mode': 'joint', 'return_type': 'return_to_go',
     'group_key': ('env', 'agent', 'turn', 'branch')}])
def test_groups_do_not_depend_on_other_tasks(kind):
  def play(names, **changes):
    runner = scripted.make_runner(**changes)
    trees = scripted.collect(
        runner, dict.fromkeys(names, 7), group_size=4, selection_epsilon=0.5,
        **kind)
    assert [tree.task_id for tree in trees] == list(names)
    return {
        group.key: (scripted.prompt_of(group), scripted.texts_of(group),
                    *group.returns, *group.advantages, node.chosen)
        for tree in trees for node in tree.nodes for group in node.groups}

  many = play('ABCDEFGHIJ')
  assert {k: many[k] for k in many if k.task_id == 'D'} == play('D')
  assert play('JAH') == {k: many[k] for k in many if k.task_id in 'AHJ'}
  draws = kind.get('selection') in ('softmax', 'uniform', 'epsilon_greedy')
  assert (play('ABCDEFGHIJ', seed=1) != many) == draws
  assert (play('ABCDEFGHIJ', train_step=6) != many) == draws


@dataclasses.dataclass(frozen=True)
class Passing(scripted.Counting):
  """Agent b has no turn after the answer 0."""

  def step(self, state, actions):
    step = super().step(state, actions)
    if actions.get('a') != '0':
      return step
    turn = state.turn + 1
    done = step.done or turn == self.max_turns
    return dataclasses.replace(
        step, state=dataclasses.replace(step.state, turn=turn), skip=1,
        done=done, truncated=done and not step.success)


@pytest.mark.parametrize('switches', [
    {'selection': 'uniform'},
    {'selection': 'uniform', 'return_type': 'monte_carlo'},
    {'mode': 'parallel', 'return_type': 'return_to_go'},
    {'mode': 'joint', 'selection': 'all', 'return_type': 'return_to_go'}])
def test_a_skipped_phase_has_no_group(switches):
  runner = scripted.make_runner(environment=Passing())
  trees = scripted.collect(
      runner, {str(i): 9 for i in range(4)}, group_size=4, **switches)
  passes = 0
  for tree in trees:
    for node in tree.nodes[1:]:
      before = tree.nodes[node.parent]
      text = before.groups[0].candidates[node.joint_action].text
      passed = (before.phase, text) == (0, '0')
      passes += passed
      assert (node.turn, node.phase) == (
          (before.turn, 1) if before.phase == 0 and not passed
          else (before.turn + 1, 0))
  assert passes


class Growing(scripted.Counting):
  """Has no room for a prompt after the first turn."""

  end = 'x' * 99

  def observe(self, state, role):
    message, = super().observe(state, role)
    return [message | {'content': message['content'] + self.end * state.turn}]


class Refused(Growing):
  """The chat template refuses the prompts after the first turn."""

  end = '\ud800'


class Strict(scripted.Bytes):

  def encode_prompt(self, messages):
    if '\ud800' in messages[0]['content']:
      raise errors.TemplateError('two calls at once')
    return super().encode_prompt(messages)


def test_prompt_that_cannot_be_rendered_ends_its_episode(capsys):
  runner = scripted.make_runner(environment=Refused(), tokenizer=Strict)
  tree, = scripted.collect(runner, {'A': 99}, group_size=2)
  assert {*scripted.episodes(tree)} == {('A', 1, False, True)}
  line, = capsys.readouterr().out.splitlines()
  assert line.startswith("warning: an episode of task 'A' ends before turn 2")
  assert line.endswith('two calls at once')


@pytest.mark.parametrize('kind', [
    {}, {'return_type': 'monte_carlo'}, {'mode': 'parallel'},
    {'mode': 'joint', 'return_type': 'return_to_go'},
    {'mode': 'joint', 'return_type': 'immediate', 'selection': 'uniform'}])
def test_prompt_without_room_ends_its_episode(kind):
  runner = scripted.make_runner(environment=Growing())
  tree, = scripted.collect(runner, {'A': 99}, group_size=2, **kind)
  assert {*scripted.episodes(tree)} == {('A', 1, False, True)}
  assert {node.turn for node in tree.nodes} == {0}
  assert runner.usage.overlong_prompts > 0
  runner.play([evaluate._timed_episode(runner, scripted.task('A', 99))])
