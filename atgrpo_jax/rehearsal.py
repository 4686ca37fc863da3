"""Shows mistakes of a training early, before a model is loaded or compiled.

A task is played with made-up replies, so that a mistake in an environment or in
a function of the user shows in seconds.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import pathlib
import types as python_types

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import play as play_lib
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.sampling import engine as engine_lib
from environments import env_api

_MAX_TOKENS = 16  # Of a reply.
# Roles without any advantage are reported after this many steps.
CHECKED_STEPS = 10


def check(
    experiment: experiment_lib.Experiment,
    tasks: Sequence[env_api.Task]) -> None:
  """Raises the UserError that training on `tasks` would raise.

  Plays the first task with two candidates, and compares them without critics.
  """
  config = experiment.config
  if config.rollout.num_tasks > len(tasks):
    raise errors.UserError(
        f'rollout.num_tasks={config.rollout.num_tasks}, but the split '
        f'{config.dataset.train!r} has {len(tasks)} tasks; lower it.')
  if all(policy.trained == 'none' for policy in experiment.policies.values()):
    raise errors.UserError(
        "model.trained='none' for every policy, so there is nothing to train; "
        'train at least one, or use --mode=evaluate.')
  play_lib.check(experiment.environment, experiment.rollout)
  if isinstance(experiment.executor, workers_lib.Workers):
    contract.check_environment(experiment.environment)
  runner = _Rehearsal(
      environment=experiment.environment, policy_map=experiment.policy_map,
      policies={
          name: policies_lib.SamplingPolicy(
              python_types.SimpleNamespace(config=policy.config),
              policy.tokenizer)
          for name, policy in experiment.policies.items()},
      buckets=experiment.buckets,
      max_new_tokens=config.rollout.max_new_tokens, temperature=1.0,
      seed=config.seed, train_step=0, executor=experiment.executor,
      alpha=experiment.rollout.alpha,
      step_seconds=config.environment.step_seconds)
  rollout = dataclasses.replace(experiment.rollout, group_size=2)
  # Another task may work.
  with contextlib.suppress(errors.InfrastructureError):
    trees = runner.play([play_lib.play_task(runner, tasks[0], rollout)])
    if not experiment.critics:
      credit.assign_advantages(trees, experiment.advantage, rollout)


def warn_of_first_steps(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path) -> None:
  """Names problems of all steps so far: no advantages, or long prompts."""
  steps = metrics_lib.read(workdir)
  roles = [
      role for role, policy in experiment.policy_map.items()
      if experiment.policies[policy].trained != 'none'
      and all(step.get(f'{role}/zero_advantage') == 1 for step in steps)]
  if roles:
    print(
        f'warning: {", ".join(roles)} had no advantage in {len(steps)} steps, '
        'because all compared returns were equal, so nothing trains these '
        'answers. If they are rewarded only later, set '
        'rollout.return_type=monte_carlo; see docs/when_at_grpo.md.')
  if all(step['budget/overlong_prompts'] for step in steps):
    print(
        f'warning: in each of {len(steps)} steps, episodes ended because their '
        'next prompt was too long (budget/overlong_prompts). Raise the '
        f'largest of buckets.prompt={experiment.buckets.prompt}.')


class _Rehearsal(runner_lib.EpisodeRunner):
  """A runner without a model."""

  def _engine(self, role, group_size):
    key = self.policy_of(role).tokenizer, group_size
    if key not in self._engines:
      self._engines[key] = _Replies(*key)
    return self._engines[key]


class _Replies:
  """Stands in for an engine: the replies are random tokens, the first none."""

  num_decoded = num_at_work = 0

  def __init__(self, tokenizer, group_size):
    self._tokenizer, self._group_size = tokenizer, group_size
    self._waiting = []

  def add(self, request: engine_lib.Request) -> None:
    self._waiting.append(request)

  def dispatch(self) -> None:
    pass

  def collect(self) -> list[engine_lib.SampledGroup]:
    waiting, self._waiting = self._waiting, []
    return [self._sample(request) for request in waiting]

  def _sample(self, request):
    size = min(_MAX_TOKENS, request.budget) - 1
    replies = np.random.default_rng(request.key_ids).integers(
        self._tokenizer.vocab_size, size=(self._group_size - 1, size))
    completions = [
        np.append(reply, self._tokenizer.stop_ids[0]).astype(np.int32)
        for reply in ([], *replies)]
    return engine_lib.SampledGroup(request, tuple(completions), tuple(
        np.zeros(len(ids), np.float32) for ids in completions))
