"""env_api.py: what an environment may return."""

import dataclasses

import pytest

from environments import env_api

GOOD = env_api.Step(
    state=None, team_reward=1.0, local_rewards={'a': 0}, reward_terms={},
    done=True, success=True, truncated=False,
    outcomes={'a': env_api.Outcome.OK})


class Returns:
  """Each step is what its state is."""

  def step(self, state, actions):
    del actions
    return state


def _step_all(step):
  return env_api.step_all(Returns(), [GOOD, step], [{'a': 'text'}] * 2)


def test_good_steps():
  assert _step_all(GOOD) == [GOOD, GOOD]


@pytest.mark.parametrize('step, words', [
    (None, 'Returns.step returned None, which is not a Step'),
    ({'local_rewards': {'b': 1}}, r"local_rewards of \['b'\], but \['a'\]"),
    ({'outcomes': {}}, r"outcomes of \[\], but \['a'\] acted"),
    ({'team_reward': '1'}, "reward '1', which is not a number"),
    ({'local_rewards': {'a': None}}, 'reward None'),
    ({'done': False}, 'success=True with done=False')])
def test_an_invalid_step_is_named(step, words):
  if step is not None:
    step = dataclasses.replace(GOOD, **step)
  with pytest.raises(env_api.ContractError, match=words):
    _step_all(step)
