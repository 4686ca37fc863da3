"""Rivals of AT-GRPO, worked out by hand on one scripted tree of four episodes.

The goal is 5 and alpha is 1, so an action pays a tenth of its number, and 1 if
the total is 5. Later rewards are discounted by a half.

  episode   a, turn 0    b, turn 0    a, turn 1    b, turn 1
  0         1            1            3: success
  1         1            2            0            1
  2         2            0            1            2: success
  3         2            1            0            0

A role sees the turn and the total only. In turn 0 `a` sees 0 in all episodes,
and `b` sees 1 in episodes 0 and 1, and 2 in the others. In turn 1 `a` sees 2 in
episodes 0 and 2, and 3 in the others, and `b` sees 3 in episodes 1, 2 and 3.
"""

import numpy as np
import pytest

from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import play as play_lib
from atgrpo_jax.rollout import tree as tree_lib
from configs import common
from tests import specs
from tests.rollout import scripted


class Script:
  """The texts of each prompt, in the order of the episodes."""

  def __init__(self):
    self.texts = {
        'A/a turn 0 total 0': ['1122'],
        'A/b turn 0 total 1': ['1', '2'], 'A/b turn 0 total 2': ['0', '1'],
        'A/a turn 1 total 2': ['3', '1'], 'A/a turn 1 total 3': ['0', '0'],
        'A/b turn 1 total 3': ['1', '2', '0']}

  def __getitem__(self, prompt):
    return self.texts[prompt].pop(0)


# Actions of `a` and `b` in turn 0, then in turn 1, each in the order of the
# episodes. The team is paid two steps after the first action of episode 0 and
# three steps after that of episode 2.
RETURNS_TO_GO = (
    .1 + .25, .1, .2 + .125, .2, .1 + .5, .2, 0 + .25, .1,
    1.3, 0, .1 + .5, 0, .1, 1.2, 0)
# 1 for success and the sum of the role's local rewards: a gets 1 + .1 + .3,
# .1 + 0, 1 + .2 + .1 and .2 + 0; b gets 1 + .1, .2 + .1, 1 + 0 + .2 and .1 + 0.
A, B = (1.4, .1, 1.3, .2), (1.1, .3, 1.2, .1)
EPISODE_RETURNS = (*A, *B, *A, *B[1:])
# Minus the means of each role, 3 / 4 = .75 and 2.7 / 4 = .675.
EPISODES = np.subtract(
    EPISODE_RETURNS, 4 * [.75] + 4 * [.675] + 4 * [.75] + 3 * [.675])
# For a, the squares of .65, .65, .55 and .55 have the mean .3625; for b, those
# of .425, .375, .525 and .575 have the mean .231875.
DEVIATIONS = np.sqrt(
    4 * [.3625] + 4 * [.231875] + 4 * [.3625] + 3 * [.231875])
# Means of the returns to go of equal prompts.
STEPS = np.subtract(RETURNS_TO_GO, (
    4 * [.975 / 4] + 2 * [.8 / 2] + 2 * [.35 / 2]
    + [1.9 / 2, 0, 1.9 / 2, 0] + 3 * [1.3 / 3]))


def play(system, scale='none', **changes):
  """Advantages [15] on the tree above, of a system of `common.SYSTEMS`."""
  sections = {
      'rollout': {'group_size': 4, 'discount': 0.5},
      'advantage': {'scale': scale}}
  for name, value in (common.SYSTEMS[system] | changes).items():
    section, _, key = name.partition('.')
    sections[section].setdefault(key, value)
  rollout = specs.rollout(**sections['rollout'])
  runner = scripted.make_runner(dict.fromkeys(('one', 'two'), Script()))
  groups = tree_lib.groups_of(credit.assign_advantages(
      play_lib.play(runner, [scripted.task('A', 5)], rollout),
      specs.advantage(**sections['advantage']), rollout))
  texts = [''.join(scripted.texts_of(group)) for group in groups]
  assert ''.join(texts) == '1122' '1201' '3010' '120'
  return np.concatenate([group.advantages for group in groups])


@pytest.mark.parametrize('omega', [0.0, 0.5, 2.0])
def test_gigpo(omega):
  (return_type, group_key, _), = common.SYSTEMS['gigpo'][
      'advantage.extra_terms']
  found = play('gigpo', **{
      'advantage.extra_terms': ((return_type, group_key, omega),)})
  np.testing.assert_allclose(found, EPISODES + omega * STEPS, atol=1e-6)


@pytest.mark.parametrize('weight', [0.0, 2.0])
def test_hgpo(weight):
  # Before its prompt with total 3 in turn 1, `b` saw total 1 in episode 1, and
  # total 2 in episodes 2 and 3, whose returns 1.2 and 0 have the mean .6. All
  # other prompts with equal histories are those that are equal. No role acts
  # more than twice, so the two histories are the same.
  *others, first, second, third = STEPS
  expected = [
      *others, first,
      (second + weight * .6 + 3 * .6) / (4 + weight),
      (third - weight * .6 - 3 * .6) / (4 + weight)]
  (_, group_key, _), last = common.SYSTEMS['hgpo']['advantage.extra_terms']
  found = play('hgpo', **{'advantage.extra_terms': (
      ('return_to_go', group_key, weight), last)})
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize('lambda_', [0.5, 2.0])
def test_mt_grpo(lambda_):
  # Rewards of a in turn 0: .1, .1, .2, .2; of b: .1, .2, 0, .1, with mean .1
  # and variance .02 / 4; of a in turn 1: 1.3, 0, .1, 0, with mean .35 and
  # variance 1.21 / 4 = .55^2; of b: .1, 1.2, 0, with mean 1.3 / 3 and variance
  # (1.45 - 1.69 / 3) / 3 = .295556.
  turns = np.array([
      -1, -1, 1, 1, 0, .1 / .0707107, -.1 / .0707107, 0,
      .95 / .55, -.35 / .55, -.25 / .55, -.35 / .55,
      -.333333 / .543650, .766667 / .543650, -.433333 / .543650])
  (*term, _), = common.SYSTEMS['mt_grpo']['advantage.extra_terms']
  found = play('mt_grpo', 'std', **{
      'advantage.extra_terms': ((*term, lambda_),)})
  np.testing.assert_allclose(
      found, turns + lambda_ * EPISODES / DEVIATIONS, atol=1e-5)
