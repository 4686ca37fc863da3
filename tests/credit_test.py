"""benchmarks/credit.py: what is known exactly, and who learns from less."""

import itertools
import json
import math
import sys

import numpy as np
import pytest

from atgrpo_jax.algorithms import spec as spec_lib
from benchmarks import credit
from environments.relay import env as relay
from tests import checkout

AT_GRPO = credit.Method(
    'AT-GRPO', credit.rollout_spec(group_size=4), 'env+agent+turn')
GRPO = credit.Method(
    'GRPO', credit.rollout_spec(
        mode='parallel', selection='all', return_type='episode_return',
        group_size=4), 'env')


def make(turns, reward='mixed', boost=False):
  return credit.Laboratory(relay.make_environment(
      team='pair', max_turns=turns, reward=reward, sandbox=None, boost=boost))


def test_methods_are_all_selections_with_all_return_types():
  methods = credit.methods(4)
  assert len({method.name for method in methods}) == len(methods)
  assert {
      (spec.mode, spec.selection, spec.return_type)
      for spec in (method.rollout for method in methods)} == {
          *itertools.product(
              ['tree'], spec_lib.SELECTIONS['tree'],
              spec_lib.RETURN_TYPES['tree']),
          *itertools.product(
              ['parallel'], ['all'],
              spec_lib.RETURN_TYPES['parallel'])}


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
      '--reward outcome --calls 20 --rollouts 2 --seeds 2 --boost')
  assert result['settings'].items() >= {
      'turns': [1], 'group_size': [2, 3], 'boost': True}.items()
  rows = result['rows']
  assert [(row['group_size'], row['method']) for row in rows] == [
      (group_size, method.name) for group_size in (2, 3)
      for method in credit.methods(group_size)]
  printed = capsys.readouterr().out
  for row in rows:
    assert row['rollouts'] == max(2, math.ceil(20 / row['calls']))
    numbers = ''.join(
        f' {row[name]:.3f} ± {row[f"{name}_error"]:.3f} |'
        for name in credit.COLUMNS)
    assert f'| {row["method"]} | {row["calls"]} |{numbers}\n' in printed


@pytest.mark.parametrize('option, error', [
    ('--turns=0,2', '--turns must be at least 1'),
    ('--turns=2;4', "invalid integers value: '2;4'"),
    ('--group_size=4,1', '--group_size must be at least 2'),
    ('--seeds=1', '--seeds must be at least 2')])
def test_a_wrong_option_is_refused(option, error, capsys):
  with pytest.raises(SystemExit):
    credit.parse([option])
  assert error in capsys.readouterr().err


def test_the_jackknife_takes_the_noise_out_of_a_square():
  values = np.random.default_rng(0).normal(3.0, 1.0, 20)
  parts = np.stack([np.ones(20), values], axis=1)[..., None]

  def statistics(totals):
    mean = totals[..., 1, 0] / totals[..., 0, 0]
    return np.stack([mean, mean**2])

  estimates, errors = credit.jackknife(statistics, parts)
  noise = values.var(ddof=1) / 20  # What the mean's square has too much.
  np.testing.assert_allclose(
      estimates, [values.mean(), values.mean()**2 - noise])
  assert errors[0] == pytest.approx(math.sqrt(noise))
  assert credit.mean(values) == pytest.approx((values.mean(), errors[0]))
  assert credit.root(4.0, 5.0) == (2.0, 1.0)
  assert credit.root(-1.0, 9.0) == (0.0, 3.0)


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
    (credit.Method('', credit.rollout_spec(
        group_size=4, return_type='monte_carlo', num_continuations=2),
        'env+agent+turn'), 4 * 4 * 4 + 4 * 4 * 2 * (3 + 2 + 1))])
def test_calls_are_counted(method, calls):
  laboratory = make(2)  # Four tasks, two roles, two turns.
  own, counted = laboratory.rollout(
      method, laboratory.uniform(), seed=0, step=0, **credit.LEARNED)
  assert counted == calls
  assert len(own) == 4 * 4 * 4  # Who only goes on is not trained on.


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
  method, = [
      method for method in credit.methods(4)
      if method.name == 'parallel, return_to_go, env+agent+turn']
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
