"""Returns, baselines and targets of critics, worked by hand."""

import math

import numpy as np
import pytest

from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import play as play_lib
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import tree as tree_lib
from tests import specs
from tests.algorithms import magrpo_test
from tests.rollout import scripted

Table, TWO_TURNS, CROSS = (
    magrpo_test.Table, magrpo_test.TWO_TURNS, magrpo_test.CROSS)
# Prompt of role a or b in TWO_TURNS -> its value.
VALUES = {'a0:': .4, 'a1:0': 1, 'a1:1': 2, 'b0:': .2, 'b1:0': 0, 'b1:1': -1}


class Spelled(scripted.Bytes):
  """Encodes the text of the messages."""

  def encode_prompt(self, messages):
    text = '|'.join(message['content'] for message in messages)
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def play(
    environment, values, *, kind='independent', gae_lambda=0.0,
    max_input_tokens=99, **switches):
  """Returns {(role, turn, branch): group} and {critic input: mean target}.

  `values` maps critic inputs to values; each input is queried once.
  """
  asked = []

  def values_fn(inputs):
    texts = [scripted.Bytes().decode(ids) for ids in inputs]
    asked.extend(texts)
    return np.array([values[text] for text in texts], np.float32)

  names = ['central'] if kind == 'central' else environment.roles
  runner = scripted.make_runner(
      dict.fromkeys(environment.roles, magrpo_test.DIGITS),
      {role: role for role in environment.roles}, environment)
  critics = actor_critic.Critics(
      specs.critic(kind=kind, gae_lambda=gae_lambda),
      {name: actor_critic.BoundCritic(
          f'critic/{name}', Spelled(), max_input_tokens, values_fn)
       for name in names}, environment, runner.policy_map)
  rollout = specs.rollout(**magrpo_test.MAGRPO | {
      'return_type': 'bootstrapped'} | switches)
  advantage = specs.advantage(
      group_key=magrpo_test.GROUP_KEY, scale='none', baseline='critic')
  spec_lib.check_critic(critics.spec, rollout, advantage)
  trees = credit.assign_advantages(
      play_lib.play(runner, [{'task_id': 'T'}], rollout, critics),
      advantage, rollout)
  assert len(set(asked)) == len(asked)
  targets = {}
  for example in tree_lib.value_examples_of(trees):
    text = scripted.Bytes().decode(example.inputs)
    assert example.value == np.float32(values[text])
    targets.setdefault(text, []).append(example.target)
  targets = {text: np.mean(found) for text, found in targets.items()}
  groups = {group.key[1:]: group for group in tree_lib.groups_of(trees)}
  return groups, targets


@pytest.mark.parametrize('gae_lambda, returns', [
    (0, [1.5, 1]), (.5, [1.5, .75]), (1, [1.5, .5])])
def test_lambda_returns_of_two_turns(gae_lambda, returns):
  groups, targets = play(
      Table(TWO_TURNS, max_turns=2), VALUES, discount=0.5,
      gae_lambda=gae_lambda)
  # For a, r = [1, 0] and V(next) = [1, 2]; the mean return of each child is 1.
  np.testing.assert_allclose(groups['a', 0, 0].returns, returns)
  np.testing.assert_allclose(
      groups['a', 0, 0].advantages, np.array(returns) - .4, rtol=1e-6)
  assert targets['a0:'] == pytest.approx(np.mean(returns))
  # The second turn is the last.
  for at, returns, advantages in (
      (('a', 1, 0), [1, 1], [0, 0]), (('a', 1, 1), [0, 2], [-2, 0]),
      (('b', 1, 1), [0, 2], [1, 3])):
    np.testing.assert_allclose(groups[at].returns, returns)
    np.testing.assert_allclose(groups[at].advantages, advantages)
  assert groups['b', 1, 1].value == -1
  assert (targets['a1:0'], targets['b1:1']) == (1, 1)
  if gae_lambda == 0:
    # b has another critic.
    np.testing.assert_allclose(groups['b', 0, 0].returns, [1, -.5])


def test_joint_action_without_branch_bootstraps():
  groups, _ = play(
      Table(TWO_TURNS, max_turns=2), VALUES, discount=.5, gae_lambda=1.0,
      selection='first')
  # The second joint action has no branch.
  np.testing.assert_allclose(groups['a', 0, 0].returns, [1.5, 1])
  assert ('a', 1, 0) in groups


def test_candidates_with_unknown_returns_leave_their_group():
  nan = math.nan
  groups, targets = play(
      Table(TWO_TURNS | {'00 00': nan}, max_turns=2), VALUES, discount=.5,
      gae_lambda=1.0)
  np.testing.assert_array_equal(groups['a', 1, 0].returns, [nan, 1])
  np.testing.assert_array_equal(groups['a', 1, 0].advantages, [0, 0])
  assert targets['a1:0'] == 1
  # All steps after the first joint action failed; its next state is known.
  groups, targets = play(
      Table(TWO_TURNS | {'00 00': nan, '00 11': nan}, max_turns=2), VALUES,
      discount=.5, gae_lambda=1.0)
  np.testing.assert_allclose(groups['b', 0, 0].returns, [1, .5])
  assert 'b1:0' not in targets


def _central(said):
  """Input of the central critic after `said`, a string per role."""
  return '\n'.join(
      f'[Agent {number}]\n{role}{len(actions)}:{actions}'
      for number, role, actions in zip((1, 2), 'ab', said))


def test_central_critic_expects_the_mean_local_reward():
  groups, targets = play(
      Table(CROSS, local=1.0), {_central(('', '')): 3.0}, kind='central',
      joint_actions='cross')
  # Team rewards 1, 2, 4, 8; a adds its digit: (1, 2), (5, 9).
  np.testing.assert_allclose(groups['a', 0, 0].returns, [1.5, 7])
  np.testing.assert_allclose(groups['b', 0, 0].returns, [2.5, 6])
  np.testing.assert_allclose(groups['b', 0, 0].advantages, [-.5, 3])
  assert groups['a', 0, 0].value == groups['b', 0, 0].value == 3
  assert targets == {_central(('', '')): (1 + 2.5 + 4.5 + 9) / 4}


def test_role_that_does_not_act_next_bootstraps_from_the_mean():
  environment = Table(
      {'0': 1, '0 1': 3}, phases=(('a',), ('b', 'c')), max_turns=1)
  values = {'a0:': 0, 'b1:': 2, 'c1:': 4}
  groups, targets = play(environment, values)
  np.testing.assert_allclose(groups['a', 0, 0].returns, [1 + 3, 3])
  assert targets['a0:'] == 3.5


def test_central_critic_sees_roles_that_have_acted():
  environment = Table(
      {'0': 1, '1 0': 5}, phases=(('a',), ('b',)), max_turns=1)
  first, second = (
      f'[Agent 1]\na1:{said}\n[Agent 2]\nb1:' for said in '01')
  groups, targets = play(
      environment, {'[Agent 1]\na0:': 0, first: 2, second: 4}, kind='central')
  np.testing.assert_allclose(groups['a', 0, 0].returns, [1 + 2, 4])
  assert [groups['b', 0, branch].value for branch in (0, 1)] == [2, 4]
  assert targets == {'[Agent 1]\na0:': 3.5, first: 0, second: 2.5}


@pytest.mark.parametrize('selection', ['all', 'first'])
def test_input_that_is_too_long_ends_its_episode(selection):
  # The inputs of the second turn are longer than 'a0:' and 'b0:'.
  groups, targets = play(
      Table(TWO_TURNS, max_turns=2), {'a0:': .4, 'b0:': .2},
      max_input_tokens=3, selection=selection)
  assert groups.keys() == {('a', 0, 0), ('b', 0, 0)}
  np.testing.assert_allclose(groups['a', 0, 0].returns, [1, 0])
  assert targets == {'a0:': .5, 'b0:': .5}
