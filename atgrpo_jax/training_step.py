"""One training step: rollout, credit, and the updates of all that is trained.

`train.py` makes one after another; `replay.py` makes some of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import model
from atgrpo_jax.algorithms import collect
from atgrpo_jax.io import step_clock
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api


def draw_tasks(
    tasks: Sequence[env_api.Task], step: int,
    experiment: experiment_lib.Experiment) -> list[env_api.Task]:
  """The tasks of a step: epoch after epoch, each shuffled by its number.

  A function of the step alone, so that a resumed run goes on where it was.
  The last, smaller part of an epoch is left out.
  """
  num_tasks = experiment.config.rollout.num_tasks
  epoch, index = divmod(step, len(tasks) // num_tasks)
  order = np.random.default_rng(
      [experiment.config.seed, epoch]).permutation(len(tasks))
  drawn = order[index * num_tasks:(index + 1) * num_tasks]
  return [tasks[i] for i in drawn]


def references(
    experiment: experiment_lib.Experiment) -> dict[str, model.Params]:
  """Trained policy -> the model that training started from.

  Of an adapter, the model under it. Empty where neither a KL penalty nor the
  diagnosis reads it.
  """
  config = experiment.config
  if config.loss.kl_estimator == 'none' and not config.train.diagnose_every:
    return {}
  return {
      name: (
          experiment.frozen_params.get(name)
          or policy.load_params(policy.learner.dtype))
      for name, policy in experiment.policies.items()
      if policy.trained != 'none'}


def rollout(
    experiment: experiment_lib.Experiment, states: experiment_lib.States,
    tasks: Sequence[env_api.Task], *, step: int, clock: step_clock.StepClock,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[list[tree_lib.Tree], runner_lib.Counters]:
  """Plays the tasks of a step, from 0; trees with advantages, and the cost.

  Raises Stopped when `is_stopped` says so.
  """
  params = experiment_lib.params_of(states)
  runner = experiment.runner(
      params, step=step, temperature=experiment.config.rollout.temperature,
      policy_map=experiment.policy_map, is_stopped=is_stopped)
  with clock.part('algorithm'):
    trees = collect.collect(
        runner, tasks, experiment.rollout, experiment.advantage,
        experiment.judges(params))
  for part, seconds in runner.counters.seconds().items():
    clock.move('algorithm', part, seconds)
  return trees, runner.counters


def update(
    experiment: experiment_lib.Experiment, states: experiment_lib.States,
    trees: Sequence[tree_lib.Tree], *, step: int,
    references: Mapping[str, model.Params],
    clock: step_clock.StepClock) -> dict[str, float]:
  """Updates all that is trained on the trees of a step; the metrics.

  Args:
    experiment: of the run.
    states: are replaced in it.
    trees: with advantages.
    step: that they are of, from 0.
    references: policy -> the model that a penalty or the diagnosis reads.
    clock: counts the seconds.
  """
  every, groups = experiment.config.train.diagnose_every, {
      name: [] for name in experiment.policies if name in states}
  for group in tree_lib.groups_of(trees):
    if group.policy in groups:
      groups[group.policy].append(group)
  values = {}
  if every and step % every == 0:
    with clock.part('diagnosis'):
      for name, own in groups.items():
        values |= update_lib.diagnose_policy(
            experiment.policies[name], states[name], own,
            buckets=experiment.buckets, start=references[name],
            frozen_params=experiment.frozen_params.get(name))
  with clock.part('update'):
    # All updates are dispatched before any is waited for: policies on
    # different pools are updated at the same time.
    updates = {}
    for name, own in groups.items():
      states[name], updates[name] = update_lib.update_policy(
          experiment.policies[name], states[name], own,
          num_updates=experiment.config.train.updates_per_rollout,
          order=experiment.config.train.update_order,
          buckets=experiment.buckets, reference=references.get(name),
          frozen_params=experiment.frozen_params.get(name))
    examples = tree_lib.value_examples_of(trees)
    for name, critic in experiment.critics.items():
      states[name], updates[name] = critic.update(states, examples)
    for name, made in updates.items():
      found = made.metrics(f'Step {step + 1}, {name}')
      values |= {f'{name}/{metric}': x for metric, x in found.items()}
      values[f'{name}/num_updates'] = int(states[name].num_updates)
  return values
