"""The four group keys of GRPO on a team are four algorithms, on each game."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from atgrpo_jax.algorithms import collect
from atgrpo_jax.algorithms import credit
from atgrpo_jax.rollout import tree as tree_lib
from environments.boards import board_game
from environments.boards.plan_path import env as plan_path
from environments.boards.sokoban import env as sokoban
from environments.boards.sudoku import env as sudoku
from environments.relay import env as relay
from tests import specs
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


class Drawn:
  """A script for any prompt: four of the texts, drawn."""

  def __init__(self, seed, texts):
    self._rng, self._texts = np.random.default_rng(seed), texts

  def __getitem__(self, prompt):
    return self._rng.choice(self._texts, 4)


def make_player(role, moves):
  """Draws a move, written as the role writes it, or none."""
  lines = [json.dumps(list(move), separators=(',', ':')) for move in moves]
  writes = (
      '```python\n{}\n```' if board_game.kind_of(role) == 'tool' else '#### {}')
  return Drawn(
      [*role.encode()], ['I do not know.', *map(writes.format, lines)])


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
  scripted.follow_scripts(monkeypatch)
  monkeypatch.setattr(
      scripted, 'CONFIG',
      dataclasses.replace(scripted.CONFIG, max_positions=1080))


def play(environment, policies, tasks):
  """The trees of 4 episodes of each task, with returns of episodes."""
  runner = scripted.make_runner(
      policies, {role: role for role in environment.roles}, environment,
      prompt_buckets=(1000,), max_new_tokens=80)
  return collect.collect(
      runner, tasks, specs.rollout(
          group_size=4, mode='parallel', return_type='episode_return'),
      specs.advantage())


# Baseline and scale.
ADVANTAGES = [('mean', 'std'), ('mean', 'none'), ('leave_one_out', 'none')]


def play_game(game, options, task, moves, team):
  environment = game.make_environment(
      team=team, max_turns=3, reward='mixed', sandbox=echo_sandbox.Echo(),
      **options)
  return play(
      environment,
      {role: make_player(role, moves) for role in environment.roles},
      [task | {'task_id': f'{i}'} for i in range(6)])


def of_keys(trees, baseline, scale):
  """Group key -> advantages [N] of all actions."""
  return {
      group_key: np.concatenate([
          group.advantages
          for group in tree_lib.groups_of(credit.assign_advantages(
              trees, specs.advantage(
                  group_key=group_key, baseline=baseline, scale=scale),
              return_type='episode_return'))])
      for group_key in GROUP_KEYS}


@pytest.mark.parametrize('team', ['pair', 'trio'])
@pytest.mark.parametrize('baseline, scale', ADVANTAGES)
@pytest.mark.parametrize('game, options, task, moves', GAMES)
def test_no_two_keys_give_the_same_advantages(
    game, options, task, moves, baseline, scale, team):
  trees = play_game(game, options, task, moves, team)
  # Some episodes are solved, in different turns.
  assert len({
      episode.turns for tree in trees for episode in tree.episodes()
      if episode.success}) > 1
  found = of_keys(trees, baseline, scale)
  for one, other in itertools.combinations(GROUP_KEYS, 2):
    differ = np.abs(found[one] - found[other]) > 0.01
    assert differ.mean() > 0.1, (one, other)


@pytest.mark.parametrize('baseline, scale', ADVANTAGES)
@pytest.mark.parametrize('game, options, task, moves', GAMES)
def test_a_single_agent_has_two_keys(
    game, options, task, moves, baseline, scale):
  found = of_keys(
      play_game(game, options, task, moves, 'solo'), baseline, scale)
  for turn in ('', '+turn'):
    np.testing.assert_array_equal(
        found[f'env{turn}'], found[f'env+agent{turn}'])
  assert np.abs(found['env'] - found['env+turn']).max() > 0.01


@pytest.mark.parametrize('baseline, scale', ADVANTAGES)
@pytest.mark.parametrize('reward, same', [('outcome', True), ('mixed', False)])
def test_roles_without_local_rewards_share_a_return(
    reward, same, baseline, scale):
  environment = relay.make_environment(
      team='pair', max_turns=3, reward=reward, sandbox=None)
  trees = play(
      environment,
      {role: Drawn(0, list(relay.LETTERS)) for role in environment.roles},
      relay.tasks(3))
  found = of_keys(trees, baseline, scale)
  assert np.abs(found['env']).max() > 0.1
  for turn in ('', '+turn'):
    distance = np.abs(found[f'env{turn}'] - found[f'env+agent{turn}']).max()
    assert (distance < 1e-6) == same
