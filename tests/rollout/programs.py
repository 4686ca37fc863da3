"""A game of programs; it imports no jax, so that workers start quickly."""

from collections.abc import Mapping
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
class Programs:
  """One agent's programs print numbers, which should add up to the goal.

  The action 'end worker' ends the process that steps the game; 'fail' fails
  for a reason outside the model.
  """

  sandbox: sandbox_lib.Sandbox
  mark: str
  max_turns: int = 2
  roles = ('a',)
  phases = (('a',),)
  team_reward_range = (0.0, 1.0)

  def reset(self, task: env_api.Task) -> State:
    return State(task['task_id'], task['goal'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    text = f'{state.task_id} turn {state.turn} total {state.total}'
    return [{'role': 'user', 'content': text}]

  def show(self, state: State) -> dict[str, str]:
    return {'total': str(state.total)}

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    if actions['a'] == 'end worker':
      os._exit(1)
    if actions['a'] == 'fail':
      return env_api.Step(
          state, 0.0, done=True,
          outcomes={'a': env_api.Outcome.INFRASTRUCTURE})
    result = self.sandbox.run(
        f'MARK = {self.mark!r}\n{PROGRAMS[actions["a"]]}')
    number = int(result.stdout or 0)
    total, turn = state.total + number, state.turn + 1
    success = total == state.goal
    truncated = not success and turn == self.max_turns
    return env_api.Step(
        state=dataclasses.replace(state, total=total, turn=turn),
        team_reward=float(success), local_rewards={'a': number / 10},
        reward_terms={'number': number}, done=success or truncated,
        success=success, truncated=truncated,
        outcomes={'a': env_api.STATUS_TO_OUTCOME[result.status]},
        program_runs=1)
