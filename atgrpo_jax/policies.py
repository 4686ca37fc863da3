"""The policies that a config describes: models, adapters, learners, devices.

Each policy may have a base model, a tokenizer, an optimiser and devices of its
own, and train all of its parameters, an adapter, or nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
import dataclasses
import pathlib
import zlib

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax import tokenizer as tokenizer_lib
from atgrpo_jax.model import peft_io
from atgrpo_jax.model import safetensors_io
from atgrpo_jax.rl import losses
from atgrpo_jax.rl import optimizer
from atgrpo_jax.rl import policy_map as policy_map_lib
from atgrpo_jax.rl import train_state
from atgrpo_jax.rl import train_step

# Sections of a config that may differ from policy to policy.
_OWN_SECTIONS = ('model', 'lora', 'optimizer')

TRAINED = ('all', 'lora', 'none')
DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True, eq=False)
class BaseModel:
  """A Hugging Face model folder.

  Attributes:
    folder: where its weights are.
    config: its dimensions.
    tokenizer: its tokenizer; None where nothing is sampled.
  """

  folder: pathlib.Path
  config: model.ModelConfig
  tokenizer: tokenizer_lib.Tokenizer | None


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
  """One policy, as the config describes it.

  Attributes:
    name: of the policy.
    base: the model that it starts from.
    trained: 'all' parameters, 'lora' for an adapter, 'none' if it is frozen.
    lora: of the adapter, None without one.
    adapter: that training starts from, None for one that changes nothing.
    learner: switches of the learner.
    mesh: the devices of its pool.
  """

  name: str
  base: BaseModel
  trained: str
  lora: model.LoraSpec | None
  adapter: model.LoraWeights | None
  learner: train_step.LearnerSpec
  mesh: jax.sharding.Mesh

  @property
  def config(self) -> model.ModelConfig:
    return self.base.config

  @property
  def tokenizer(self) -> tokenizer_lib.Tokenizer:
    return self.base.tokenizer

  def params_template(self, dtype: str) -> model.Params:
    """Shapes, dtypes and shardings of `load_params`, without the bytes."""
    shapes = model.param_shapes(self.config)
    rules = sharding.param_rules(self.config.tied_head)
    return jax.tree.map(
        lambda x, at: jax.ShapeDtypeStruct(x.shape, dtype, sharding=at),
        shapes, sharding.tree_shardings(shapes, self.mesh, rules))

  def load_params(self, dtype: str) -> model.Params:
    """The parameters in the model folder, on the devices of the pool."""
    return safetensors_io.load_params(
        self.base.folder, self.config, jnp.dtype(dtype), jax.tree.map(
            lambda x: x.sharding, self.params_template(dtype)))

  def state_template(self) -> train_state.TrainState:
    """Shapes, dtypes and shardings of `initial_state`, without the bytes."""
    if self.lora is None:
      params = model.param_shapes(self.config)
      rules = sharding.param_rules(self.config.tied_head)
    else:
      params = jax.eval_shape(self._initial_adapter, None)
      rules = sharding.ADAPTER_RULES
    shapes = jax.eval_shape(self._create_state, params)
    return jax.tree.map(
        lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at),
        shapes, sharding.tree_shardings(shapes, self.mesh, rules))

  def initial_params(self) -> model.Params | model.LoraWeights:
    """What is trained, before its first update; float32."""
    if self.lora is None:
      return self.load_params('float32')
    initialise = jax.jit(
        self._initial_adapter, out_shardings=jax.tree.map(
            lambda x: x.sharding, self.state_template().params))
    return initialise(jax.tree.map(np.asarray, self.adapter))

  def initial_state(self) -> train_state.TrainState:
    """The policy before its first update; float32."""
    create_state = jax.jit(
        self._create_state, donate_argnums=0, out_shardings=jax.tree.map(
            lambda x: x.sharding, self.state_template()))
    return create_state(self.initial_params())

  def _initial_adapter(
      self, given: model.LoraWeights | None) -> model.LoraWeights:
    if given is not None:
      return given
    # Another draw for every policy, and the same in every run.
    rng = jax.random.key(zlib.crc32(self.name.encode()))
    return model.init_lora(rng, self.config, self.lora, num_roles=1)

  def _create_state(
      self,
      params: model.Params | model.LoraWeights) -> train_state.TrainState:
    return train_state.create(params, self.learner.optimizer)


def build(
    config: ml_collections.ConfigDict, names: Sequence[str],
    devices: Sequence[jax.Device],
    read_model: Callable[[str, bool], BaseModel]) -> dict[str, Policy]:
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
    base = read_model(own.model.folder, own.model.thinking)
    policies[name] = _build_policy(name, own, config, base, meshes[name])
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
    config: ml_collections.ConfigDict, base: BaseModel,
    mesh: jax.sharding.Mesh) -> Policy:
  """One policy from its own sections and what all policies share."""
  if own.model.trained not in TRAINED:
    raise errors.UserError(
        f'model.trained={own.model.trained!r} is not one of {list(TRAINED)}.')
  if own.model.dtype not in DTYPES:
    raise errors.UserError(
        f'model.dtype={own.model.dtype!r} is not one of {list(DTYPES)}.')
  lora = adapter = None
  if own.model.trained == 'lora':
    given = dict(own.lora)
    if given.pop('folder'):
      adapter, given['alpha'] = peft_io.load(own.lora.folder, base.config)
      given['rank'], given['targets'] = model.describe(adapter)
    lora = model.LoraSpec(**given)
  with errors.said_to_the_user():
    learner = train_step.LearnerSpec(
        optimizer=optimizer.OptimizerSpec(**own.optimizer),
        loss=losses.LossSpec(**config.loss),
        temperature=config.rollout.temperature,
        dtype=own.model.dtype, remat=own.model.remat,
        adapter_scale=lora and lora.scale)
  return Policy(
      name=name, base=base, trained=own.model.trained, lora=lora,
      adapter=adapter, learner=learner, mesh=mesh)
