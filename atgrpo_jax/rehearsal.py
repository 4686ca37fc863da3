"""Plays a task with made-up replies, before a model is loaded or compiled.

So a mistake in an environment or in a function of the user shows in seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types as python_types

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax.algorithms import credit
from atgrpo_jax.algorithms import play as play_lib
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.sampling import engine as engine_lib
from environments import env_api

_MAX_TOKENS = 16  # Of a reply.


def rehearse(
    experiment: experiment_lib.Experiment, task: env_api.Task) -> None:
  """Plays a task with two candidates, and compares them without critics.

  Raises the UserError that training would raise.
  """
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
      max_new_tokens=experiment.config.rollout.max_new_tokens, temperature=1.0,
      seed=experiment.config.seed, train_step=0, executor=experiment.executor,
      alpha=experiment.rollout.alpha)
  rollout = dataclasses.replace(experiment.rollout, group_size=2)
  # Another task may work.
  with contextlib.suppress(errors.InfrastructureError):
    trees = runner.play([play_lib.play_task(runner, task, rollout)])
    if not experiment.critics:
      credit.assign_advantages(trees, experiment.advantage, rollout)


class _Rehearsal(runner_lib.EpisodeRunner):
  """A runner without a model."""

  def _engine(self, policy, length, group_size):
    del length
    key = policy.tokenizer, group_size
    if key not in self._engines:
      self._engines[key] = _Replies(*key)
    return self._engines[key]


class _Replies:
  """Stands in for an engine: the replies are random tokens, the first none."""

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
