"""What is refused, and with which words."""

import math
import re

import pytest

from atgrpo_jax import errors
from tests import specs


@pytest.mark.parametrize('switches, words', [
    ({'group_size': 1}, 'group_size=1: an advantage compares'),
    ({'mode': 'joint'}, "mode='joint' is not implemented yet"),
    ({'mode': 'bush'}, "mode='bush' is not one of ['tree', "),
    ({'selection': 'greedy'},
     "selection='greedy' is not one of ['acting_greedy', "),
    ({'return_type': 'reward'},
     "return_type='reward' is not one of ['immediate', "),
    ({'return_type': 'return_to_go'},
     "return_type='return_to_go' with mode='tree': a candidate of a tree that "
     'is not chosen has no continuation, so its return is unknown; use '
     "return_type='monte_carlo', or mode='parallel'."),
    ({'return_type': 'episode_return'}, "use return_type='monte_carlo', or"),
    ({'mode': 'parallel', 'return_type': 'monte_carlo'},
     "return_type='monte_carlo' with mode='parallel': every candidate goes on"),
    ({'mode': 'parallel', 'selection': 'softmax'},
     "selection='softmax' with mode='parallel': every candidate goes on"),
    ({'num_continuations': 0}, 'num_continuations=0 must be at least 1'),
    ({'selection_temperature': 0.0},
     'selection_temperature=0.0 must be above 0'),
    ({'selection_epsilon': 1.5}, 'selection_epsilon=1.5 is no probability'),
    *(({'alpha': alpha}, f'alpha={alpha}: the weight of the team reward')
      for alpha in (-1.0, math.inf, math.nan)),
])
def test_rollouts_that_cannot_work(switches, words):
  with pytest.raises(errors.UserError, match=re.escape(words)):
    specs.rollout(**switches)


@pytest.mark.parametrize('switches, words', [
    *(({'group_key': group_key},
       f'advantage.group_key={group_key!r}: expected some of '
       "['env', 'agent', 'turn']")
      for group_key in (
          '', 'task', 'env+', 'env+role', 'env,agent', 'env+env',
          'env + agent')),
    ({'normaliser': 'mean'},
     "advantage.normaliser='mean' is not one of ['std', "),
])
def test_advantages_that_cannot_work(switches, words):
  with pytest.raises(errors.UserError, match=re.escape(words)):
    specs.advantage(**switches)
