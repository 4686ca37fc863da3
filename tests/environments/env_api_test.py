"""Invalid steps and options of environments are named."""

import dataclasses

import pytest

from environments import env_api
from environments.boards.plan_path import env as plan_path
from environments.boards.sokoban import env as sokoban
from environments.boards.sudoku import env as sudoku
from environments.programming.contests import env as contests
from environments.programming.functions import env as functions
from environments.relay import env as relay
from environments.writing import env as writing

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


@pytest.mark.parametrize('module, options, named', [
    (plan_path, {}, {'team': 'duo'}), (plan_path, {}, {'reward': 'dense'}),
    (sokoban, {}, {'max_turns': 0}), (sudoku, {}, {'size': 5}),
    (contests, {}, {'team': 'trio'}), (contests, {}, {'reward': 'oracle'}),
    (functions, {}, {'team': 'trio'}), (functions, {}, {'reward': 'mixed'}),
    (relay, {'team': 'at_once'}, {'max_turns': 1}),
    (writing, {}, {'team': 'trio'}), (writing, {}, {'kind': 'arxiv'}),
    (writing, {}, {'reward': 'mixed'}), (writing, {}, {'max_turns': 2}),
    (writing, {'team': 'discussion'}, {'max_turns': 1})])
def test_invalid_options_are_named(module, options, named):
  given = {'team': 'pair', 'max_turns': 1, 'reward': 'outcome', 'sandbox': None}
  given |= {sudoku: {'size': 4}, writing: {'kind': 'tldr'}}.get(module, {})
  (key, value), = named.items()
  with pytest.raises(ValueError, match=f'{key}={value!r}'):
    module.make_environment(**given | options | named)
