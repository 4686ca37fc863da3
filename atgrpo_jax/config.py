"""ConfigDict -> the typed objects of a run, with the checks of its values.

`build` returns the `Experiment` that training, evaluation, export and replay
share. `settings` reads the parts that do not need jax; no module below it sees
a ConfigDict. Values that belong to a spec (`RolloutSpec`, `LossSpec`,
`OptimizerSpec`, ...) are checked there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import rules
from atgrpo_jax import settings
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import hosts
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import progress
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rl import losses
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.sampling import engine
from environments import datasets
from environments import env_api
from environments import sandbox as sandbox_lib

# Trained policy or critic -> its state, or its parameters.
States = dict[str, policy_lib.TrainState]
Params = dict[str, policy_lib.Params]
# (model.folder, model.thinking) -> folder, dimensions and tokenizer.
ModelFiles = tuple[
    pathlib.Path, model.ModelConfig, tokenizer_lib.Tokenizer | None]
ReadModel = Callable[[str, bool], ModelFiles]

DTYPES = ('float32', 'bfloat16')
_REMAT = {'True': True, 'False': False}
_AUTO = 'auto'
# Results kept for the backward pass may take this fraction of a host's memory.
_MAX_KEPT = 1 / 8
_POLICY_SECTIONS = ('model', 'lora', 'optimizer')  # Keys of `per_policy`.


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
        'dtypes': self._dtypes, 'frozen': self._frozen_digests,
        'files': self._file_digests, 'adapters': self._adapter_scales,
        'code': self.code_digests}

  @functools.cached_property
  def code_digests(self) -> dict[str, str]:
    """Function or module of the user that the config names -> its digest."""
    modules = {
        'environment.module': self.config.environment.module,
        'dataset.builder': self.config.dataset.builder}
    return rules.digests([
        ('loss.surrogate', self.config.loss.surrogate),
        *spec_lib.rule_names(self.rollout, self.advantage)]) | {
            name: rules.module_digest(key, name)
            for key, name in modules.items()
            if name and name.partition('.')[0] != 'environments'}

  @functools.cached_property
  def _file_digests(self) -> dict[str, str]:
    """Policy -> digest of the files of its model besides the weights."""
    return {
        name: hub.digest(policy.folder)
        for name, policy in self.policies.items()}

  @functools.cached_property
  def _frozen_digests(self) -> dict[str, str]:
    """Policy -> digest of its frozen model or reference."""
    return self._digests(self.references | self.frozen_params)

  def _digests(self, models: Mapping[str, model.Params]) -> dict[str, str]:
    params = {id(frozen): frozen for frozen in models.values()}
    digests = {
        key: checkpoints_lib.digest(frozen) for key, frozen in params.items()}
    return {name: digests[id(frozen)] for name, frozen in models.items()}

  @property
  def _dtypes(self) -> dict[str, str]:
    return {
        name: policy.learner.dtype for name, policy in self.policies.items()}

  @property
  def _adapter_scales(self) -> dict[str, float]:
    return {
        name: policy.lora.scale
        for name, policy in self.policies.items() if policy.lora}

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

  def _check_files(
      self, meta: dict[str, Any], frozen: dict[str, str], prefix: str) -> None:
    """Raises UserError if files of a model differ from those of a run."""
    for key, found, files in (
        ('frozen', frozen, 'weights in {folder}'),
        ('files', self._file_digests,
         'tokenizer, template or config in {folder}'),
        ('adapters', self._adapter_scales,
         'lora_alpha or r in the folder of its adapter')):
      for name, digest in found.items():
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
          if self._dtypes[name] == restored.meta['dtypes'][name]}
      self._check_files(
          restored.meta, self._digests(comparable),
          f'The checkpoint of step {restored.step} in {workdir}')
      return restored.state, restored.step
    return {
        name: policy.initial_params()
        for name, policy in self.policies.items()
        if policy.trained != 'none'}, 0

  def runner(
      self, params: Params, *, step: int, temperature: float,
      policy_map: policies_lib.PolicyMap | None = None,
      is_stopped: Callable[[], bool] = lambda: False, top_k: int = 0,
      top_p: float = 1.0) -> runner_lib.EpisodeRunner:
    """Returns a runner that plays with the policies of a training step.

    `policy_map` replaces that of the run.
    """
    return runner_lib.EpisodeRunner(
        environment=self.environment,
        policy_map=policy_map or self.policy_map,
        policies=policies_lib.sampling_policies(
            self.policies, params, self.frozen_params), buckets=self.buckets,
        max_new_tokens=self.config.rollout.max_new_tokens,
        temperature=temperature, seed=self.config.seed, train_step=step,
        executor=self.executor, is_stopped=is_stopped,
        alpha=self.rollout.alpha,
        keep_truncated=self.config.rollout.keep_truncated,
        step_seconds=self.config.environment.step_seconds, top_k=top_k,
        top_p=top_p)

  @property
  def evaluation_sampling(self) -> dict[str, float]:
    """Arguments of `runner` for evaluations."""
    return {name: self.config.evaluation[name]
            for name in ('temperature', 'top_k', 'top_p')}

  @property
  def critic_buckets(self) -> batching.Buckets:
    """Static shapes of the critics."""
    return dataclasses.replace(
        self.buckets, prompt=self.critic.prompt_buckets or self.buckets.prompt)

  def bound_critics(self, params: Params) -> actor_critic.Critics | None:
    """Returns the critics with these parameters; None without critics."""
    return actor_critic.bind_critics(
        self.critic, self.critics, params, self.critic_buckets)

  def tasks(self, split: str) -> list[env_api.Task]:
    """Loads the tasks of a split and checks that their prompts fit."""
    with (errors.as_user_error(),
          progress.activity(lambda: f'reading split {split} …')):
      tasks = datasets.load(
          self.config.dataset.builder or self.config.environment.module, split,
          self.config.dataset.data_dir or None,
          self.config.dataset.config or None)
    if len({*hosts.exchange(datasets.split_hash(tasks))}) > 1:
      raise errors.UserError(
          f'The processes of the run have different tasks in split {split!r}; '
          'give every host the same files, and draw tasks with a fixed seed.')
    policies_lib.check_first_prompts(
        self.environment, tasks, self.policies, self.policy_map,
        buckets=self.buckets, max_new_tokens=self.config.rollout.max_new_tokens)
    return tasks


def params_of(states: States) -> Params:
  """Returns the parameters of each state."""
  return {name: state.params for name, state in states.items()}


def build(
    config: ml_collections.ConfigDict, *, sandbox: sandbox_lib.Sandbox | None,
    executor: workers_lib.Workers) -> Experiment:
  """Builds the experiment; raises UserError if it cannot work."""
  environment, policy_map, rollout, advantage, critic = _read(config, sandbox)
  names = policies_lib.policy_names(policy_map)
  chip = fit.chip_of(jax.local_devices()[0])
  if chip is not None:  # The smallest memory of all processes.
    chip = dataclasses.replace(chip, memory=min(hosts.exchange(chip.memory)))
  fitting, policies = build_policies(
      config, names, jax.devices(), chip, functools.cache(read_model))
  return Experiment(
      config=config, environment=environment, policy_map=policy_map,
      policies=policies, buckets=batching.Buckets(**fitting.buckets),
      rollout=rollout, advantage=advantage, critic=critic,
      critics=actor_critic.make_critics(critic, policies), executor=executor)


def check(config: ml_collections.ConfigDict) -> None:
  """Raises UserError for mistakes that show without devices and models."""
  workers_lib.Workers(
      config.environment.num_workers, config.environment.program_slots,
      config.sandbox.level, config.sandbox.url)
  _, policy_map, *_ = _read(config, None)
  names = policies_lib.policy_names(policy_map)
  for sections in _policy_configs(config, names).values():
    if sections.model.trained == 'lora':
      model.LoraSpec(**{
          key: value for key, value in sections.lora.items()
          if key != 'folder'})
    _learner_spec(config, sections, None)


def check_run(config: ml_collections.ConfigDict) -> None:
  """Raises UserError for values whose checks need modules with jax."""
  metrics_lib.check_writers(config.train.writers)
  max_new_tokens = config.rollout.max_new_tokens
  max_completion = batching.Buckets(**config.buckets).completion[-1]
  if max_new_tokens > max_completion:
    raise errors.UserError(
        f'rollout.max_new_tokens={max_new_tokens} exceeds the largest of '
        f'buckets.completion, {max_completion}; lower it or raise the bucket.')


def _read(config, sandbox):
  """`settings.read`, after `check_run`."""
  check_run(config)
  return settings.read(config, sandbox)


def read_model(name: str, thinking: bool) -> ModelFiles:
  """Reads the config and tokenizer of a folder or of a model on the hub."""
  folder = hub.resolve_folder(name)
  config = hub.load_config(folder)
  tokenizer = tokenizer_lib.Tokenizer(folder, thinking=thinking)
  if tokenizer.vocab_size > config.vocab_size:
    raise errors.UserError(
        f'{folder}: the tokenizer has {tokenizer.vocab_size} ids, but the '
        f'model only {config.vocab_size}; use both from the same model.')
  return folder, config, tokenizer


def build_policies(
    config: ml_collections.ConfigDict, names: Sequence[str],
    devices: Sequence[jax.Device], chip: fit.Chip | None, read_model: ReadModel,
) -> tuple[ml_collections.ConfigDict, dict[str, policy_lib.Policy]]:
  """Returns the config with its mesh, and name -> policy on that mesh."""
  policies = {
      name: dataclasses.replace(policy, learner=_choose_learner(
          policy, config.buckets.microbatch_tokens, devices))
      for name, policy in read_policies(config, names, read_model).items()}
  config = choose_mesh(config, policies, devices, chip)
  meshes = mesh_lib.make_meshes(names, devices, **config.mesh)
  policies = {
      name: dataclasses.replace(policy, mesh=meshes[name])
      for name, policy in policies.items()}
  for policy in policies.values():
    if policy.lora is not None:
      policy.state_template()  # Raises if targets match no kernel.
  return config, policies


def _choose_learner(
    policy: policy_lib.Policy, microbatch_tokens: int,
    devices: Sequence[jax.Device]) -> policy_lib.LearnerSpec:
  """Returns the learner with the choices of 'auto'."""
  learner, platform = policy.learner, devices[0].platform
  if learner.dtype == _AUTO:
    learner = dataclasses.replace(
        learner, dtype=model.fastest_dtype(platform))
  if learner.remat == _AUTO:
    num_local = sum(x.process_index == jax.process_index() for x in devices)
    kept = num_local * microbatch_tokens * model.kept_bytes(policy.config)
    learner = dataclasses.replace(
        learner, remat=platform != 'cpu' or kept > _MAX_KEPT * os.sysconf(
            'SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))
  return learner


def read_policies(
    config: ml_collections.ConfigDict, names: Sequence[str],
    read_model: ReadModel) -> dict[str, policy_lib.Policy]:
  """Returns name -> policy without a mesh."""
  policies = {}
  for name, sections in _policy_configs(config, names).items():
    folder, dimensions, tokenizer = read_model(
        sections.model.folder, sections.model.thinking)
    lora = adapter = None
    if sections.model.trained == 'lora':
      given = dict(sections.lora)
      if given.pop('folder'):
        adapter, given['alpha'] = peft.load(
            hub.resolve_folder(sections.lora.folder), dimensions)
        given['rank'], given['targets'] = model.describe(adapter)
      lora = model.LoraSpec(**given)
      errors.check_number(
          'lora.rank', lora.rank, less_than=dimensions.hidden_size + 1,
          advice=', the hidden size plus 1; 8 to 64 are common')
    policies[name] = policy_lib.Policy(
        name, folder, dimensions, tokenizer, sections.model.trained, lora,
        adapter, _learner_spec(config, sections, lora))
  return policies


def _learner_spec(
    config: ml_collections.ConfigDict, sections: ml_collections.ConfigDict,
    lora: model.LoraSpec | None) -> policy_lib.LearnerSpec:
  """Returns the learner of a policy with these sections."""
  return policy_lib.LearnerSpec(
      optimizer=policy_lib.OptimizerSpec(**sections.optimizer),
      loss=loss_spec(config.loss),
      temperature=config.rollout.temperature, dtype=sections.model.dtype,
      remat=_REMAT.get(sections.model.remat, _AUTO),
      adapter_scale=lora and lora.scale)


def loss_spec(section: ml_collections.ConfigDict) -> losses.LossSpec:
  """Returns the loss; traces a surrogate of the user with its gradient."""
  name = section.surrogate
  spec = losses.LossSpec(**dict(section) | {'surrogate': rules.find(
      'loss.surrogate', name, losses.SURROGATES, is_array_rule=True)})
  errors.check_choice(
      'loss.aggregation', spec.aggregation, losses.AGGREGATIONS)
  errors.check_choice(
      'loss.kl_estimator', spec.kl_estimator, losses.KL_ESTIMATORS)
  for key in ('clip_low', 'clip_high', 'importance_cap', 'kl_coefficient'):
    errors.check_number(f'loss.{key}', section[key], min_value=0)
  if (spec.kl_estimator == 'none') != (spec.kl_coefficient == 0.0):
    raise errors.UserError(
        f'loss.kl_estimator={spec.kl_estimator!r} and kl_coefficient='
        f'{spec.kl_coefficient}: set both or neither.')
  if rules.is_custom(name):
    tokens, row = (
        jax.ShapeDtypeStruct((2, length), jnp.float32) for length in (3, 1))
    gradient = jax.grad(
        lambda *args: jnp.sum(spec.surrogate(*args, spec)), argnums=(0, 1))
    try:
      jax.eval_shape(gradient, tokens, tokens, row)
    except (TypeError, ValueError) as error:
      raise errors.UserError(
          f'loss.surrogate={name!r} has no gradient '
          f'({errors.one_line(error)}).') from error
  return spec


def _policy_configs(
    config: ml_collections.ConfigDict,
    names: Sequence[str]) -> dict[str, ml_collections.ConfigDict]:
  """Returns the sections of each policy, after `per_policy`."""
  shared = {section: dict(config[section]) for section in _POLICY_SECTIONS}
  configs = {name: ml_collections.ConfigDict(shared).lock() for name in names}
  if config.policies == 'lora_per_role':
    for sections in configs.values():
      sections.model.trained = 'lora'
  for item in config.per_policy:
    try:
      name, key, value = item
      configs[name].update_from_flattened_dict({key: value})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
      raise errors.UserError(
          f'per_policy: {item!r} ({errors.one_line(error)}): expected (policy, '
          f'key, value) with one of the policies {list(names)} and a key of '
          f'{", ".join(_POLICY_SECTIONS)}.') from error
  for sections in configs.values():
    errors.check_choice(
        'model.trained', sections.model.trained, ('all', 'lora', 'none'))
    errors.check_choice('model.dtype', sections.model.dtype, (_AUTO, *DTYPES))
    errors.check_choice('model.remat', sections.model.remat, (_AUTO, *_REMAT))
  return configs


def choose_mesh(
    config: ml_collections.ConfigDict, policies: dict[str, policy_lib.Policy],
    devices: Sequence[jax.Device],
    chip: fit.Chip | None) -> ml_collections.ConfigDict:
  """Returns a config whose mesh fits the devices.

  Chooses `mesh.fsdp` and `mesh.tensor` if they are 0, prints the choice, and
  drops the sizes of `buckets.groups` that do not fit. CPU devices (`chip` is
  None) share the memory of the host, so these sizes become 1. Raises
  fit.DoesNotFit if no mesh fits.
  """
  if config.mesh.fsdp and config.mesh.tensor:
    return config
  config = config.copy_and_resolve_references()
  if chip is None:
    config.mesh.update(
        fsdp=config.mesh.fsdp or 1, tensor=config.mesh.tensor or 1)
    return config
  chosen = fit.choose(
      _pools(config, policies, devices), fit.Shapes(
          config.buckets.prompt[-1],
          engine.row_capacity(config.buckets.completion[-1]),
          config.rollout.group_size, config.buckets.microbatch_tokens,
          config.buckets.groups),
      chip, fsdp=config.mesh.fsdp, tensor=config.mesh.tensor)
  config.mesh.update(fsdp=chosen.fsdp, tensor=chosen.tensor)
  config.buckets.groups = tuple(
      size for size in config.buckets.groups if size <= chosen.num_groups)
  print(chosen.describe())
  return config


def _pools(config, policies, devices) -> list[fit.Pool]:
  """Returns the models that each pool of devices must hold."""
  learners, loaded = {}, set()
  names = list(policies)
  pools = mesh_lib.split_devices(names, devices, config.mesh.pools)
  has_reference = (
      config.loss.kl_estimator != 'none' or config.train.diagnose_every > 0)
  with_critic = {'none': (), 'central': names[:1]}.get(
      config.critic.kind, names)
  for name, policy in policies.items():
    pool, dtype = pools[name], policy.learner.dtype
    itemsize = jnp.dtype(dtype).itemsize
    key = pool, policy.folder, dtype
    is_frozen = policy.trained != 'all'
    learners.setdefault(pool, []).append(fit.Learner(
        policy.config, policy.trained, itemsize,
        lora_rank=policy.lora.rank if policy.lora else 0,
        has_reference=has_reference,
        shares_model=is_frozen and key in loaded))
    if is_frozen:
      loaded.add(key)
    if name in with_critic:
      learners[pool].append(
          fit.Learner(policy.config, 'all', itemsize, is_critic=True))
  return [
      fit.Pool(len(pool), mesh_lib.num_slices(pool), pool_learners)
      for pool, pool_learners in learners.items()]
