"""Plays the tasks of a training step, by the algorithm of `rollout.mode`."""

from collections.abc import Sequence

from atgrpo_jax import errors
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import at_grpo
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
  """Raises UserError if the environment does not suit the rollout mode."""
  if rollout.mode == 'joint':
    magrpo.check(environment, rollout)
    return
  for phase in environment.phases:
    if len(phase) != 1:
      raise errors.UserError(
          f'The roles {phase} act together, but rollout.mode={rollout.mode!r} '
          'compares the candidates of one role at a time. Give each role a '
          "separate phase, or use mode='joint'.")


def play_task(
    runner: runner_lib.EpisodeRunner, task: env_api.Task,
    rollout: spec_lib.RolloutSpec) -> runner_lib.EpisodeCoroutine:
  """Plays a task as `rollout.mode` says; returns its tree."""
  return _PLAY_TASK[rollout.mode](runner, task, rollout)


def play(
    runner: runner_lib.EpisodeRunner, tasks: Sequence[env_api.Task],
    rollout: spec_lib.RolloutSpec,
    critics: actor_critic.Critics | None = None) -> list[tree_lib.Tree]:
  """Plays tasks with distinct ids; returns their trees, with returns.

  `critics` is used by the return type 'bootstrapped' only.
  """
  if rollout.return_type == 'bootstrapped':
    runner.critics_fit = lambda *at: critics.fit(critics.inputs(*at))
  trees = runner.play([play_task(runner, task, rollout) for task in tasks])
  if rollout.return_type == 'bootstrapped':
    trees = actor_critic.with_values(trees, rollout, critics)
  return trees
