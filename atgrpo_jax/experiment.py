"""The typed objects that a config describes.

Training and evaluation build the same experiment, so what is evaluated is what
was trained. Below `builders` nothing sees a ConfigDict.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import pathlib
from typing import Any

import jax
import ml_collections

from atgrpo_jax import builders
from atgrpo_jax import config_checks
from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import workers as workers_lib
from environments import datasets
from environments import env_api
from environments import sandbox as sandbox_lib

# Trained policy, or critic -> its state, or its parameters alone.
States = dict[str, policy_lib.TrainState]
Params = dict[str, policy_lib.Params]


@dataclasses.dataclass(frozen=True)
class Experiment:
  """What a run is made of.

  Attributes:
    config: where it came from.
    environment: the task.
    policy_map: role -> policy.
    policies: name -> policy.
    buckets: static shapes.
    rollout: switches of the rollout.
    advantage: who is compared, and how.
    critic: what critics there are.
    critics: name -> critic.
    executor: steps environments.
  """

  config: ml_collections.ConfigDict
  environment: env_api.Environment
  policy_map: policies_lib.PolicyMap
  policies: dict[str, policy_lib.Policy]
  buckets: batching.Buckets
  rollout: spec_lib.RolloutSpec
  advantage: spec_lib.AdvantageSpec
  critic: spec_lib.CriticSpec
  critics: dict[str, policy_lib.Policy]
  executor: workers_lib.Workers

  @functools.cached_property
  def frozen_params(self) -> dict[str, model.Params]:
    """Policy with a frozen model -> that; loaded once for each pool."""
    loaded, frozen = {}, {}
    for name, policy in self.policies.items():
      if policy.trained != 'all':
        dtype = policy.learner.dtype
        key = policy.pretrained.folder, dtype, policy.mesh
        if key not in loaded:
          loaded[key] = policy.load_params(dtype)
        frozen[name] = loaded[key]
    return frozen

  def initial_states(self) -> States:
    """Every trained policy and every critic before its first update."""
    return {
        name: learner.initial_state()
        for name, learner in self._learners.items()}

  def state_template(self) -> States:
    """Shapes, dtypes and shardings of `initial_states`, without the bytes."""
    return {
        name: learner.state_template()
        for name, learner in self._learners.items()}

  @property
  def _learners(self) -> dict[str, policy_lib.Policy]:
    return {
        name: policy for name, policy in self.policies.items()
        if policy.trained != 'none'} | self.critics

  def identity(self) -> dict[str, Any]:
    """What a checkpoint is of: the config and the frozen models."""
    return {
        'config_hash': workdir_lib.config_hash(self.config.to_dict()),
        'frozen': self._frozen_digests}

  @functools.cached_property
  def _frozen_digests(self) -> dict[str, str]:
    """Policy with a frozen model -> digest of that."""
    params = {id(frozen): frozen for frozen in self.frozen_params.values()}
    digests = {
        key: checkpoints_lib.digest(frozen) for key, frozen in params.items()}
    return {
        name: digests[id(frozen)]
        for name, frozen in self.frozen_params.items()}

  def restore(
      self, checkpoints: checkpoints_lib.Checkpoints, workdir: pathlib.Path,
      step: int | None = None) -> tuple[States, dict[str, Any]]:
    """The checkpoint of `step`, or the newest one, and its metadata.

    Without a checkpoint: the initial states and {}.
    """
    digests = self._frozen_digests
    restored = checkpoints.restore(self.state_template(), step=step)
    if restored is None:
      return self.initial_states(), {}
    found = f'The checkpoint of step {restored.step} in {workdir}'
    if restored.meta['config_hash'] != self.identity()['config_hash']:
      raise errors.UserError(
          f'{found} was saved with another config than config.json says; '
          'choose another --workdir.')
    for name, there in restored.meta['frozen'].items():
      if there != digests[name]:
        raise errors.UserError(
            f'{found} belongs to another frozen model of policy {name!r}: '
            f'{self.policies[name].pretrained.folder} now holds other weights. '
            'Put the former ones back, or choose another --workdir.')
    return restored.state, restored.meta

  def trained_params(
      self, workdir: pathlib.Path, checkpoint: str = checkpoints_lib.LATEST,
  ) -> tuple[Params, int]:
    """Those of a checkpoint and its step, or the initial ones and 0.

    What only training needs, moments and critics, is neither read nor
    allocated. `checkpoint` is a step, 'latest' or 'best' (see
    `Checkpoints.find`).
    """
    checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
    restored = checkpoints.restore(
        self.state_template(), step=checkpoints.find(checkpoint),
        part=lambda states: params_of({
            name: state for name, state in states.items()
            if name in self.policies}))
    checkpoints.close()
    if restored is not None:
      return restored.state, restored.step
    return {
        name: policy.initial_params()
        for name, policy in self.policies.items()
        if policy.trained != 'none'}, 0

  def runner(
      self, params: Params, *, step: int, temperature: float,
      policy_map: policies_lib.PolicyMap,
      is_stopped: Callable[[], bool] = lambda: False,
  ) -> runner_lib.EpisodeRunner:
    """Plays the environment with the policies of a training step."""
    return runner_lib.EpisodeRunner(
        environment=self.environment, policy_map=policy_map,
        policies=policies_lib.sampling_policies(
            self.policies, params, self.frozen_params), buckets=self.buckets,
        max_new_tokens=self.config.rollout.max_new_tokens,
        temperature=temperature, seed=self.config.seed, train_step=step,
        executor=self.executor, is_stopped=is_stopped,
        alpha=self.rollout.alpha,
        kv_cache_dtype=self.config.rollout.kv_cache_dtype,
        keep_truncated=self.config.rollout.keep_truncated)

  @property
  def critic_buckets(self) -> batching.Buckets:
    """The static shapes of critics."""
    return actor_critic.critic_buckets(self.critic, self.buckets)

  def bound_critics(self, params: Params) -> actor_critic.Critics | None:
    """The critics at their present parameters; None without any."""
    return actor_critic.bind_critics(
        self.critic, self.critics, params, self.critic_buckets)

  def tasks(self, split: str) -> list[env_api.Task]:
    """The tasks of a split of the config's data set; UserError if unusable."""
    with errors.as_user_error():
      tasks = datasets.load(
          self.config.dataset.builder, split,
          self.config.dataset.data_dir or None,
          self.config.dataset.config or None)
    policies_lib.check_first_prompts(self.environment, tasks, {
        role: (self.policies[policy].tokenizer, policies_lib.PromptLimit(
            self.buckets.prompt[-1], self.config.rollout.max_new_tokens,
            self.policies[policy].config.max_positions))
        for role, policy in self.policy_map.items()})
    return tasks


def params_of(states: States) -> Params:
  """The parameters alone."""
  return {name: state.params for name, state in states.items()}


def build(
    config: ml_collections.ConfigDict, *, sandbox: sandbox_lib.Sandbox | None,
    executor: workers_lib.Workers) -> Experiment:
  """Builds what the config describes; raises on what cannot work."""
  config_checks.check_run(config)
  environment = builders.make_environment(config, sandbox)
  policy_map = policies_lib.make_policy_map(
      config.policies, environment.roles)
  names = policies_lib.policy_names(policy_map)
  devices, read_model = jax.devices(), functools.cache(builders.read_model)
  fitting = builders.choose_mesh(config, names, devices, _chip(), read_model)
  policies = builders.build_policies(fitting, names, devices, read_model)
  buckets = batching.Buckets(**fitting.buckets)
  rollout = rollout_spec(config)
  advantage = spec_lib.AdvantageSpec(**config.advantage)
  critic = spec_lib.CriticSpec(**config.critic)
  spec_lib.check_critic(critic, rollout, advantage)
  return Experiment(
      config=config, environment=environment, policy_map=policy_map,
      policies=policies, buckets=buckets,
      rollout=rollout, advantage=advantage, critic=critic,
      critics=actor_critic.make_critics(critic, policies),
      executor=executor)


def _chip() -> fit.Chip | None:
  """The chip; its memory is the minimum over processes."""
  chip = fit.chip_of(jax.local_devices()[0])
  if chip is None:
    return None
  return dataclasses.replace(chip, memory=min(hosts.exchange(chip.memory)))


def rollout_spec(config: ml_collections.ConfigDict) -> spec_lib.RolloutSpec:
  """The switches of the rollout."""
  return spec_lib.RolloutSpec(**{
      field.name: config.rollout[field.name]
      for field in dataclasses.fields(spec_lib.RolloutSpec)})
