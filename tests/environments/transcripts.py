"""Golden transcripts: every word that is shown, and what an answer pays."""

from collections.abc import Mapping, Sequence

import pytest

from environments import env_api
from environments.boards import board_game


def check(
    environment: board_game.BoardGame, task: env_api.Task,
    transcript: Sequence[tuple], system: Mapping[str, str]) -> None:
  """Plays `transcript` to the end of the episode.

  Its rows are (role, the user's message, the answer, team reward, local reward,
  outcome), and perhaps the reward terms that are not 0; `system` has the system
  message of each role.
  """
  state, done = environment.reset(task), False
  order = list(environment.roles)
  for row, expected in zip(transcript, order * len(transcript)):
    role, user, action, team_reward, local_reward, outcome, *terms = row
    assert role == expected and not done
    assert environment.observe(state, role) == [
        {'role': 'system', 'content': system[role]},
        {'role': 'user', 'content': user}]
    step = environment.step(state, {role: action})
    assert step.team_reward == team_reward
    assert step.local_rewards == {role: pytest.approx(local_reward)}
    assert step.outcomes == {role: env_api.Outcome(outcome)}
    assert step.success == (team_reward == 1)
    if terms:
      assert {k: v for k, v in step.reward_terms.items() if v} == (
          pytest.approx(terms[0]))
    state, done = step.state, step.done
  assert done
