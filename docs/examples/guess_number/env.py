"""Guess a number: an advisor proposes one, then a guesser decides."""

import dataclasses

from environments import env_api
from environments import text


@dataclasses.dataclass(frozen=True)
class State:
  number: int  # Never shown.
  turn: int = 0
  proposal: int | None = None
  hint: str = 'There was no guess.'


@dataclasses.dataclass(frozen=True)
class GuessNumber:
  max_turns: int
  largest: int
  weight: float  # Weight of the local reward term `near`.
  roles = ('advisor', 'guesser')
  phases = (('advisor',), ('guesser',))
  team_reward_range = (0.0, 1.0)

  def reset(self, task):
    return State(task['number'])

  def observe(self, state, role):
    return [{'role': 'user', 'content': (
        f'You are the {role}. Find a number from 1 to {self.largest}. '
        f'{state.hint} Proposal: {state.proposal}. End with #### NUMBER.')}]

  def step(self, state, actions):
    (role, action), = actions.items()  # One role acts in a phase.
    guess = text.last_answer(action)
    valid = type(guess) is int and 1 <= guess <= self.largest
    near = 1 - abs(guess - state.number) / self.largest if valid else 0.0
    success, turn = False, state.turn
    if role == 'advisor':
      state = dataclasses.replace(state, proposal=guess if valid else None)
    else:
      success, turn = valid and guess == state.number, turn + 1
      small = valid and guess < state.number
      hint = f'The last guess was {"" if small else "not "}too small.'
      state = State(state.number, turn, hint=hint)
    truncated = not success and turn == self.max_turns
    outcome = env_api.Outcome.OK if valid else env_api.Outcome.PARSE_ERROR
    return env_api.Step(
        state=state, team_reward=float(success),
        local_rewards={role: self.weight * near}, reward_terms={'near': near},
        done=success or truncated, success=success, truncated=truncated,
        outcomes={role: outcome})

  def show(self, state):
    return {'number': str(state.number), 'proposal': str(state.proposal)}


def make_environment(*, team, max_turns, reward, sandbox, largest):
  del team, sandbox  # There is one team, and it writes no programs.
  return GuessNumber(max_turns, largest, {'mixed': 0.5, 'outcome': 0.0}[reward])
