"""A policy: its base model, its trained parameters, optimizer and devices.

A policy trains all parameters, a LoRA adapter, or nothing. A critic is a policy
with a value head: a linear head on the hidden state of the last token replaces
the output head, and the trained tree is

  {'model': trunk, 'head': {'kernel': [D], 'bias': []}}

The value head starts at zero, so every initial value is 0.
"""

import dataclasses
import pathlib
import zlib

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.rl import losses

# A whole model, an adapter, or a trunk with a value head.
Params = model.Params | model.LoraWeights

# `apply_if_finite` accepts a non-finite update after this many in a row; the
# training loop stops long before (`update.MAX_NONFINITE`).
_NEVER = 1_000_000


@dataclasses.dataclass(frozen=True)
class OptimizerSpec:
  """AdamW with gradient clipping."""

  learning_rate: float  # After the warm-up.
  warmup_updates: int  # The rate rises linearly from 0.
  weight_decay: float
  max_grad_norm: float  # Bound of the global norm.
  b1: float
  b2: float
  decay_updates: int = 0  # Update at which a cosine decay ends; 0: none.
  final_lr_ratio: float = 0.0  # Rate after the decay / learning_rate.

  def __post_init__(self):
    for name in ('learning_rate', 'final_lr_ratio', 'weight_decay'):
      errors.check_number(f'optimizer.{name}', getattr(self, name), min_value=0)
    for name in ('warmup_updates', 'decay_updates'):
      errors.check_number(
          f'optimizer.{name}', getattr(self, name), min_value=0,
          less_than=2**31)
    errors.check_number(
        'optimizer.max_grad_norm', self.max_grad_norm, greater_than=0,
        advice='; a large value disables clipping')
    for name in ('b1', 'b2'):
      errors.check_number(
          f'optimizer.{name}', getattr(self, name), min_value=0, less_than=1)


def learning_rate(spec: OptimizerSpec) -> optax.Schedule:
  """Number of past updates -> learning rate of the next update."""
  first = 0.0 if spec.warmup_updates else spec.learning_rate
  if spec.decay_updates:
    return optax.warmup_cosine_decay_schedule(
        first, spec.learning_rate, spec.warmup_updates, spec.decay_updates,
        spec.learning_rate * spec.final_lr_ratio)
  return optax.linear_schedule(first, spec.learning_rate, spec.warmup_updates)


def make_optimizer(spec: OptimizerSpec) -> optax.GradientTransformation:
  """AdamW that skips and counts updates with non-finite gradients."""
  return optax.apply_if_finite(
      optax.chain(
          optax.clip_by_global_norm(spec.max_grad_norm),
          optax.adamw(
              learning_rate(spec), b1=spec.b1, b2=spec.b2,
              weight_decay=spec.weight_decay)),
      _NEVER)


@struct.dataclass
class TrainState:
  """Trained parameters with their optimizer state."""

  params: Params
  opt_state: optax.OptState
  num_updates: jax.Array  # [] int32

  @classmethod
  def create(cls, params: Params, spec: OptimizerSpec) -> 'TrainState':
    """The state before the first update."""
    return cls(
        params, make_optimizer(spec).init(params), jnp.zeros((), jnp.int32))


@dataclasses.dataclass(frozen=True)
class LearnerSpec:
  """Static switches of the compiled learner."""

  optimizer: OptimizerSpec
  loss: losses.LossSpec | None  # None for supervised learning and critics.
  dtype: str  # Dtype of matrix products.
  remat: bool  # Recompute each layer in the backward pass; see `forward`.
  adapter_scale: float | None  # alpha / rank; None trains the model.
  value_head: bool = False  # True for a critic.


def sharding_rules(
    config: model.ModelConfig, spec: LearnerSpec) -> mesh_lib.Rules:
  """Sharding rules of the trained parameters."""
  if spec.adapter_scale is not None:
    return mesh_lib.ADAPTER_RULES
  if spec.value_head:  # The trunk has no output head.
    value_head = r'head/kernel', jax.sharding.PartitionSpec()
    return *mesh_lib.param_rules(tied_head=True), value_head
  return mesh_lib.param_rules(config.tied_head)


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
  """One policy or critic of the config."""

  name: str  # Key of its parameters and metrics.
  folder: pathlib.Path  # The Hugging Face model that it starts from.
  config: model.ModelConfig
  tokenizer: tokenizer_lib.Tokenizer | None  # None if nothing is sampled.
  trained: str  # 'all' parameters, 'lora' for an adapter, or 'none'.
  lora: model.LoraSpec | None
  adapter: model.LoraWeights | None  # Initial weights; None for no effect.
  learner: LearnerSpec
  mesh: jax.sharding.Mesh | None = None  # The devices of its pool.

  def params_template(self, dtype: str) -> model.Params:
    """Shapes, dtypes and shardings of `load_params`."""
    return mesh_lib.tree_template(
        model.param_shapes(self.config), self.mesh,
        mesh_lib.param_rules(self.config.tied_head), dtype)

  def load_params(self, dtype: str) -> model.Params:
    """The base model, sharded over the pool."""
    shardings = jax.tree.map(lambda x: x.sharding, self.params_template(dtype))
    return safetensors_lib.load_params(
        self.folder, self.config, jnp.dtype(dtype), shardings)

  def state_template(self) -> TrainState:
    """Shapes, dtypes and shardings of `initial_state`."""
    if self.lora is not None:
      params = jax.eval_shape(self._init_adapter, None)
    else:
      params = jax.eval_shape(
          self._with_head, model.param_shapes(self.config))
    return mesh_lib.tree_template(
        jax.eval_shape(self._create_state, params), self.mesh,
        sharding_rules(self.config, self.learner))

  def initial_params(self) -> Params:
    """The trained parameters before the first update; float32."""
    shardings = self._shardings().params
    if self.lora is not None:
      return jax.jit(self._init_adapter, out_shardings=shardings)(
          jax.tree.map(np.asarray, self.adapter))
    params = self.load_params('float32')
    return jax.device_put(self._with_head(params), shardings)

  def initial_state(self) -> TrainState:
    """The state before the first update; float32."""
    create_state = jax.jit(
        self._create_state, donate_argnums=0, out_shardings=self._shardings())
    return create_state(self.initial_params())

  def _create_state(self, params: Params) -> TrainState:
    return TrainState.create(params, self.learner.optimizer)

  def _init_adapter(
      self, given: model.LoraWeights | None) -> model.LoraWeights:
    if given is not None:
      return given
    # Each policy draws its adapter from its name: runs are reproducible and no
    # two policies start equal.
    rng = jax.random.key(zlib.crc32(self.name.encode()))
    return model.init_lora(rng, self.config, self.lora)

  def _with_head(self, params: model.Params) -> Params:
    if not self.learner.value_head:
      return params
    trunk = {name: x for name, x in params.items() if name != 'head'}
    return {'model': trunk, 'head': {
        'kernel': jnp.zeros(self.config.hidden_size), 'bias': jnp.zeros(())}}

  def _shardings(self) -> TrainState:
    return jax.tree.map(lambda x: x.sharding, self.state_template())
