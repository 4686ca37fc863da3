"""The echo game whose agents' words are programs' output."""

import dataclasses

from environments import env_api
from environments import sandbox as sandbox_lib
from tests import echo


@dataclasses.dataclass(frozen=True)
class Game(echo.Echo):
  """A program in the sandbox repeats what an agent says."""

  sandbox: sandbox_lib.Sandbox

  def step(self, state, actions) -> env_api.Step:
    (role, action), = actions.items()
    result = self.sandbox.run('print(input(), end="")', stdin=action)
    if result.status is sandbox_lib.Status.INFRASTRUCTURE:
      return env_api.Step(
          state=state, team_reward=0.0, local_rewards={role: 0.0},
          reward_terms={}, done=True, success=False, truncated=False,
          outcomes={role: env_api.Outcome.INFRASTRUCTURE})
    return dataclasses.replace(
        super().step(state, {role: result.stdout}), program_runs=1)


def make_environment(*, team, max_turns, reward, sandbox):
  del team, reward
  return Game(max_turns, sandbox)
