"""What is refused, and with which words."""

import math
import re

import pytest

from atgrpo_jax import errors
from tests import specs


@pytest.mark.parametrize('switches, words', [
    ({'group_size': 1}, 'group_size=1: an advantage compares'),
    ({'mode': 'bush'}, "mode='bush' is not one of ['tree', "),
    ({'selection': 'best'},
     "selection='best' is not one of ['greedy', "),
    ({'return_type': 'reward'},
     "return_type='reward' is not one of ['immediate', "),
    ({'return_type': 'return_to_go'},
     "return_type='return_to_go' with mode='tree': a candidate that is not "
     'chosen has no continuation, so what follows it is unknown; use one of '
     "['immediate', 'monte_carlo'], or another mode."),
    ({'return_type': 'return_to_go', 'mode': 'joint', 'selection': 'first'},
     "return_type='return_to_go' with selection='first': a joint action that"),
    ({'mode': 'joint', 'selection': 'greedy'},
     "selection='greedy' with mode='joint': all joint actions go on"),
    ({'joint_actions': 'paired'}, "is not one of ['aligned', 'cross']"),
    *(({name: value}, f"{name}={value!r} is of mode='joint' alone; leave")
      for name, value in (
          ('joint_actions', 'cross'), ('cross_credit', 'sum'),
          ('stop_above', 0.5))),
    ({'discount': 1.5}, 'discount=1.5 must be a number from 0 to 1'),
    ({'discount': 0.5}, "discount=0.5 with return_type='immediate'"),
    ({'mode': 'parallel', 'return_type': 'monte_carlo'},
     "return_type='monte_carlo' with mode='parallel': every candidate goes on"),
    ({'mode': 'parallel', 'selection': 'softmax'},
     "selection='softmax' with mode='parallel': every candidate goes on"),
    ({'num_continuations': 0}, 'num_continuations=0 must be at least 1'),
    ({'selection_temperature': 0.0},
     'selection_temperature=0.0, but must be above 0'),
    ({'selection_epsilon': 1.5}, 'selection_epsilon=1.5 is no probability'),
    *(({'alpha': alpha}, f'rollout.alpha={alpha}, but must be')
      for alpha in (-1.0, math.inf, math.nan)),
])
def test_rollouts_that_cannot_work(switches, words):
  with pytest.raises(errors.UserError, match=re.escape(words)):
    specs.rollout(**switches)


@pytest.mark.parametrize('switches, words', [
    *(({'group_key': group_key},
       f'advantage.group_key={group_key!r}: expected some of '
       "['env', 'agent', 'turn', 'branch']")
      for group_key in (
          '', 'task', 'env+', 'env+role', 'env,agent', 'env+env',
          'env + agent')),
    ({'baseline': 'median'}, "advantage.baseline='median' is not one of"),
    ({'scale': 'range'}, "advantage.scale='range' is not one of ['std', "),
    ({'baseline': 'none'}, "baseline='none' with scale='std': returns that"),
])
def test_advantages_that_cannot_work(switches, words):
  with pytest.raises(errors.UserError, match=re.escape(words)):
    specs.advantage(**switches)
