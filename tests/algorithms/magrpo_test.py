"""MAGRPO: hand-worked trees of joint actions."""

import collections
from collections.abc import Mapping
import dataclasses
import math

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax.algorithms import play as play_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api
from tests import specs
from tests.rollout import scripted

MAGRPO = {
    'mode': 'joint', 'group_size': 2, 'selection': 'all',
    'return_type': 'return_to_go'}
GROUP_KEY = ('env', 'agent', 'turn', 'branch')


@dataclasses.dataclass(frozen=True)
class Table:
  """Rewards histories like '00' or '00 10'; NaN makes a step fail.

  A role sees its previous actions.
  """

  rewards: Mapping[str, float]
  phases: tuple[tuple[str, ...], ...] = (('a', 'b'),)
  max_turns: int = 1
  local: float = 0.0
  team_reward_range = (-1.0, 9.0)

  @property
  def roles(self):
    return tuple(role for phase in self.phases for role in phase)

  def reset(self, task):
    return ()

  def observe(self, state, role):
    said = ''.join(actions.get(role, '') for actions in state)
    return [{'role': 'user', 'content': f'{role}{len(state)}:{said}'}]

  def show(self, state):
    return {'said': str(state)}

  def step(self, state, actions):
    state = (*state, dict(actions))
    done = len(state) == self.max_turns * len(self.phases)
    history = ' '.join(''.join(said.values()) for said in state)
    reward = self.rewards.get(history, 0.0)
    outcome = (
        env_api.Outcome.INFRASTRUCTURE if math.isnan(reward)
        else env_api.Outcome.OK)
    return env_api.Step(
        state=state, team_reward=reward,
        local_rewards={
            role: self.local * int(said) for role, said in actions.items()},
        reward_terms={history: reward}, done=done, success=False,
        truncated=done,
        outcomes=dict.fromkeys(actions, outcome))


# The script of every prompt.
DIGITS = collections.defaultdict(lambda: '0123')


def play(environment, **switches):
  """{(role, turn, branch): group} and the nodes of the tree of one task."""
  runner = scripted.make_runner(
      {'one': DIGITS}, dict.fromkeys(environment.roles, 'one'), environment)
  switches = MAGRPO | switches
  play_lib.check(environment, specs.rollout(**switches))
  tree, = scripted.collect(runner, {'T': 0}, GROUP_KEY, 'none', **switches)
  groups = {group.key[1:]: group for group in tree_lib.groups_of([tree])}
  return groups, tree.nodes


# A tree of two turns, aligned: r = [1, 0], then [1, 1] and [0, 2].
TWO_TURNS = {
    '00': 1, '11': 0, '00 00': 1, '00 11': 1, '11 00': 0, '11 11': 2}


def test_returns_are_discounted_from_the_leaves():
  groups, nodes = play(Table(TWO_TURNS, max_turns=2), discount=0.5)
  for role in 'ab':
    for at, returns, advantages in (
        ((0, 0), [1.5, .5], [.5, -.5]), ((1, 0), [1, 1], [0, 0]),
        ((1, 1), [0, 2], [-1, 1])):
      group = groups[role, *at]
      np.testing.assert_array_equal(group.returns, returns)
      np.testing.assert_array_equal(group.advantages, advantages)
  assert [(node.parent, node.joint_action) for node in nodes] == [
      (None, None), (0, 0), (0, 1)]
  # A role sees its previous actions only.
  assert scripted.prompt_of(groups['b', 1, 1]) == 'b1:1'


# Rewards of two agents with two candidates each.
CROSS = {'00': 1, '01': 2, '10': 4, '11': 8}


def test_cross_branches_at_every_joint_action():
  rewards = CROSS | {f'{x} 11': 1.0 for x in CROSS}
  groups, (root, *others) = play(
      Table(rewards, max_turns=2), joint_actions='cross', discount=0.5)
  assert root.joint_actions == ((0, 0), (0, 1), (1, 0), (1, 1))
  assert [step.team_reward for step in root.steps] == [1, 2, 4, 8]
  assert [(node.parent, node.joint_action) for node in others] == [
      (0, i) for i in range(4)]
  # The means over joint actions are 1.5 and 6 for a, 2.5 and 5 for b. Each
  # child's mean return is 1/4, discounted by 1/2.
  a, b = groups['a', 0, 0], groups['b', 0, 0]
  np.testing.assert_allclose(a.returns, [1.625, 6.125])
  np.testing.assert_allclose(b.returns, [2.625, 5.125])
  np.testing.assert_allclose(groups['b', 1, 3].returns, [0, .5])
  # Joint actions may have different reward terms.
  assert a.candidates[0].reward_terms == {'00': 1, '01': 2}


@pytest.mark.parametrize('selection, chosen', [
    ('team_greedy', {1}), ('first', {0}), ('uniform', {0, 1, 2})])
def test_selected_joint_action_continues(selection, chosen):
  environment = Table({'00': 0, '11': 2, '22': 1, '11 00': 5}, max_turns=2)
  groups, (root, child) = play(
      environment, group_size=3, selection=selection, return_type='immediate')
  assert root.chosen in chosen
  assert (child.parent, child.joint_action) == (0, root.chosen)
  np.testing.assert_array_equal(groups['a', 0, 0].returns, [0, 2, 1])


def test_unknown_returns_leave_their_group():
  rewards = TWO_TURNS | {'00 00': math.nan}
  groups, _ = play(Table(rewards, max_turns=2), discount=0.5)
  np.testing.assert_array_equal(groups['a', 1, 0].returns, [np.nan, 1])
  np.testing.assert_array_equal(groups['a', 0, 0].returns, [1.5, .5])
  # All continuations of the first joint action are unknown.
  groups, _ = play(Table(rewards | {'00 11': math.nan}, max_turns=2))
  np.testing.assert_array_equal(groups['a', 0, 0].returns, [np.nan, 1])
  with pytest.raises(RuntimeError, match='All candidates'):
    play(Table({'00': math.nan, '11': math.nan}))
  groups, _ = play(
      Table(CROSS | {'00': math.nan}), joint_actions='cross')
  np.testing.assert_array_equal(groups['a', 0, 0].returns, [2, 6])


def test_sequential_roles_branch_in_turn():
  environment = Table(
      {'0 1': 1, '1 1': 3}, phases=(('a',), ('b',)), local=0.25)
  groups, nodes = play(environment, discount=0.5, alpha=2.0)
  # a gets its local reward and twice the discounted mean team reward of b.
  np.testing.assert_allclose(groups['a', 0, 0].returns, [.5, 1.75])
  np.testing.assert_allclose(groups['b', 0, 1].returns, [0, 6.25])
  assert len(nodes) == 3


def test_rollout_with_too_many_joint_actions_is_refused():
  switches = MAGRPO | {'joint_actions': 'cross', 'group_size': 4}
  environment = Table({}, max_turns=2)
  play_lib.check(
      environment, specs.rollout(max_joint_actions=272, **switches))
  with pytest.raises(errors.UserError, match='max_joint_actions=271'):
    play_lib.check(
        environment, specs.rollout(max_joint_actions=271, **switches))


def test_roles_that_act_together_need_mode_joint():
  with pytest.raises(errors.UserError, match="mode='tree'"):
    play_lib.check(Table({}), specs.rollout())
