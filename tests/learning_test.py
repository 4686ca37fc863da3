"""AT-GRPO teaches the echo game to a team with random weights."""

import pytest

from atgrpo_jax import evaluate
from atgrpo_jax import train
from tests import echo


def _success(experiment, params, policy_map):
  """Success on the held-out tasks, with one candidate per prompt."""
  # With a frozen head of this size, no letter exceeds a probability of 0.6.
  temperature = 0.0 if experiment.frozen_params else 1.0
  return evaluate.evaluate(
      experiment.runner(
          params, step=0, temperature=temperature, policy_map=policy_map),
      experiment.tasks('test'))['success']


@pytest.mark.parametrize('policies', ['shared', 'lora_per_role'])
def test_a_team_learns_the_echo_game(policies, echo_folder, tmp_path):
  experiment = echo.experiment(echo_folder, policies=policies)
  initial, step = experiment.trained_params(tmp_path)
  assert step == 0
  before = _success(experiment, initial, experiment.policy_map)
  assert before < 0.3
  assert train.train(experiment, tmp_path)
  params, step = experiment.trained_params(tmp_path)
  assert step == experiment.config.train.num_steps
  # Seeds 0 to 2 gave 0.979 or more.
  assert _success(experiment, params, experiment.policy_map) > 0.9
  if policies != 'shared':
    # Each policy has learned only one role.
    swapped = {'first': 'second', 'second': 'first'}
    assert _success(experiment, params, swapped) < 0.1
