"""The typed objects that a config describes.

Training and evaluation build the same experiment, so what is evaluated is what
was trained. Below this module nothing sees a ConfigDict.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
import dataclasses
import functools
import importlib
import pathlib
from typing import Any

import jax
import ml_collections

from atgrpo_jax import config_checks
from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import critics as critics_lib
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.learner import critic as critic_lib
from atgrpo_jax.learner import optimizer
from atgrpo_jax.learner import policies as policies_lib
from atgrpo_jax.learner import train_state
from atgrpo_jax.learner import train_step
from atgrpo_jax.rl import losses
from atgrpo_jax.rollout import first_prompts
from atgrpo_jax.rollout import policy_map as policy_map_lib
from atgrpo_jax.rollout import prompt_limits
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import sampling_policies
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.runtime import buckets as buckets_lib
from atgrpo_jax.runtime import checkpoints as checkpoints_lib
from atgrpo_jax.runtime import sharding
from atgrpo_jax.runtime import workdir as workdir_lib
from environments import datasets
from environments import env_api
from environments import sandbox as sandbox_lib

# Sections of a config that may differ from policy to policy.
_OWN_SECTIONS = ('model', 'lora', 'optimizer')
TRAINED = ('all', 'lora', 'none')

# Trained policy, or critic -> its state, or its parameters alone.
States = dict[str, train_state.TrainState]
Params = dict[str, train_state.Params]


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
  policy_map: policy_map_lib.PolicyMap
  policies: dict[str, policies_lib.Policy]
  buckets: buckets_lib.Buckets
  rollout: spec_lib.RolloutSpec
  advantage: spec_lib.AdvantageSpec
  critic: spec_lib.CriticSpec
  critics: dict[str, critic_lib.Critic]
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
  def _learners(self) -> dict[str, policies_lib.Policy | critic_lib.Critic]:
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
    """A checkpoint and its metadata, or the initial states.

    The checkpoint is that of `step`, or the newest one.
    """
    digests = self._frozen_digests
    restored = checkpoints.restore(self.state_template(), step=step)
    if restored is None:
      return self.initial_states(), {
          'step': 0, 'completion_tokens': 0, 'step_tokens': 0,
          'best_success': -1.0}
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
      policy_map: policy_map_lib.PolicyMap,
      is_stopped: Callable[[], bool] = lambda: False,
  ) -> runner_lib.EpisodeRunner:
    """Plays the environment with the policies of a training step."""
    return runner_lib.EpisodeRunner(
        environment=self.environment, policy_map=policy_map,
        policies=sampling_policies.make(
            self.policies, params, self.frozen_params), buckets=self.buckets,
        max_new_tokens=self.config.rollout.max_new_tokens,
        temperature=temperature, seed=self.config.seed, train_step=step,
        executor=self.executor, is_stopped=is_stopped)

  def judges(self, params: Params) -> actor_critic.Critics | None:
    """The critics at their present parameters; None without any."""
    return critics_lib.judges(self.critic, self.critics, params)

  def tasks(self, split: str) -> list[env_api.Task]:
    """The tasks of a split of the config's data set; UserError if unusable."""
    with errors.as_user_error():
      tasks = datasets.load(
          self.config.dataset.builder, split,
          self.config.dataset.data_dir or None,
          self.config.dataset.config or None)
    first_prompts.check(self.environment, tasks, {
        role: (self.policies[policy].tokenizer, prompt_limits.Limits(
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
  environment = make_environment(config, sandbox)
  policy_map = policy_map_lib.make_policy_map(
      config.policies, environment.roles)
  policies = build_policies(
      config, policy_map_lib.policies_of(policy_map), jax.devices(),
      _read_model)
  buckets = buckets_lib.Buckets(**config.buckets)
  rollout = rollout_spec(config)
  advantage = spec_lib.AdvantageSpec(**config.advantage)
  critic = spec_lib.CriticSpec(**config.critic)
  spec_lib.check_critic(critic, rollout, advantage)
  return Experiment(
      config=config, environment=environment, policy_map=policy_map,
      policies=policies, buckets=buckets,
      rollout=rollout, advantage=advantage, critic=critic,
      critics=critics_lib.build(
          critic, policies, buckets,
          lambda folder: _read_model(folder, config.model.thinking)),
      executor=executor)


def rollout_spec(config: ml_collections.ConfigDict) -> spec_lib.RolloutSpec:
  """The switches of the rollout."""
  return spec_lib.RolloutSpec(**{
      field.name: config.rollout[field.name]
      for field in dataclasses.fields(spec_lib.RolloutSpec)})


def build_policies(
    config: ml_collections.ConfigDict, names: Sequence[str],
    devices: Sequence[jax.Device],
    read_model: Callable[[str, bool], policies_lib.Pretrained],
) -> dict[str, policies_lib.Policy]:
  """Policy -> what the config says of it.

  Args:
    config: of the run.
    names: of the policies.
    devices: all that the run has.
    read_model: of `model.folder` and `model.thinking`.
  """
  meshes = sharding.make_meshes(
      names, devices, sharding.MeshSpec(**config.mesh))
  policies = {}
  for name, own in _policy_configs(config, names).items():
    pretrained = read_model(own.model.folder, own.model.thinking)
    policies[name] = _build_policy(name, own, config, pretrained, meshes[name])
  return policies


def _policy_configs(
    config: ml_collections.ConfigDict,
    names: Sequence[str]) -> dict[str, ml_collections.ConfigDict]:
  """The sections that each policy has for itself, after `per_policy`."""
  configs = {}
  for name in names:
    configs[name] = ml_collections.ConfigDict({
        section: dict(config[section]) for section in _OWN_SECTIONS})
    if policy_map_lib.adapts(config.policies):
      if config.model.trained == 'none':
        raise errors.UserError(
            f'policies={config.policies!r} trains an adapter for each role, '
            "but model.trained='none'; give 'per_role' to train none.")
      configs[name].model.trained = 'lora'
  for item in filter(None, config.per_policy.split(';')):
    place, equals, text = item.strip().partition('=')
    name, _, key = place.partition('.')
    section, _, field = key.partition('.')
    if (not equals or name not in configs or section not in _OWN_SECTIONS
        or field not in config[section]):
      raise errors.UserError(
          f'per_policy: {item.strip()!r} is not of the form '
          'POLICY.SECTION.KEY=VALUE, with one of the policies '
          f'{", ".join(names)} and a key of config.'
          f'{", config.".join(_OWN_SECTIONS)}.')
    old = configs[name][section][field]
    try:
      value = text if isinstance(old, str) else ast.literal_eval(text)
      configs[name][section][field] = value
    except (SyntaxError, TypeError, ValueError) as error:
      raise errors.UserError(
          f'per_policy: {item.strip()!r} should be a {type(old).__name__}, '
          f'such as {old!r}.') from error
  return configs


def _build_policy(
    name: str, own: ml_collections.ConfigDict,
    config: ml_collections.ConfigDict, pretrained: policies_lib.Pretrained,
    mesh: jax.sharding.Mesh) -> policies_lib.Policy:
  """One policy from its own sections and what all policies share."""
  if own.model.trained not in TRAINED:
    raise errors.UserError(
        f'model.trained={own.model.trained!r} is not one of {list(TRAINED)}.')
  config_checks.check_dtype('model.dtype', own.model.dtype)
  lora = adapter = None
  if own.model.trained == 'lora':
    given = dict(own.lora)
    if given.pop('folder'):
      adapter, given['alpha'] = peft.load(own.lora.folder, pretrained.config)
      given['rank'], given['targets'] = model.describe(adapter)
    lora = model.LoraSpec(**given)
  with errors.as_user_error():
    learner = train_step.LearnerSpec(
        optimizer=optimizer.OptimizerSpec(**own.optimizer),
        loss=losses.LossSpec(**config.loss),
        temperature=config.rollout.temperature,
        dtype=own.model.dtype, remat=own.model.remat,
        adapter_scale=lora and lora.scale)
  policy = policies_lib.Policy(
      name=name, pretrained=pretrained, trained=own.model.trained, lora=lora,
      adapter=adapter, learner=learner, mesh=mesh)
  if lora is not None:
    policy.state_template()  # Raises for targets that are no kernels.
  return policy


def make_environment(
    config: ml_collections.ConfigDict,
    sandbox: sandbox_lib.Sandbox | None) -> env_api.Environment:
  """The environment; without a sandbox it is never stepped."""
  name = config.environment.module
  try:
    make = importlib.import_module(name).make_environment
  except errors.OF_CODE as error:
    raise errors.UserError(
        f'environment.module={name!r} cannot be used '
        f'({errors.one_line(error)}); it must be a module with '
        'make_environment, such as environments.boards.plan_path.env.'
        ) from error
  with errors.as_user_error():
    try:
      environment = make(
          team=config.environment.team, max_turns=config.environment.max_turns,
          reward=config.environment.reward, sandbox=sandbox,
          **config.environment.options)
    except (LookupError, TypeError) as error:
      raise errors.UserError(
          f'environment.module={name!r}: make_environment cannot be called '
          'with team, max_turns, reward, sandbox and environment.options '
          f'({errors.one_line(error)}).') from error
  _check_environment(name, environment)
  return environment


def _check_environment(name: str, environment: env_api.Environment) -> None:
  """Raises UserError unless it has what `env_api.Environment` says."""
  missing = [
      attribute for attribute in (
          'roles', 'phases', 'max_turns', 'team_reward_range', 'reset',
          'observe', 'step', 'show')
      if not hasattr(environment, attribute)]
  if missing:
    raise errors.UserError(
        f'environment.module={name!r}: what make_environment returned has no '
        f'{", ".join(missing)}; see environments/env_api.py.')
  errors.check_number(
      f'environment.module={name!r}: max_turns', environment.max_turns, least=1)
  acting = [role for phase in environment.phases for role in phase]
  if not acting or sorted(acting) != sorted(environment.roles):
    raise errors.UserError(
        f'environment.module={name!r}: each of the roles {environment.roles} '
        f'must act in one of the phases {environment.phases}.')


def _read_model(name: str, thinking: bool) -> policies_lib.Pretrained:
  """A model folder, or the name of one on the hub."""
  folder = hub.resolve_folder(name)
  config = hub.load_config(folder)
  tokenizer = tokenizer_lib.Tokenizer(folder, thinking=thinking)
  if tokenizer.vocab_size > config.vocab_size:
    raise errors.UserError(
        f'{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model '
        f'only {config.vocab_size}; take both from the same model.')
  return policies_lib.Pretrained(folder, config, tokenizer)
