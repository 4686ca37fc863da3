"""Games of numbers; they import no jax, so that workers start quickly."""

import dataclasses
import os

from environments import env_api
from environments import sandbox as sandbox_lib

_KILL = '''
import os
supervisor = os.getppid()
server = int(open(f'/proc/{supervisor}/stat').read().split()[3])
os.kill(%s, 9)
import time; time.sleep(60)'''
# Action -> program. MARK is a file.
PROGRAMS = {
    'one': 'print(1)',
    'two': 'print(2)',
    'slow': 'import time; open(MARK, "w").close(); time.sleep(0.2); print(3)',
    'end supervisor': _KILL % 'supervisor',
    'end server': _KILL % 'server',
}


@dataclasses.dataclass(frozen=True)
class State:
  task_id: str
  goal: int
  total: int = 0
  turn: int = 0


@dataclasses.dataclass(frozen=True)
class Counting:
  """Each agent adds a number; the team must meet the goal exactly.

  The team reward is 1 at the goal, the local reward a tenth of the number.
  '7 broken' makes the sandbox fail.
  """

  phases: tuple[tuple[str, ...], ...] = (('a',), ('b',))
  max_turns: int = 2
  team_reward_range = (0.0, 1.0)

  @property
  def roles(self):
    return tuple(role for phase in self.phases for role in phase)

  def reset(self, task):
    return State(task['task_id'], task['goal'])

  def observe(self, state, role):
    text = f'{state.task_id}/{role} turn {state.turn} total {state.total}'
    return [{'role': 'user', 'content': text}]

  def show(self, state):
    return {'total': str(state.total)}

  def step(self, state, actions):
    outcomes, local = {}, {}
    total = state.total
    for role, action in actions.items():
      number, _, fault = action.partition(' ')
      outcomes[role] = env_api.Outcome.OK
      if not number.isdigit():
        number, outcomes[role] = '0', env_api.Outcome.PARSE_ERROR
      if fault == 'broken':
        outcomes[role] = env_api.Outcome.INFRASTRUCTURE
      local[role] = int(number) / 10
      total += int(number)
    turn = state.turn + (tuple(actions) == self.phases[-1])
    success = total == state.goal
    truncated = not success and turn == self.max_turns
    return env_api.Step(
        state=dataclasses.replace(state, total=total, turn=turn),
        team_reward=float(success), local_rewards=local,
        reward_terms={'total': total}, done=success or truncated,
        success=success, truncated=truncated, outcomes=outcomes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs(Counting):
  """The numbers are printed by the programs of one agent.

  The action 'end worker' ends the process that steps the game; 'fail' fails
  for a reason outside the model.
  """

  sandbox: sandbox_lib.Sandbox
  mark: str
  phases: tuple[tuple[str, ...], ...] = (('a',),)

  def step(self, state, actions):
    if actions['a'] == 'end worker':
      os._exit(1)
    if actions['a'] == 'fail':
      return super().step(state, {'a': '0 broken'})
    result = self.sandbox.run(
        f'MARK = {self.mark!r}\n{PROGRAMS[actions["a"]]}')
    return dataclasses.replace(
        super().step(state, {'a': result.stdout.strip()}), program_runs=1,
        outcomes={'a': env_api.STATUS_TO_OUTCOME[result.status]})
