"""benchmarks/credit.py: what is known exactly, and who learns from less."""

import itertools
import json
import math
import sys

import numpy as np
import pytest

from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import tree as tree_lib
from benchmarks import credit
from benchmarks import credit_methods
from benchmarks import critics
from benchmarks import estimates
from environments import env_api
from environments.relay import env as relay
from tests import checkout

METHODS = {method.name: method for method in credit_methods.methods(4)}
AT_GRPO = METHODS['tree, immediate, acting_greedy']
GRPO = METHODS['parallel, episode_return, env']


def make(turns, reward='mixed', boost=False, team='pair'):
  return credit.Laboratory(relay.make_environment(
      team=team, max_turns=turns, reward=reward, sandbox=None, boost=boost))


def test_methods_are_all_selections_with_all_return_types():
  methods = credit_methods.methods(4)
  assert len({method.name for method in methods}) == len(methods)
  assert {
      (spec.mode, spec.selection, spec.return_type)
      for spec in (method.rollout for method in methods)} == {
          *itertools.product(
              ['tree'], spec_lib.SELECTIONS['tree'],
              spec_lib.RETURN_TYPES['tree']),
          *itertools.product(
              ['parallel'], ['all'],
              spec_lib.RETURN_TYPES['parallel']),
          ('joint', 'all', 'return_to_go'),
          *itertools.product(
              ['joint'], spec_lib.SELECTIONS['joint'], ['immediate'])}


@pytest.mark.parametrize('team, turns, modes', [
    ('pair', 2, {'tree', 'parallel', 'joint'}), ('at_once', 4, {'joint'})])
def test_what_a_game_cannot_be_played_with_has_no_row(
    team, turns, modes, capsys):
  found = credit.playable(make(turns, team=team).environment, 4)
  assert {method.rollout.mode for method in found} == modes
  said = capsys.readouterr().out
  left_out = METHODS.keys() - {method.name for method in found}
  assert all(name in said for name in left_out)
  # All branches of a pair that plays as long are too many.
  found = credit.playable(make(4).environment, 4)
  assert METHODS['joint, return_to_go, all'] not in found
  assert '87380 joint actions' in capsys.readouterr().out


def test_the_command_measures_all_pairs(tmp_path, capsys):
  path = tmp_path / 'new' / 'credit.json'
  credit.main([
      '--turns=1', '--group_size=2,3', '--reward=outcome', '--boost',
      '--calls=20', '--rollouts=2', '--out', str(path)])
  text = path.read_text()
  for private in (tmp_path, checkout.ROOT, sys.prefix):
    assert str(private) not in text
  result = json.loads(text)
  assert result['command'] == (
      'python -m benchmarks.credit --turns 1 --group_size 2,3 '
      '--team pair --reward outcome --calls 20 --rollouts 2 --seeds 2 --boost')
  assert result['settings'].items() >= {
      'turns': [1], 'group_size': [2, 3], 'boost': True}.items()
  rows = result['rows']
  assert [(row['group_size'], row['method']) for row in rows] == [
      (group_size, method.name) for group_size in (2, 3)
      for method in credit_methods.methods(group_size)]
  printed = capsys.readouterr().out
  for row in rows:
    assert row['rollouts'] == max(2, math.ceil(20 / row['calls']))
    numbers = ''.join(
        f' {row[name]:.3f} ± {row[f"{name}_error"]:.3f} |'
        for name in credit.COLUMNS)
    assert f'| {row["method"]} | {row["calls"]} |{numbers}\n' in printed


@pytest.mark.parametrize('option, error', [
    ('--turns=0,2', '--turns must be at least 1'),
    ('--team=at_once --turns=1', '--turns must be at least 2'),
    ('--turns=2;4', "invalid integers value: '2;4'"),
    ('--group_size=4,1', '--group_size must be at least 2'),
    ('--seeds=1', '--seeds must be at least 2')])
def test_a_wrong_option_is_refused(option, error, capsys):
  with pytest.raises(SystemExit):
    credit.parse(option.split())
  assert error in capsys.readouterr().err


def test_the_jackknife_takes_the_noise_out_of_a_square():
  values = np.random.default_rng(0).normal(3.0, 1.0, 20)
  parts = np.stack([np.ones(20), values], axis=1)[..., None]

  def statistics(totals):
    mean = totals[..., 1, 0] / totals[..., 0, 0]
    return np.stack([mean, mean**2])

  found, errors = estimates.jackknife(statistics, parts)
  noise = values.var(ddof=1) / 20  # What the mean's square has too much.
  np.testing.assert_allclose(
      found, [values.mean(), values.mean()**2 - noise])
  assert errors[0] == pytest.approx(math.sqrt(noise))
  assert estimates.mean(values) == pytest.approx((values.mean(), errors[0]))
  assert estimates.root(4.0, 5.0) == (2.0, 1.0)
  assert estimates.root(-1.0, 9.0) == (0.0, 3.0)


def test_at_equal_budget_at_grpo_beats_grpo_on_trajectories():
  laboratory = make(3)
  at_grpo, grpo = (
      [laboratory.learn(method, seed=seed, num_calls=6000)
       for seed in range(2)] for method in (AT_GRPO, GRPO))
  assert min(at_grpo) > max(grpo) + 0.05
  assert min(grpo) > 0.5  # It learns, too.


@pytest.mark.parametrize('method, calls', [
    (AT_GRPO, 4 * 4 * 4), (GRPO, 4 * 4 * 4),
    # Each candidate goes on twice: 3, 2, 1 and no steps later.
    (credit_methods.Method('', credit_methods.rollout_spec(
        group_size=4, return_type='monte_carlo', num_continuations=2),
        'env+agent+turn'), 4 * 4 * 4 + 4 * 4 * 2 * (3 + 2 + 1))])
def test_calls_are_counted(method, calls):
  laboratory = make(2)  # Four tasks, two roles, two turns.
  trees, counted = laboratory.rollout(
      method, laboratory.uniform(), seed=0, step=0, measured=False)
  assert counted == calls
  # Who only goes on is not trained on.
  assert len(credit.credits_of(trees)) == 4 * 4 * 4


def test_one_turn_of_outcome_rewards_has_no_bias_in_direction():
  """A runner's reward is all that ever comes of its answer."""
  laboratory = make(1, reward='outcome')
  measured = laboratory.measure(AT_GRPO, laboratory.halfway(), 400)
  policy = credit.probabilities(laboratory.halfway())
  exact = relay.exact_values(laboratory.environment, policy)
  # The caller's share of the gradient is all that is missing.
  caller, runner = (
      math.sqrt(sum(
          float(slope @ slope)
          for prompt, slope in exact.gradient(policy).items()
          if prompt.startswith(role))) for role in ('caller', 'runner'))
  assert caller > 0
  assert measured['cosine'] == pytest.approx(
      runner / math.hypot(runner, caller), abs=0.02)
  # Half of all credit is the caller's, and what it lacks is all the bias.
  lacks = sum(
      exact.visits[prompt] / 2 * policy[prompt] @ advantage**2
      for prompt, advantage in exact.advantages.items()
      if prompt.startswith('caller'))
  assert measured['bias_error'] < 0.005
  assert measured['bias'] == pytest.approx(
      math.sqrt(lacks), abs=3 * measured['bias_error'])

  # Returns to go give it its share.
  method = METHODS['parallel, return_to_go, env+agent+turn']
  whole = laboratory.measure(method, laboratory.halfway(), 200)
  assert whole['cosine'] > 0.97 > measured['cosine']


def test_the_gradient_is_that_of_the_mean_log_probability():
  policy = {'x': np.array([0.2, 0.3, 0.5])}
  found = credit.gradient(
      [credit.Credit('x', 0, 2.0), credit.Credit('x', 2, -1.0)], policy)
  np.testing.assert_allclose(
      found['x'], ([1.6, -0.6, -1.0] + np.array([0.2, 0.3, -0.5])) / 2)


@pytest.mark.parametrize('turns, boost, best', [
    (4, False, 1.0), (2, True, 1 / 2), (4, True, 3 / 4)])
def test_the_best_return(turns, boost, best):
  assert make(turns, boost=boost).best() == pytest.approx(best)


def test_all_branches_are_unbiased_but_weigh_late_turns_more():
  """Each turn has as many candidates again as its branches."""
  laboratory = make(2, reward='outcome', team='at_once')
  logits = laboratory.halfway()
  measured = laboratory.measure(METHODS['joint, return_to_go, all'], logits, 30)
  assert measured['bias'] < 2 * measured['bias_error']
  policy = credit.probabilities(logits)
  exact = relay.exact_values(laboratory.environment, policy).gradient(policy)
  weighed = {
      prompt: slope * {'0': 1, '1': 4}[prompt.split()[1]]
      for prompt, slope in exact.items()}
  expected, = credit.cosine(
      np.concatenate(list(weighed.values()))[None],
      np.concatenate(list(exact.values())))
  assert expected < 0.9
  assert measured['cosine'] == pytest.approx(expected, abs=0.03)


# Critics.


def step(state, team_reward, done=False, **local_rewards):
  return env_api.Step(
      state=state, team_reward=team_reward, local_rewards=local_rewards,
      reward_terms={}, done=done, success=False, truncated=False, outcomes={})


def node(phase, steps, **parent):
  return tree_lib.Node(0, phase, None, (), ((0,), (1,)), tuple(steps), **parent)


@pytest.mark.parametrize('gae_lambda, expected', [
    # 2 * 1 + 0.5 + 0.5 * 3, what is sampled later having no share.
    (0.0, 4.0),
    # The mean of 8.5 and 8 in the place of a quarter of 3.
    (0.25, 2.5 + 0.5 * (0.75 * 3 + 0.25 * 8.25)),
    (1.0, 2.5 + 0.5 * 8.25)])
def test_returns_on_a_tree_worked_out_by_hand(gae_lambda, expected):
  tree = tree_lib.Tree('', (
      node(0, [step('x', 1.0, a=0.5), step('y', 0.0, a=0.0)]),
      node(1, [step('z', 2.0, b=1.0), step('', 4.0, b=0.0, done=True)],
           parent=0, joint_action=0)))
  values = {'x': 3.0, 'y': 5.0, 'z': 7.0}
  first, second = critics.returns_of(
      tree, lambda state, role: values[state], (('a',), ('b',)), alpha=2.0,
      discount=0.5, gae_lambda=gae_lambda)
  assert list(second['b']) == [2 * 2 + 1 + 0.5 * 7, 2 * 4]
  assert list(first['a']) == [expected, 0.5 * 5]


def test_who_acts_next_has_a_value_and_who_does_not_has_their_mean():
  tree = tree_lib.Tree('', (
      node(0, [step('x', 0.0, a=0.0, b=1.0, c=0.0)] * 2),))
  values = {'b': 3.0, 'c': 5.0}
  first, = critics.returns_of(
      tree, lambda state, role: values[role], (('a', 'b'), ('b', 'c')),
      alpha=1.0, discount=1.0, gae_lambda=0.0)
  assert {role: list(own) for role, own in first.items()} == {
      'a': [4.0, 4.0], 'b': [4.0, 4.0]}


@pytest.mark.parametrize('team', relay.TEAMS)
@pytest.mark.parametrize('name', critics.NAMES)
def test_a_critic_learns_what_it_could_know(name, team):
  laboratory = make(2, team=team)
  method = METHODS[f'{name}, lambda 0, exact, first']
  logits = laboratory.halfway()
  exact = laboratory.critic(method, logits)
  learned = laboratory.critic_to_measure(
      METHODS[f'{name}, lambda 0, learned, first'], logits, 15, 0)
  known = np.array(list(exact.table.values()))
  found = np.array([learned.table[seen] for seen in exact.table])
  assert np.linalg.norm(found - known) < 0.3 * np.linalg.norm(known)
  # Of an outcome, the mean value of the first states is the team's return.
  outcome = make(2, reward='outcome', team=team)
  exact = outcome.critic(method, logits)
  first = {
      exact.sees(outcome.environment.reset(task), 'caller')
      for task in outcome.tasks}
  assert np.mean([exact.table[seen] for seen in first]) == pytest.approx(
      relay.exact_values(
          outcome.environment, credit.probabilities(logits)).team_return)


@pytest.mark.parametrize('team, turns', [('pair', 1), ('at_once', 2)])
def test_an_exact_critic_of_the_team_sees_what_a_call_is_worth(team, turns):
  """What the caller is shown next does not say what it called."""
  laboratory = make(turns, reward='outcome', team=team)
  logits = laboratory.halfway()
  iac, maac, blind = (
      laboratory.measure(METHODS[name], logits, 60) for name in (
          'IAC, lambda 0, exact, first', 'MAAC, lambda 0, exact, first',
          'joint, immediate, first'))
  assert maac['cosine'] > 0.97
  assert maac['bias'] < 2 * maac['bias_error']
  for other in (iac, blind):
    assert other['cosine'] < 0.8
    assert other['bias'] > 4 * other['bias_error']
