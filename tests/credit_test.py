"""The credit laboratory agrees with exact values and hand-worked numbers."""

import json
import math

import numpy as np
import pytest

from benchmarks import credit
from environments.relay import env as relay

METHODS = {method.name: method for method in credit.methods(4)}
AT_GRPO = METHODS['tree, immediate, greedy']
GRPO = METHODS['parallel, episode_return, env']


def make(turns, reward='mixed', team='pair', **options):
  return credit.Laboratory(relay.make_environment(
      team=team, max_turns=turns, reward=reward, sandbox=None, **options))


def test_command_writes_a_row_per_method(tmp_path, capsys):
  path = tmp_path / 'new' / 'credit.json'
  options = '--turns=1 --group_size=3 --reward=outcome --boost --calls=20'
  credit.main([*options.split(), '--rollouts=2', '--out', str(path)])
  result = json.loads(path.read_text())
  assert options in result['command']
  assert result['settings'].items() >= {
      'turns': 1, 'group_size': 3, 'boost': True}.items()
  assert [row['method'] for row in result['rows']] == [
      method.name for method in credit.methods(3)]
  printed = capsys.readouterr().out
  for row in result['rows']:
    assert row['rollouts'] == max(2, math.ceil(20 / row['calls']))
    bias = f'{row["bias"]:.3f} ± {row["bias_error"]:.3f}'
    assert f'| {row["method"]} | {row["calls"]} | {bias} |' in printed


def test_jackknife_removes_the_bias_of_a_square():
  values = np.random.default_rng(0).normal(3.0, 1.0, 20)
  parts = np.stack([np.ones(20), values], axis=1)[..., None]

  def statistics(totals):
    mean = totals[..., 1, 0] / totals[..., 0, 0]
    return np.stack([mean, mean**2])

  found, errors = credit.jackknife(statistics, parts)
  noise = values.var(ddof=1) / 20  # The bias of the squared mean.
  np.testing.assert_allclose(
      found, [values.mean(), values.mean()**2 - noise])
  assert errors[0] == pytest.approx(math.sqrt(noise))
  assert credit.mean_and_error(values) == pytest.approx(
      (values.mean(), errors[0]))
  assert credit.root(4.0, 5.0) == (2.0, 1.0)
  assert credit.root(-1.0, 9.0) == (0.0, 3.0)


@pytest.mark.parametrize('method, calls', [
    (AT_GRPO, 4 * 4 * 4), (GRPO, 4 * 4 * 4),
    # Two continuations of each candidate, of 3, 2, 1 and no steps.
    (credit.make_method('', 4, {
        'rollout.return_type': 'monte_carlo', 'rollout.num_continuations': 2}),
     4 * 4 * 4 + 4 * 4 * 2 * (3 + 2 + 1))])
def test_calls_are_counted(method, calls):
  laboratory = make(2)  # Four tasks, two roles, two turns.
  trees, counted = laboratory.rollout(
      method, seed=0, step=0)
  assert counted == calls
  # Continuations are not trained on.
  assert len(credit.credits_of(trees)) == 4 * 4 * 4


def test_bias_of_one_turn_is_the_missing_credit_of_the_caller():
  laboratory = make(1, reward='outcome')
  measured = laboratory.measure(AT_GRPO, 200)
  policy = laboratory.policy
  exact = relay.exact_values(laboratory.environment, policy)
  # Only the caller's part of the gradient is missing.
  caller, runner = (
      math.sqrt(sum(
          float(slope @ slope)
          for prompt, slope in exact.gradient(policy).items()
          if prompt.startswith(role))) for role in ('caller', 'runner'))
  assert caller > 0
  assert measured['cosine'] == pytest.approx(
      runner / math.hypot(runner, caller), abs=0.02)
  # Half of the candidates are the caller's, and they have no advantage.
  missing = sum(
      exact.visits[prompt] / 2 * policy[prompt] @ advantage**2
      for prompt, advantage in exact.advantages.items()
      if prompt.startswith('caller'))
  assert measured['bias_error'] < 0.005
  assert measured['bias'] == pytest.approx(
      math.sqrt(missing), abs=3 * measured['bias_error'])

  # Returns to go include the caller's part.
  method = METHODS['parallel, return_to_go, env+agent+turn']
  whole = laboratory.measure(method, 100)
  assert whole['cosine'] > 0.97 > measured['cosine']


@pytest.mark.parametrize('name, stop, is_biased', [
    ('parallel, sum of later immediate', False, False),
    ('parallel, sum of later immediate', True, True),
    ('parallel, return_to_go, env+agent+turn', True, False)])
def test_sums_of_later_advantages_are_biased_if_the_policy_ends_episodes(
    name, stop, is_biased):
  laboratory = make(2, reward='outcome', stop=stop)
  measured = laboratory.measure(METHODS[name], 100)
  assert measured['bias_error'] < 0.02
  assert (measured['bias'] > 3 * measured['bias_error']) == is_biased


def test_gradient_by_hand():
  policy = {'x': np.array([0.2, 0.3, 0.5])}
  credits = [
      credit.Credit('x', 0, 0, 2.0), credit.Credit('x', 0, 2, -1.0),
      credit.Credit('y', 1, 0, 1.0)]
  policy['y'] = np.array([0.4, 0.6])
  of_x = [1.6, -0.6, -1.0] + np.array([0.2, 0.3, -0.5])
  of_y = np.array([0.6, -0.6])
  for order, num_x, num_y in (('mixed', 3, 3), ('last_turn', 2, 1)):
    found = credit.gradient(credits, policy, order)
    np.testing.assert_allclose(found['x'], of_x / num_x)
    np.testing.assert_allclose(found['y'], of_y / num_y)


def test_all_branches_are_unbiased_but_weigh_late_turns_more():
  laboratory = make(2, reward='outcome', team='at_once')
  measured = laboratory.measure(METHODS['joint, return_to_go, all'], 30)
  assert measured['bias'] < 2 * measured['bias_error']
  policy = laboratory.policy
  exact = relay.exact_values(laboratory.environment, policy).gradient(policy)
  weighed = {
      prompt: slope * {'0': 1, '1': 4}[prompt.split()[1]]
      for prompt, slope in exact.items()}
  expected, = credit.cosine(
      np.concatenate(list(weighed.values()))[None],
      np.concatenate(list(exact.values())))
  assert expected < 0.9
  assert measured['cosine'] == pytest.approx(expected, abs=0.03)
  # With one update per turn, all turns have equal weight.
  measured = laboratory.measure(
      METHODS['joint, return_to_go, all, an update for each turn'], 30)
  assert measured['cosine'] > 0.97


# Critics.


@pytest.mark.parametrize('team', relay.TEAMS)
@pytest.mark.parametrize('name', ['IAC', 'MAAC'])
def test_critic_learns_the_exact_values(name, team):
  laboratory = make(2, team=team)
  method, learning = (
      METHODS[f'{name}, lambda 0, {kind}, first']
      for kind in ('exact', 'learned'))
  exact = laboratory.critic(method)
  learned = laboratory.critic(learning, 10)
  known = np.array(list(exact.table.values()))
  found = np.array([learned.table.get(seen, 0.0) for seen in exact.table])
  assert np.linalg.norm(found - known) < 0.3 * np.linalg.norm(known)


@pytest.mark.parametrize('team, turns', [('pair', 1), ('at_once', 2)])
def test_only_a_central_critic_sees_the_value_of_a_call(team, turns):
  laboratory = make(turns, reward='outcome', team=team)
  iac, maac, blind = (
      laboratory.measure(METHODS[name], 30) for name in (
          'IAC, lambda 0, exact, first', 'MAAC, lambda 0, exact, first',
          'joint, immediate, first'))
  assert maac['cosine'] > 0.97
  assert maac['bias'] < 2 * maac['bias_error']
  for other in (iac, blind):
    assert other['cosine'] < 0.8
    assert other['bias'] > 4 * other['bias_error']
