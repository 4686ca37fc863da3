"""Exact returns of one scripted task in every mode.

Advantages amplify differences between returns, so every bit is pinned.
"""

import numpy as np
import pytest

from atgrpo_jax.rollout import tree as tree_lib
from tests.rollout import scripted

ONE_BY_ONE = (('a',), ('b',))
TOGETHER = (('a', 'b'),)
SWITCHES = {
    'tree': {},
    'tree, monte_carlo': {
        'return_type': 'monte_carlo', 'num_continuations': 2, 'discount': 0.9},
    'parallel': {'mode': 'parallel'},
    'parallel, return_to_go': {
        'mode': 'parallel', 'return_type': 'return_to_go', 'discount': 0.9},
    'parallel, episode_return': {
        'mode': 'parallel', 'return_type': 'episode_return'},
    'joint, aligned': {
        'mode': 'joint', 'return_type': 'return_to_go', 'discount': 0.9},
    'joint, cross': {
        'mode': 'joint', 'return_type': 'return_to_go', 'discount': 0.9,
        'joint_actions': 'cross'},
    'joint, team_greedy': {
        'mode': 'joint', 'selection': 'team_greedy',
        'joint_actions': 'cross', 'cross_credit': 'sum'},
}
RETURNS = {
    'tree': [0.0, 0.1, 0.1, 0.3, 0.2, 0.2, 0.3, 0.1],
    'tree, monte_carlo': [0.25515, 0.35515, 0.667, 0.3, 0.515, 0.515, 0.8, 0.0],
    'parallel': [0.0, 0.1, 0.3, 0.1, 0.1, 0.2, 0.8, 0.8],
    'parallel, return_to_go': [
        0.5103, 0.6103, 0.867, 0.667, 0.73, 0.83, 0.8, 0.8],
    'parallel, episode_return': [0.75, 0.85, 0.9, 0.8, 0.75, 0.85, 0.9, 0.8],
    'joint, aligned': [
        0.315, 0.415, 0.615, 0.315, 0.1, 0.7, 0.2, 0.9, 0.8, 0.2, 1.0,
        0.1],
    'joint, cross': [
        0.1575, 0.17875, 0.4575, 0.07875, 0.1, 0.7, 0.55, 0.55, 0.0,
        0.2, 0.1, 0.0, 0.2, 0.2, 0.1, 0.0, 0.45, 0.2, 0.65, 0.1],
    'joint, team_greedy': [0.0, 0.2, 0.6, 0.0, 0.2, 1.4, 1.1, 1.1],
}


@pytest.mark.parametrize('mode', SWITCHES)
def test_returns_are_exact(mode, monkeypatch):
  scripted.follow_scripts(monkeypatch)
  phases = TOGETHER if 'joint' in mode else ONE_BY_ONE
  trees = scripted.collect(
      scripted.make_runner(
          dict.fromkeys(('one', 'two'), scripted.Dice()),
          environment=scripted.Counting(phases=phases)),
      {'N': 5}, group_size=2, alpha=0.7, **SWITCHES[mode])
  returns = np.concatenate([g.returns for g in tree_lib.groups_of(trees)])
  np.testing.assert_array_equal(returns, np.float32(RETURNS[mode]))
