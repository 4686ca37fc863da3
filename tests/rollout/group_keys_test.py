"""The four group keys of GRPO on a team are four algorithms, on each game."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from atgrpo_jax.rl import advantages
from atgrpo_jax.rollout import at_grpo
from environments import games
from environments.plan_path import env as plan_path
from environments.relay import env as relay
from environments.sokoban import env as sokoban
from environments.sudoku import env as sudoku
from tests.environments import echo_sandbox
from tests.rollout import scripted

GROUP_KEYS = ('env', 'env+agent', 'env+turn', 'env+agent+turn')
MAZE = {'grid': ['.' * 10] * 10, 'start': [0, 0], 'goal': [1, 2]}
ROOM = {
    'grid': ['.' * 6] * 6, 'player': [0, 1], 'boxes': [[1, 1]],
    'goals': [[3, 1]]}
CLUES = {'board': ['1.3.', '..12', '2.4.', '...1']}
SOLUTION = [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]
# Game, its options, a task, and moves: some solve it, some help, some do not.
GAMES = (
    pytest.param(
        plan_path, {}, MAZE, ('R', 'D', 'RRD', 'RD', 'UU'), id='plan_path'),
    pytest.param(
        sokoban, {}, ROOM, ('D', 'DD', 'U', 'RL', 'UUD'), id='sokoban'),
    pytest.param(
        sudoku, {'size': 4}, CLUES,
        (SOLUTION, [*SOLUTION[:2], [0] * 4, [0] * 4],
         [SOLUTION[0], *[[0] * 4] * 3], [[1] * 4] * 4), id='sudoku'))


class Player:
  """Draws an answer to any prompt, as one role writes it."""

  def __init__(self, role, moves, group_size):
    self._rng = np.random.default_rng([*role.encode()])
    self._group_size = group_size
    self._answers = ['I do not know.']
    for move in moves:
      line = json.dumps(list(move), separators=(',', ':'))
      self._answers.append(
          f'```python\n{line}\n```' if games.kind_of(role) == 'tool' else
          f'#### {line}')

  def __getitem__(self, prompt):
    return self._rng.choice(self._answers, self._group_size)


class Caller:
  """Draws a letter."""

  def __init__(self, group_size):
    self._rng, self._group_size = np.random.default_rng(0), group_size

  def __getitem__(self, prompt):
    return self._rng.choice(list(relay.LETTERS), self._group_size)


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
  scripted.follow_scripts(monkeypatch)
  monkeypatch.setattr(
      scripted, 'CONFIG',
      dataclasses.replace(scripted.CONFIG, max_positions=1080))


def play(environment, policies, tasks):
  """The groups of 4 episodes of each task, with returns of episodes."""
  return at_grpo.collect(
      scripted.make_interaction(
          policies, {role: role for role in environment.roles}, environment,
          prompt_buckets=(1000,), max_new_tokens=80), tasks,
      step=0, spec=at_grpo.RolloutSpec(
          group_size=4, rollout='parallel', target='episode_return')).groups


def play_game(game, options, task, moves, team):
  environment = game.make_environment(
      team=team, max_turns=3, reward='mixed', sandbox=echo_sandbox.Echo(),
      **options)
  return play(
      environment,
      {role: Player(role, moves, 4) for role in environment.roles},
      [task | {'task_id': f'{i}'} for i in range(6)])


def of_keys(groups, normaliser):
  """Group key -> advantages [N] of all actions."""
  return {
      group_key: np.concatenate(advantages.of_groups(
          groups, group_key=group_key, normaliser=normaliser,
          of_episodes=True))
      for group_key in GROUP_KEYS}


@pytest.mark.parametrize('team', ['pair', 'trio'])
@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
@pytest.mark.parametrize('game, options, task, moves', GAMES)
def test_no_two_keys_give_the_same_advantages(
    game, options, task, moves, normaliser, team):
  groups = play_game(game, options, task, moves, team)
  # Some episodes are solved, in different turns.
  lasts = [g for g in groups if g.key.role == games.TEAMS[team][-1]]
  assert len({
      g.key.turn for g in lasts if g.reward_terms[0]['solved']}) > 1
  found = of_keys(groups, normaliser)
  for one, other in itertools.combinations(GROUP_KEYS, 2):
    differ = np.abs(found[one] - found[other]) > 0.01
    assert differ.mean() > 0.1, (one, other)


@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
@pytest.mark.parametrize('game, options, task, moves', GAMES)
def test_a_single_agent_has_two_keys(game, options, task, moves, normaliser):
  found = of_keys(
      play_game(game, options, task, moves, 'solo'), normaliser)
  for turn in ('', '+turn'):
    np.testing.assert_array_equal(
        found[f'env{turn}'], found[f'env+agent{turn}'])
  assert np.abs(found['env'] - found['env+turn']).max() > 0.01


@pytest.mark.parametrize('normaliser', advantages.NORMALISERS)
@pytest.mark.parametrize('reward, same', [('outcome', True), ('mixed', False)])
def test_roles_without_local_rewards_share_a_return(reward, same, normaliser):
  environment = relay.make_environment(
      team='pair', max_turns=3, reward=reward, sandbox=None)
  groups = play(
      environment, {role: Caller(4) for role in environment.roles},
      relay.tasks(3))
  found = of_keys(groups, normaliser)
  assert np.abs(found['env']).max() > 0.1
  for turn in ('', '+turn'):
    distance = np.abs(found[f'env{turn}'] - found[f'env+agent{turn}']).max()
    assert (distance < 1e-6) == same
