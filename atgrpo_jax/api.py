"""The modes of a run, and sampling, from Python; see docs/running.md."""

from collections.abc import Sequence
from concurrent import futures
import contextlib
import dataclasses
import functools
import os
import pathlib
from typing import Any

import ml_collections

from atgrpo_jax import config as config_lib
from atgrpo_jax import doctor as doctor_lib
from atgrpo_jax import errors
from atgrpo_jax import evaluate as evaluate_lib
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import export as export_lib
from atgrpo_jax import replay as replay_lib
from atgrpo_jax import saved_config
from atgrpo_jax import train as train_lib
from atgrpo_jax import types
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import files
from atgrpo_jax.io import progress
from atgrpo_jax.io import signals
from atgrpo_jax.rollout import workers as workers_lib
from environments import env_api


class Run:
  """A config, a workdir, and the sandbox and worker processes of the run.

  A context manager, which starts these processes and ends them on exit. Its
  methods are the modes of `main`. Raises the errors of `atgrpo_jax.errors` for
  input that a user can fix, and OSError if the disk fails.
  """

  def __init__(
      self, config: ml_collections.ConfigDict | None,
      workdir: str | os.PathLike, *, stop: signals.StopFlag | None = None,
      executor: futures.Executor | None = None):
    """Copies `config`.

    Args:
      config: None reads the config of the run in `workdir`.
      workdir: a local folder or gs://bucket/folder.
      stop: ends the training when it is set.
      executor: steps environments that run no programs; by default, worker
        processes and a sandbox.
    """
    self.workdir = files.as_path(workdir, 'workdir')
    if config is None:
      config = saved_config.get_config(str(self.workdir))
    self.config = config.copy_and_resolve_references()
    self._stop = stop or signals.StopFlag()
    self._executor = executor
    self._sandbox = None
    self._processes = contextlib.ExitStack()

  def __enter__(self) -> 'Run':
    self._processes.enter_context(progress.watching())
    if self._executor is None:
      workers = self._processes.enter_context(workers_lib.Workers(
          self.config.environment.num_workers,
          self.config.environment.program_slots, self.config.sandbox.level,
          self.config.sandbox.url, is_stopped=self._stop.is_set))
      self._executor, self._sandbox = workers, workers.sandbox
      self.config.sandbox.level = workers.level  # Resolves 'auto'.
    return self

  def __exit__(self, *exception) -> None:
    self._executor = None
    self._processes.__exit__(*exception)

  @functools.cached_property
  def experiment(self) -> experiment_lib.Experiment:
    """The typed objects of the run, built on first use."""
    if self._executor is None:
      raise errors.UserError(
          'The run is not open; use it inside `with api.Run(...) as run:`.')
    return config_lib.build(
        self.config, sandbox=self._sandbox, executor=self._executor)

  def train(self) -> dict[str, dict[str, Any]]:
    """Trains, or resumes a run that was stopped.

    Returns:
      'before' and 'after' -> the results of `evaluate.evaluate`; no 'after' if
      a signal stopped the training.
    """
    is_finished = train_lib.train(self.experiment, self.workdir, self._stop)
    return {
        name: evaluate_lib.read(self.workdir, name)
        for name in ('before', 'after')[:1 + is_finished]}

  def evaluate(
      self, checkpoint: str = checkpoints_lib.LATEST) -> dict[str, Any]:
    """Evaluates a checkpoint, or the untrained team, on the test split.

    Also writes `evals/<evaluation.name>.json`. `checkpoint` is a step, 'latest'
    or 'best'.
    """
    evaluate_lib.evaluate_run(self.experiment, self.workdir, checkpoint)
    return evaluate_lib.read(self.workdir, self.config.evaluation.name)

  def export(
      self, checkpoint: str = checkpoints_lib.LATEST) -> list[pathlib.Path]:
    """Writes the trained policies of a checkpoint; returns their folders."""
    export_lib.export_run(self.experiment, self.workdir, checkpoint)
    return sorted((self.workdir / 'export').iterdir())

  def replay(self, step: str) -> bool:
    """Plays a recorded step again; False if it differs from the record."""
    return replay_lib.replay(self.experiment, self.workdir, step)

  def examine(self) -> None:
    """Prints whether the run can start on this machine."""
    doctor_lib.examine(self.experiment, self.workdir)

  def generate(
      self, role: str, messages: Sequence[env_api.Message], *,
      num_samples: int = 1, seed: int = 0, temperature: float | None = None,
      checkpoint: str = checkpoints_lib.LATEST) -> list[str]:
    """Samples completions of a chat from the policy of a role.

    Args:
      role: a role of the environment's team.
      messages: dicts with 'role' and 'content', rendered by the chat template.
      num_samples: number of completions.
      seed: equal seeds give equal completions.
      temperature: 0 is greedy; None is the temperature of training.
      checkpoint: a step, 'latest' or 'best'. A workdir without checkpoints
        samples from the untrained policy.
    """
    experiment = self.experiment
    if role not in experiment.environment.roles:
      raise errors.UserError(
          f'role={role!r}: expected one of {experiment.environment.roles}.')
    if type(num_samples) is not int or num_samples < 1:
      raise errors.UserError(
          f'num_samples={num_samples!r}: expected a positive integer.')
    params, step = experiment.trained_params(self.workdir, checkpoint)
    sampling = experiment.rollout_sampling
    if temperature is not None:
      own = sampling.get('per_policy', {}).items()
      sampling = {'temperature': temperature, 'per_policy': {
          owner: values | {'temperature': temperature}
          for owner, values in own}}
    runner = dataclasses.replace(
        experiment.runner(params, step=step, **sampling), environment=_Chat(),
        seed=seed)
    key = types.GroupKey(task_id='chat', role=role, turn=0, branch=0)

    def episode():
      group, = yield runner.sample({key: messages}, group_size=num_samples)
      return [*map(runner.policy_of(role).tokenizer.decode, group.completions)]

    texts, = runner.play([episode()])
    return texts


class _Chat:
  """An environment whose state is a chat; it is observed but not stepped."""

  def observe(
      self, state: Sequence[env_api.Message],
      role: str) -> Sequence[env_api.Message]:
    return state
