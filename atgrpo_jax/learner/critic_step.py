"""The compiled critic: values, gradient of a microbatch, one update.

A critic is a trunk, the model without its output head, and a value head: the
value of an input is w . h + b, where h is the trunk's last hidden state at the
input's last token. Half the squared error is summed over microbatches by each
shard of `data` for itself; what the shards have is added up and divided once,
at the end, as in `train_step`.

What is trained is {'model': trunk, 'head': {'kernel', 'bias'}}, or the head
alone over a trunk that belongs to a policy, which then gets no gradient.
"""

from __future__ import annotations

import dataclasses
import functools

from flax import struct
import jax
import jax.numpy as jnp

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import optimizer as optimizer_lib
from atgrpo_jax.learner import train_state
from atgrpo_jax.rl import losses

_HEAD_RULE = (r'head/kernel', jax.sharding.PartitionSpec())


@dataclasses.dataclass(frozen=True)
class CriticLearnerSpec:
  """What a compiled critic is fixed to.

  Attributes:
    optimizer: of the critic.
    value_clip: see `losses.value_loss`.
    dtype: name of the type of the matrix products.
    remat: recompute each layer in the backward pass.
    trains_trunk: whether the trunk is the critic's own.
  """

  optimizer: optimizer_lib.OptimizerSpec
  value_clip: float
  dtype: str
  remat: bool
  trains_trunk: bool


@struct.dataclass
class Sums:
  """What microbatches add up to; first axis D, one for each shard of `data`."""

  grads: train_state.Params
  loss: jax.Array  # [D] float32


def init_head(config: model.ModelConfig) -> dict[str, jax.Array]:
  """A head that gives every input the value 0."""
  return {
      'kernel': jnp.zeros(config.hidden_size), 'bias': jnp.zeros(())}


def rules(spec: CriticLearnerSpec) -> mesh_lib.Rules:
  """Where the trained parameters lie; a trunk has no output head."""
  trunk = mesh_lib.param_rules(tied_head=True) if spec.trains_trunk else ()
  return (*trunk, _HEAD_RULE)


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def values(
    params: train_state.Params, inputs: jax.Array, lengths: jax.Array, *,
    policy_params: model.Params | None = None, config: model.ModelConfig,
    spec: CriticLearnerSpec) -> jax.Array:
  """Values [B] float32 of inputs [B, S] of these lengths [B].

  `policy_params` are of the policy whose trunk is used; None where the trunk is
  the critic's own.
  """
  def values_shard(whole, split):
    return _values(*whole, *split, config, spec)

  found = mesh_lib.per_shard(values_shard, ['data'])(
      (params, policy_params), (inputs, lengths))
  if jax.process_count() > 1:
    found = mesh_lib.constrain(found)  # Every process reads all of them.
  return found


@functools.partial(jax.jit, static_argnames='spec')
def zero_sums(
    params: train_state.Params, *, spec: CriticLearnerSpec) -> Sums:
  """The sums before the first microbatch."""
  return mesh_lib.zeros_over_data(Sums(params, jnp.zeros(())), rules(spec))


@functools.partial(
    jax.jit, static_argnames=('config', 'spec'), donate_argnames='sums')
def accumulate(
    params: train_state.Params, sums: Sums, batch: types.ValueBatch, *,
    policy_params: model.Params | None = None, config: model.ModelConfig,
    spec: CriticLearnerSpec) -> Sums:
  """Adds the gradient of a microbatch; for `policy_params` see `values`."""

  def accumulate_shard(whole, split):
    params, policy_params = whole
    sums, batch = split

    def loss_fn(params):
      return losses.value_loss(
          _values(
              params, policy_params, batch.inputs, batch.lengths, config, spec),
          batch.values, batch.targets, batch.weights, spec.value_clip)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = mesh_lib.constrain_tree(grads, rules(spec))
    return jax.tree.map(jnp.add, sums, Sums(grads, loss))

  return mesh_lib.per_shard(accumulate_shard, ['data'])(
      (params, policy_params), (sums, batch))


@functools.partial(
    jax.jit, static_argnames='spec', donate_argnames='state')
def apply_update(
    state: train_state.TrainState, sums: Sums, num_examples: jax.Array, *,
    spec: CriticLearnerSpec):
  """One optimiser update; `num_examples` [] float32 are in the sums.

  For what it returns see `train_state.apply_gradients`.
  """
  sums = mesh_lib.sum_over_data(sums, rules(spec))
  grads = jax.tree.map(lambda g: g / num_examples, sums.grads)
  state, metrics, finite = train_state.apply_gradients(
      state, grads, spec.optimizer)
  metrics['loss'] = sums.loss / num_examples
  return mesh_lib.constrain_tree(state, rules(spec)), metrics, finite


def _values(params, policy_params, inputs, lengths, config, spec):
  """[B] float32."""
  trunk = params['model'] if spec.trains_trunk else policy_params
  hidden, _ = model.forward(
      trunk, config, inputs[:, None], dtype=jnp.dtype(spec.dtype),
      remat=spec.remat)
  last = jnp.take_along_axis(
      hidden[:, 0], lengths[:, None, None] - 1, axis=1)[:, 0]
  head = params['head']
  return last.astype(jnp.float32) @ head['kernel'] + head['bias']
