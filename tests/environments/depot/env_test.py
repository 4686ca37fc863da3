"""Depot: returns of scripted teams, and what their prompts reveal."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from environments import env_api
from environments.depot import depot_dataset_builder
from environments.depot import env as depot

ORDERS = np.random.default_rng(0).integers(
    depot.ORDER_RANGE, size=depot.MAX_ORDERS).tolist()
TASK = {'task_id': 'depot', 'orders': ORDERS}


def make(team='pair', reward='mixed', num_orders=6, at_once=False, **options):
  return depot.make_environment(
      team=team, max_turns=1 if at_once else num_orders, reward=reward,
      sandbox=None, num_orders=num_orders, **options)


def play(environment, act_fn, task=TASK):
  """Returns the team return, the sum of local rewards, and the last step."""
  state, team, local = environment.reset(task), 0.0, 0.0
  for role, in environment.phases * environment.max_turns:
    prompt = environment.observe(state, role)[0]['content']
    step = environment.step(state, {role: act_fn(environment, role, prompt)})
    assert step.outcomes == {role: env_api.Outcome.OK}
    state = step.state
    team += step.team_reward
    local += step.local_rewards[role]
  assert step.done and step.truncated != step.success
  return team, local, step


def best(environment, role, prompt):
  """The best answer that the prompt of a role allows."""
  _, turn, *rest = prompt.split()
  flag = rest.pop(0) if role in ('picker', 'solo') else depot.PLAIN
  seen = rest if turn == depot.ALL_TURNS else rest[:1]
  items, words = depot.names('i', len(environment.words)), environment.words
  if environment.reward == 'chain' and role in ('scout', 'solo'):
    last = int(rest.pop()[1:]) - 1
    words = words[last:] + words[:last]
  word_of = dict(zip(items, words))
  shelf_of = dict(zip(environment.words, environment.shelves))
  words = [word_of.get(x, x if x in shelf_of else 'w1') for x in seen]
  picks = [shelf_of[word] for word in words]
  if (flag == depot.SINGLE and turn in ('t1', depot.ALL_TURNS)
      and environment.num_orders > 2):
    picks[0] = depot.BOOST
  return ' '.join(words * (role != 'picker') + picks * (
      role in ('picker', 'solo')))


@pytest.mark.parametrize('reward', depot.REWARDS)
@pytest.mark.parametrize('team, at_once', [
    *((team, False) for team in depot.TEAMS), ('solo', True)])
def test_best_return_is_one(team, at_once, reward):
  if at_once and reward == 'chain':
    with pytest.raises(ValueError, match='depends on the pick before'):
      make(team, reward, at_once=True)
    return
  for num_orders, num_items in ((6, 8), (1, 2), (2, 8), (3, 100), (24, 8)):
    environment = make(
        team, reward, num_orders, at_once, num_items=num_items, code=3)
    assert len(environment.roles) == [*depot.TEAMS].index(team) + 1
    team_return, local, step = play(environment, best)
    assert team_return == pytest.approx(1) and step.success
    num_scouts = max(1, len(environment.roles) - 1)
    assert local == pytest.approx(num_scouts * (reward != 'outcome'))


@pytest.mark.parametrize('picks, last', [
    ((), 0), (('?',), 0), (('s3',), 2), (('s3', '?'), 2), (('s3', 's1'), 0)])
def test_an_invalid_pick_does_not_change_the_answers_of_a_chain(picks, last):
  environment = make(reward='chain')
  state = dataclasses.replace(environment.reset(TASK), picks=picks)
  assert environment.last_picks(state)[-1] == last
  item = (state.orders[len(picks)] + last) % 8
  step = environment.step(state, {'scout': environment.words[item]})
  assert step.local_rewards['scout'] > 0


@pytest.mark.parametrize('turn, points', [
    # Each pick after the '+' has 2 points. Without it there are at most 6.
    (1, 10), (2, 9), (3, 8), (4, 7), (5, 6), (6, 5), (None, 6)])
def test_returns_of_all_turns_of_the_plus(turn, points):
  def act(environment, role, prompt):
    if prompt.startswith(f'picker t{turn} '):
      return depot.BOOST
    return best(environment, role, prompt.replace(depot.SINGLE, depot.PLAIN))

  assert play(make(reward='boost'), act)[0] == pytest.approx(points / 10)


@pytest.mark.parametrize('p_right, expected', [
    (math.e / (math.e + 7), 0.152), (1 / 8, 0.125), (1, 1)])
def test_untrained_return_of_a_pair(p_right, expected):
  """The scout prefers the right word, and the picker the shelf of its word."""
  environment = make(code=1)
  shelf_of = dict(zip(environment.words, environment.shelves))
  wrong = (1 - p_right) / 7
  total = 0.0
  for item, word, pick in itertools.product(
      range(8), environment.words, environment.shelves):
    state = dataclasses.replace(environment.reset(TASK), orders=(item,) * 6)
    after = environment.step(state, {'scout': word}).state
    reward = environment.step(after, {'picker': pick}).team_reward
    p_word = p_right if word == environment.words[item] else wrong
    p_pick = p_right if pick == shelf_of[word] else wrong
    total += p_word * p_pick * 6 * reward / 8
  assert total == pytest.approx(expected, abs=5e-4)


def test_codes_are_different_permutations_of_the_words():
  environments = [make(code=code) for code in range(300)]
  assert len({environment.shelves for environment in environments}) == 1
  words = np.array([environment.words for environment in environments])
  # A scout and a picker that learned different codes are at chance.
  assert (words[1:] == words[:-1]).mean() == pytest.approx(1 / 8, abs=0.03)


@pytest.mark.parametrize('at_once', [False, True])
def test_orders_beyond_the_prompt_limit_are_hidden_from_a_single_agent(
    at_once):
  environment = make('solo', at_once=at_once, prompt_limit=3)
  tasks = depot_dataset_builder.make_splits({'test': 1000})['test']
  returns = [play(environment, best, task)[0] for task in tasks]
  assert np.mean(returns) == pytest.approx((3 + 3 / 8) / 6, abs=0.01)
  # A prompt of a larger team has a single order.
  assert play(make(prompt_limit=1), best)[0] == pytest.approx(1)


# The right word is {w}, its shelf {s}; rewards of the team and of the role.
@pytest.mark.parametrize('team, action, rewards', [
    ('pair', '', (0, 0)), ('pair', 's1', (0, 0)), ('pair', '{w} {w}', (0, 1)),
    ('solo', '', (0, 0)), ('solo', '{w}', (0, 1)), ('solo', 'w0 {s}', (1, 0)),
    ('solo', '{w} +', (0, 1))])
def test_bad_tokens_are_parse_errors_and_pay_nothing(team, action, rewards):
  environment = make(team)
  state, role = environment.reset(TASK), environment.roles[0]
  item = state.orders[0]
  step = environment.step(state, {role: action.format(
      w=environment.words[item], s=environment.shelves[item])})
  assert step.outcomes == {role: env_api.Outcome.PARSE_ERROR}
  assert (6 * step.team_reward, 6 * step.local_rewards[role]) == rewards
