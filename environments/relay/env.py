"""Relay: a game so small that all its values are known.

In every turn a *caller*, who alone sees the turn's letter, calls a letter; a
*runner*, who sees that call alone, answers with a letter, and is paid when it
is the turn's. Or it answers '+', once, in the place of a letter: that is paid
nothing, and doubles what later turns pay. So whoever looks at the reward of the
turn alone never says '+', though with three turns and more it is right to say
it at once. `exact_values` has the value of every state and action under any
policies.

Reward terms, all in [0, 1]:

  name    role    value                                         sees
  paid    team    1 / turns for the letter, 2 / turns after     the letter
                  a '+'; divided by 2 where '+' is allowed
  called  caller  1 / turns for calling the letter; weight 0    the letter
                  in the preset `outcome`

In the preset `outcome`, as in that of the games, nothing but the team's reward
pays anybody.

`success`: every turn was paid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import itertools
from typing import Any

import numpy as np

from environments import env_api
from environments import sandbox as sandbox_lib

LETTERS = 'ab'
BOOST = '+'
REWARDS = {'mixed': {'called': 1.0}, 'outcome': {}}


@dataclasses.dataclass(frozen=True)
class State:
  """A relay between two steps.

  Attributes:
    task_id: the letters themselves.
    letters: of all turns.
    turn: turns that are over.
    call: the caller's letter of this turn; '' before, '?' for no letter.
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

  roles = ('caller', 'runner')
  phases = (('caller',), ('runner',))
  team_reward_range = (0.0, 1.0)

  def answers(self, role: str) -> tuple[str, ...]:
    """What a role may say."""
    return (*LETTERS, *(BOOST if self.boost and role == 'runner' else ''))

  def reset(self, task: env_api.Task) -> State:
    return State(task['task_id'], task['letters'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    seen = state.letters[state.turn] if role == 'caller' else state.call
    boosted = BOOST if state.boosted else ''
    return [{'role': 'user', 'content': f'{role} {state.turn} {seen}{boosted}'}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    (role, action), = actions.items()
    known = action in self.answers(role)
    outcome = env_api.Outcome.OK if known else env_api.Outcome.PARSE_ERROR
    right = action == state.letters[state.turn]
    if role == 'caller':
      called = float(right) / self.max_turns
      return env_api.Step(
          state=dataclasses.replace(state, call=action if known else '?'),
          team_reward=0.0,
          local_rewards={role: self.weights.get('called', 0.0) * called},
          reward_terms={'called': called}, done=False, success=False,
          truncated=False, outcomes={role: outcome})
    paid = right * (1 + state.boosted) / (1 + self.boost) / self.max_turns
    turn, num_paid = state.turn + 1, state.num_paid + right
    done, success = turn == self.max_turns, num_paid == self.max_turns
    return env_api.Step(
        state=dataclasses.replace(
            state, turn=turn, call='', num_paid=num_paid,
            boosted=state.boosted or (self.boost and action == BOOST)),
        team_reward=paid, local_rewards={role: 0.0},
        reward_terms={'paid': paid}, done=done, success=success,
        truncated=done and not success, outcomes={role: outcome})


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, boost: bool = False) -> Relay:
  """The environment that a config describes; `team` is 'pair'."""
  del sandbox  # No role writes programs.
  if team != 'pair' or reward not in REWARDS:
    raise ValueError(
        f'environment.team={team!r}, reward={reward!r}: a relay has the team '
        f"'pair' and one of the rewards {sorted(REWARDS)}.")
  return Relay(max_turns, boost, REWARDS[reward])


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


def prompts(environment: Relay) -> dict[str, tuple[str, ...]]:
  """Every prompt that may occur -> its answers."""
  found = {}
  for task in tasks(environment.max_turns):
    for state, role, _ in _paths(environment, environment.reset(task)):
      found[_prompt(environment, state, role)] = environment.answers(role)
  return found


def exact_values(environment: Relay, policy: Policy) -> Values:
  """Enumerates all tasks and all that can happen in them."""
  visits, returns = {}, {}
  all_tasks = tasks(environment.max_turns)

  def value(state, role, probability):
    """The expected return from here on."""
    prompt = _prompt(environment, state, role)
    visits[prompt] = visits.get(prompt, 0.0) + probability
    after = []
    for answer, share in zip(environment.answers(role), policy[prompt]):
      step = environment.step(state, {role: answer})
      after.append(step.team_reward)
      if not step.done:
        other, = set(environment.roles) - {role}
        after[-1] += value(step.state, other, probability * share)
    returns[prompt] = returns.get(prompt, 0.0) + probability * np.array(after)
    return float(policy[prompt] @ after)

  team_return = float(np.mean([
      value(environment.reset(task), 'caller', 1 / len(all_tasks))
      for task in all_tasks]))
  advantages = {}
  for prompt, total in returns.items():
    if visits[prompt]:
      after = total / visits[prompt]
      advantages[prompt] = after - policy[prompt] @ after
  return Values(team_return, visits, advantages)


def _paths(
    environment: Relay, state: State,
    role: str = 'caller') -> Iterator[tuple[State, str, str]]:
  """(state, role, answer) of all that can happen from a state on."""
  other, = set(environment.roles) - {role}
  for answer in environment.answers(role):
    yield state, role, answer
    step = environment.step(state, {role: answer})
    if not step.done:
      yield from _paths(environment, step.state, other)


def _prompt(environment: Relay, state: State, role: str) -> str:
  return environment.observe(state, role)[0]['content']
