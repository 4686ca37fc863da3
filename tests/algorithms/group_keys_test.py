"""The four group keys of GRPO on a team are four algorithms."""

import dataclasses
import itertools

import numpy as np
import pytest

from atgrpo_jax.algorithms import credit
from atgrpo_jax.rollout import tree as tree_lib
from tests import specs
from tests.environments.boards import games
from tests.rollout import scripted

GROUP_KEYS = (
    ('env',), ('env', 'agent'), ('env', 'turn'), ('env', 'agent', 'turn'))


class Drawn:
  """A script for any prompt: four of the texts, drawn."""

  def __init__(self, seed, texts):
    self._rng, self._texts = np.random.default_rng(seed), texts

  def __getitem__(self, prompt):
    return self._rng.choice(self._texts, 4)


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
  return credit.collect(
      runner, tasks, specs.rollout(
          group_size=4, mode='parallel', return_type='episode_return'),
      specs.advantage())


def play_maze(team):
  """Some moves solve the task, some help, some do not."""
  case = games.CASES['plan_path']
  environment = case.make(team, max_turns=3)
  policies = {}
  for role in environment.roles:
    texts = [games.act(role, x) for x in (None, 'R', 'D', 'RRD', 'RD', 'UU')]
    policies[role] = Drawn([*role.encode()], texts)
  return play(environment, policies, [
      case.task | {'task_id': f'{i}', 'goal': [1, 2]} for i in range(6)])


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
def test_no_two_keys_give_the_same_advantages(team):
  trees = play_maze(team)
  # Some episodes are solved, in different turns.
  assert len({
      episode.turns for tree in trees for episode in tree.episodes()
      if episode.success}) > 1
  for baseline, scale in (
      ('mean', 'std'), ('mean', 'none'), ('leave_one_out', 'none')):
    found = of_keys(trees, baseline, scale)
    for one, other in itertools.combinations(GROUP_KEYS, 2):
      differ = np.abs(found[one] - found[other]) > 0.01
      assert differ.mean() > 0.1, (one, other)
