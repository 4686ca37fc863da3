"""AT-GRPO's rollout: the exact groups of a scripted team, and its switches."""

import collections
import dataclasses
import itertools
import math
import re
import zlib

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.rl import advantages
from atgrpo_jax.rollout import at_grpo
from environments import base
from tests.rollout import scripted

ROLES = {'a': 'one', 'b': 'two'}  # role -> policy


class Dice:
  """Answers to any prompt: digits, drawn by the prompt alone."""

  def __init__(self, group_size):
    self._group_size = group_size

  def __getitem__(self, prompt):
    rng = np.random.default_rng(zlib.crc32(prompt.encode()))
    return [str(n) for n in rng.integers(0, 4, self._group_size)]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
  scripted.follow_scripts(monkeypatch)


# A rollout of each kind.
KINDS = (
    *({'selection': selection} for selection in at_grpo.SELECTIONS),
    {'target': 'monte_carlo', 'num_continuations': 2},
    {'rollout': 'parallel', 'target': 'return_to_go'},
)


def spec_of(group_size=3, **switches):
  return at_grpo.RolloutSpec(group_size=group_size, **switches)


def task(name, goal):
  return {'task_id': name, 'goal': goal}


def prompt_of(group):
  return scripted.Bytes().decode(group.prompt)


def one_group(answers, seed=0, max_new_tokens=12, **switches):
  """The only group of a game of one agent and one turn."""
  interaction = scripted.make_interaction(
      {'one': {'A/a turn 0 total 0': answers}}, {'a': 'one'}, seed=seed,
      max_new_tokens=max_new_tokens,
      environment=scripted.Counting(phases=(('a',),), max_turns=1))
  rollout = at_grpo.collect(
      interaction, [task('A', 5)], step=0,
      spec=spec_of(len(answers), **switches))
  return rollout.groups[0]


# The exact table.

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
# Advantages are (reward - mean) / std, worked by hand: of (.1, .3, .2) the
# mean is .2 and the std sqrt(.02 / 3) = .0816.
R2, R15 = math.sqrt(2), math.sqrt(1.5)
# (task, role, turn), prompt, rewards, advantages, chosen
TABLE = (
    (('A', 'a', 0), 'A/a turn 0 total 0', (.1, .3, .2), (-R15, R15, 0), 1),
    # Ties go to the first.
    (('B', 'a', 0), 'B/a turn 0 total 0', (0, .1, .1),
     (-R2, R2 / 2, R2 / 2), 1),
    (('C', 'a', 0), 'C/a turn 0 total 0', (.2, .2, .1),
     (R2 / 2, R2 / 2, -R2), 0),
    # Role b acts on what role a's chosen candidate left in the same turn.
    (('A', 'b', 0), 'A/b turn 0 total 3', (.1, 1.2, .1),
     (-R2 / 2, R2, -R2 / 2), 1),  # Three and two is five: A ends.
    (('B', 'b', 0), 'B/b turn 0 total 1', (0, 0, 0), (0, 0, 0), 0),
    (('C', 'b', 0), 'C/b turn 0 total 2', (.1, 0, .1),
     (R2 / 2, -R2, R2 / 2), 0),
    # The first agent ends B; its group stays, and the second is not asked.
    (('B', 'a', 1), 'B/a turn 1 total 1', (1.4, .2, .3),
     (1.41023, -.79708, -.61314), 0),
    (('C', 'a', 1), 'C/a turn 1 total 3', (0, 0, .1),
     (-R2 / 2, -R2 / 2, R2), 2),
    (('C', 'b', 1), 'C/b turn 1 total 4', (.2, .1, .3), (0, -R15, R15), 2),
)


def test_exact_table():
  interaction = scripted.make_interaction({'one': ONE, 'two': TWO}, ROLES)
  rollout = at_grpo.collect(
      interaction, [task('A', 5), task('B', 5), task('C', 9)], step=3,
      spec=spec_of())
  assert len(rollout.groups) == len(TABLE)
  ids = advantages.group_ids(
      [group.key for group in rollout.groups], 'env+agent+turn')
  assert list(ids) == list(range(len(TABLE)))
  for group, (key, prompt, rewards, expected, chosen) in zip(
      rollout.groups, TABLE):
    assert group.key == types.GroupKey(*key, branch=0)
    assert group.policy == ROLES[key[1]]
    assert prompt_of(group) == prompt
    assert group.texts == (ONE | TWO)[prompt]
    for ids, logprobs, text in zip(
        group.completions, group.behavior_logprobs, group.texts):
      assert bytes(ids.tolist()) == text.encode() + b'\0'
      np.testing.assert_array_equal(logprobs, -ids.astype(np.float32) / 8)
    np.testing.assert_allclose(group.rewards, rewards, atol=1e-6)
    assert group.valid.all()
    assert group.chosen == chosen
    found = advantages.group_advantages(
        group.rewards, np.zeros(3, int), group.valid, normaliser='std')
    np.testing.assert_allclose(found, expected, atol=1e-4)
  assert [dataclasses.astuple(e) for e in rollout.episodes] == [
      # task, turns, success, truncated
      ('A', 1, True, False), ('B', 2, True, False), ('C', 2, False, True)]
  counters = interaction.counters
  assert counters.model_calls == 3 * len(TABLE)
  assert counters.environment_steps == 3 * len(TABLE)
  outcomes = collections.Counter(
      outcome for group in rollout.groups for outcome in group.outcomes)
  assert outcomes == {base.Outcome.OK: 26, base.Outcome.PARSE_ERROR: 1}
  assert rollout.groups[3].reward_terms == (
      {'total': 4}, {'total': 5}, {'total': 4})


# Properties of any rollout.


@pytest.mark.parametrize('selection', at_grpo.SELECTIONS)
def test_the_spine_is_a_replay_of_the_chosen_answers(selection, monkeypatch):
  """Prompts, rewards and the end of each episode come from one chain."""
  environment = scripted.Counting(
      phases=(('a',), ('b',), ('c',)), max_turns=3)
  interaction = scripted.make_interaction(
      {'one': Dice(4), 'two': Dice(4)}, ROLES | {'c': 'one'}, environment)
  stepped = []  # (state, role, text), in their order.
  step = scripted.Counting.step

  def spy(self, state, actions):
    stepped.append((state, *actions.items()))
    return step(self, state, actions)

  monkeypatch.setattr(scripted.Counting, 'step', spy)
  tasks = [task(f'T{i}', i) for i in range(4, 24)]
  rollout = at_grpo.collect(
      interaction, tasks, step=1, spec=spec_of(4, selection=selection))
  assert interaction.counters.environment_steps == 4 * len(rollout.groups)
  assert interaction.counters.model_calls == 4 * len(rollout.groups)
  assert len({group.key for group in rollout.groups}) == len(rollout.groups)
  # Every candidate is tried once, all of a group from one state.
  tried = collections.defaultdict(list)
  for state, (role, text) in stepped:
    tried[state.task_id, role, state.turn].append((state, text))
  turns = list(itertools.product(range(3), 'abc'))
  ended = set()
  for episode, one in zip(rollout.episodes, tasks):
    state, last = environment.reset(one), None
    groups = [g for g in rollout.groups if g.key.task_id == one['task_id']]
    assert [g.key[1:] for g in groups] == [
        (role, turn, 0) for turn, role in turns[:len(groups)]]
    for group in groups:
      assert last is None or not last.done
      role = group.key.role
      assert prompt_of(group) == environment.observe(state, role)[0]['content']
      # All candidates answer this one prompt.
      assert list(group.texts) == Dice(4)[prompt_of(group)]
      assert tried[group.key[:3]] == [(state, text) for text in group.texts]
      candidates = [step(environment, state, {role: t}) for t in group.texts]
      np.testing.assert_allclose(
          group.rewards,
          [c.team_reward + c.local_rewards[role] for c in candidates])
      last = candidates[group.chosen]
      state = last.state
    assert last.done
    assert (episode.success, episode.truncated) == (
        last.success, last.truncated)
    assert episode.turns == groups[-1].key.turn + 1
    ended.add((episode.success, groups[-1].key.role))
  # Some ended by each agent, some by the number of turns.
  assert ended >= {(True, 'a'), (True, 'b'), (True, 'c'), (False, 'c')}


@pytest.mark.parametrize('kind', KINDS)
def test_groups_do_not_depend_on_the_other_tasks(kind):
  def play(names, seed=0, step=5):
    interaction = scripted.make_interaction(
        {'one': Dice(4), 'two': Dice(4)}, ROLES, seed=seed)
    rollout = at_grpo.collect(
        interaction, [task(name, 7) for name in names], step=step,
        spec=spec_of(4, selection_epsilon=0.5, **kind))
    return {
        g.key: (prompt_of(g), g.texts, *g.rewards, g.chosen)
        for g in rollout.groups}

  many = play('ABCDEFGHIJ')
  assert {k: many[k] for k in many if k.task_id == 'D'} == play('D')
  assert play('JAH') == {k: many[k] for k in many if k.task_id in 'AHJ'}
  draws = kind.get('selection') in ('softmax', 'uniform', 'epsilon_greedy')
  assert (play('ABCDEFGHIJ', seed=1) != many) == draws
  assert (play('ABCDEFGHIJ', step=6) != many) == draws


def test_a_spine_may_end_before_all_others():
  """Nobody is asked for a game that is over, and nobody at all in the end."""
  script = {
      'A/a turn 0 total 0': ('1', '5'), 'B/a turn 0 total 0': ('5', '1')}
  interaction = scripted.make_interaction({'one': script, 'two': {}}, ROLES)
  rollout = at_grpo.collect(
      interaction, [task('A', 5), task('B', 5)], step=0, spec=spec_of(2))
  assert [g.key[:3] for g in rollout.groups] == [
      ('A', 'a', 0), ('B', 'a', 0)]
  assert [e.turns for e in rollout.episodes] == [1, 1]


# Which candidate goes on.


def test_alpha_weighs_the_team_reward():
  answers = ('9', '5', '2')  # The second meets the goal.
  for alpha, rewards, chosen in (
      (1.0, (.9, 1.5, .2), 1), (0.1, (.9, .6, .2), 0), (0.0, (.9, .5, .2), 0)):
    group = one_group(answers, alpha=alpha)
    np.testing.assert_allclose(group.rewards, rewards, atol=1e-6)
    assert group.chosen == chosen
    assert one_group(answers, alpha=alpha, selection='team_greedy').chosen == 1


# The reward of the acting agent is highest in the second place.
REWARDS = np.array([0.5, 2.0, 1.0, 2.0], np.float32)
TEAM = np.array([0.0, 0.0, 1.0, 1.0], np.float32)


def frequencies(selection, valid=(True,) * 4, **switches):
  spec = spec_of(4, selection=selection, **switches)
  rng = np.random.default_rng(0)
  num = 1000
  drawn = [
      at_grpo.select(REWARDS, TEAM, np.array(valid), spec, rng)
      for _ in range(num)]
  return np.bincount(drawn, minlength=4) / num


@pytest.mark.parametrize('valid', [
    (True, True, True, True), (True, False, True, True),
    (True, False, True, False)])
def test_selection_rules(valid):
  allowed = np.array(valid, float)
  best = np.flatnonzero(valid)[np.argmax(REWARDS[list(valid)])]
  greedy = np.eye(4)[best]
  uniform = allowed / allowed.sum()
  warm = allowed * np.exp(REWARDS / 0.7)
  team = np.eye(4)[2]
  for expected, selection, switches in (
      (greedy, 'acting_greedy', {}), (team, 'team_greedy', {}),
      (uniform, 'uniform', {}),
      (warm / warm.sum(), 'softmax', {'selection_temperature': 0.7}),
      (greedy, 'softmax', {'selection_temperature': 1e-3})
      if best == 2 else (uniform, 'softmax', {'selection_temperature': 1e6}),
      (0.3 * uniform + 0.7 * greedy, 'epsilon_greedy',
       {'selection_epsilon': 0.3}),
      (greedy, 'epsilon_greedy', {'selection_epsilon': 0.0}),
      (uniform, 'epsilon_greedy', {'selection_epsilon': 1.0})):
    found = frequencies(selection, valid, **switches)
    np.testing.assert_allclose(found, expected, atol=0.06)
    assert not found[~np.array(valid)].any()


@pytest.mark.parametrize('table, name, switches', [
    ('SELECTIONS', 'worst', {'selection': 'worst'}),
    ('TARGETS', {'tree': ('last',)}, {'target': 'last'}),
    ('TARGETS', {'parallel': ('last',)},
     {'target': 'last', 'rollout': 'parallel'}),
])
def test_every_name_has_a_rule(table, name, switches, monkeypatch):
  known = getattr(at_grpo, table)
  monkeypatch.setattr(
      at_grpo, table, name if table == 'TARGETS' else (*known, name))
  interaction = scripted.make_interaction(
      {'one': Dice(3), 'two': Dice(3)}, ROLES)
  with pytest.raises(NotImplementedError, match="='(worst|last)'"):
    at_grpo.collect(
        interaction, [task('A', 9)], step=0, spec=spec_of(**switches))


# Faults that are not the model's own.


@pytest.mark.parametrize('fault', ['broken', 'nan'])
@pytest.mark.parametrize('selection', at_grpo.SELECTIONS)
def test_a_fault_leaves_the_group(fault, selection):
  for seed in range(10):
    group = one_group(
        (f'5 {fault}', '1', '2', f'9 {fault}'), seed=seed,
        selection=selection, selection_epsilon=0.5)
    assert group.valid.tolist() == [False, True, True, False]
    np.testing.assert_allclose(
        group.rewards, [math.nan, .1, .2, math.nan], atol=1e-6)
    assert group.chosen in (1, 2)
    assert group.outcomes[0] is (
        base.Outcome.INFRASTRUCTURE if fault == 'broken' else base.Outcome.OK)
  found = advantages.group_advantages(
      group.rewards, np.zeros(4, int), group.valid, normaliser='std')
  np.testing.assert_allclose(found, [0, -1, 1, 0], atol=1e-5)


def test_a_reward_too_large_for_a_float32_leaves_the_group():
  with np.errstate(over='ignore'):
    group = one_group(('5', '1' + '0' * 41, '2'), max_new_tokens=44)
  assert group.valid.tolist() == [True, False, True]


def test_a_group_of_faults_alone_stops_the_run():
  words = (
      r"All 3 candidates of GroupKey\(task_id='A', role='a', turn=0.*"
      r"'infrastructure', 'ok', 'infrastructure'")
  with pytest.raises(RuntimeError, match=words):
    one_group(('5 broken', '1 nan', '2 broken'))


# Parallel episodes.

PARALLEL = {
    # Episodes 0 to 2: one ends late, one at once, one is out of turns.
    'A/a turn 0 total 0': ('1', '5', '3'),
    'A/b turn 0 total 1': ('2',), 'A/b turn 0 total 3': ('4',),
    'A/a turn 1 total 3': ('1',), 'A/a turn 1 total 7': ('x',),
    'A/b turn 1 total 4': ('1',), 'A/b turn 1 total 7': ('1',),
}
# (role, turn, branch) and texts, in their order.
PARALLEL_KEYS = (
    (('a', 0, 0), ('1', '5', '3')),
    (('b', 0, 0), ('2',)), (('b', 0, 2), ('4',)),
    (('a', 1, 0), ('1',)), (('a', 1, 2), ('x',)),
    (('b', 1, 0), ('1',)), (('b', 1, 2), ('1',)))


def parallel(target, policies=None, goal=5):
  interaction = scripted.make_interaction(
      policies or dict.fromkeys(('one', 'two'), PARALLEL), ROLES)
  rollout = at_grpo.collect(
      interaction, [task('A', goal)], step=0,
      spec=spec_of(3, rollout='parallel', target=target, alpha=0.5))
  return rollout, interaction


def found_advantages(rollout, target, group_key, normaliser='none'):
  return np.concatenate(advantages.of_groups(
      rollout.groups, group_key=group_key, normaliser=normaliser,
      of_episodes=target == 'episode_return'))


# The team gets 1/2 at the end of episodes 0 and 1. Episode 0 pays its agents
# .1 .2 .1 .1, episode 1 pays .5, episode 2 pays .3 .4 0 .1.
TARGETS = {
    'immediate': (.1, 1, .3, .2, .4, .1, 0, .6, .1),
    # Of role a in turn 0 of episode 0: its own .1, and the team's .5.
    'return_to_go': (.6, 1, .3, .7, .4, .6, 0, .6, .1),
    # Role a: .5 + (.1 + .1) / 2 = .6, .5 + .5 = 1 and (.3 + 0) / 2 = .15.
    # Role b: .5 + (.2 + .1) / 2 = .65, not asked, and (.4 + .1) / 2 = .25.
    'episode_return': (.6, 1, .15, .65, .25, .6, .15, .65, .25),
}


@pytest.mark.parametrize('target', TARGETS)
def test_parallel_episodes(target):
  rollout, interaction = parallel(target)
  assert [(g.key, g.texts) for g in rollout.groups] == [
      (types.GroupKey('A', *key), texts) for key, texts in PARALLEL_KEYS]
  for group in rollout.groups:
    assert group.valid.all() and group.chosen is None
    assert len(group.completions) == group.size == len(group.outcomes)
  np.testing.assert_allclose(
      np.concatenate([g.rewards for g in rollout.groups]), TARGETS[target],
      atol=1e-6)
  assert [dataclasses.astuple(e) for e in rollout.episodes] == [
      ('A', 2, True, False), ('A', 1, True, False), ('A', 2, False, True)]
  # The one prompt that all share is asked once, for all.
  sizes = [
      engine.spec.group_size for engine in scripted.Engine.made
      for _ in engine.requests]
  assert sorted(sizes) == [1] * 6 + [3]
  assert interaction.counters.model_calls == 9
  assert interaction.counters.environment_steps == 9


@pytest.mark.parametrize('target, group_key, baselines', [
    # In the order of `PARALLEL_KEYS`; means worked by hand.
    ('return_to_go', 'env+agent+turn',
     (1.9 / 3, 1.9 / 3, 1.9 / 3, .55, .55, .3, .3, .35, .35)),
    ('return_to_go', 'env+agent', (.5, .5, .5, .45, .45, .5, .5, .45, .45)),
    ('return_to_go', 'env+turn', (.6,) * 5 + (.325,) * 4),
    ('return_to_go', 'env', (4.3 / 9,) * 9),
    ('immediate', 'env+agent', (.3, .3, .3, .325, .325, .3, .3, .325, .325)),
    # Each return once, however many actions share it: a's .6, 1 and .15, and
    # b's .65 and .25.
    ('episode_return', 'env', (2.65 / 5,) * 9),
    ('episode_return', 'env+agent',
     (1.75 / 3,) * 3 + (.9 / 2,) * 2 + (1.75 / 3,) * 2 + (.9 / 2,) * 2),
    # Episode 1 has no second turn.
    ('episode_return', 'env+turn', (2.65 / 5,) * 5 + (1.65 / 4,) * 4),
    ('episode_return', 'env+agent+turn',
     (1.75 / 3,) * 3 + (.9 / 2,) * 2 + (.75 / 2,) * 2 + (.9 / 2,) * 2),
])
def test_who_is_compared(target, group_key, baselines):
  rollout, _ = parallel(target)
  np.testing.assert_allclose(
      found_advantages(rollout, target, group_key),
      np.subtract(TARGETS[target], baselines), atol=1e-6)


def test_actions_of_a_role_share_the_advantage_of_its_return():
  rollout, _ = parallel('episode_return')

  def check(a0, a1, a2, b0, b2, normaliser, atol):
    np.testing.assert_allclose(
        found_advantages(rollout, 'episode_return', 'env', normaliser),
        (a0, a1, a2, b0, b2, a0, a2, b0, b2), atol=atol)

  # Less the mean, .53, the returns are .07, .47, -.38, .12 and -.28; their
  # squares sum to .463, so the std is sqrt(.463 / 5) = .30430.
  check(.23003, 1.54453, -1.24876, .39435, -.92014, 'std', 1e-4)
  # An episode against the others. 0: their mean is (1 + .15 + .25) / 3, 1:
  # (.6 + .65 + .15 + .25) / 4 = .4125, 2: (.6 + .65 + 1) / 3 = .75.
  check(.6 - 1.4 / 3, .5875, -.6, .65 - 1.4 / 3, -.5, 'leave_one_out', 1e-6)


def test_two_roles_two_turns_two_episodes():
  script = {
      'A/a turn 0 total 0': ('1', '4'),
      # Episode 0: a 1, b 2, a 3, b 3 is 9, the goal.
      'A/b turn 0 total 1': ('2',), 'A/a turn 1 total 3': ('3',),
      'A/b turn 1 total 6': ('3',),
      # Episode 1: a 4, b 0, a 1, b 1 is 6.
      'A/b turn 0 total 4': ('0',), 'A/a turn 1 total 4': ('1',),
      'A/b turn 1 total 5': ('1',)}
  rollout = at_grpo.collect(
      scripted.make_interaction(dict.fromkeys(('one', 'two'), script), ROLES),
      [task('A', 9)], step=0, spec=spec_of(
          2, rollout='parallel', target='episode_return', alpha=0.5))
  # Episode 0: a .5 + (.1 + .3) / 2 = .7, b .5 + (.2 + .3) / 2 = .75.
  # Episode 1: a (.4 + .1) / 2 = .25, b (0 + .1) / 2 = .05.
  returns = np.array([.7, .25, .75, .05] * 2)
  np.testing.assert_allclose(
      np.concatenate([g.rewards for g in rollout.groups]), returns, rtol=1e-6)
  # One mean, (.7 + .25 + .75 + .05) / 4 = .4375; or of a (.7 + .25) / 2 = .475
  # and of b (.75 + .05) / 2 = .4. Both episodes have both turns, so the turn
  # changes nothing.
  for group_key, baselines in (
      ('env', .4375), ('env+turn', .4375),
      ('env+agent', [.475, .475, .4, .4] * 2),
      ('env+agent+turn', [.475, .475, .4, .4] * 2)):
    np.testing.assert_allclose(
        found_advantages(rollout, 'episode_return', group_key),
        returns - baselines, atol=1e-6)


@pytest.mark.parametrize('target', ['return_to_go', 'episode_return'])
def test_putting_off_the_end_pays_nothing(target):
  # Both reach the goal: at once, or by way of another turn that pays its
  # agents as much as the first did.
  script = {
      'A/a turn 0 total 0': ('4', '2'), 'A/b turn 0 total 2': ('0',),
      'A/a turn 1 total 2': ('2',)}
  rollout = at_grpo.collect(
      scripted.make_interaction(dict.fromkeys(('one', 'two'), script), ROLES),
      [task('A', 4)], step=0,
      spec=spec_of(2, rollout='parallel', target=target, alpha=0.5))
  assert [episode.turns for episode in rollout.episodes] == [1, 2]
  early, late = rollout.groups[0].rewards
  assert early > late


def test_every_action_of_many_parallel_episodes_has_a_key_of_its_own():
  interaction = scripted.make_interaction(
      {'one': Dice(4), 'two': Dice(4)}, ROLES)
  tasks = [task(f'T{i}', i) for i in range(2, 12)]
  rollout = at_grpo.collect(
      interaction, tasks, step=1, spec=spec_of(4, rollout='parallel'))
  requests = [r for e in scripted.Engine.made for r in e.requests]
  keys = {tuple(request.key.tolist()) for request in requests}
  assert len(keys) == len(requests) == len(rollout.groups)
  assert len({group.key for group in rollout.groups}) == len(rollout.groups)
  # Every candidate is there, those of the episodes that end early too.
  assert len(rollout.episodes) == 40
  assert sum(group.size for group in rollout.groups) == (
      interaction.counters.model_calls)
  assert len({episode.turns for episode in rollout.episodes}) == 2
  for one in tasks:
    own = [g for g in rollout.groups if g.key.task_id == one['task_id']]
    assert [group.size for group in own] == [4] + [1] * (len(own) - 1)


@pytest.mark.parametrize('target, valid', [
    ('immediate', (1, 0, 1, 1, 1, 0, 1, 1)),
    ('return_to_go', (0, 0, 1, 0, 1, 0, 1, 1)),
    ('episode_return', (0, 0, 1, 0, 1, 0, 1, 1)),
])
@pytest.mark.parametrize('fault', ['broken', 'nan'])
def test_a_fault_ends_its_episode_alone(target, valid, fault):
  script = PARALLEL | {
      'A/a turn 0 total 0': ('1', f'5 {fault}', '3'),
      'A/a turn 1 total 3': (f'1 {fault}',)}
  rollout, interaction = parallel(
      target, dict.fromkeys(('one', 'two'), script))
  found = np.concatenate([g.valid for g in rollout.groups])
  np.testing.assert_array_equal(found, np.array(valid, bool))
  rewards = np.concatenate([g.rewards for g in rollout.groups])
  np.testing.assert_array_equal(np.isnan(rewards), ~found)
  assert [e.success for e in rollout.episodes] == [False]
  assert interaction.counters.model_calls == 8


def test_faults_in_all_parallel_episodes_stop_the_run():
  script = {'A/a turn 0 total 0': ('1 nan', '2 broken', '3 broken')}
  with pytest.raises(RuntimeError, match=(
      "All 3 episodes of task 'A' .*'ok', 'infrastructure', 'infrastr")):
    parallel('immediate', {'one': script, 'two': {}})


# Continuations.


CONTINUED = {  # The first answer is that of a lone episode.
    'A/a turn 0 total 0': ('1', '2'),
    'A/b turn 0 total 1': ('3', '0'), 'A/b turn 0 total 2': ('0', '4'),
    'A/a turn 1 total 4': ('5', '0'), 'A/a turn 1 total 1': ('2', '1'),
    'A/a turn 1 total 2': ('7', '0'), 'A/a turn 1 total 6': ('1', '0'),
    'A/b turn 1 total 3': ('6', '5'), 'A/b turn 1 total 7': ('0', '0'),
    'A/b turn 1 total 4': ('1', '0'), 'A/b turn 1 total 2': ('7', '0'),
}
# With the goal 9. What follows the first candidate: b says 3 and a 5, or b 0, a
# 2 and b 6; both pay the team 1. So its value is .1 + 1.
CONTINUED_TABLE = (  # Role, turn, values, chosen.
    ('a', 0, (1.1, .2 + .5), 0),
    ('b', 0, (.3 + .5, 1), 1),
    ('a', 1, (.2 + .5, .1 + .5), 0),
    ('b', 1, (.6 + 1, .5), 0),
)


def continued(script, goal, **switches):
  interaction = scripted.make_interaction(
      dict.fromkeys(('one', 'two'), script), ROLES,
      scripted.Counting(max_turns=switches.pop('max_turns', 2)))
  rollout = at_grpo.collect(
      interaction, [task('A', goal)], step=0, spec=spec_of(
          target='monte_carlo', num_continuations=2, **switches))
  return rollout, interaction


def test_values_of_continuations():
  rollout, interaction = continued(CONTINUED, 9, group_size=2)
  assert len(rollout.groups) == len(CONTINUED_TABLE)
  for group, (role, turn, values, chosen) in zip(
      rollout.groups, CONTINUED_TABLE):
    assert group.key == types.GroupKey('A', role, turn, 0)
    np.testing.assert_allclose(group.rewards, values, atol=1e-6)
    assert group.chosen == chosen
  assert [dataclasses.astuple(e) for e in rollout.episodes] == [
      ('A', 2, True, False)]
  # 8 candidates are trained on; 10 + 7 + 4 + 0 answers continue them.
  assert sum(group.size for group in rollout.groups) == 8
  assert interaction.counters.model_calls == 29
  assert interaction.counters.environment_steps == 29
  requests = [r for e in scripted.Engine.made for r in e.requests]
  assert len({tuple(r.key.tolist()) for r in requests}) == len(requests)


def test_the_team_is_judged_by_its_continuations_too():
  script = {
      'A/a turn 0 total 0': ('1', '9'),
      'A/b turn 0 total 1': ('0', '4'), 'A/b turn 0 total 9': ('0', '0')}
  for selection, chosen in (('acting_greedy', 1), ('team_greedy', 0)):
    rollout, _ = continued(
        script, 5, group_size=2, max_turns=1, selection=selection)
    np.testing.assert_allclose(rollout.groups[0].rewards, (.6, .9), atol=1e-6)
    assert rollout.groups[0].chosen == chosen


@pytest.mark.parametrize('fault', ['broken', 'nan'])
def test_a_fault_in_a_continuation(fault):
  script = {
      'A/a turn 0 total 0': ('1', '2', '3'),
      'A/b turn 0 total 1': ('4', f'0 {fault}', '1'),
      'A/b turn 0 total 2': (f'3 {fault}', f'3 {fault}'),
      'A/b turn 0 total 3': ('2', '1')}
  rollout, _ = continued(script, 5, group_size=3, max_turns=1)
  group = rollout.groups[0]
  assert group.valid.tolist() == [True, False, True]
  np.testing.assert_allclose(group.rewards, (1.1, math.nan, .8), atol=1e-6)
  assert group.chosen == 0


# What is refused.


def test_agents_that_act_at_once_are_refused_before_any_is_asked():
  environment = scripted.Counting(phases=(('a',), ('b', 'c')))
  interaction = scripted.make_interaction(
      {'one': Dice(3)}, dict.fromkeys('abc', 'one'), environment)
  with pytest.raises(errors.UserError, match=r"\('b', 'c'\) act at once"):
    at_grpo.collect(interaction, [task('A', 5)], step=0, spec=spec_of())
  assert interaction.counters.model_calls == 0


def test_two_tasks_with_one_name_are_refused():
  interaction = scripted.make_interaction({'one': Dice(3)}, ROLES)
  with pytest.raises(ValueError, match='the same task_id'):
    at_grpo.collect(
        interaction, [task('A', 5), task('A', 6)], step=0, spec=spec_of())


@pytest.mark.parametrize('switches, words', [
    ({'group_size': 1}, 'group_size=1: an advantage compares'),
    ({'rollout': 'joint'}, "rollout='joint' is not implemented yet"),
    ({'rollout': 'bush'}, "rollout='bush' is not one of ['tree', "),
    ({'selection': 'greedy'},
     "selection='greedy' is not one of ['acting_greedy', "),
    ({'target': 'return_to_go'},
     "target='return_to_go' with rollout='tree': a candidate of a tree that is "
     'not chosen has no continuation, so its return is unknown; use '
     "target='monte_carlo', or rollout='parallel'."),
    ({'target': 'episode_return'}, "use target='monte_carlo', or"),
    ({'rollout': 'parallel', 'target': 'monte_carlo'},
     "target='monte_carlo' with rollout='parallel': every candidate goes on"),
    ({'rollout': 'parallel', 'selection': 'softmax'},
     "selection='softmax' with rollout='parallel': every candidate goes on"),
    ({'num_continuations': 0}, 'num_continuations=0 must be at least 1'),
    ({'target': 'reward'}, "target='reward' is not one of ['immediate', "),
    ({'selection_temperature': 0.0},
     'selection_temperature=0.0 must be above 0'),
    ({'selection_epsilon': 1.5}, 'selection_epsilon=1.5 is no probability'),
])
def test_switches_that_cannot_work_are_refused(switches, words):
  with pytest.raises(errors.UserError, match=re.escape(words)):
    at_grpo.RolloutSpec(**switches)


# A real model.


@pytest.mark.parametrize('kind, num_groups, num_calls', [
    ({}, 4, 12),
    ({'rollout': 'parallel'}, 1 + 3 * 3, 12),
    # Two continuations of 3, 2 and 1 more answers for each of 3 candidates.
    ({'target': 'monte_carlo', 'num_continuations': 2}, 4, 12 + 36),
])
def test_with_a_real_model(kind, num_groups, num_calls, monkeypatch):
  monkeypatch.undo()  # The sampler's own code again.
  params = model.init_params(jax.random.key(0), scripted.CONFIG)

  def play(names):
    interaction = scripted.make_interaction(
        {'one': params}, {'a': 'one', 'b': 'one'}, max_new_tokens=3)
    rollout = at_grpo.collect(
        interaction, [task(name, 5) for name in names], step=2,
        spec=spec_of(3, **kind))
    assert interaction.counters.model_calls == num_calls * len(names)
    return {group.key: group for group in rollout.groups}

  alone, many = play('B'), play('CABD')
  assert {k for k in many if k.task_id == 'B'} == alone.keys()
  # Two roles and two turns, for it knows no numbers.
  assert len(alone) == num_groups
  completions = set()
  for key, group in alone.items():
    for ids, logprobs, text in zip(
        group.completions, group.behavior_logprobs, group.texts):
      assert 1 <= len(ids) <= 3 and len(logprobs) == len(ids)
      assert np.all(logprobs < 0) and np.all(np.isfinite(logprobs))
      assert text == scripted.Bytes().decode(ids)
      completions.add(tuple(ids))
    same = many[key]
    assert prompt_of(same) == prompt_of(group)
    assert same.texts == group.texts
    assert same.chosen == group.chosen
    for x, y in zip(same.behavior_logprobs, group.behavior_logprobs):
      np.testing.assert_allclose(x, y, atol=1e-5)
  assert len(completions) == 12
