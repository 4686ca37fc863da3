"""Plain GRPO on a team: exact episodes of a scripted team."""

import numpy as np
import pytest

from atgrpo_jax import types
from atgrpo_jax.rollout import tree as tree_lib
from tests.rollout import scripted

SCRIPT = {
    # Episode 0 ends in turn 1, episode 1 in turn 0, episode 2 is truncated.
    'A/a turn 0 total 0': ('1', '5', '3'),
    'A/b turn 0 total 1': ('2',), 'A/b turn 0 total 3': ('4',),
    'A/a turn 1 total 3': ('1',), 'A/a turn 1 total 7': ('x',),
    'A/b turn 1 total 4': ('1',), 'A/b turn 1 total 7': ('1',),
}
# (role, turn, branch) and texts, in their order.
GROUPS = (
    (('a', 0, 0), ('1', '5', '3')),
    (('b', 0, 0), ('2',)), (('b', 0, 2), ('4',)),
    (('a', 1, 0), ('1',)), (('a', 1, 2), ('x',)),
    (('b', 1, 0), ('1',)), (('b', 1, 2), ('1',)))
# The team gets 1/2 at the end of episodes 0 and 1. Episode 0 pays its agents
# .1 .2 .1 .1, episode 1 pays .5, episode 2 pays .3 .4 0 .1.
RETURNS = {
    'immediate': (.1, 1, .3, .2, .4, .1, 0, .6, .1),
    # Role a in turn 0 of episode 0: .1 local, and .5 of the team three steps
    # later, discounted by .5 for each.
    'return_to_go': (.1625, 1, .3, .325, .4, .35, 0, .6, .1),
    # Role a: .5 + .1 + .1 = .7, .5 + .5 = 1 and .3 + 0 = .3.
    # Role b: .5 + .2 + .1 = .8, no action, and .4 + .1 = .5.
    'episode_return': (.7, 1, .3, .8, .5, .7, .3, .8, .5),
}
# Means over actions; an episode return has weight 1 per role and episode.
MEANS = {
    'immediate': 2.8 / 9, 'return_to_go': 3.2375 / 9,
    'episode_return': 3.3 / 5}


def play(return_type, policies=None):
  """The tree of one task, its groups, and the runner."""
  runner = scripted.make_runner(
      policies or dict.fromkeys(('one', 'two'), SCRIPT))
  trees = scripted.collect(
      runner, {'A': 5}, group_key=('env',), scale='none', mode='parallel',
      group_size=3, return_type=return_type, alpha=0.5, discount=0.5)
  return trees[0], tree_lib.groups_of(trees), runner


@pytest.mark.parametrize('return_type', RETURNS)
def test_exact_table(return_type):
  tree, groups, runner = play(return_type)
  assert [(group.key, scripted.texts_of(group)) for group in groups] == [
      (types.GroupKey('A', *key), texts) for key, texts in GROUPS]
  assert all(node.chosen is None for node in tree.nodes)
  assert all(group.valid.all() for group in groups)
  np.testing.assert_array_equal(
      np.concatenate([group.returns for group in groups]),
      np.float32(RETURNS[return_type]))
  np.testing.assert_allclose(
      np.concatenate([group.advantages for group in groups]),
      np.subtract(RETURNS[return_type], MEANS[return_type]), atol=1e-6)
  assert sorted(scripted.episodes(tree)) == [
      ('A', 1, True, False), ('A', 2, False, True), ('A', 2, True, False)]
  assert runner.usage.model_calls == 9
  assert runner.usage.environment_steps == 9


@pytest.mark.parametrize('return_type, valid', [
    ('immediate', (1, 0, 1, 1, 1, 0, 1, 1)),
    ('return_to_go', (0, 0, 1, 0, 1, 0, 1, 1)),
    ('episode_return', (0, 0, 1, 0, 1, 0, 1, 1)),
])
def test_failure_ends_only_its_episode(return_type, valid):
  script = SCRIPT | {
      'A/a turn 0 total 0': ('1', '5 broken', '3'),
      'A/a turn 1 total 3': ('1 broken',)}
  tree, groups, runner = play(
      return_type, dict.fromkeys(('one', 'two'), script))
  found = np.concatenate([group.valid for group in groups])
  np.testing.assert_array_equal(found, np.array(valid, bool))
  returns = np.concatenate([group.returns for group in groups])
  np.testing.assert_array_equal(np.isnan(returns), ~found)
  assert [step.success for _, step in tree.ends()] == [False]
  assert runner.usage.model_calls == 8
