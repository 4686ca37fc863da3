"""The typed objects that a config describes.

Below this module nothing sees a ConfigDict. Training and evaluation build the
same experiment, so what is evaluated is what was trained.
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
from atgrpo_jax import model
from atgrpo_jax import tokenizer as tokenizer_lib
from atgrpo_jax.model import safetensors_io
from atgrpo_jax.rl import advantages
from atgrpo_jax.rl import losses
from atgrpo_jax.rl import optimizer
from atgrpo_jax.rl import policy_map as policy_map_lib
from atgrpo_jax.rl import train_state
from atgrpo_jax.rl import train_step
from atgrpo_jax.rollout import at_grpo
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import interaction as interaction_lib
from environments import base
from environments import datasets
from environments import sandbox as sandbox_lib

# Parts of a config that may change between two starts of one run.
_MAY_CHANGE = ('evaluation', 'train.num_steps')

States = dict[str, train_state.TrainState]  # policy -> its state


@dataclasses.dataclass(frozen=True)
class Experiment:
  """What a run is made of.

  Attributes:
    config: where it came from.
    environment: the task.
    policy_map: role -> policy.
    model_config: dimensions of the policies' model.
    tokenizer: of that model.
    buckets: static shapes.
    rollout: switches of the rollout.
    learner: switches of the learner.
    executor: steps environments.
  """

  config: ml_collections.ConfigDict
  environment: base.Environment
  policy_map: policy_map_lib.PolicyMap
  model_config: model.ModelConfig
  tokenizer: tokenizer_lib.Tokenizer
  buckets: batching.Buckets
  rollout: at_grpo.RolloutSpec
  learner: train_step.LearnerSpec
  executor: futures.Executor

  def load_params(self) -> model.Params:
    """The parameters in the model folder."""
    return safetensors_io.load_params(
        self.config.model.folder, self.model_config)

  def initial_states(self) -> States:
    """Every policy as the model folder has it, before its first update."""
    params = self.load_params()
    return {
        policy: train_state.create(
            jax.tree.map(lambda x: x.copy(), params), self.learner.optimizer)
        for policy in policy_map_lib.policies_of(self.policy_map)}

  def state_template(self) -> States:
    """Shapes, dtypes and shardings of `initial_states`, without the bytes."""
    make = functools.partial(
        model.init_params, jax.random.key(0), self.model_config)
    one = jax.eval_shape(
        lambda: train_state.create(make(), self.learner.optimizer))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    one = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        one)
    policies = policy_map_lib.policies_of(self.policy_map)
    return {policy: one for policy in policies}

  def restore_or_initialise(
      self, workdir: pathlib.Path) -> tuple[States, int]:
    """The newest checkpoint and its step, or the initial states and 0."""
    checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
    restored = checkpoints.restore(self.state_template())
    checkpoints.close()
    if restored is None:
      return self.initial_states(), 0
    return restored.state, restored.step

  def interaction(
      self, states: States, *, temperature: float,
      policy_map: policy_map_lib.PolicyMap) -> interaction_lib.Interaction:
    """Plays the environment with the current policies."""
    return interaction_lib.Interaction(
        environment=self.environment, policy_map=policy_map,
        policies={
            name: interaction_lib.Policy(
                state.params, self.model_config, self.tokenizer,
                self.config.model.dtype)
            for name, state in states.items()},
        buckets=self.buckets,
        max_new_tokens=self.config.rollout.max_new_tokens,
        temperature=temperature, seed=self.config.seed,
        executor=self.executor)

  def tasks(self, split: str) -> list[base.Task]:
    """The tasks of a split of the config's data set."""
    with _said_to_the_user():
      return datasets.load(
          self.config.dataset.builder, split,
          self.config.dataset.data_dir or None)


def build(
    config: ml_collections.ConfigDict, *, sandbox: sandbox_lib.Sandbox,
    executor: futures.Executor) -> Experiment:
  """Builds what the config describes; raises on what cannot work."""
  _check_numbers(config)
  folder = config.model.folder
  model_config = safetensors_io.load_config(folder)
  tokenizer = tokenizer_lib.Tokenizer(folder, thinking=config.model.thinking)
  if tokenizer.vocab_size > model_config.vocab_size:
    raise errors.UserError(
        f'{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model '
        f'only {model_config.vocab_size}; take both from the same model.')
  with _said_to_the_user():
    environment = importlib.import_module(
        config.environment.module).make_environment(
            team=config.environment.team,
            max_turns=config.environment.max_turns,
            reward=config.environment.reward, sandbox=sandbox)
  rollout = dict(config.rollout)
  for name in ('num_tasks', 'temperature', 'max_new_tokens'):
    del rollout[name]
  with _said_to_the_user():
    learner = train_step.LearnerSpec(
        optimizer=optimizer.OptimizerSpec(**config.optimizer),
        loss=losses.LossSpec(**config.loss),
        temperature=config.rollout.temperature,
        dtype=config.model.dtype, remat=config.model.remat)
    # An empty rollout: a real one would find the same, but late.
    nothing = np.zeros(0)
    advantages.group_ids([], config.advantage.group_key)
    advantages.group_advantages(
        nothing, nothing, nothing.astype(bool),
        normaliser=config.advantage.normaliser)
  return Experiment(
      config=config, environment=environment,
      policy_map=policy_map_lib.make_policy_map(
          config.policies, environment.roles),
      model_config=model_config, tokenizer=tokenizer,
      buckets=batching.Buckets(**config.buckets),
      rollout=at_grpo.RolloutSpec(**rollout),
      learner=learner, executor=executor)


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
    if workdir.exists() and any(workdir.iterdir()):
      raise errors.UserError(
          f'{workdir} is not empty and holds no config.json, so it is no '
          'workdir of ours; choose another --workdir.')
    return False
  theirs = _flatten(json.loads(path.read_text())['config'])
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
  workdir.mkdir(parents=True, exist_ok=True)
  record = {
      'hash': config_hash(config), 'config': json.loads(config.to_json())}
  (workdir / 'config.json').write_text(json.dumps(record, indent=2) + '\n')


def _check_numbers(config: ml_collections.ConfigDict) -> None:
  """Refuses what the loop would fall over later."""
  for name, value in (
      ('rollout.num_tasks', config.rollout.num_tasks),
      ('train.updates_per_rollout', config.train.updates_per_rollout),
      ('train.checkpoint_every', config.train.checkpoint_every),
      ('train.groups_every', config.train.groups_every),
      ('evaluation.validate_every', config.evaluation.validate_every)):
    if value < 1:
      raise errors.UserError(
          f'{name}={value}, but must be at least 1. What is done every so '
          'many steps is never done with more than train.num_steps.')
  if config.rollout.max_new_tokens > config.buckets.completion[-1]:
    raise errors.UserError(
        f'rollout.max_new_tokens={config.rollout.max_new_tokens} is more than '
        f'the largest of buckets.completion={config.buckets.completion}; '
        'lower the one or raise the other.')


@contextlib.contextmanager
def _said_to_the_user():
  """Environments know no UserError; what they refuse comes as ValueError."""
  try:
    yield
  except ValueError as error:
    raise errors.UserError(str(error)) from error


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
