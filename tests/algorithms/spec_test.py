"""Specs refuse switches that cannot work, naming the key and the value."""

import re

import pytest

from atgrpo_jax import errors
from tests import specs


@pytest.mark.parametrize('switches, named', [
    ({'mode': 'bush'}, "mode='bush'"),
    ({'return_type': 'reward'}, "return_type='reward'"),
    ({'return_type': 'return_to_go'}, "return_type='return_to_go'"),
    ({'mode': 'parallel', 'return_type': 'monte_carlo'},
     "return_type='monte_carlo'"),
    ({'mode': 'joint', 'return_type': 'return_to_go', 'selection': 'first'},
     "selection='first'"),
    ({'mode': 'joint', 'selection': 'greedy'}, "selection='greedy'"),
    ({'mode': 'parallel', 'selection': 'softmax'}, "selection='softmax'"),
    ({'joint_actions': 'paired'}, "joint_actions='paired'"),
    ({'joint_actions': 'cross'}, "joint_actions='cross'"),
    ({'cross_credit': 'sum'}, "cross_credit='sum'"),
    ({'stop_above': 0.5}, 'stop_above=0.5'),
    ({'discount': 1.5}, 'discount=1.5'),
    ({'discount': 0.5}, 'discount=0.5'),
    ({'num_continuations': 0}, 'num_continuations=0'),
    ({'selection_temperature': 0.0}, 'selection_temperature=0.0'),
    ({'selection_epsilon': 1.5}, 'selection_epsilon=1.5'),
    ({'alpha': -1.0}, 'alpha=-1.0'),
])
def test_rollout_is_refused(switches, named):
  with pytest.raises(errors.UserError, match=re.escape(named)):
    specs.rollout(**switches)


@pytest.mark.parametrize('switches, named', [
    *(({'group_key': key}, f'group_key={key!r}')
      for key in ((), ('task',), ('env', 'env'), 'env', 'env+agent')),
    ({'baseline': 'median'}, "baseline='median'"),
    ({'scale': 'range'}, "scale='range'"),
    ({'baseline': 'none'}, "baseline='none' with scale='std'"),
])
def test_advantage_is_refused(switches, named):
  with pytest.raises(errors.UserError, match=re.escape(f'advantage.{named}')):
    specs.advantage(**switches)
