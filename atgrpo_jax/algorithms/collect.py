"""The rollout of a training step: each task is played, then credit is given."""

from __future__ import annotations

from collections.abc import Sequence

from atgrpo_jax import errors
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import at_grpo
from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import grpo
from atgrpo_jax.algorithms import magrpo
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api

_PLAY_TASK = {
    'tree': at_grpo.play_task, 'parallel': grpo.play_task,
    'joint': magrpo.play_task}


def check(
    environment: env_api.Environment, rollout: spec_lib.RolloutSpec) -> None:
  """Raises UserError if the environment cannot be played so."""
  if rollout.mode == 'joint':
    magrpo.check(environment, rollout)
    return
  for phase in environment.phases:
    if len(phase) != 1:
      raise errors.UserError(
          f'The roles {phase} act at once; rollout.mode={rollout.mode!r} '
          'compares the candidates of one role at a time. Give each role a '
          "phase of its own, or use mode='joint'.")


def collect(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    rollout: spec_lib.RolloutSpec, advantage: spec_lib.AdvantageSpec,
    critics: actor_critic.Critics | None = None) -> list[tree_lib.Tree]:
  """A tree with advantages for each of the tasks, which are distinct.

  `critics` are read by the return type 'bootstrapped' alone.
  """
  if len({task['task_id'] for task in tasks}) != len(tasks):
    raise ValueError('Two tasks of a rollout have the same task_id.')
  play_task = _PLAY_TASK[rollout.mode]
  trees = runner.play([play_task(runner, task, rollout) for task in tasks])
  if rollout.return_type == 'bootstrapped':
    trees = actor_critic.with_values(
        trees, runner.environment, runner.policy_map, rollout, critics)
  return credit.assign_advantages(
      trees, advantage, return_type=rollout.return_type)
