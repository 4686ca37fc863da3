"""Calls environments and checks what they return.

A fault of an environment becomes a UserError that names the function, the role,
the turn and the task. It carries the traceback of the user's code.

Worker processes import this module, so it must not import jax.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import copy
import dataclasses
import json
import math
import pickle
import reprlib
from typing import Any, NamedTuple

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.io import signals
from environments import env_api

_PICKLABLE = 'return a state that can be pickled'
_MESSAGES = (
    "a list of messages such as {'role': 'user', 'content': 'a text'}")
_FUNCTIONS = "[{'type': 'function', 'function': {'name': 'add'}}]"
_FLOAT32_DECIMALS = 6
_SHOWN = reprlib.Repr()  # Also of values whose `__repr__` fails.
_SHOWN.maxstring = _SHOWN.maxother = 100
_MAX_REWARD = 1e15  # Its square is finite in float32, with room for alpha.


class StepRequest(NamedTuple):
  """A state, and the text of each role that acts on it."""

  state: env_api.State
  actions: Mapping[str, str]
  task_id: str
  turn: int  # From 0.


class Position(NamedTuple):
  """Where a step lies in an episode."""

  turn: int = 0
  phase: int = 0  # Index in `Environment.phases`.


def reset(
    environment: env_api.Environment, task: env_api.Task) -> env_api.State:
  """The first state of a task."""
  where = f'for task {task["task_id"]!r}'
  with _Call(environment, 'reset', where, (
      'fix the task or the code in the traceback above, and check that '
      'dataset.builder matches environment.module')):
    return environment.reset(copy.deepcopy(task))  # It may change its own.


def check_start(
    environment: env_api.Environment, task: env_api.Task) -> env_api.State:
  """The first state of a task; UserError if it cannot be pickled or shown."""
  state = reset(environment, task)
  with _Call(environment, 'reset', f'for task {task["task_id"]!r}', _PICKLABLE):
    pickle.loads(pickle.dumps(state))
  show(environment, state)
  return state


def check_environment(environment: env_api.Environment) -> None:
  """Raises UserError unless workers can receive the environment."""
  with _Call(environment, '__init__', 'as an object for the workers', (
      'keep no lambdas, open files or locks in it')):
    pickle.loads(pickle.dumps(environment))


def observe(
    environment: env_api.Environment, state: env_api.State, role: str, *,
    task_id: str, turn: int,
    seconds: float = math.inf) -> Sequence[env_api.Message]:
  """The prompt of a role; `turn` counts from 0.

  Raises UserError also if it takes more than `seconds`.
  """
  call = _Call(environment, 'observe', _where([role], task_id, turn))
  try:
    with call, signals.time_limit(seconds):
      messages = environment.observe(state, role)
  except signals.TooSlowError as error:
    raise call.problem(
        None, f'messages within environment.step_seconds={seconds:g}'
        ) from error
  if not isinstance(messages, (list, tuple)) or not messages:
    raise call.problem(messages, _MESSAGES)
  return [_message(message, call) for message in messages]


def _message(message: Any, call: '_Call') -> env_api.Message:
  """A message as a dict of JSON values, in the form that templates read."""
  if not isinstance(message, Mapping) or not all(
      isinstance(message.get(name), str) for name in ('role', 'content')):
    raise call.problem(message, _MESSAGES)
  try:
    found = json.loads(json.dumps({**message}))
  except (TypeError, ValueError):
    found = None
  for name in {'tools', 'tool_calls'} & message.keys():
    try:
      is_good = all(isinstance(x['function']['name'], str) for x in json.loads(
          json.dumps(message[name])))
    except (LookupError, TypeError, ValueError):
      is_good = False
    if not is_good:
      raise call.problem(message[name], f'{name!r} such as {_FUNCTIONS}')
  if found is None:
    raise call.problem(message, f'JSON, {_MESSAGES}')
  return found


def show(
    environment: env_api.Environment, state: env_api.State) -> dict[str, str]:
  """`Environment.show`, with all values as texts; by default the state."""
  call = _Call(environment, 'show', f'for the state {_SHOWN.repr(state)}')
  with call:
    if not hasattr(environment, 'show'):
      return {'state': str(state)}
    texts = environment.show(state)
    if isinstance(texts, Mapping):
      return {str(name): str(value) for name, value in texts.items()}
  raise call.problem(texts, 'a dict of texts')


def show_in_report(
    environment: env_api.Environment, state: env_api.State) -> dict[str, str]:
  """`show`, with an error as a text, because only the report needs it."""
  try:
    return show(environment, state)
  except errors.UserError as error:
    return {'error': str(error)}


def step_all(
    environment: env_api.Environment, requests: Sequence[StepRequest],
    seconds: float = math.inf) -> list[env_api.Step]:
  """Steps each state with its actions, in a worker process.

  A step that takes longer than `seconds` has the outcome TIMEOUT and the least
  team reward, and ends its episode.
  """
  steps = []
  for request in requests:
    where = where_of(request)
    try:
      with _Call(environment, 'step', where), signals.time_limit(seconds):
        # Candidates share a state; `step` may change its own.
        step = _checked(
            environment.step(copy.deepcopy(request.state), request.actions),
            request.actions, environment.team_reward_range)
    except signals.TooSlowError:
      print(
          f'warning: {type(environment).__name__}.step took more than '
          f'environment.step_seconds={seconds:g} {where}; the episode ends '
          'there with the outcome TIMEOUT and the least team reward.')
      step = unfinished_step(environment, request, env_api.Outcome.TIMEOUT)
    except _BadStepError as error:
      raise errors.UserError(
          f'{type(environment).__name__}.step returned {error}, {where}; see '
          'Step in environments/env_api.py.') from error
    with _Call(environment, 'step', where, _PICKLABLE):
      pickle.loads(pickle.dumps(step))  # A failure would break the pool.
    steps.append(step)
  return steps


def unfinished_step(
    environment: env_api.Environment, request: StepRequest,
    outcome: env_api.Outcome) -> env_api.Step:
  """The result of a step that did not end; it ends the episode."""
  return env_api.Step(
      state=request.state, team_reward=environment.team_reward_range[0],
      local_rewards=dict.fromkeys(request.actions, 0.0), reward_terms={},
      done=True, success=False, truncated=True,
      outcomes=dict.fromkeys(request.actions, outcome))


def pay_unfinished(steps: Sequence[env_api.Step]) -> list[env_api.Step]:
  """Pays steps that took too long no more than others of their group earn."""
  def pay(role):
    return min([0.0, *(
        step.local_rewards.get(role, 0.0) for step in steps
        if env_api.Outcome.INFRASTRUCTURE not in step.outcomes.values())])

  return [
      dataclasses.replace(step, local_rewards={
          role: pay(role) for role in step.local_rewards})
      if step.truncated and not step.reward_terms
      and not any(step.local_rewards.values())
      and {*step.outcomes.values()} == {env_api.Outcome.TIMEOUT} else step
      for step in steps]


def next_position(
    environment: env_api.Environment, position: Position, step: env_api.Step, *,
    task_id: str) -> Position:
  """The position after an unfinished step; UserError after the last turn."""
  num_phases = len(environment.phases)
  following = Position(*divmod(
      position.turn * num_phases + position.phase + 1 + step.skip, num_phases))
  if following.turn >= environment.max_turns:
    where = _where(environment.phases[position.phase], task_id, position.turn)
    raise errors.UserError(
        f'{type(environment).__name__}.step returned done=False {where} and '
        f'skip={step.skip}, so no phase follows; there, return done=True.')
  return following


class _BadStepError(Exception):
  """Describes the field of a step that violates the contract."""


class _Call(contextlib.AbstractContextManager):
  """Raises an exception of a function of an environment as UserError."""

  def __init__(
      self, environment: env_api.Environment, function: str, where: str,
      advice: str = 'fix the code in the traceback above'):
    self._function = f'{type(environment).__name__}.{function}'
    self._where, self._advice = where, advice

  def __exit__(self, kind, error, frames) -> None:
    if error is None or isinstance(error, (
        KeyboardInterrupt, signals.Stopped, signals.TooSlowError,
        _BadStepError)):
      return
    raise errors.of_user_code(
        f'{self._function} failed {self._where} ({errors.one_line(error)}); '
        f'{self._advice}.', error) from error

  def problem(self, value: Any, expected: str) -> errors.UserError:
    """Describes a value of another type."""
    kind = 'the text' if isinstance(value, str) else type(value).__name__
    return errors.UserError(
        f'{self._function} returned {kind} {_SHOWN.repr(value)} {self._where}; '
        f'expected {expected}.')


def where_of(request: StepRequest) -> str:
  """Names the roles, turn and task of a step."""
  return _where([*request.actions], request.task_id, request.turn)


def _where(roles: Sequence[str], task_id: str, turn: int) -> str:
  names = ' and '.join(map(repr, roles))
  kind = 'role' if len(roles) == 1 else 'roles'
  return f'for {kind} {names} in turn {turn + 1} of task {task_id!r}'


def _checked(
    step: Any, actions: Mapping[str, str],
    team_reward_range: tuple[float, float]) -> env_api.Step:
  """A step with Python's numbers and truth values, and an entry for each role.

  Raises _BadStepError.
  """
  if not isinstance(step, env_api.Step):
    raise _BadStepError(f'{_SHOWN.repr(step)}, which is not a Step')
  defaults = {
      'local_rewards': dict.fromkeys(actions, 0.0),
      'outcomes': dict.fromkeys(actions, env_api.Outcome.OK),
      'reward_terms': {}}
  maps = {}
  for name, default in defaults.items():
    by_name = getattr(step, name)
    if not isinstance(by_name, Mapping):
      raise _BadStepError(f'{name}={_SHOWN.repr(by_name)}, which is not a dict')
    if default and not by_name.keys() <= default.keys():
      raise _BadStepError(f'{name} of {[*by_name]}, but {[*actions]} acted')
    if not all(isinstance(key, str) and key.isprintable() for key in by_name):
      raise _BadStepError(
          f'{name} with keys {_SHOWN.repr([*by_name])}, which are no printable '
          'texts')
    maps[name] = default | dict(by_name)
  for role, outcome in maps['outcomes'].items():
    if not isinstance(outcome, env_api.Outcome):
      raise _BadStepError(
          f'outcomes[{role!r}]={_SHOWN.repr(outcome)}, which is not an Outcome')
  is_known = env_api.Outcome.INFRASTRUCTURE not in maps['outcomes'].values()

  def reward(field, value):
    number = _number(field, value)
    if is_known and not abs(number) <= _MAX_REWARD:
      raise _BadStepError(
          f'{field}={number}, which is not from -{_MAX_REWARD:.0e} to '
          f'{_MAX_REWARD:.0e} (for an unknown reward, return the outcome '
          'INFRASTRUCTURE)')
    return number

  team_reward = reward('team_reward', step.team_reward)
  rewards = {
      name: {
          key: reward(f'{name}[{key!r}]', value)
          for key, value in maps[name].items()}
      for name in ('local_rewards', 'reward_terms')}
  low, high = team_reward_range
  slack = 1e-6 * max(abs(low), abs(high))  # For rounding.
  if is_known and not low - slack <= team_reward <= high + slack:
    raise _BadStepError(
        f'team_reward={team_reward}, outside its team_reward_range ({low}, '
        f'{high})')
  flags = {
      name: bool(_number(
          name, getattr(step, name), 'a truth value', (0.0, 1.0).__contains__))
      for name in ('done', 'success', 'truncated')}
  for name in ('success', 'truncated'):
    if flags[name] and not flags['done']:
      raise _BadStepError(f'{name}=True with done=False')
  counts = {
      name: int(_number(
          name, getattr(step, name), 'a count', lambda x: x >= 0 and not x % 1))
      for name in ('program_runs', 'skip')}
  return dataclasses.replace(
      step, team_reward=team_reward, outcomes=maps['outcomes'], **flags,
      **rewards, **counts)


def _number(
    field: str, value: Any, kind: str = 'a number',
    is_kind: Callable[[float], bool] = lambda number: True) -> float:
  """A number or truth value of Python, numpy or jax as a float.

  Sums in single precision are wrong in the seventh decimal, and the float64 of
  0.1 in single precision is not 0.1, so such numbers are rounded.
  """
  try:
    if (isinstance(value, (str, bytes, bytearray)) or np.shape(value)
        or np.iscomplexobj(value)):
      raise TypeError('not a real number')
    number = float(value)
    if getattr(value, 'dtype', None) == np.float32:
      number = round(float(str(value)), _FLOAT32_DECIMALS)
    if is_kind(number):
      return number
    raise ValueError('another kind of number')
  except Exception as error:  # Of the user's `__float__`, too.
    raise _BadStepError(
        f'{field}={_SHOWN.repr(value)}, which is not {kind}') from error
