"""The groups and the order of updates, and non-finite updates."""


import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import config as config_lib
from atgrpo_jax import errors
from atgrpo_jax import train as train_lib
from atgrpo_jax.algorithms import credit
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rollout import tree as tree_lib
from tests import echo
from tests import specs


@pytest.fixture(scope='module')
def experiment(echo_folder):
  return echo.experiment(echo_folder, **{'environment.max_turns': 2})


@pytest.fixture(scope='module')
def groups(experiment):
  states = experiment.initial_states()
  return tree_lib.groups_of(credit.collect(
      experiment.runner(
          config_lib.params_of(states), step=0, temperature=1.0,
          policy_map=experiment.policy_map),
      train_lib.draw_tasks(experiment.tasks('train'), 0, experiment),
      experiment.rollout, experiment.advantage))


def _update(experiment, groups, order):
  state, found = update_lib.update_policy(
      experiment.policies['shared'], experiment.initial_states()['shared'],
      groups, num_updates=1, order=order, buckets=experiment.buckets,
      frozen_params=None, reference=None)
  return state, found.metrics('shared')


def test_one_update_per_turn(experiment, groups):
  turns = {group.key.turn for group in groups if np.any(group.advantages)}
  assert turns == {0, 1}
  states = {}
  for order in ('first_turn', 'last_turn'):
    states[order], metrics = _update(experiment, groups, order)
    assert states[order].num_updates == 2
    assert metrics['approx_kl'] > 0  # The second is off policy.
  first, last = (
      jax.tree.leaves(states[order].params)
      for order in ('first_turn', 'last_turn'))
  assert any(np.any(x != y) for x, y in zip(first, last, strict=True))


def test_nonfinite_parameters_stop_the_run():
  # Each step of Adam is 2e38 here, so the second overflows.
  spec = specs.optimizer(
      learning_rate=2e38, warmup_updates=0, weight_decay=0.0, b1=0.0, b2=0.0)
  state = policy_lib.TrainState.create(
      {'still': jnp.zeros(2), 'moved': jnp.zeros(2)}, spec)
  grads = {'still': jnp.zeros(2), 'moved': jnp.array([0.0, 1.0])}
  state, *first = update_lib.apply_gradients(state, grads, spec)
  assert update_lib.means('Step 3, solo', [first])['param_norm'] > 0
  _, *second = update_lib.apply_gradients(state, grads, spec)
  with pytest.raises(
      errors.UserError,
      match='Step 3, solo: .* NaN or infinity in moved'):
    update_lib.means('Step 3, solo', [first, second])
