"""The typed objects that a config describes.

Training and evaluation build the same experiment, so what is evaluated is what
was trained. `policies` builds the policies; below these two modules nothing
sees a ConfigDict.
"""

from __future__ import annotations

from concurrent import futures
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import pathlib

import jax
import ml_collections
import numpy as np

from atgrpo_jax import checkpoints as checkpoints_lib
from atgrpo_jax import errors
from atgrpo_jax import files
from atgrpo_jax import hosts
from atgrpo_jax import model
from atgrpo_jax import policies as policies_lib
from atgrpo_jax import tokenizer as tokenizer_lib
from atgrpo_jax.model import safetensors_io
from atgrpo_jax.rl import advantages
from atgrpo_jax.rl import policy_map as policy_map_lib
from atgrpo_jax.rl import train_state
from atgrpo_jax.rollout import at_grpo
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import interaction as interaction_lib
from environments import base
from environments import datasets
from environments import sandbox as sandbox_lib

# Parts of a config that may change between two starts of one run.
_MAY_CHANGE = ('evaluation', 'export', 'train.num_steps',
               'train.completion_tokens')

# Trained policy -> its state, or its parameters alone.
States = dict[str, train_state.TrainState]
Params = dict[str, model.Params | model.LoraWeights]


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
    executor: steps environments.
  """

  config: ml_collections.ConfigDict
  environment: base.Environment
  policy_map: policy_map_lib.PolicyMap
  policies: dict[str, policies_lib.Policy]
  buckets: batching.Buckets
  rollout: at_grpo.RolloutSpec
  executor: futures.Executor

  @functools.cached_property
  def bases(self) -> dict[str, model.Params]:
    """Policy with a frozen model -> that; loaded once for each pool."""
    loaded, bases = {}, {}
    for name, policy in self.policies.items():
      if policy.trained != 'all':
        dtype = policy.learner.dtype
        key = policy.base.folder, dtype, policy.mesh
        if key not in loaded:
          loaded[key] = policy.load_params(dtype)
        bases[name] = loaded[key]
    return bases

  def initial_states(self) -> States:
    """Every trained policy before its first update."""
    return {
        name: policy.initial_state() for name, policy in self.policies.items()
        if policy.trained != 'none'}

  def state_template(self) -> States:
    """Shapes, dtypes and shardings of `initial_states`, without the bytes."""
    return {
        name: policy.state_template()
        for name, policy in self.policies.items() if policy.trained != 'none'}

  def trained_params(self, workdir: pathlib.Path) -> tuple[Params, int]:
    """Those of the newest checkpoint and its step, or the initial ones and 0.

    What only training needs, such as moments, is neither read nor allocated.
    """
    checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
    restored = checkpoints.restore(self.state_template(), part=params_of)
    checkpoints.close()
    if restored is not None:
      return restored.state, restored.step
    return {
        name: policy.initial_params()
        for name, policy in self.policies.items()
        if policy.trained != 'none'}, 0

  def interaction(
      self, params: Params, *, temperature: float,
      policy_map: policy_map_lib.PolicyMap) -> interaction_lib.Interaction:
    """Plays the environment with the current policies."""
    return interaction_lib.Interaction(
        environment=self.environment, policy_map=policy_map,
        policies=self._sampled(params), buckets=self.buckets,
        max_new_tokens=self.config.rollout.max_new_tokens,
        temperature=temperature, seed=self.config.seed,
        executor=self.executor)

  def _sampled(self, params: Params) -> dict[str, interaction_lib.Policy]:
    """Adapters over the same base become one model, to be sampled at once.

    Each policy is prompted with its own tokenizer all the same.
    """
    sampled, together = {}, {}
    for name, policy in self.policies.items():
      if policy.trained == 'lora':
        key = id(self.bases[name]), jax.tree.structure(params[name])
        together.setdefault(key, []).append(name)
      else:
        own = params if policy.trained == 'all' else self.bases
        sampled[name] = interaction_lib.Policy(
            _sampled_model(policy, own[name]), policy.tokenizer)
    for names in together.values():
      policy = self.policies[names[0]]
      with jax.set_mesh(policy.mesh):
        adapters = model.stack(
            [params[name] for name in names],
            [self.policies[name].lora.scale for name in names])
      together_model = _sampled_model(
          policy, self.bases[names[0]], adapters)
      for index, name in enumerate(names):
        sampled[name] = interaction_lib.Policy(
            together_model, self.policies[name].tokenizer, index)
    return sampled

  def tasks(self, split: str) -> list[base.Task]:
    """The tasks of a split of the config's data set."""
    with errors.said_to_the_user():
      tasks = datasets.load(
          self.config.dataset.builder, split,
          self.config.dataset.data_dir or None,
          self.config.dataset.config or None)
      try:
        self.environment.reset(tasks[0])
      except KeyError as error:
        raise errors.UserError(
            f'The tasks of dataset.builder={self.config.dataset.builder!r} '
            f'have no {error}, which environment.module='
            f'{self.config.environment.module!r} needs.') from error
    return tasks


def params_of(states: States) -> Params:
  """The parameters alone."""
  return {name: state.params for name, state in states.items()}


def build(
    config: ml_collections.ConfigDict, *, sandbox: sandbox_lib.Sandbox,
    executor: futures.Executor) -> Experiment:
  """Builds what the config describes; raises on what cannot work."""
  _check_numbers(config)
  environment = make_environment(config, sandbox)
  rollout = dict(config.rollout)
  for name in ('num_tasks', 'temperature', 'max_new_tokens'):
    del rollout[name]
  with errors.said_to_the_user():
    # An empty rollout: a real one would find the same, but late.
    nothing = np.zeros(0)
    advantages.group_ids([], config.advantage.group_key)
    advantages.group_advantages(
        nothing, nothing, nothing.astype(bool),
        normaliser=config.advantage.normaliser)
  policy_map = policy_map_lib.make_policy_map(
      config.policies, environment.roles)
  return Experiment(
      config=config, environment=environment, policy_map=policy_map,
      policies=policies_lib.build(
          config, policy_map_lib.policies_of(policy_map), jax.devices(),
          _read_model),
      buckets=batching.Buckets(**config.buckets),
      rollout=at_grpo.RolloutSpec(**rollout), executor=executor)


def make_environment(
    config: ml_collections.ConfigDict,
    sandbox: sandbox_lib.Sandbox | None) -> base.Environment:
  """The environment; without a sandbox it is never stepped."""
  name = config.environment.module
  try:
    make = importlib.import_module(name).make_environment
  except (ImportError, AttributeError, TypeError, ValueError) as error:
    raise errors.UserError(
        f'environment.module={name!r} cannot be used ({error}); it must be '
        'a module with make_environment, such as environments.plan_path.env.'
    ) from error
  with errors.said_to_the_user():
    return make(
        team=config.environment.team, max_turns=config.environment.max_turns,
        reward=config.environment.reward, sandbox=sandbox,
        **config.environment.options)


def _read_model(name: str, thinking: bool) -> policies_lib.BaseModel:
  """A model folder, or the name of one on the hub."""
  folder = safetensors_io.resolve_folder(name)
  config = safetensors_io.load_config(folder)
  tokenizer = tokenizer_lib.Tokenizer(folder, thinking=thinking)
  if tokenizer.vocab_size > config.vocab_size:
    raise errors.UserError(
        f'{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model '
        f'only {config.vocab_size}; take both from the same model.')
  return policies_lib.BaseModel(folder, config, tokenizer)


def _sampled_model(
    policy: policies_lib.Policy, params: model.Params,
    adapters: model.Adapters | None = None) -> interaction_lib.Model:
  return interaction_lib.Model(
      params=params, config=policy.config, dtype=policy.learner.dtype,
      mesh=policy.mesh, adapters=adapters)


def config_hash(config: ml_collections.ConfigDict) -> str:
  """Names what a run computes; parts that may change do not enter."""
  flat = {
      name: value for name, value in _flatten(config.to_dict()).items()
      if not _may_change(name)}
  text = json.dumps(flat, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def print_config(config: ml_collections.ConfigDict) -> None:
  """Prints every value as it would be given on the command line."""
  for name, value in sorted(_flatten(config.to_dict()).items()):
    print(f'--config.{name}={value}')
  print(f'config hash {config_hash(config)}')


def check_workdir(
    workdir: pathlib.Path, config: ml_collections.ConfigDict) -> bool:
  """True if the workdir holds a run of this config, False if it holds none.

  Raises UserError if it holds anything else.
  """
  path = workdir / 'config.json'
  if not path.exists():
    if set(workdir.glob('*')) - {files.unfinished(path)}:
      raise errors.UserError(
          f'{workdir} is not empty and holds no config.json, so it is no '
          'workdir of ours; choose another --workdir.')
    return False
  try:
    theirs = _flatten(json.loads(path.read_text())['config'])
  except (ValueError, KeyError, TypeError) as error:
    raise errors.UserError(
        f'{path} is no config that was written here ({error}); choose another '
        '--workdir.') from error
  ours = _flatten(json.loads(config.to_json()))
  differ = [
      name for name in sorted(theirs.keys() | ours.keys())
      if theirs.get(name) != ours.get(name) and not _may_change(name)]
  if differ:
    changes = '; '.join(
        f'{name}: there {theirs.get(name)!r}, now {ours.get(name)!r}'
        for name in differ[:10])
    raise errors.UserError(
        f'{workdir} holds a run of another config ({changes}). Choose '
        'another --workdir, or start with that config to resume it.')
  return True


def write_config(
    workdir: pathlib.Path, config: ml_collections.ConfigDict) -> None:
  """Writes `config.json`: the resolved config and its hash."""
  hosts.barrier()  # Until all have seen what was there before.
  if not hosts.is_first():
    return
  workdir.mkdir(parents=True, exist_ok=True)
  record = {
      'hash': config_hash(config), 'config': json.loads(config.to_json())}
  files.write_whole(
      workdir / 'config.json', json.dumps(record, indent=2) + '\n')


def lock(workdir: pathlib.Path) -> contextlib.ExitStack:
  """Keeps other trainers out of a workdir until it is closed, or gone.

  Makes the workdir if there is none. Raises UserError if a trainer is in it. Of
  several processes the first one locks.
  """
  held = contextlib.ExitStack()
  if hosts.is_first():
    workdir.mkdir(parents=True, exist_ok=True)
    held = files.try_lock(workdir)
  if not all(hosts.exchange(held is not None)):
    raise errors.UserError(
        f'Another process trains in {workdir}. Wait for it, stop it, or choose '
        'another --workdir.')
  return held


def _check_numbers(config: ml_collections.ConfigDict) -> None:
  """Refuses what the loop would fall over later."""
  never = (' What is done every so many steps is never done with more than '
           'train.num_steps.')
  for name, value, least, advice in (
      ('rollout.num_tasks', config.rollout.num_tasks, 1, ''),
      ('rollout.max_new_tokens', config.rollout.max_new_tokens, 1, ''),
      ('train.updates_per_rollout', config.train.updates_per_rollout, 1, ''),
      ('train.checkpoint_every', config.train.checkpoint_every, 1, never),
      ('train.groups_every', config.train.groups_every, 1, never),
      ('evaluation.validate_every', config.evaluation.validate_every, 1, never),
      ('seed', config.seed, 0, ''),
      ('train.diagnose_every', config.train.diagnose_every, 0, ''),
      ('evaluation.temperature', config.evaluation.temperature, 0, '')):
    if not value >= least:
      raise errors.UserError(
          f'{name}={value}, but must be at least {least}.{advice}')
  if not config.rollout.temperature > 0:
    raise errors.UserError(
        f'rollout.temperature={config.rollout.temperature}, but must be above '
        '0: candidates that are all alike teach nothing.')
  if config.rollout.max_new_tokens > config.buckets.completion[-1]:
    raise errors.UserError(
        f'rollout.max_new_tokens={config.rollout.max_new_tokens} is more than '
        f'the largest of buckets.completion={config.buckets.completion}; '
        'lower the one or raise the other.')


def _may_change(name: str) -> bool:
  return any(
      name == part or name.startswith(part + '.') for part in _MAY_CHANGE)


def _flatten(tree: dict, prefix: str = '') -> dict:
  flat = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      flat |= _flatten(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
