"""env_api.py: what an environment may return."""

import dataclasses

import pytest

from environments import env_api

GOOD = env_api.Step(
    state=None, team_reward=1.0, local_rewards={'a': 0}, reward_terms={},
    done=True, success=True, truncated=False,
    outcomes={'a': env_api.Outcome.OK})


class Returns:
  """Returns each state as the step."""

  def step(self, state, actions):
    del actions
    return state


@pytest.mark.parametrize('step, words', [
    (None, 'Returns.step returned None'), ({'local_rewards': {'b': 1}}, "'b'"),
    ({'outcomes': {}}, 'outcomes'), ({'team_reward': '1'}, "reward '1'"),
    ({'local_rewards': {'a': None}}, 'reward None'),
    ({'done': False}, 'success=True with done=False')])
def test_an_invalid_step_is_named(step, words):
  if step is not None:
    step = dataclasses.replace(GOOD, **step)
  with pytest.raises(env_api.ContractError, match=words):
    env_api.step_all(Returns(), [GOOD, step], [{'a': 'text'}] * 2)
