"""Relay: rules and hand-worked values."""

import numpy as np
import pytest

from environments import env_api
from environments.relay import env as relay


def make(max_turns=2, boost=False, reward='mixed', team='pair'):
  return relay.make_environment(
      team=team, max_turns=max_turns, reward=reward, sandbox=None,
      boost=boost)


def play(environment, letters, *answers):
  """Steps with answers of caller and runner in turn."""
  state = environment.reset({'task_id': letters, 'letters': letters})
  steps = []
  for index, answer in enumerate(answers):
    steps.append(
        environment.step(state, {environment.roles[index % 2]: answer}))
    state = steps[-1].state
  return steps


def tables(environment, choose):
  """Each prompt -> probabilities, as `choose(prompt, answers)` says."""
  return {
      prompt: np.array(choose(prompt, answers), float)
      for prompt, answers in relay.prompts(environment).items()}


def uniform(prompt, answers):
  del prompt
  return [1 / len(answers)] * len(answers)


def honest(prompt, answers):
  """Each role repeats the letter that it sees."""
  seen = prompt.split()[2][0]
  if seen == '-':
    return uniform(prompt, answers)
  return [float(answer == seen) for answer in answers]


def impatient(prompt, answers):
  """Runners say '+' in the first turn."""
  if prompt.startswith('runner 0'):
    return [0.0, 0.0, 1.0]
  return honest(prompt, answers)


def test_rewards_of_an_episode():
  steps = play(make(), 'ab', 'a', 'a', 'a', 'b')
  assert [step.team_reward for step in steps] == [0, 0.5, 0, 0.5]
  assert [step.local_rewards for step in steps] == [
      {'caller': 0.5}, {'runner': 0}, {'caller': 0}, {'runner': 0}]
  assert [step.done for step in steps] == [False, False, False, True]
  assert steps[-1].success and not steps[-1].truncated
  steps = play(make(reward='outcome'), 'ab', 'a', 'b', 'b', 'b')
  assert [step.team_reward for step in steps] == [0, 0, 0, 0.5]
  assert steps[0].local_rewards == {'caller': 0}
  assert not steps[-1].success and steps[-1].truncated


def test_boost_costs_a_turn_and_doubles_later_pay():
  for answers, paid in (
      (('a', '+', 'a', 'a', 'b', '+'), [0, 1 / 3, 0]),
      (('a', 'a', 'a', 'a', 'b', 'b'), [1 / 6] * 3)):
    steps = play(make(3, boost=True), 'aab', *answers)
    assert [step.team_reward for step in steps[1::2]] == pytest.approx(paid)


def test_prompts_show_letter_call_and_boost():
  environment = make(boost=True)
  state = environment.reset({'task_id': 'ab', 'letters': 'ab'})
  for role, prompt, answer in (
      ('caller', 'caller 0 a', 'b'), ('runner', 'runner 0 b', '+'),
      ('caller', 'caller 1 b+', 'what?'), ('runner', 'runner 1 ?+', 'c')):
    assert relay.prompt_of(environment, state, role) == prompt
    step = environment.step(state, {role: answer})
    state = step.state
    is_valid = answer in ('b', '+')
    assert step.outcomes == {role: (
        env_api.Outcome.OK if is_valid else env_api.Outcome.PARSE_ERROR)}
  assert step.team_reward == 0


def test_at_once_a_call_is_answered_in_the_next_turn():
  environment = make(team='at_once')
  assert environment.phases == (environment.roles,)
  state = environment.reset({'task_id': 'ab', 'letters': 'ab'})

  def seen(state):
    return [
        relay.prompt_of(environment, state, role)
        for role in environment.roles]

  assert seen(state) == ['caller 0 a', 'runner 0 -']
  first = environment.step(state, {'caller': 'a', 'runner': 'a'})
  assert (first.team_reward, first.done) == (0, False)
  assert first.local_rewards == {'caller': 0.5, 'runner': 0}
  assert first.reward_terms == {'called': 0.5, 'paid': 0}
  assert seen(first.state) == ['caller 1 ba', 'runner 1 a']
  last = environment.step(first.state, {'caller': 'a', 'runner': 'a'})
  assert (last.team_reward, last.done, last.success) == (0.5, True, True)
  last = environment.step(first.state, {'caller': 'b', 'runner': 'b'})
  assert (last.team_reward, last.success, last.truncated) == (0, False, True)
  with pytest.raises(ValueError, match='at least 2'):
    make(1, team='at_once')


@pytest.mark.parametrize('turns, boost, team, choose, expected', [
    (3, False, 'pair', uniform, 1 / 2),
    (3, False, 'pair', honest, 1.0),
    (3, True, 'pair', honest, 1 / 2),
    (3, True, 'pair', impatient, 2 / 3),
    (2, True, 'pair', impatient, 1 / 2),
    (2, False, 'at_once', honest, 1 / 2)])
def test_exact_team_returns(turns, boost, team, choose, expected):
  environment = make(turns, boost, team=team)
  values = relay.exact_values(environment, tables(environment, choose))
  assert values.team_return == pytest.approx(expected)


def test_partner_decides_the_advantage_of_a_call():
  environment = make(2)
  values = relay.exact_values(environment, tables(environment, honest))
  assert values.visits['caller 0 a'] == pytest.approx(1 / 2)
  assert values.advantages['caller 0 a'] == pytest.approx([0, -1 / 2])
  # With a random runner a call is worth nothing.
  drawn = tables(environment, lambda prompt, answers: (
      honest if prompt.startswith('caller') else uniform)(prompt, answers))
  values = relay.exact_values(environment, drawn)
  assert values.advantages['caller 0 a'] == pytest.approx([0, 0])
  assert values.advantages['runner 0 a'] == pytest.approx([1 / 4, -1 / 4])


@pytest.mark.parametrize('team', relay.TEAMS)
@pytest.mark.parametrize('boost', [False, True])
def test_gradient_agrees_with_finite_differences(boost, team):
  environment = make(2, boost, team=team)
  rng = np.random.default_rng(0)
  logits = {
      prompt: rng.normal(size=len(answers))
      for prompt, answers in relay.prompts(environment).items()}

  def policy(logits):
    return {
        prompt: np.exp(x) / np.exp(x).sum() for prompt, x in logits.items()}

  gradient = relay.exact_values(
      environment, policy(logits)).gradient(policy(logits))
  assert gradient.keys() == logits.keys()
  for prompt, slopes in gradient.items():
    for index, slope in enumerate(slopes):
      returns = []
      for change in (1e-5, -1e-5):
        moved = {**logits, prompt: logits[prompt].copy()}
        moved[prompt][index] += change
        returns.append(
            relay.exact_values(environment, policy(moved)).team_return)
      assert slope == pytest.approx(
          (returns[0] - returns[1]) / 2e-5, abs=1e-8)
