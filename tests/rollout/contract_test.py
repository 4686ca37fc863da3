"""Faults of environments are named, with the traceback of the user's code."""

import dataclasses
import functools
import json
import math
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.rollout import workers as workers_lib
from environments import env_api

GOOD = env_api.Step(
    state=None, team_reward=1.0, local_rewards={'a': 0.5},
    reward_terms={'near': 0.25}, done=True, success=True, truncated=False,
    outcomes={'a': env_api.Outcome.OK})
LIMITED = env_api.Outcome.INFRASTRUCTURE
WHERE = "for role 'a' in turn 3 of task 'T'"


class HasArguments(Exception):
  """Cannot be unpickled."""

  def __init__(self, number, text):
    super().__init__(f'{number} {text}')


class HasState:

  def __getstate__(self):
    Given().raise_arguments()


class Given:
  """Returns a state as the step, or calls it."""

  team_reward_range = (0.0, 1.0)

  def step(self, state, actions):
    return state() if callable(state) else state

  def raise_arguments(self):
    raise HasArguments(3, 'words')

  def raise_when_pickled(self):
    return dataclasses.replace(GOOD, state=HasState())

  def reset(self, task):
    return fail(task['kind'])

  def observe(self, state, role):
    return state() if callable(state) else state

  def show(self, state):
    return {'turn': np.int64(state), 3: None}


def _request(state):
  return contract.StepRequest(state, {'a': 'text'}, task_id='T', turn=2)


def _step(state):
  step, = contract.step_all(Given(), [_request(state)])
  return step


def _observe(state, **limit):
  return contract.observe(Given(), state, 'a', task_id='T', turn=2, **limit)


@pytest.mark.parametrize('one', [
    1, True, np.bool_(True), np.int64(1), np.float16(1), np.array(1.0),
    jnp.bfloat16(1), jnp.bool_(True)])
def test_numbers_and_truth_values_of_any_library_are_accepted(one):
  step = _step(dataclasses.replace(
      GOOD, team_reward=one, local_rewards={'a': one},
      reward_terms={'near': one}, done=one, success=one, truncated=one,
      program_runs=one))
  assert step == dataclasses.replace(
      GOOD, local_rewards={'a': 1.0}, reward_terms={'near': 1.0},
      truncated=True, program_runs=1)
  json.dumps(tree_lib.Node(0, 0, None, (), ((0,),), (step,)).to_json(
      lambda state: {}, with_tokens=True))


@pytest.mark.parametrize('value, number', [
    (np.float32(0.3), 0.3), (jnp.float32(-100.3), -100.3),
    (sum(np.float32([0.1, 0.6, -0.7])), 0.0), (np.float32(1e10), 1e10),
    (np.float64(1e-8), 1e-8)])
def test_single_precision_is_rounded(value, number):
  step = _step(dataclasses.replace(
      GOOD, local_rewards={'a': value},
      reward_terms={'near': value}))
  assert step.local_rewards == {'a': number}
  assert step.reward_terms == {'near': number}


def test_team_reward_may_exceed_its_range_by_rounding():
  for reward in (1 + 2e-16, np.float32(0.7) + np.float32(0.3), -1.4e-17):
    _step(dataclasses.replace(GOOD, team_reward=reward))
  for reward in (7, math.nan):
    _step(dataclasses.replace(
        GOOD, team_reward=reward, outcomes={'a': LIMITED}))


class Hostile:
  """No conversion of it succeeds."""

  def __float__(self):
    raise LookupError('no')

  __repr__ = __float__


def test_a_slow_observe_is_named():
  with pytest.raises(errors.UserError, match=(
      f'Given.observe returned .* {WHERE}; expected messages within '
      'environment.step_seconds=0.1')):
    _observe(_wait, seconds=0.1)


@pytest.mark.parametrize('changes, words', [
    (None, 'None, which is not a Step'),
    ({'local_rewards': {'b': 1}}, "local_rewards of ['b'], but ['a'] acted"),
    ({'team_reward': math.nan}, 'team_reward=nan, which is not from'),
    ({'local_rewards': {'a': 1e39}}, "local_rewards['a']=1e+39"),
    ({'reward_terms': {'tool_\ud83d': 1}}, "reward_terms with keys ['tool_"),
    ({'local_rewards': 0.5}, 'local_rewards=0.5, which is not a dict'),
    ({'local_rewards': {'a': np.ones(1)}}, "local_rewards['a']=array([1.])"),
    ({'outcomes': {'a': 'ok'}}, "outcomes['a']='ok', which is not an Outcome"),
    ({'team_reward': '1'}, "team_reward='1', which is not a number"),
    ({'team_reward': Hostile()}, 'team_reward=<Hostile instance'),
    ({'team_reward': 2}, 'team_reward=2.0, outside its team_reward_range (0.0'),
    ({'reward_terms': {'near': math.nan}}, "reward_terms['near']=nan"),
    ({'reward_terms': {3: 1}}, 'reward_terms with keys [3]'),
    ({'done': None}, 'done=None, which is not a truth value'),
    ({'program_runs': 1.5}, 'program_runs=1.5, which is not a count'),
    ({'skip': -1}, 'skip=-1, which is not a count'),
    ({'done': False}, 'success=True with done=False')])
def test_field_that_violates_the_contract_is_named(changes, words):
  step = changes if changes is None else dataclasses.replace(GOOD, **changes)
  with pytest.raises(errors.UserError) as error:
    _step(step)
  assert f'Given.step returned {words}' in str(error.value)
  assert WHERE in str(error.value)


@pytest.mark.parametrize('messages, words', [
    ('Add.', "the text 'Add.'"), ([], 'list []'), (['Add.'], "the text 'Add.'"),
    ([{'role': 'user', 'content': ['x']}], 'dict'),
    ([{'role': 'user', 'content': 'x', 'size': np.float32(1)}], 'dict')])
def test_prompt_that_is_no_chat_is_named(messages, words):
  with pytest.raises(errors.UserError) as error:
    _observe(messages)
  assert f'Given.observe returned {words}' in str(error.value)
  assert WHERE in str(error.value)
  message = {'role': 'user', 'content': 'x'}
  assert _observe((types.MappingProxyType(message),)) == [message]


@pytest.mark.parametrize('calls', [
    None, [{'function': {'name': 'add', 'arguments': {'a': {3}}}}]])
def test_functions_of_another_form_are_named(calls):
  message = {'role': 'assistant', 'content': ''}
  for name in ('tools', 'tool_calls'):
    with pytest.raises(errors.UserError, match=f'expected {name!r} such as'):
      _observe([message | {name: calls}])
    _observe([message | {name: [{'function': {'name': 'add'}}]}])


class Unprintable(Exception):

  def __str__(self):
    raise LookupError


def fail(kind):
  raise kind('no')


@pytest.mark.parametrize('kind', [ZeroDivisionError, SystemExit, Unprintable])
def test_exceptions_of_any_kind_are_named(kind):
  for call_fn, words in (
      (lambda: contract.reset(Given(), {'task_id': 'T', 'kind': kind}),
       "reset failed for task 'T'"),
      (lambda: _observe(lambda: fail(kind)), f'observe failed {WHERE}'),
      (lambda: _step(lambda: fail(kind)), f'step failed {WHERE}')):
    with pytest.raises(errors.UserError) as error:
      call_fn()
    assert str(error.value).startswith(f'Given.{words} ({kind.__name__}: ')
    # Only the code of the user is shown.
    assert 'in fail' in error.value.user_traceback
    assert 'contract.py' not in error.value.user_traceback


def test_exception_of_any_kind_survives_the_way_from_the_worker():
  """Otherwise the pool would count as broken and be replaced."""
  given = Given()
  with workers_lib.Workers(1, 1, 'none') as running:
    for step_fn, advice in (
        (given.raise_arguments, 'fix the code in the traceback above'),
        (given.raise_when_pickled, 'return a state that can be pickled')):
      batch = running.submit(
          contract.step_all, given, [_request(GOOD), _request(step_fn)])
      with pytest.raises(errors.UserError) as error:
        batch.result()
      assert str(error.value) == (
          f'Given.step failed {WHERE} (HasArguments: 3 words); {advice}.')
      assert 'in raise_arguments' in error.value.user_traceback


def _wait():
  while True:
    try:
      time.sleep(60)
    except Exception:  # noqa: BLE001 (as an environment of a user may)
      pass


class Appending:
  """Changes its state, a list."""

  team_reward_range = (0.0, 9.0)

  def step(self, state, actions):
    state.extend(actions.values())
    return dataclasses.replace(GOOD, state=state, team_reward=len(state))


def test_a_step_that_changes_its_state_does_not_change_that_of_others():
  steps = contract.step_all(Appending(), [_request([])] * 3)
  assert [(step.state, step.team_reward) for step in steps] == [
      (['text'], 1)] * 3


def test_slow_step_is_a_timeout_and_the_worker_goes_on():
  step_all = functools.partial(contract.step_all, seconds=0.2)
  with workers_lib.Workers(1, 1, 'none') as running:
    slow, step = running.submit(
        step_all, Given(), [_request(_wait), _request(GOOD)]).result()
    assert not any(running.take_counts().values())
  assert slow == env_api.Step(
      state=_wait, team_reward=0.0, done=True, truncated=True,
      local_rewards={'a': 0.0}, reward_terms={},
      outcomes={'a': env_api.Outcome.TIMEOUT})
  assert step == GOOD


def test_slow_step_is_paid_no_more_than_others():
  slow = contract.unfinished_step(
      Given(), _request(None), env_api.Outcome.TIMEOUT)
  wrong, right = (
      dataclasses.replace(GOOD, local_rewards={'a': x}) for x in (-0.5, 0.5))
  for others, paid in (([wrong, right], -0.5), ([right], 0.0), ([], 0.0)):
    found = contract.pay_unfinished([*others, slow])
    assert found == [
        *others, dataclasses.replace(slow, local_rewards={'a': paid})]


def test_shown_values_are_texts():
  assert contract.show(Given(), 3) == {'turn': '3', '3': 'None'}
  assert contract.show(object(), 3) == {'state': '3'}
  assert 'show failed' in contract.show_in_report(Given(), 'three')['error']
