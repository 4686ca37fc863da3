"""What a config says of its policies, their devices and its environment.

`experiment.build` puts it together for a run; the compile check builds policies
from dimensions alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
import importlib

import jax
import jax.numpy as jnp
import ml_collections

from atgrpo_jax import config_checks
from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.distributed import fit
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rl import losses
from atgrpo_jax.rollout import policies as policies_lib
from environments import env_api
from environments import sandbox as sandbox_lib

# Sections of a config that may differ from policy to policy.
_OWN_SECTIONS = ('model', 'lora', 'optimizer')
TRAINED = ('all', 'lora', 'none')
_MOST_TURNS = 10_000

ReadModel = Callable[[str, bool], policy_lib.Pretrained]


def choose_mesh(
    config: ml_collections.ConfigDict, names: Sequence[str],
    devices: Sequence[jax.Device], chip: fit.Chip | None,
    read_model: ReadModel) -> ml_collections.ConfigDict:
  """The config with a mesh that fits the devices.

  Replaces `mesh.fsdp` and `mesh.tensor` where they are 0, prints the choice,
  and drops the sizes of `buckets.groups` that do not fit. A config that names
  both is returned as it is. CPU devices (`chip` is None) share the memory of
  the host, so the sizes become 1.

  Raises:
    fit.DoesNotFit: no mesh fits.
  """
  for name in ('fsdp', 'tensor'):
    errors.check_number(f'mesh.{name}', config.mesh[name], min_value=0)
  if config.mesh.fsdp and config.mesh.tensor:
    return config
  config = config.copy_and_resolve_references()
  if chip is None:
    config.mesh.update(
        fsdp=config.mesh.fsdp or 1, tensor=config.mesh.tensor or 1)
    return config
  chosen = fit.choose(
      _pools(config, names, devices, read_model), fit.Shapes(
          config.buckets.prompt[-1], config.buckets.completion[-1],
          config.rollout.group_size, config.buckets.microbatch_tokens,
          config.buckets.groups),
      chip, fsdp=config.mesh.fsdp, tensor=config.mesh.tensor)
  config.mesh.update(fsdp=chosen.fsdp, tensor=chosen.tensor)
  config.buckets.groups = tuple(
      size for size in config.buckets.groups if size <= chosen.num_groups)
  print(chosen.describe())
  return config


def _pools(config, names, devices, read_model) -> list[fit.Pool]:
  """The models that each pool of devices has to hold."""
  learners, held = {}, set()
  pools = mesh_lib.split_devices(names, devices, config.mesh.pools)
  with_critic = {'none': (), 'central': names[:1]}.get(
      config.critic.kind, names)
  for name, own in _policy_configs(config, names).items():
    dimensions = read_model(own.model.folder, own.model.thinking).config
    key = pools[name], own.model.folder, own.model.dtype
    is_whole = own.model.trained == 'all'
    learners.setdefault(pools[name], []).append(fit.Learner(
        dimensions, own.model.trained, jnp.dtype(own.model.dtype).itemsize,
        model.position_bytes(dimensions, model.cache_dtype(
            config.rollout.kv_cache_dtype, own.model.dtype)),
        lora_rank=own.lora.rank, has_reference=(
            config.loss.kl_estimator != 'none'
            or config.train.diagnose_every > 0),
        shares_model=not is_whole and key in held))
    if not is_whole:
      held.add(key)
    if name in with_critic:
      learners[pools[name]].append(fit.Learner(
          dimensions, 'all', jnp.dtype(own.model.dtype).itemsize, kv_bytes=0))
  return [
      fit.Pool(len(pool), mesh_lib.num_slices(pool), found)
      for pool, found in learners.items()]


def build_policies(
    config: ml_collections.ConfigDict, names: Sequence[str],
    devices: Sequence[jax.Device],
    read_model: ReadModel,
) -> dict[str, policy_lib.Policy]:
  """Policy -> what the config says of it.

  Args:
    config: of the run.
    names: of the policies.
    devices: all that the run has.
    read_model: of `model.folder` and `model.thinking`.
  """
  meshes = mesh_lib.make_meshes(
      names, devices, mesh_lib.MeshSpec(**config.mesh))
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
    if policies_lib.uses_adapters(config.policies):
      if config.model.trained == 'none':
        raise errors.UserError(
            f'policies={config.policies!r} trains an adapter for each role, '
            "but model.trained='none'; give 'per_role' to train none.")
      configs[name].model.trained = 'lora'
  given = set()
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
    if place in given:
      raise errors.UserError(
          f'per_policy: {place} is given twice; leave one of them out.')
    given.add(place)
    old = configs[name][section][field]
    try:
      value = text if isinstance(old, str) else ast.literal_eval(text)
      configs[name][section][field] = value
    except (SyntaxError, TypeError, ValueError) as error:
      raise errors.UserError(
          f'per_policy: {item.strip()!r} should be a {type(old).__name__}, '
          f'such as {old!r}.') from error
  for own in configs.values():
    if own.model.trained not in TRAINED:
      raise errors.UserError(
          f'model.trained={own.model.trained!r} is not one of {list(TRAINED)}.')
    config_checks.check_dtype('model.dtype', own.model.dtype)
  return configs


def _build_policy(
    name: str, own: ml_collections.ConfigDict,
    config: ml_collections.ConfigDict, pretrained: policy_lib.Pretrained,
    mesh: jax.sharding.Mesh) -> policy_lib.Policy:
  """One policy from its own sections and what all policies share."""
  lora = adapter = None
  if own.model.trained == 'lora':
    given = dict(own.lora)
    if given.pop('folder'):
      adapter, given['alpha'] = peft.load(own.lora.folder, pretrained.config)
      given['rank'], given['targets'] = model.describe(adapter)
    lora = model.LoraSpec(**given)
    if lora.rank > pretrained.config.hidden_size:
      raise errors.UserError(
          f'lora.rank={lora.rank} is more than the hidden size of the model, '
          f'{pretrained.config.hidden_size}; 8 to 64 are usual.')
  with errors.as_user_error():
    learner = policy_lib.LearnerSpec(
        optimizer=policy_lib.OptimizerSpec(**own.optimizer),
        loss=losses.LossSpec(**config.loss),
        temperature=config.rollout.temperature,
        dtype=own.model.dtype, remat=own.model.remat,
        adapter_scale=lora and lora.scale)
  policy = policy_lib.Policy(
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
  except (SystemExit, *errors.USER_CODE_ERRORS) as error:
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
      f'environment.module={name!r}: max_turns', environment.max_turns,
      min_value=1, less_than=_MOST_TURNS)
  acting = [role for phase in environment.phases for role in phase]
  if not acting or sorted(acting) != sorted(environment.roles):
    raise errors.UserError(
        f'environment.module={name!r}: each of the roles {environment.roles} '
        f'must act in one of the phases {environment.phases}.')


def read_model(name: str, thinking: bool) -> policy_lib.Pretrained:
  """A model folder, or the name of one on the hub."""
  folder = hub.resolve_folder(name)
  config = hub.load_config(folder)
  tokenizer = tokenizer_lib.Tokenizer(folder, thinking=thinking)
  if tokenizer.vocab_size > config.vocab_size:
    raise errors.UserError(
        f'{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model '
        f'only {config.vocab_size}; take both from the same model.')
  return policy_lib.Pretrained(folder, config, tokenizer)
