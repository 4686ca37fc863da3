"""Who is compared with whom: hand-worked baselines for every group key."""

import math

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import tree as tree_lib
from tests import specs
from tests.rollout import scripted

# (role, turn, branch) -> returns, which all actions of a role in an episode
# share.
UNEVEN = {  # Episode 1 ends with the first action; the others have two turns.
    ('a', 0, 0): (.6, 1, .15), ('b', 0, 0): (.65,), ('b', 0, 2): (.25,),
    ('a', 1, 0): (.6,), ('a', 1, 2): (.15,),
    ('b', 1, 0): (.65,), ('b', 1, 2): (.25,)}
EVEN = {  # Two episodes of two turns.
    ('a', 0, 0): (.7, .25), ('b', 0, 0): (.75,), ('b', 0, 1): (.05,),
    ('a', 1, 0): (.7,), ('a', 1, 1): (.25,),
    ('b', 1, 0): (.75,), ('b', 1, 1): (.05,)}


def make_tree(task_id, returns):
  """A tree of which nothing but the keys and returns is read."""
  none = np.zeros(0)
  return tree_lib.Tree(task_id, tuple(
      tree_lib.Node(turn, 'ab'.index(role), None, (types.Group(
          types.GroupKey(task_id, role, turn, branch), '', none, tuple(
              types.Candidate(none, none, return_=value)
              for value in values)),), (), ())
      for (role, turn, branch), values in returns.items()))


def assign(
    trees, group_key, baseline='mean', scale='none', return_type='immediate'):
  """The groups, compared."""
  return tree_lib.groups_of(credit.assign_advantages(
      trees, specs.advantage(
          group_key=group_key, baseline=baseline, scale=scale),
      return_type=return_type))


# Group keys.


@pytest.mark.parametrize('group_key, expected', [
    (('env', 'agent', 'turn'), [0, 0, 1, 2, 3]),
    (('turn', 'env', 'agent'), [0, 0, 1, 2, 3]),
    (('env', 'agent'), [0, 0, 1, 2, 0]),
    (('env', 'turn'), [0, 0, 1, 0, 2]),
    (('agent', 'turn'), [0, 0, 0, 1, 2]),
    (('env',), [0, 0, 1, 0, 0]),
    (('agent',), [0, 0, 0, 1, 0]),
    (('turn',), [0, 0, 0, 0, 1]),
])
def test_baseline_ids(group_key, expected):
  # Another episode, another task, another role and another turn.
  keys = (('a', 0, 0), ('a', 0, 1), ('b', 0, 0), ('a', 1, 0))
  trees = [
      make_tree('x', dict.fromkeys(keys, (0,))),
      make_tree('y', dict.fromkeys(keys[:1], (0,)))]
  groups = assign(trees, group_key)
  assert [group.key[:2] for group in groups] == [
      ('x', 'a'), ('x', 'a'), ('y', 'a'), ('x', 'b'), ('x', 'a')]
  assert [group.baseline_id for group in groups] == expected


def test_two_tasks_never_share_a_baseline():
  keys = [(role, turn, 0) for role in 'ab' for turn in (0, 1, 11)]
  trees = [
      make_tree(task_id, dict.fromkeys(keys, (0,)))
      for task_id in ('1', '11', '1+a', 'a', '')]
  for group_key in (
      ('env',), ('env', 'agent'), ('env', 'turn'), ('env', 'agent', 'turn')):
    groups = assign(trees, group_key)
    assert len({g.baseline_id for g in groups}) == len(
        {(g.key.task_id, g.baseline_id) for g in groups})
  assert len({group.baseline_id for group in groups}) == len(groups) == 30


# Baselines.


@pytest.mark.parametrize('episodes, return_type, group_key, baselines', [
    # Of a in turn 0, b in turn 0, a in turn 1 and b in turn 1, worked by hand.
    # Each action counts:
    (UNEVEN, 'return_to_go', ('env',), (4.3 / 9,) * 4),
    (UNEVEN, 'return_to_go', ('env', 'agent'), (2.5 / 5, 1.8 / 4) * 2),
    (UNEVEN, 'return_to_go', ('env', 'turn'),
     (2.65 / 5, 2.65 / 5, 1.65 / 4, 1.65 / 4)),
    (UNEVEN, 'return_to_go', ('env', 'agent', 'turn'),
     (1.75 / 3, .9 / 2, .75 / 2, .9 / 2)),
    # Each return once, however many actions share it: a's .6, 1 and .15, and
    # b's .65 and .25.
    (UNEVEN, 'episode_return', ('env',), (2.65 / 5,) * 4),
    (UNEVEN, 'episode_return', ('env', 'agent'), (1.75 / 3, .9 / 2) * 2),
    # Episode 1 has no second turn.
    (UNEVEN, 'episode_return', ('env', 'turn'),
     (2.65 / 5, 2.65 / 5, 1.65 / 4, 1.65 / 4)),
    (UNEVEN, 'episode_return', ('env', 'agent', 'turn'),
     (1.75 / 3, .9 / 2, .75 / 2, .9 / 2)),
    # Both episodes have both turns, so the turn changes nothing.
    (EVEN, 'episode_return', ('env',), (1.75 / 4,) * 4),
    (EVEN, 'episode_return', ('env', 'turn'), (1.75 / 4,) * 4),
])
def test_baselines(episodes, return_type, group_key, baselines):
  baselines = dict(zip((('a', 0), ('b', 0), ('a', 1), ('b', 1)), baselines))
  for group in assign(
      [make_tree('A', episodes)], group_key, return_type=return_type):
    np.testing.assert_allclose(
        group.advantages,
        group.returns - baselines[group.key.role, group.key.turn], atol=1e-6)


@pytest.mark.parametrize('baseline, scale, a, b', [
    # Less the mean, .53, the returns are .07, .47, -.38, .12 and -.28; their
    # squares sum to .463, so the std is sqrt(.463 / 5) = .30430.
    ('mean', 'std', (.23003, 1.54452, -1.24876), (.39434, -.92014)),
    # An episode against the others. 0: their mean is (1 + .15 + .25) / 3, 1:
    # (.6 + .65 + .15 + .25) / 4 = .4125, 2: (.6 + .65 + 1) / 3 = .75.
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


def test_a_candidate_without_a_return_is_left_out():
  tree = make_tree('A', {('a', 0, 0): (1, math.nan, 3)})
  group, = assign([tree], ('env',))
  np.testing.assert_array_equal(group.advantages, [-1, 0, 1])


@pytest.mark.parametrize('baseline, scale', [
    ('mean', 'std'), ('mean', 'none'), ('leave_one_out', 'none')])
@pytest.mark.parametrize('mode, episodes, same', [
    ('a single agent', {k: v for k, v in UNEVEN.items() if k[0] == 'a'}, True),
    # Of an even number of actions each.
    ('no local rewards', EVEN | {
        ('b', 0, 0): (.7,), ('b', 1, 0): (.7,),
        ('b', 0, 1): (.25,), ('b', 1, 1): (.25,)}, True),
    ('local rewards', EVEN, False)])
def test_keys_that_give_the_same_advantages(
    mode, episodes, same, baseline, scale):
  for turn in ((), ('turn',)):
    found, expected = (
        np.concatenate([group.advantages for group in assign(
            [make_tree('A', episodes)], key + turn, baseline, scale,
            'episode_return')]) for key in (('env',), ('env', 'agent')))
    assert np.allclose(found, expected, atol=1e-6) == same, mode


# Rollouts of several tasks.

KINDS = (
    *({'selection': selection} for selection in spec_lib.SELECTIONS['tree']),
    {'return_type': 'monte_carlo', 'num_continuations': 2},
    {'mode': 'parallel', 'return_type': 'return_to_go'},
    {'mode': 'joint', 'return_type': 'return_to_go',
     'group_key': ('env', 'agent', 'turn', 'branch')},
)


@pytest.mark.parametrize('kind', KINDS)
def test_groups_do_not_depend_on_the_other_tasks(kind, monkeypatch):
  scripted.follow_scripts(monkeypatch)

  def play(names, **changes):
    runner = scripted.make_runner(
        dict.fromkeys(('one', 'two'), scripted.Dice()), **changes)
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


@pytest.mark.parametrize('mode', ['tree', 'parallel'])
def test_roles_that_act_at_once_are_refused(mode):
  environment = scripted.Counting((('a',), ('b', 'c')))
  with pytest.raises(errors.UserError, match=r"\('b', 'c'\) act together"):
    credit.check(environment, specs.rollout(
        mode=mode, selection=spec_lib.SELECTIONS[mode][0]))


def test_equal_task_ids_are_refused():
  with pytest.raises(ValueError, match='the same task_id'):
    credit.collect(
        scripted.make_runner({}), [scripted.task('A', 5)] * 2, specs.rollout(),
        specs.advantage())
