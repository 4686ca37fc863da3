"""ConfigDict -> the `Experiment` of a run, with the checks of its values.

`settings` reads the parts that do not need jax; no module below it sees a
ConfigDict, except that an `Experiment` keeps the one of its run. Values that
belong to a spec (`RolloutSpec`, `LossSpec`, `OptimizerSpec`, ...) are checked
there.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import os
import pathlib

import jax
import jax.numpy as jnp
import ml_collections

from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import model
from atgrpo_jax import rules
from atgrpo_jax import settings
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import hosts
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rl import losses
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.sampling import engine
from environments import sandbox as sandbox_lib

# (model.folder, model.thinking) -> folder, dimensions and tokenizer.
ModelFiles = tuple[
    pathlib.Path, model.ModelConfig, tokenizer_lib.Tokenizer | None]
ReadModel = Callable[[str, bool], ModelFiles]

DTYPES = ('float32', 'bfloat16')
_REMAT = {'True': True, 'False': False}
_AUTO = 'auto'
# Results kept for the backward pass may take this fraction of a host's memory.
_MAX_KEPT = 1 / 8
# Section -> its keys that `per_policy` may override; () for all. Roles may
# override those of sampling.
_POLICY_SECTIONS = {
    'model': (), 'lora': (), 'optimizer': (),
    'rollout': ('temperature', 'max_new_tokens', 'stop'),
    'evaluation': ('temperature', 'top_k', 'top_p')}
_SAMPLING = [
    f'{section}.{key}'
    for section, keys in _POLICY_SECTIONS.items() for key in keys]


def build(
    config: ml_collections.ConfigDict, *, sandbox: sandbox_lib.Sandbox | None,
    executor: workers_lib.Workers) -> experiment_lib.Experiment:
  """Builds the experiment; raises UserError if it cannot work."""
  check_run(config)
  hosts.check_platform()
  environment, policy_map, rollout, advantage, critic = settings.read(
      config, sandbox)
  chip = fit.chip_of(jax.local_devices()[0])
  if chip is not None:  # The smallest memory of all processes.
    chip = dataclasses.replace(chip, memory=min(hosts.exchange(chip.memory)))
  fitting, policies = build_policies(
      config, policy_map, jax.devices(), chip, functools.cache(read_model))
  return experiment_lib.Experiment(
      config=config, environment=environment, policy_map=policy_map,
      policies=policies, buckets=batching.Buckets(**fitting.buckets),
      rollout=rollout, advantage=advantage, critic=critic,
      critics=actor_critic.make_critics(critic, policies), executor=executor)


def check(config: ml_collections.ConfigDict) -> None:
  """Raises UserError for mistakes that show without devices and models."""
  workers_lib.Workers(
      config.environment.num_workers, config.environment.program_slots,
      config.sandbox.level, config.sandbox.url)
  check_run(config)
  _, policy_map, *_ = settings.read(config, None)
  for sections in _policy_configs(config, policy_map).values():
    if sections.model.trained == 'lora':
      model.LoraSpec(**{
          key: value for key, value in sections.lora.items()
          if key != 'folder'})
    _learner_spec(config, sections, None)


@settings.version_errors()
def check_run(config: ml_collections.ConfigDict) -> None:
  """Raises UserError for values whose checks need modules with jax."""
  for section, spec, *others in (
      ('optimizer', policy_lib.OptimizerSpec), ('loss', losses.LossSpec),
      ('lora', model.LoraSpec, 'folder'),
      ('buckets', batching.Buckets, 'rows')):
    expected = {*others} | {
        field.name for field in dataclasses.fields(spec)
        if field.default is dataclasses.MISSING}
    for key in expected ^ {*config[section]}:
      raise KeyError(f'{section}.{key}')
  metrics_lib.check_writers(config.train.writers)
  max_new_tokens = config.rollout.max_new_tokens
  max_completion = batching.Buckets(**config.buckets).completion[-1]
  if max_new_tokens > max_completion:
    raise errors.UserError(
        f'rollout.max_new_tokens={max_new_tokens} exceeds the largest of '
        f'buckets.completion, {max_completion}; lower it or raise the bucket.')


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
    config: ml_collections.ConfigDict, policy_map: policies_lib.PolicyMap,
    devices: Sequence[jax.Device], chip: fit.Chip | None, read_model: ReadModel,
) -> tuple[ml_collections.ConfigDict, dict[str, policy_lib.Policy]]:
  """Returns the config with its mesh, and name -> policy on that mesh."""
  policies = {
      name: dataclasses.replace(policy, learner=_choose_learner(
          policy, config.buckets.microbatch_tokens, devices))
      for name, policy in read_policies(
          config, policy_map, read_model).items()}
  config = choose_mesh(config, policies, devices, chip)
  meshes = mesh_lib.make_meshes(list(policies), devices, **config.mesh)
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
    config: ml_collections.ConfigDict, policy_map: policies_lib.PolicyMap,
    read_model: ReadModel) -> dict[str, policy_lib.Policy]:
  """Returns name -> policy without a mesh."""
  policies = {}
  for name, sections in _policy_configs(config, policy_map).items():
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
  return policy_lib.LearnerSpec(
      optimizer=policy_lib.OptimizerSpec(**sections.optimizer),
      loss=loss_spec(config.loss),
      dtype=sections.model.dtype,
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
    config: ml_collections.ConfigDict, policy_map: policies_lib.PolicyMap,
) -> dict[str, ml_collections.ConfigDict]:
  """Returns the sections of each policy, after `per_policy`."""
  shared = {
      section: {key: config[section][key] for key in keys or config[section]}
      for section, keys in _POLICY_SECTIONS.items()}
  configs = {
      name: ml_collections.ConfigDict(shared).lock()
      for name in dict.fromkeys(policy_map.values())}
  if config.policies == 'lora_per_role':
    for sections in configs.values():
      sections.model.trained = 'lora'
  for item in config.per_policy:
    try:
      owner, name, value = item
      section, _, key = name.partition('.')
      if name in _SAMPLING and owner not in configs:  # A role.
        sections = configs[policy_map[owner]]
      else:
        sections = configs[owner]
      sections[section][key] = value
    except (LookupError, TypeError, ValueError, AttributeError) as error:
      raise errors.UserError(
          f'per_policy: {item!r} ({errors.one_line(error)}): expected (policy, '
          f'key, value) with one of the policies {list(configs)} and a key of '
          'model, lora or optimizer, or (policy or role, key, value) with '
          f'{", ".join(_SAMPLING)}.') from error
    try:
      settings.check_sampling(sections)
      errors.check_number(
          'rollout.max_new_tokens', sections.rollout.max_new_tokens,
          min_value=1, less_than=config.rollout.max_new_tokens + 1,
          advice=', the limit of all policies plus 1')
    except errors.UserError as error:
      raise errors.UserError(f'per_policy of {owner!r}: {error}') from error
  for sections in configs.values():
    errors.check_choice(
        'model.trained', sections.model.trained, ('all', 'lora', 'none'))
    errors.check_choice('model.dtype', sections.model.dtype, (_AUTO, *DTYPES))
    errors.check_choice('model.remat', sections.model.remat, (_AUTO, *_REMAT))
  folders = {x.lora.folder for x in configs.values()} - {''}
  if folders and all(x.model.trained != 'lora' for x in configs.values()):
    raise errors.UserError(
        f'lora.folder={folders.pop()!r} is not used without an adapter; set '
        "model.trained='lora', or lora.folder=''.")
  return configs


def choose_mesh(
    config: ml_collections.ConfigDict, policies: dict[str, policy_lib.Policy],
    devices: Sequence[jax.Device],
    chip: fit.Chip | None) -> ml_collections.ConfigDict:
  """Returns a config whose mesh fits the devices.

  Chooses `mesh.fsdp` and `mesh.tensor` if they are 0, prints the choice, drops
  the sizes of `buckets.groups` that do not fit, and sets `buckets.rows` if it
  is 0 and the rows of all candidates do not fit. CPU devices (`chip` is None)
  share the memory of the host, so sizes of 0 become 1. Raises fit.DoesNotFit
  if no mesh fits.
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
          config.buckets.groups, config.buckets.rows),
      chip, fsdp=config.mesh.fsdp, tensor=config.mesh.tensor)
  config.mesh.update(fsdp=chosen.fsdp, tensor=chosen.tensor)
  config.buckets.groups = tuple(
      size for size in config.buckets.groups if size <= chosen.num_groups)
  if chosen.num_rows < chosen.num_groups * config.rollout.group_size:
    config.buckets.rows = chosen.num_rows
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
