"""What training keeps for one policy."""

from __future__ import annotations

from flax import struct
import jax
import jax.numpy as jnp
import optax

from atgrpo_jax import model
from atgrpo_jax.learner import optimizer as optimizer_lib


@struct.dataclass
class TrainState:
  """What is trained of one policy, a model or an adapter, and its optimiser."""

  params: model.Params | model.LoraWeights
  opt_state: optax.OptState
  num_updates: jax.Array  # [] int32


def create(
    params: model.Params | model.LoraWeights,
    spec: optimizer_lib.OptimizerSpec) -> TrainState:
  """A state before its first update."""
  opt_state = optimizer_lib.make_optimizer(spec).init(params)
  return TrainState(params, opt_state, jnp.zeros((), jnp.int32))
