"""What a run holds: its environment, policies, critics, specs and executor.

Training, evaluation, export and replay share an `Experiment`; `config.build`
makes it.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import pathlib
from typing import Any

import ml_collections

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import rules
from atgrpo_jax import settings
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.distributed import hosts
from atgrpo_jax.huggingface import hub
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import progress
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import workers as workers_lib
from environments import datasets
from environments import env_api

# Trained policy or critic -> its state, or its parameters.
States = dict[str, policy_lib.TrainState]
Params = dict[str, policy_lib.Params]


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The typed objects of a run; policies and critics are keyed by name."""

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
    """Policy -> its frozen model; each model is loaded once per pool."""
    loaded, frozen = {}, {}
    for name, policy in self.policies.items():
      if policy.trained != 'all':
        dtype = policy.learner.dtype
        key = policy.folder, dtype, policy.mesh
        if key not in loaded:
          loaded[key] = policy.load_params(dtype)
        frozen[name] = loaded[key]
    return frozen

  @functools.cached_property
  def references(self) -> dict[str, model.Params]:
    """Trained policy -> its initial model, which is under an adapter.

    Empty unless a KL penalty or the diagnosis reads it.
    """
    if (self.config.loss.kl_estimator == 'none'
        and not self.config.train.diagnose_every):
      return {}
    return {
        name: self.frozen_params.get(name)
        or policy.load_params(policy.learner.dtype)
        for name, policy in self.policies.items() if policy.trained != 'none'}

  def initial_states(self) -> States:
    """Returns every trained policy and critic before its first update."""
    return {
        name: learner.initial_state()
        for name, learner in self._learners.items()}

  def state_template(self) -> States:
    """Returns shapes, dtypes and shardings of `initial_states`."""
    return {
        name: learner.state_template()
        for name, learner in self._learners.items()}

  @property
  def _learners(self) -> dict[str, policy_lib.Policy]:
    return {
        name: policy for name, policy in self.policies.items()
        if policy.trained != 'none'} | self.critics

  def identity(self) -> dict[str, Any]:
    """Returns what a checkpoint must match: config, models and code."""
    return {
        'config_hash': workdir_lib.config_hash(self.config.to_dict()),
        'frozen': self._frozen_digests, 'code': self.code_digests,
        **self._model_files}

  @functools.cached_property
  def code_digests(self) -> dict[str, str]:
    """Function or module of the user that the config names -> its digest."""
    modules = (
        ('environment.module', self.config.environment.module),
        ('dataset.builder', self.config.dataset.builder))
    named = (
        ('loss.surrogate', self.config.loss.surrogate),
        *spec_lib.rule_names(self.rollout, self.advantage))
    return {
        name: rules.module_digest(key, name.partition(':')[0])
        for key, name in (
            *((key, name) for key, name in named if rules.is_custom(name)),
            *((key, name) for key, name in modules
              if name and name.partition('.')[0] != 'environments'))}

  @functools.cached_property
  def _model_files(self) -> dict[str, dict[str, Any]]:
    """What each policy reads besides the weights, and its dtype."""
    policies = self.policies.items()
    return {
        'dtypes': {name: policy.learner.dtype for name, policy in policies},
        'files': {name: hub.digest(policy.folder) for name, policy in policies},
        'adapters': {
            name: policy.lora.scale for name, policy in policies
            if policy.lora}}

  @functools.cached_property
  def _frozen_digests(self) -> dict[str, str]:
    """Policy -> digest of its frozen model or reference."""
    return _digests(self.references | self.frozen_params)

  def restore(
      self, checkpoints: checkpoints_lib.Checkpoints, workdir: pathlib.Path,
      step: int | None = None) -> tuple[States, dict[str, Any]]:
    """Restores the states and metadata of `step`, or of the newest checkpoint.

    Without a checkpoint these are the initial states and an empty dict.
    """
    # Files may change later, so their digests are taken now.
    identity = self.identity()
    restored = checkpoints.restore(self.state_template(), step=step)
    if restored is None:
      return self.initial_states(), {}
    prefix = f'The checkpoint of step {restored.step} in {workdir}'
    if restored.meta['config_hash'] != identity['config_hash']:
      raise errors.UserError(
          f'{prefix} was saved with a config other than config.json; choose '
          'another --workdir.')
    for name in identity['frozen']:
      saved, dtype = restored.meta['dtypes'][name], identity['dtypes'][name]
      if dtype != saved:
        raise errors.UserError(
            f'{prefix} multiplied in {saved}, but model.dtype='
            f'{self.config.model.dtype!r} stands for {dtype} on this machine. '
            'Resume it on one of the same kind.')
    self._check_files(restored.meta, identity['frozen'], prefix)
    for name, digest in identity['code'].items():
      if digest != restored.meta['code'][name]:
        raise errors.UserError(
            f'{prefix} used another {name!r}: the file of the module has '
            'changed. Restore it, or choose another --workdir.')
    return restored.state, restored.meta

  def print_products(self) -> None:
    """Prints how matrices are multiplied; often all policies do the same."""
    for dtype, remat in dict.fromkeys(
        (policy.learner.dtype, policy.learner.remat)
        for policy in self.policies.values()):
      print(f'matrix products in {dtype}, which the backward pass '
            f'{"recomputes" if remat else "keeps"}')

  def _check_files(
      self, meta: dict[str, Any], frozen: dict[str, str], prefix: str) -> None:
    """Raises UserError if files of a model differ from those of a run."""
    found = self._model_files | {'frozen': frozen}
    for key, files in (
        ('frozen', 'weights in {folder}'),
        ('files', 'tokenizer, template or config in {folder}'),
        ('adapters', 'lora_alpha or r in the folder of its adapter')):
      for name, digest in found[key].items():
        if digest != meta[key][name]:
          files = files.format(folder=self.policies[name].folder)
          raise errors.UserError(
              f'{prefix} used another model for policy {name!r}: {files} have '
              'changed. Restore them, or choose another --workdir.')

  def trained_params(
      self, workdir: pathlib.Path, checkpoint: str = checkpoints_lib.LATEST,
  ) -> tuple[Params, int]:
    """Loads the parameters of the policies, and the step of the checkpoint.

    Without a checkpoint these are the initial parameters and 0. `checkpoint` is
    a step, 'latest' or 'best'; see `Checkpoints.find`.
    """
    checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
    restored = checkpoints.restore(
        self.state_template(), step=checkpoints.find(checkpoint),
        part=lambda states: params_of({
            name: state for name, state in states.items()
            if name in self.policies}))
    checkpoints.close()
    if restored is not None:
      # Another kind of CPU may have loaded the models in another dtype.
      comparable = {
          name: frozen for name, frozen in self.frozen_params.items()
          if self.policies[name].learner.dtype == (
              restored.meta['dtypes'][name])}
      self._check_files(
          restored.meta, _digests(comparable),
          f'The checkpoint of step {restored.step} in {workdir}')
      return restored.state, restored.step
    return {
        name: policy.initial_params()
        for name, policy in self.policies.items()
        if policy.trained != 'none'}, 0

  def runner(
      self, params: Params, *, step: int,
      policy_map: policies_lib.PolicyMap | None = None,
      is_stopped: Callable[[], bool] = lambda: False,
      **sampling: Any) -> runner_lib.EpisodeRunner:
    """Returns a runner that plays with the policies of a training step.

    `policy_map` replaces that of the run. `sampling` is `rollout_sampling` or
    `evaluation_sampling`, or other fields of the runner that say how to sample.
    """
    return runner_lib.EpisodeRunner(
        environment=self.environment,
        policy_map=policy_map or self.policy_map,
        policies=policies_lib.sampling_policies(
            self.policies, params, self.frozen_params), buckets=self.buckets,
        max_new_tokens=self.config.rollout.max_new_tokens,
        seed=self.config.seed, train_step=step, executor=self.executor,
        is_stopped=is_stopped, alpha=self.rollout.alpha,
        keep_truncated=self.config.rollout.keep_truncated,
        step_seconds=self.config.environment.step_seconds,
        stop=self.config.rollout.stop, **sampling)

  @property
  def rollout_sampling(self) -> dict[str, Any]:
    """Arguments of `runner` for training and validation."""
    return {'temperature': self.config.rollout.temperature} | self._per_policy(
        'rollout.temperature', 'rollout.max_new_tokens', 'rollout.stop')

  @property
  def evaluation_sampling(self) -> dict[str, Any]:
    """Arguments of `runner` for evaluations."""
    names = 'temperature', 'top_k', 'top_p'
    return {
        name: self.config.evaluation[name] for name in names
    } | self._per_policy(
        'rollout.max_new_tokens', 'rollout.stop',
        *(f'evaluation.{name}' for name in names))

  def _per_policy(self, *keys: str) -> dict[str, Any]:
    """The argument `per_policy` of `runner`; empty without such overrides."""
    found = {}
    for owner, key, value in self.config.per_policy:
      if key in keys:
        found.setdefault(owner, {})[key.partition('.')[2]] = value
    return {'per_policy': found} if found else {}

  @property
  def critic_buckets(self) -> batching.Buckets:
    """Static shapes of the critics."""
    return dataclasses.replace(
        self.buckets, prompt=self.critic.prompt_buckets or self.buckets.prompt)

  def bound_critics(self, params: Params) -> actor_critic.Critics | None:
    """Returns the critics with these parameters; None without critics.

    Without parameters they have no values.
    """
    if not self.critics:
      return None
    buckets = self.critic_buckets
    return actor_critic.Critics(self.critic, {
        name.removeprefix('critic/'): actor_critic.BoundCritic(
            name, critic.tokenizer,
            min(buckets.prompt[-1], critic.config.max_positions),
            functools.partial(
                update_lib.critic_values, critic, params.get(name),
                buckets=buckets))
        for name, critic in self.critics.items()},
        self.environment, self.policy_map)

  def tasks(self, split: str) -> list[env_api.Task]:
    """Loads the tasks of a split and checks that their prompts fit."""
    with progress.activity(lambda: f'reading split {split} …'):
      tasks = settings.load_tasks(self.config, split)
    if len({*hosts.exchange(datasets.split_hash(tasks))}) > 1:
      raise errors.UserError(
          f'The processes of the run have different tasks in split {split!r}; '
          'give every host the same files, and draw tasks with a fixed seed.')
    with progress.activity(lambda: f'checking the first prompts of {split} …'):
      policies_lib.check_first_prompts(
          self.environment, tasks, self.policies, self.policy_map,
          buckets=self.buckets,
          max_new_tokens=self.config.rollout.max_new_tokens)
      if self.critics and split == self.config.dataset.train:
        self.bound_critics({}).check_first_inputs(tasks)
    return tasks


def params_of(states: States) -> Params:
  """Returns the parameters of each state."""
  return {name: state.params for name, state in states.items()}


def _digests(models: Mapping[str, model.Params]) -> dict[str, str]:
  """Policy -> digest of its model; shared models are read once."""
  params = {id(frozen): frozen for frozen in models.values()}
  digests = {
      key: checkpoints_lib.digest(frozen) for key, frozen in params.items()}
  return {name: digests[id(frozen)] for name, frozen in models.items()}
