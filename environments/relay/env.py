"""Relay: a game so small that all its values are known.

In every turn a *caller*, who alone sees the turn's letter, calls a letter; a
*runner*, who sees that call alone, answers with a letter, and is paid when it
is the turn's. Or it answers '+', once, in the place of a letter: that is paid
nothing, and doubles what later turns pay. So whoever looks at the reward of the
turn alone never says '+', though with three turns and more it is right to say
it at once. `exact_values` has the value of every state and action under any
policies.

Of the team 'pair' the runner acts after the caller. Of the team 'at_once', a
Dec-POMDP, both act in one phase, so the runner answers the call of the turn
before, for the letter of the turn before: the first turn pays nothing, and
nobody answers the last call. The caller sees that letter, too.

Reward terms, all in [0, 1]:

  name    role    value                                         sees
  paid    team    1 / turns for the letter, 2 / turns after     the letter
                  a '+'; divided by 2 where '+' is allowed
  called  caller  1 / turns for calling the letter; weight 0    the letter
                  in the preset `outcome`

In the preset `outcome`, as in that of the games, nothing but the team's reward
pays anybody.

`success`: every turn that can be paid was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any

import numpy as np

from environments import env_api
from environments import sandbox as sandbox_lib

LETTERS = 'ab'
BOOST = '+'
REWARDS = {'mixed': {'called': 1.0}, 'outcome': {}}
TEAMS = {  # Team -> phases.
    'pair': (('caller',), ('runner',)), 'at_once': (('caller', 'runner'),)}


@dataclasses.dataclass(frozen=True)
class State:
  """A relay between two steps.

  Attributes:
    task_id: the letters themselves.
    letters: of all turns.
    turn: turns that are over.
    call: the letter that the runner is to answer; '' if there is none, '?' for
      what was no letter.
    boosted: '+' has been said.
    num_paid: turns that were paid.
  """

  task_id: str
  letters: str
  turn: int = 0
  call: str = ''
  boosted: bool = False
  num_paid: int = 0


@dataclasses.dataclass(frozen=True)
class Relay:
  """The environment; see `environments.env_api.Environment`."""

  max_turns: int
  boost: bool
  weights: Mapping[str, float]
  phases: tuple[tuple[str, ...], ...]

  roles = ('caller', 'runner')
  team_reward_range = (0.0, 1.0)

  @property
  def delay(self) -> int:
    """Turns between a call and the answer to it."""
    return int(len(self.phases) == 1)

  def answers(self, role: str) -> tuple[str, ...]:
    """What a role may say."""
    return (*LETTERS, *(BOOST if self.boost and role == 'runner' else ''))

  def reset(self, task: env_api.Task) -> State:
    return State(task['task_id'], task['letters'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    seen = state.call or '-'
    if role == 'caller':
      first = max(state.turn - self.delay, 0)
      seen = state.letters[first:state.turn + 1][::-1]
    boosted = BOOST if state.boosted else ''
    return [{'role': 'user', 'content': f'{role} {state.turn} {seen}{boosted}'}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    known = {role: action in self.answers(role)
             for role, action in actions.items()}
    terms, local, changes = {}, dict.fromkeys(actions, 0.0), {'call': ''}
    if 'caller' in actions:
      call = actions['caller']
      terms['called'] = (
          float(call == state.letters[state.turn]) / self.max_turns)
      local['caller'] = self.weights.get('called', 0.0) * terms['called']
      changes['call'] = call if known['caller'] else '?'
    if 'runner' in actions:
      answered = state.turn - self.delay
      right = (
          answered >= 0 and actions['runner'] == state.letters[answered])
      terms['paid'] = (
          right * (1 + state.boosted) / (1 + self.boost) / self.max_turns)
      changes |= {
          'turn': state.turn + 1, 'num_paid': state.num_paid + right,
          'boosted': state.boosted or (
              self.boost and actions['runner'] == BOOST)}
    after = dataclasses.replace(state, **changes)
    done = after.turn == self.max_turns
    success = done and after.num_paid == self.max_turns - self.delay
    return env_api.Step(
        state=after, team_reward=terms.get('paid', 0.0), local_rewards=local,
        reward_terms=terms, done=done, success=success,
        truncated=done and not success, outcomes={
            role: env_api.Outcome.OK if it else env_api.Outcome.PARSE_ERROR
            for role, it in known.items()})

  def show(self, state: State) -> dict[str, str]:
    return {
        'letters': state.letters, 'turn': str(state.turn), 'call': state.call,
        'boosted': str(state.boosted), 'paid turns': str(state.num_paid)}


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, boost: bool = False) -> Relay:
  """The environment that a config describes; `team` is one of `TEAMS`."""
  del sandbox  # No role writes programs.
  env_api.check_options(
      max_turns, team=(team, TEAMS), reward=(reward, REWARDS))
  relay = Relay(max_turns, boost, REWARDS[reward], TEAMS[team])
  if max_turns <= relay.delay:
    raise ValueError(
        f'environment.team={team!r} with {max_turns} turns: no turn is paid; '
        f'it needs {relay.delay + 1}.')
  return relay


def tasks(max_turns: int) -> list[dict[str, Any]]:
  """All tasks: every sequence of letters."""
  words = map(''.join, itertools.product(LETTERS, repeat=max_turns))
  return [{'task_id': word, 'letters': word} for word in words]


Policy = Mapping[str, np.ndarray]  # Prompt -> probability of each answer.


@dataclasses.dataclass(frozen=True)
class Values:
  """What is known of policies, over all tasks.

  Attributes:
    team_return: of an episode, the expected sum of the team's rewards.
    visits: prompt -> expected visits in an episode.
    advantages: prompt -> of each answer, the expected return of the team after
      it less that before it. Of prompts that are visited.
  """

  team_return: float
  visits: dict[str, float]
  advantages: dict[str, np.ndarray]

  def gradient(self, policy: Policy) -> dict[str, np.ndarray]:
    """Of the team's return, for the logits of each prompt's answers."""
    return {
        prompt: self.visits[prompt] * policy[prompt] * advantage
        for prompt, advantage in self.advantages.items()}


@dataclasses.dataclass(frozen=True)
class Position:
  """A state that may be met, and all that may follow.

  Attributes:
    state: of the environment, before the end.
    roles: who acts there.
    steps: index of each role's answer -> what they lead to.
  """

  state: State
  roles: tuple[str, ...]
  steps: Mapping[tuple[int, ...], env_api.Step]


def positions(environment: Relay) -> list[Position]:
  """All that may be met in any task; states before those that follow."""
  found = []
  states = [environment.reset(task) for task in tasks(environment.max_turns)]
  for _, roles in itertools.product(
      range(environment.max_turns), environment.phases):
    answers = list(map(environment.answers, roles))
    layer = [
        Position(state, roles, {
            indices: environment.step(state, {
                role: known[i]
                for role, known, i in zip(roles, answers, indices)})
            for indices in itertools.product(*map(range, map(len, answers)))})
        for state in states]
    found += layer
    states = dict.fromkeys(
        step.state for position in layer for step in position.steps.values()
        if not step.done)
  return found


def prompts(environment: Relay) -> dict[str, tuple[str, ...]]:
  """Every prompt that may occur -> its answers."""
  return {
      prompt_of(environment, position.state, role): environment.answers(role)
      for position in positions(environment) for role in position.roles}


def visited(
    environment: Relay,
    policy: Policy) -> list[tuple[Position, float, list[np.ndarray]]]:
  """All positions, with the probability that an episode meets them.

  And with the probabilities of the answers of each role that acts there.
  """
  all_tasks = tasks(environment.max_turns)
  meets = {environment.reset(task): 1 / len(all_tasks) for task in all_tasks}
  found = []
  for position in positions(environment):
    probability = meets[position.state]
    tables = [
        policy[prompt_of(environment, position.state, role)]
        for role in position.roles]
    joint = joint_probabilities(tables)
    for indices, step in position.steps.items():
      meets[step.state] = (
          meets.get(step.state, 0.0) + probability * joint[indices])
    found.append((position, probability, tables))
  return found


def joint_probabilities(tables: Sequence[np.ndarray]) -> np.ndarray:
  """[A, ...] of the answers [A] of roles that answer independently."""
  return functools.reduce(np.multiply.outer, tables)


def exact_values(environment: Relay, policy: Policy) -> Values:
  """Enumerates all tasks and all that can happen in them."""
  visits, returns, values = {}, {}, {}
  for position, probability, tables in reversed(visited(environment, policy)):
    joint = joint_probabilities(tables)
    after = np.zeros(joint.shape)
    for indices, step in position.steps.items():
      after[indices] = step.team_reward + (
          0.0 if step.done else values[step.state])
    values[position.state] = float((joint * after).sum())
    for axis, role in enumerate(position.roles):
      others = joint_probabilities([
          np.ones_like(table) if index == axis else table
          for index, table in enumerate(tables)])
      prompt = prompt_of(environment, position.state, role)
      visits[prompt] = visits.get(prompt, 0.0) + probability
      returns[prompt] = returns.get(prompt, 0.0) + probability * (
          np.moveaxis(others * after, axis, 0).reshape(len(tables[axis]), -1)
          .sum(axis=1))
  advantages = {}
  for prompt, total in returns.items():
    if visits[prompt]:
      after = total / visits[prompt]
      advantages[prompt] = after - policy[prompt] @ after
  team_return = float(np.mean([
      values[environment.reset(task)]
      for task in tasks(environment.max_turns)]))
  return Values(team_return, visits, advantages)


def prompt_of(environment: Relay, state: State, role: str) -> str:
  """What a role is shown."""
  return environment.observe(state, role)[0]['content']
