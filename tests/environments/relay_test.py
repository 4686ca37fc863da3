"""Relay: exact values; `transcripts_test.py` plays whole episodes."""

import functools
import itertools

import numpy as np
import pytest

from environments.relay import env as relay


def make(max_turns, boost, team, **options):
  return relay.make_environment(
      team=team, max_turns=max_turns, reward='mixed', sandbox=None,
      boost=boost, **options)


def tables(environment, choose):
  """Prompt -> 1 for the answer `choose(prompt)`; if it is invalid, uniform."""
  found = {}
  for prompt, answers in relay.prompts(environment).items():
    chosen = np.array([float(x == choose(prompt)) for x in answers])
    found[prompt] = chosen if chosen.any() else chosen + 1 / len(answers)
  return found


def uniform(prompt):
  del prompt


def honest(prompt):
  """Each role repeats the letter that it sees."""
  return prompt.split()[2][0]


def impatient(prompt):
  """Runners say '+' in the first turn."""
  return '+' if prompt.startswith('runner 0') else honest(prompt)


@pytest.mark.parametrize('turns, boost, team, choose, expected', [
    (3, False, 'pair', uniform, 1 / 2),
    (3, False, 'pair', honest, 1.0),
    (3, True, 'pair', honest, 1 / 2),
    (3, True, 'pair', impatient, 2 / 3),
    (2, True, 'pair', impatient, 1 / 2),
    (2, False, 'at_once', honest, 1 / 2)])
def test_exact_team_returns(turns, boost, team, choose, expected):
  environment = make(turns, boost, team)
  values = relay.exact_values(environment, tables(environment, choose))
  assert values.team_return == pytest.approx(expected)


def test_in_a_chain_the_right_letter_depends_on_the_last_answer():
  environment = make(3, False, 'pair', chain=True)
  right = functools.partial(relay.right_answer, chain=True)
  # Honest teams are right in the first turn, and later by chance.
  for choose, expected in ((right, 1.0), (honest, 2 / 3)):
    values = relay.exact_values(environment, tables(environment, choose))
    assert values.team_return == pytest.approx(expected)


@pytest.mark.parametrize('boost, team, options', [
    *itertools.product((False, True), relay.TEAMS, ({},)),
    (False, 'pair', {'chain': True}), (True, 'pair', {'stop': True})])
def test_gradient_agrees_with_finite_differences(boost, team, options):
  environment = make(2, boost, team, **options)
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
