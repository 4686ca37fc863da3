"""What training keeps of a policy or critic, and how a gradient changes it."""

from __future__ import annotations

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import optax

from atgrpo_jax import model
from atgrpo_jax.io import finite as finite_lib
from atgrpo_jax.learner import optimizer as optimizer_lib

# Of a policy, or of a critic (see `learner.critic_step`).
Params = model.Params | model.LoraWeights


@struct.dataclass
class Finite:
  """Trees of [] bool, whether each leaf is finite, of one update."""

  grads: Any
  params: Any  # After the update.


@struct.dataclass
class TrainState:
  """What is trained, such as a model or an adapter, and its optimiser."""

  params: Params
  opt_state: optax.OptState
  num_updates: jax.Array  # [] int32


def create(params: Params, spec: optimizer_lib.OptimizerSpec) -> TrainState:
  """A state before its first update."""
  opt_state = optimizer_lib.make_optimizer(spec).init(params)
  return TrainState(params, opt_state, jnp.zeros((), jnp.int32))


def apply_gradients(
    state: TrainState, grads: Params, spec: optimizer_lib.OptimizerSpec,
) -> tuple[TrainState, dict[str, jax.Array], Finite]:
  """One optimiser update, traced.

  Returns:
    state: after it; the same as before where a gradient is not finite.
    metrics: name -> [] float32.
    finite: what was finite.
  """
  updates, opt_state = optimizer_lib.make_optimizer(spec).update(
      grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  rate = optimizer_lib.learning_rate(spec)(state.num_updates)
  metrics = {
      'learning_rate': jnp.asarray(rate, jnp.float32),
      'grad_norm': optax.tree.norm(grads),
      'update_norm': optax.tree.norm(updates),
      'param_norm': optax.tree.norm(params),
      'nonfinite_in_a_row': opt_state.notfinite_count.astype(jnp.float32),
  }
  return TrainState(
      params, opt_state, state.num_updates + opt_state.last_finite
  ), metrics, Finite(finite_lib.flags(grads), finite_lib.flags(params))
