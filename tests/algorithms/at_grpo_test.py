"""AT-GRPO: the exact chain of a scripted team, and selection rules.

Advantages amplify differences between returns, so these are compared exactly.
"""

import math

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.rollout import tree as tree_lib
from tests import specs
from tests.rollout import scripted

ONE = {  # Plays role a.
    'A/a turn 0 total 0': ('1', '3', '2'),
    'B/a turn 0 total 0': ('0', '1', '1'),
    'C/a turn 0 total 0': ('2', '2', '1'),
    'B/a turn 1 total 1': ('4', '2', '3'),
    'C/a turn 1 total 3': ('0', '0', '1'),
}
TWO = {  # Plays role b.
    'A/b turn 0 total 3': ('1', '2', '1'),
    'B/b turn 0 total 1': ('0', 'x', '0'),
    'C/b turn 0 total 2': ('1', '0', '1'),
    'C/b turn 1 total 4': ('2', '1', '3'),
}
# Advantages are (return - mean) / std: (.1, .3, .2) has the mean .2 and the std
# sqrt(.02 / 3) = .0816.
R2, R15 = math.sqrt(2), math.sqrt(1.5)
# (task, role, turn), prompt, returns, advantages, chosen
TABLE = (
    (('A', 'a', 0), 'A/a turn 0 total 0', (.1, .3, .2), (-R15, R15, 0), 1),
    # Ties go to the first.
    (('B', 'a', 0), 'B/a turn 0 total 0', (0, .1, .1),
     (-R2, R2 / 2, R2 / 2), 1),
    (('C', 'a', 0), 'C/a turn 0 total 0', (.2, .2, .1),
     (R2 / 2, R2 / 2, -R2), 0),
    # Role b acts on the state after role a's chosen candidate.
    (('A', 'b', 0), 'A/b turn 0 total 3', (.1, 1.2, .1),
     (-R2 / 2, R2, -R2 / 2), 1),  # Three and two is five: A ends.
    (('B', 'b', 0), 'B/b turn 0 total 1', (0, 0, 0), (0, 0, 0), 0),
    (('C', 'b', 0), 'C/b turn 0 total 2', (.1, 0, .1),
     (R2 / 2, -R2, R2 / 2), 0),
    # The first agent ends B; its group stays, and the second does not act.
    (('B', 'a', 1), 'B/a turn 1 total 1', (1.4, .2, .3),
     (1.41023, -.79708, -.61314), 0),
    (('C', 'a', 1), 'C/a turn 1 total 3', (0, 0, .1),
     (-R2 / 2, -R2 / 2, R2), 2),
    (('C', 'b', 1), 'C/b turn 1 total 4', (.2, .1, .3), (0, -R15, R15), 2),
)


def test_exact_table():
  runner = scripted.make_runner(
      {'one': ONE, 'two': TWO}, seed=3, train_step=7)
  trees = scripted.collect(runner, {'A': 5, 'B': 5, 'C': 9}, group_size=3)
  nodes = {node.groups[0].key: node for tree in trees for node in tree.nodes}
  groups = tree_lib.groups_of(trees)
  for index, (group, (key, prompt, returns, advantages, chosen)) in enumerate(
      zip(groups, TABLE, strict=True)):
    assert group.key == types.GroupKey(*key, branch=0)
    assert group.policy == scripted.ROLES[key[1]]
    assert scripted.prompt_of(group) == prompt
    assert scripted.texts_of(group) == (ONE | TWO)[prompt]
    assert group.valid.all()
    assert group.baseline_id == index
    np.testing.assert_array_equal(group.returns, np.float32(returns))
    np.testing.assert_allclose(group.advantages, advantages, atol=1e-4)
    assert nodes[group.key].chosen == chosen
  assert [e for tree in trees for e in scripted.episodes(tree)] == [
      # task, turns, success, truncated
      ('A', 1, True, False), ('B', 2, True, False), ('C', 2, False, True)]
  # Every group has a random key of its own.
  key_ids = {
      tuple(request.key_ids.tolist()) for engine in scripted.Engine.made
      for request in engine.requests}
  assert len(key_ids) == len(TABLE)
  assert {ids[:2] for ids in key_ids} == {(3, 7)}
  usage = runner.usage
  assert usage.model_calls == usage.environment_steps == 3 * len(TABLE)
  assert usage.prompt_tokens == 18 * len(TABLE)
  # A digit and a stop token.
  assert usage.completion_tokens == 2 * usage.model_calls


# Candidate 1 failed; the acting agent prefers 3 or 4, the team 2 or 4. The
# returns of candidate 4 are larger by rounding.
RETURNS = np.array([0.5, np.nan, 1.0, 2.0, 2 + 3e-7], np.float32)
TEAM_RETURNS = np.array([0.0, 9.0, 1.0, 0.0, 1 + 2e-7], np.float32)
assert RETURNS[4] > 2 and TEAM_RETURNS[4] > 1
SOFTMAX = np.exp([0.5 / 0.7, -np.inf, 1 / 0.7, 2 / 0.7, 2 / 0.7])


@pytest.mark.parametrize('selection, switches, expected', [
    ('greedy', {}, (0, 0, 0, 1, 0)),
    ('team_greedy', {}, (0, 0, 1, 0, 0)),
    ('uniform', {}, (.25, 0, .25, .25, .25)),
    ('softmax', {'selection_temperature': 0.7}, SOFTMAX / SOFTMAX.sum()),
    ('epsilon_greedy', {'selection_epsilon': 0.4}, (.1, 0, .1, .7, .1)),
])
def test_selection_rules(selection, switches, expected):
  spec = specs.rollout(selection=selection, **switches)
  rng = np.random.default_rng(0)
  chosen = [spec.select(RETURNS, TEAM_RETURNS, rng) for _ in range(1000)]
  frequencies = np.bincount(chosen, minlength=5) / 1000
  np.testing.assert_allclose(frequencies, expected, atol=0.06)
  assert frequencies[1] == 0


def test_group_of_failures_stops_the_run():
  runner = scripted.make_runner(
      {'one': {'A/a turn 0 total 0': ('5 broken', '1 broken')}, 'two': {}})
  with pytest.raises(errors.InfrastructureError, match='All candidates'):
    scripted.collect(runner, {'A': 5}, group_size=2)


CONTINUED = {
    'A/a turn 0 total 0': ('1', '2'),
    'A/b turn 0 total 1': ('3', '0'), 'A/b turn 0 total 2': ('0', '4'),
    'A/a turn 1 total 4': ('5', '0'), 'A/a turn 1 total 1': ('2', '1'),
    'A/a turn 1 total 2': ('7', '0'), 'A/a turn 1 total 6': ('1', '0'),
    'A/b turn 1 total 3': ('6', '5'), 'A/b turn 1 total 7': ('0', '0'),
    'A/b turn 1 total 4': ('1', '0'), 'A/b turn 1 total 2': ('7', '0'),
}
# With the goal 9. The first candidate is continued by b 3, a 5, and by b 0,
# a 2, b 6. Both pay the team 1, so its return is .1 + 1.
CONTINUED_TABLE = (  # Role, turn, returns, chosen.
    ('a', 0, (1.1, .2 + .5), 0),
    ('b', 0, (.3 + .5, 1), 1),
    ('a', 1, (.2 + .5, .1 + .5), 0),
    ('b', 1, (.6 + 1, .5), 0),
)


def play_continued(script, goal, max_turns=2, **switches):
  runner = scripted.make_runner(
      dict.fromkeys(('one', 'two'), script),
      environment=scripted.Counting(max_turns=max_turns))
  tree, = scripted.collect(
      runner, {'A': goal}, return_type='monte_carlo', num_continuations=2,
      **switches)
  return tree, runner


def test_returns_of_continuations():
  tree, runner = play_continued(CONTINUED, 9, group_size=2)
  for node, (role, turn, returns, chosen) in zip(
      tree.nodes, CONTINUED_TABLE, strict=True):
    group, = node.groups
    assert group.key == types.GroupKey('A', role, turn, 0)
    np.testing.assert_array_equal(group.returns, np.float32(returns))
    assert node.chosen == chosen
  assert scripted.episodes(tree) == [('A', 2, True, False)]
  # 8 candidates are trained on; 10 + 7 + 4 + 0 samples continue them.
  assert sum(len(node.steps) for node in tree.nodes) == 8
  assert runner.usage.model_calls == 29
  assert runner.usage.environment_steps == 29
  requests = [r for e in scripted.Engine.made for r in e.requests]
  assert len({tuple(r.key_ids.tolist()) for r in requests}) == len(requests)


@pytest.mark.parametrize('switches, returns', [
    ({'continuation_phases': 1}, (.1, .2)),
    ({'continuation_phases': 2}, (.1 + .5, .2 + .5)),
    ({'continuation_phases': 3}, CONTINUED_TABLE[0][2]),
    # Two steps later the team reward weighs 1/4, three steps later 1/8.
    ({'discount': 0.5}, (.1 + (1 / 4 + 1 / 8) / 2, .2 + (1 / 4 + 0) / 2))])
def test_continuations_end_after_their_phases_and_are_discounted(
    switches, returns):
  script = CONTINUED | {'A/b turn 1 total 6': ('0', '0')}
  tree, _ = play_continued(script, 9, group_size=2, **switches)
  np.testing.assert_array_equal(
      tree.nodes[0].groups[0].returns, np.float32(returns))


def test_team_return_includes_continuations():
  script = {
      'A/a turn 0 total 0': ('1', '9'),
      'A/b turn 0 total 1': ('0', '4'), 'A/b turn 0 total 9': ('0', '0')}
  for selection, chosen in (('greedy', 1), ('team_greedy', 0)):
    tree, _ = play_continued(
        script, 5, group_size=2, max_turns=1, selection=selection)
    root = tree.nodes[0]
    np.testing.assert_array_equal(root.groups[0].returns, np.float32((.6, .9)))
    assert root.chosen == chosen


def test_failed_continuations_are_ignored():
  script = {
      'A/a turn 0 total 0': ('1', '2', '3'),
      'A/b turn 0 total 1': ('4', '0 broken', '1'),
      'A/b turn 0 total 2': ('3 broken', '3 broken'),
      'A/b turn 0 total 3': ('2', '1')}
  tree, _ = play_continued(script, 5, group_size=3, max_turns=1)
  root = tree.nodes[0]
  assert root.groups[0].valid.tolist() == [True, False, True]
  np.testing.assert_array_equal(
      root.groups[0].returns, np.float32((1.1, math.nan, .8)))
  assert root.chosen == 0
