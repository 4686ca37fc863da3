"""Relay: a game so small that the value of every action is known.

Each turn has a letter. A *caller* sees it and calls a letter. A *runner* sees
only the call and answers with a letter. The team is paid if the answer is the
letter of the turn. With the option `boost`, the runner may answer '+' once per
episode: this pays nothing and doubles the pay of later turns. With three or
more turns the best first answer is '+', but a method that uses only the reward
of the turn never learns it. `exact_values` computes the value of every state
and action under any policies.

In the team 'pair' the runner acts after the caller. The team 'at_once' is a
Dec-POMDP in which both act in one phase. There the runner answers the call of
the previous turn and is paid for that turn's letter, so the first turn pays
nothing and the last call gets no answer. The caller also sees the previous
letter. With the option `stop`, the runner may answer '.', which pays nothing
and ends the episode. With the option `chain`, the letters a and b change places
in the turn after the answer b. The caller of a pair also sees this answer, so
the episodes of a task have different prompts.

Reward terms, all in [0, 1]:

  name    role    value                                         sees
  paid    team    1 / turns for the letter, 2 / turns after     the letter
                  a '+'; divided by 2 where '+' is allowed
  called  caller  1 / turns for calling the letter; weight 0    the letter
                  in the preset `outcome`

`success`: every turn that can pay has paid.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from environments import env_api
from environments import sandbox as sandbox_lib

LETTERS = 'ab'
BOOST = '+'
STOP = '.'
REWARDS = {'mixed': {'called': 1.0}, 'outcome': {}}
TEAMS = {  # Team -> phases.
    'pair': (('caller',), ('runner',)), 'at_once': (('caller', 'runner'),)}


@dataclasses.dataclass(frozen=True)
class State:
  task_id: str
  letters: str  # The letters of all turns.
  turn: int = 0  # Completed turns.
  # The call that the runner answers; '' without one, '?' for an invalid one.
  call: str = ''
  boosted: bool = False  # True after the answer '+'.
  num_paid: int = 0  # Number of turns that have paid.
  last: str = 'a'  # The last answer, if the option `chain` is set.


@dataclasses.dataclass(frozen=True)
class Relay:
  """The environment; see `environments.env_api.Environment`."""

  max_turns: int
  boost: bool
  chain: bool
  stop: bool
  weights: Mapping[str, float]
  phases: tuple[tuple[str, ...], ...]

  roles = ('caller', 'runner')
  team_reward_range = (0.0, 1.0)

  @property
  def delay(self) -> int:  # Turns between a call and its answer.
    return int(len(self.phases) == 1)

  def letter(self, state: State, turn: int) -> str:
    """The letter of a turn, after the last answer."""
    letter = state.letters[turn]
    return letter if state.last == 'a' else LETTERS[letter == 'a']

  def answers(self, role: str) -> tuple[str, ...]:
    if role == 'caller':
      return (*LETTERS,)
    return (*LETTERS, *BOOST * self.boost, *STOP * self.stop)

  def reset(self, task: env_api.Task) -> State:
    return State(task['task_id'], task['letters'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    seen = state.call or '-'
    if role == 'caller':
      first = max(state.turn - self.delay, 0)
      seen = state.letters[first:state.turn + 1][::-1] + state.last * self.chain
    boosted = BOOST if state.boosted else ''
    return [{'role': 'user', 'content': f'{role} {state.turn} {seen}{boosted}'}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    outcomes = {
        role: env_api.Outcome.OK if action in self.answers(role)
        else env_api.Outcome.PARSE_ERROR for role, action in actions.items()}
    terms, local, changes = {}, dict.fromkeys(actions, 0.0), {'call': ''}
    if 'caller' in actions:
      call = actions['caller']
      terms['called'] = (
          float(call == self.letter(state, state.turn)) / self.max_turns)
      local['caller'] = self.weights.get('called', 0.0) * terms['called']
      changes['call'] = call if call in self.answers('caller') else '?'
    if 'runner' in actions:
      answered_turn = state.turn - self.delay
      right = (answered_turn >= 0
               and actions['runner'] == self.letter(state, answered_turn))
      terms['paid'] = (
          right * (1 + state.boosted) / (1 + self.boost) / self.max_turns)
      boosted = state.boosted or (self.boost and actions['runner'] == BOOST)
      changes |= dict(
          turn=state.turn + 1, num_paid=state.num_paid + right, boosted=boosted)
      if self.chain and actions['runner'] in LETTERS:
        changes['last'] = actions['runner']
    after = dataclasses.replace(state, **changes)
    done = after.turn == self.max_turns or (
        self.stop and actions.get('runner') == STOP)
    success = done and after.num_paid == self.max_turns - self.delay
    return env_api.Step(
        state=after, team_reward=terms.get('paid', 0.0), local_rewards=local,
        reward_terms=terms, done=done, success=success,
        truncated=done and not success, outcomes=outcomes)

  def show(self, state: State) -> dict[str, str]:
    return {
        'letters': state.letters, 'turn': str(state.turn), 'call': state.call,
        'boosted': str(state.boosted), 'paid turns': str(state.num_paid)}


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, boost: bool = False,
    chain: bool = False, stop: bool = False) -> Relay:
  """Builds the environment of a config; `team` is a key of `TEAMS`."""
  del sandbox  # No role writes programs.
  env_api.check_options(
      max_turns, team=(team, TEAMS), reward=(reward, REWARDS))
  relay = Relay(max_turns, boost, chain, stop, REWARDS[reward], TEAMS[team])
  if chain and relay.delay:
    raise ValueError(
        f"environment.options.chain=True: expected the team 'pair', not "
        f'{team!r}, whose answers come a turn late.')
  if max_turns <= relay.delay:
    raise ValueError(
        f'environment.max_turns={max_turns}: expected at least '
        f'{relay.delay + 1} for the team {team!r}; otherwise no turn pays.')
  return relay


def tasks(max_turns: int) -> list[dict[str, Any]]:
  """Returns all tasks: every sequence of letters."""
  words = map(''.join, itertools.product(LETTERS, repeat=max_turns))
  return [{'task_id': word, 'letters': word} for word in words]


Policy = Mapping[str, np.ndarray]  # Prompt -> probabilities of the answers.


def right_answer(prompt: str, chain: bool) -> str:
  """The letter that is right, or for a runner most likely right."""
  role, _, seen = prompt.split()
  is_swapped = chain and role == 'caller' and seen[1] == 'b'
  return LETTERS[seen[0] == 'a'] if is_swapped else seen[0]


class Position(NamedTuple):
  """A reachable state with all its successors."""

  state: State
  roles: tuple[str, ...]  # The roles that act.
  steps: Mapping[tuple[int, ...], env_api.Step]  # Index of each answer -> step.


class Values(NamedTuple):
  """Exact values of a policy, over all tasks."""

  team_return: float  # Expected sum of the team rewards of an episode.
  visits: dict[str, float]  # Prompt -> expected number of visits in an episode.
  # Prompt -> [A], the expected team return after each answer minus the expected
  # return before it; for prompts with visits.
  advantages: dict[str, np.ndarray]

  def gradient(self, policy: Policy) -> dict[str, np.ndarray]:
    """Gradient of the team return for the logits of each prompt's answers."""
    return {
        prompt: self.visits[prompt] * policy[prompt] * advantage
        for prompt, advantage in self.advantages.items()}


def positions(environment: Relay) -> Iterator[Position]:
  """Yields all reachable positions, each before its successors."""
  states = [environment.reset(task) for task in tasks(environment.max_turns)]
  for roles in environment.phases * environment.max_turns:
    answers = list(map(environment.answers, roles))
    successors = {}
    for state in states:
      steps = {
          indices: environment.step(state, {
              role: role_answers[index]
              for role, role_answers, index in zip(roles, answers, indices)})
          for indices in itertools.product(*map(range, map(len, answers)))}
      yield Position(state, roles, steps)
      successors |= {
          step.state: None for step in steps.values() if not step.done}
    states = list(successors)


def prompts(environment: Relay) -> dict[str, tuple[str, ...]]:
  """Every reachable prompt -> its answers."""
  return {
      prompt_of(environment, position.state, role): environment.answers(role)
      for position in positions(environment) for role in position.roles}


def visited(
    environment: Relay,
    policy: Policy) -> list[tuple[Position, float, list[np.ndarray]]]:
  """Returns (position, probability, answer probabilities of each role)."""
  all_tasks = tasks(environment.max_turns)
  probabilities = {
      environment.reset(task): 1 / len(all_tasks) for task in all_tasks}
  result = []
  for position in positions(environment):
    probability = probabilities[position.state]
    tables = [
        policy[prompt_of(environment, position.state, role)]
        for role in position.roles]
    joint = joint_probabilities(tables)
    for indices, step in position.steps.items():
      if not step.done:
        probabilities[step.state] = (
            probabilities.get(step.state, 0.0) + probability * joint[indices])
    result.append((position, probability, tables))
  return result


def joint_probabilities(tables: Sequence[np.ndarray]) -> np.ndarray:
  """Outer product of the probabilities [A] of roles."""
  return functools.reduce(np.multiply.outer, tables)


def exact_values(environment: Relay, policy: Policy) -> Values:
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
  return environment.observe(state, role)[0]['content']
