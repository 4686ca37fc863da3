"""The policies that a config describes: models, adapters, learners, devices.

Each policy may have a base model, a tokenizer, an optimiser and devices of its
own, and train all of its parameters, an adapter, or nothing.
"""

from __future__ import annotations

import dataclasses
import pathlib
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import safetensors_file
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import train_state


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
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
    pretrained: the model that it starts from.
    trained: 'all' parameters, 'lora' for an adapter, 'none' if it is frozen.
    lora: of the adapter, None without one.
    adapter: that training starts from, None for one that changes nothing.
    learner: switches of the learner.
    mesh: the devices of its pool.
  """

  name: str
  pretrained: Pretrained
  trained: str
  lora: model.LoraSpec | None
  adapter: model.LoraWeights | None
  learner: gradients.LearnerSpec
  mesh: jax.sharding.Mesh

  @property
  def config(self) -> model.ModelConfig:
    return self.pretrained.config

  @property
  def tokenizer(self) -> tokenizer_lib.Tokenizer:
    return self.pretrained.tokenizer

  def params_template(self, dtype: str) -> model.Params:
    """Shapes, dtypes and shardings of `load_params`, without the bytes."""
    return params_template(self.config, self.mesh, dtype)

  def load_params(self, dtype: str) -> model.Params:
    """The parameters in the model folder, on the devices of the pool."""
    return load_params(self.pretrained, self.mesh, dtype)

  def state_template(self) -> train_state.TrainState:
    """Shapes, dtypes and shardings of `initial_state`, without the bytes."""
    if self.lora is None:
      params = model.param_shapes(self.config)
      rules = mesh_lib.param_rules(self.config.tied_head)
    else:
      params = jax.eval_shape(self._initial_adapter, None)
      rules = mesh_lib.ADAPTER_RULES
    return mesh_lib.tree_template(
        jax.eval_shape(self._create_state, params), self.mesh, rules)

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


def params_template(
    config: model.ModelConfig, mesh: jax.sharding.Mesh,
    dtype: str) -> model.Params:
  """Shapes, dtypes and shardings of `load_params`, without the bytes."""
  return mesh_lib.tree_template(
      model.param_shapes(config), mesh, mesh_lib.param_rules(config.tied_head),
      dtype)


def load_params(
    pretrained: Pretrained, mesh: jax.sharding.Mesh,
    dtype: str) -> model.Params:
  """The parameters in a model folder, on the devices of a mesh."""
  return safetensors_file.load_params(
      pretrained.folder, pretrained.config, jnp.dtype(dtype), jax.tree.map(
          lambda x: x.sharding, params_template(
              pretrained.config, mesh, dtype)))
