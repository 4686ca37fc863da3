"""The compiled learner: scoring, gradients of a microbatch, one update.

The form is the sampler's: the prompt, but for its last token, is computed once
per group; each completion is a private suffix that begins with that last
token. So the cost of a prompt does not depend on the group size, and the
gradient equals that of repeated prompts up to rounding.

A step is `zero_sums`, `accumulate` per microbatch, `apply_update`. Losses and
gradients are summed over microbatches of any shape, by each shard of `data` for
itself; they are added up over the shards and divided once, at the end. What
they are divided by is known on the host.

What is trained is either a whole model or an adapter over a frozen base; only
what is trained has gradients and an optimiser state.
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
from atgrpo_jax.rl import logprobs as logprobs_lib
from atgrpo_jax.rl import losses

Trained = model.Params | model.LoraWeights

# Tokens whose logits exist at the same time on one device, at least and at
# most; between them an eighth of all, so that few pads are among the last.
_LOGIT_CHUNKS = 256, 2048


@dataclasses.dataclass(frozen=True)
class LearnerSpec:
  """What a compiled learner is fixed to.

  Attributes:
    optimizer: of the policy.
    loss: switches of the policy loss; None for supervised learning.
    temperature: that the completions were sampled at.
    dtype: name of the type of the matrix products.
    remat: recompute each layer in the backward pass.
    adapter_scale: alpha / rank of the adapter that is trained; None where the
      whole model is.
  """

  optimizer: optimizer_lib.OptimizerSpec
  loss: losses.LossSpec | None
  temperature: float
  dtype: str
  remat: bool
  adapter_scale: float | None


@struct.dataclass
class Sums:
  """What microbatches add up to; first axis D, one for each shard of `data`."""

  grads: Trained
  loss: jax.Array  # [D] float32
  metrics: dict[str, jax.Array]  # name -> [D] float32, sums over tokens


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def zero_sums(
    params: Trained, *, config: model.ModelConfig,
    spec: LearnerSpec) -> Sums:
  """The sums before the first microbatch."""
  return mesh_lib.zeros_over_data(
      sums_of(params, spec), rules(config, spec))


def sums_of(grads: Trained, spec: LearnerSpec) -> Sums:
  """The sums of one shard, without their first axis: `grads`, and zeros."""
  names = ('entropy',)
  if spec.loss is not None:
    names += ('clipped', 'mismatch', 'approx_kl')
  return Sums(
      grads, jnp.zeros(()), {name: jnp.zeros(()) for name in names})


@functools.partial(
    jax.jit, static_argnames=('config', 'spec'), donate_argnames='sums')
def accumulate(
    params: Trained, sums: Sums, batch: types.TrainBatch, *,
    frozen_params: model.Params | None = None, config: model.ModelConfig,
    spec: LearnerSpec) -> Sums:
  """Adds the gradient of a microbatch.

  `frozen_params` are of the model under an adapter, None where the whole model
  is trained.
  """

  def accumulate_shard(whole, split):
    params, frozen_params = whole
    sums, batch = split

    def loss_fn(params):
      logprobs, entropy = _score(
          _whole(params, frozen_params, spec), config, batch, spec)
      if spec.loss is None:
        return _supervised_loss(logprobs, entropy, batch)
      return _policy_loss(logprobs, entropy, batch, spec.loss)

    (loss, metrics), grads = jax.value_and_grad(
        loss_fn, has_aux=True)(params)
    grads = mesh_lib.constrain_tree(grads, rules(config, spec))
    return jax.tree.map(jnp.add, sums, Sums(grads, loss, metrics))

  return mesh_lib.per_shard(accumulate_shard, ['data'])(
      (params, frozen_params), (sums, batch))


@functools.partial(
    jax.jit, static_argnames=('config', 'spec'), donate_argnames='state')
def apply_update(
    state: train_state.TrainState, sums: Sums, num_units: jax.Array,
    num_tokens: jax.Array, *, config: model.ModelConfig, spec: LearnerSpec):
  """One optimiser update.

  Args:
    state: of the policy; donated.
    sums: of all microbatches.
    num_units: [] float32, what the loss is a mean over (`losses.num_units`).
    num_tokens: [] float32, completion tokens that were scored.
    config: dimensions of the model.
    spec: of the learner.

  Returns:
    state: after the update; the same as before where a gradient is not finite.
    metrics: name -> [] float32.
    finite: what was finite.
  """
  sums = mesh_lib.sum_over_data(sums, rules(config, spec))
  grads = jax.tree.map(lambda g: g / num_units, sums.grads)
  state, found, finite = train_state.apply_gradients(
      state, grads, spec.optimizer)
  metrics = {
      name: total / num_tokens for name, total in sums.metrics.items()}
  metrics |= {'loss': sums.loss / num_units, 'tokens': num_tokens, **found}
  return (
      mesh_lib.constrain_tree(state, rules(config, spec)), metrics, finite)


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def add_up(
    sums: Sums, *, config: model.ModelConfig, spec: LearnerSpec) -> Sums:
  """The sums of all shards together, without the first axis."""
  return mesh_lib.sum_over_data(sums, rules(config, spec))


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def score(
    params: Trained, batch: types.TrainBatch, *,
    frozen_params: model.Params | None = None, config: model.ModelConfig,
    spec: LearnerSpec) -> jax.Array:
  """Log-probabilities [P, G, T] float32 of the completions.

  Positions behind a completion's length hold values that mean nothing; most of
  them are never computed.
  """
  def score_shard(whole, batch):
    return _score(_whole(*whole, spec), config, batch, spec)[0]

  return mesh_lib.per_shard(score_shard, ['data'])(
      (params, frozen_params), batch)


def completion_mask(batch: types.TrainBatch) -> jax.Array:
  """[P, G, T] bool, True where the policy chose the token."""
  positions = jnp.arange(batch.completions.shape[-1])
  return positions < batch.completion_lengths[..., None]


def _whole(params, frozen_params, spec):
  """The model that is scored."""
  if frozen_params is None:
    return params
  return model.with_adapters(frozen_params, model.Adapters(
      params, jnp.full(1, spec.adapter_scale, jnp.float32)))


def _score(params, config, batch, spec):
  """Log-probabilities and entropies, each [P, G, T] float32."""
  dtype, remat = jnp.dtype(spec.dtype), spec.remat
  prefix = model.prefill(
      params, config, batch.prompts, batch.prompt_lengths - 1, dtype=dtype,
      remat=remat)
  last = jnp.take_along_axis(
      batch.prompts, batch.prompt_lengths[:, None] - 1, axis=1)
  groups, candidates, length = batch.completions.shape
  last = jnp.broadcast_to(last[:, :, None], (groups, candidates, 1))
  inputs = jnp.concatenate([last, batch.completions[:, :, :-1]], axis=2)
  hidden, _ = model.forward(
      params, config, inputs, prefix=prefix, dtype=dtype, remat=remat)

  def score_shard(head, split):
    hidden, tokens, counts = split
    hidden = hidden.reshape(-1, hidden.shape[-1])
    # What counts comes first, and is scored in chunks; chunks in which nothing
    # counts are left out.
    num_counting = jnp.sum(counts)
    size = counts.size
    chunk = min(size, max(_LOGIT_CHUNKS[0], min(_LOGIT_CHUNKS[1], size // 8)))
    order = jnp.pad(
        jnp.argsort(~counts.ravel()), (0, -size % chunk), constant_values=size)

    def in_chunks(x):  # [N, ...] -> chunks [N / chunk, chunk, ...]
      return jnp.take(x, order, axis=0, mode='clip').reshape(
          -1, chunk, *x.shape[1:])

    # Within the condition, so that it hands on no logits; and around it, so
    # that not every chunk keeps the head.
    @jax.checkpoint
    def score_chunk(hidden, tokens):
      logits = mesh_lib.constrain(
          model.unembed(head, config, hidden), None, 'tensor')
      logprobs = logprobs_lib.token_logprobs(logits, tokens, spec.temperature)
      return logprobs, logprobs_lib.entropy(logits, spec.temperature)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def score_if_any_counts(xs):
      start, hidden, tokens = xs
      zeros = jnp.zeros(tokens.shape)
      return jax.lax.cond(
          start < num_counting, score_chunk, lambda *_: (zeros, zeros),
          hidden, tokens)

    scores = jax.lax.map(score_if_any_counts, (
        jnp.arange(0, order.size, chunk), in_chunks(hidden),
        in_chunks(tokens.ravel())))
    return tuple(
        jnp.zeros(size).at[order].set(x.ravel(), mode='drop').reshape(
            counts.shape) for x in scores)

  return mesh_lib.per_shard(score_shard)(
      model.head_params(params, config),
      (hidden, batch.completions, completion_mask(batch)))


def rules(config, spec):
  """Where the trained parameters lie."""
  if spec.adapter_scale is None:
    return mesh_lib.param_rules(config.tied_head)
  return mesh_lib.ADAPTER_RULES


def _policy_loss(logprobs, entropy, batch, spec):
  """`losses.policy_loss` of a microbatch."""
  def rows(x):
    return x.reshape(-1, x.shape[-1])

  old = batch.old_logprobs
  if old is None:  # The first update of a rollout: the learner is the old one.
    old = jax.lax.stop_gradient(logprobs)
  reference = batch.reference_logprobs
  return losses.policy_loss(
      rows(logprobs), rows(old), rows(batch.behavior_logprobs), rows(entropy),
      batch.advantages.reshape(-1), rows(completion_mask(batch)),
      None if reference is None else rows(reference), spec)


def _supervised_loss(logprobs, entropy, batch):
  """`losses.supervised_loss` of a microbatch."""
  mask = completion_mask(batch).reshape(-1, logprobs.shape[-1])
  loss = losses.supervised_loss(logprobs.reshape(mask.shape), mask)
  entropy = jnp.where(mask, entropy.reshape(mask.shape), 0.0)
  return loss, {'entropy': jnp.sum(entropy)}
