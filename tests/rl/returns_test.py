"""returns.py: hand-worked tables of one episode."""

import numpy as np
import pytest

from atgrpo_jax.rl import returns


def _returns(team, local, roles, return_type):
  return returns.of_episode(
      np.array(team), np.array(local), list(roles), return_type=return_type,
      alpha=0.5)


@pytest.mark.parametrize('return_type, expected', [
    ('immediate', [.2, .2 + .5, .2, .4 + .5, .4 + 1]),
    # Team rewards from each action on: 4, 4, 3, 3, 2.
    ('return_to_go', [.2 + 2, .2 + 2, .2 + 1.5, .4 + 1.5, .4 + 1]),
    # Half of 4, and a's mean (.2 + .2 + .4) / 3 or b's (.2 + .4) / 2.
    ('episode_return', [2 + .8 / 3, 2.3, 2 + .8 / 3, 2.3, 2 + .8 / 3]),
])
def test_table(return_type, expected):
  found = _returns(
      [0., 1, 0, 1, 2], [.2, .2, .2, .4, .4], 'ababa', return_type)
  np.testing.assert_allclose(found, expected)
  assert found.dtype == np.float64


@pytest.mark.parametrize('return_type, known', [
    ('immediate', [1, 1, 0]), ('return_to_go', [0, 0, 0]),
    ('episode_return', [0, 0, 0])])
def test_what_a_failure_follows_is_unknown(return_type, known):
  found = _returns(
      [0., 1, np.nan], [.1, .2, np.nan], 'aba', return_type)
  np.testing.assert_array_equal(np.isfinite(found), np.array(known, bool))


@pytest.mark.parametrize('return_type', ['return_to_go', 'episode_return'])
def test_putting_off_the_end_pays_nothing(return_type):
  # Both reach the goal: at once, or by way of another turn that pays its
  # agents as much as the first did.
  early, = _returns([1.], [.4], 'a', return_type)
  late, *_ = _returns([0., 0, 1], [.2, 0, .2], 'aba', return_type)
  assert early > late


def test_every_return_type_has_a_rule():
  with pytest.raises(NotImplementedError, match="return_type='last'"):
    _returns([0.], [0.], 'a', 'last')
