"""The compiled learner: scoring, gradients of a microbatch, one update.

The form is the sampler's: the prompt, but for its last token, is computed once
per group; each completion is a private suffix that begins with that last
token. So the cost of a prompt does not depend on the group size, and the
gradient equals that of repeated prompts up to rounding.

A step is `zero_sums`, `accumulate` per microbatch, `apply_update`. Losses and
gradients are summed over microbatches of any shape and divided once.

What is trained is either a whole model or an adapter over a frozen base; only
what is trained has gradients and an optimiser state.
"""

from __future__ import annotations

import dataclasses
import functools

from flax import struct
import jax
import jax.numpy as jnp
import optax

from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax import types
from atgrpo_jax.rl import losses
from atgrpo_jax.rl import optimizer as optimizer_lib
from atgrpo_jax.rl import train_state
from atgrpo_jax.rollout import sampling

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
  temperature: float = 1.0
  dtype: str = 'float32'
  remat: bool = False
  adapter_scale: float | None = None


@struct.dataclass
class Sums:
  """What microbatches add up to."""

  grads: Trained
  loss: jax.Array  # [] float32
  count: jax.Array  # [] float32
  metrics: dict[str, jax.Array]  # name -> [] float32, sums over tokens


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def zero_sums(
    params: Trained, *, config: model.ModelConfig,
    spec: LearnerSpec) -> Sums:
  """The sums before the first microbatch."""
  names = ('tokens', 'entropy')
  if spec.loss is not None:
    names += ('clipped', 'mismatch', 'approx_kl')
  grads = sharding.constrain_tree(
      jax.tree.map(jnp.zeros_like, params), _rules(config, spec))
  return Sums(
      grads, jnp.zeros(()), jnp.zeros(()),
      {name: jnp.zeros(()) for name in names})


@functools.partial(
    jax.jit, static_argnames=('config', 'spec'), donate_argnames='sums')
def accumulate(
    params: Trained, sums: Sums, batch: types.TrainBatch, *,
    base: model.Params | None = None, config: model.ModelConfig,
    spec: LearnerSpec) -> Sums:
  """Adds the gradient of a microbatch.

  `base` is the frozen model under an adapter, None where the whole model is
  trained.
  """

  def loss_fn(params):
    logprobs, entropy = _score(
        _whole(params, base, spec), config, batch, spec)
    if spec.loss is None:
      total, count, metrics = _supervised_loss(logprobs, entropy, batch)
    else:
      total, count, metrics = _policy_loss(
          logprobs, entropy, batch, spec.loss)
    return total, (count, metrics)

  (total, (count, metrics)), grads = jax.value_and_grad(
      loss_fn, has_aux=True)(params)
  grads = sharding.constrain_tree(grads, _rules(config, spec))
  return jax.tree.map(jnp.add, sums, Sums(grads, total, count, metrics))


@functools.partial(
    jax.jit, static_argnames=('config', 'spec'), donate_argnames='state')
def apply_update(
    state: train_state.TrainState, sums: Sums, *, config: model.ModelConfig,
    spec: LearnerSpec):
  """One optimiser update.

  Returns:
    state: after the update; the same as before where a gradient is not finite.
    metrics: name -> [] float32.
    finite: tree of [] bool, whether each gradient is finite.
  """
  grads = jax.tree.map(lambda g: g / sums.count, sums.grads)
  updates, opt_state = optimizer_lib.make_optimizer(spec.optimizer).update(
      grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  metrics = {
      name: total / sums.metrics['tokens']
      for name, total in sums.metrics.items() if name != 'tokens'}
  metrics |= {
      'loss': sums.loss / sums.count,
      'tokens': sums.metrics['tokens'],
      'grad_norm': optax.tree.norm(grads),
      'update_norm': optax.tree.norm(updates),
      'param_norm': optax.tree.norm(params),
      'nonfinite_in_a_row': opt_state.notfinite_count.astype(jnp.float32),
  }
  finite = jax.tree.map(lambda g: jnp.all(jnp.isfinite(g)), grads)
  num_updates = state.num_updates + opt_state.last_finite
  state = sharding.constrain_tree(
      train_state.TrainState(params, opt_state, num_updates),
      _rules(config, spec))
  return state, metrics, finite


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def score(
    params: Trained, batch: types.TrainBatch, *,
    base: model.Params | None = None, config: model.ModelConfig,
    spec: LearnerSpec) -> jax.Array:
  """Log-probabilities [P, G, T] float32 of the completions.

  Positions behind a completion's length hold values that mean nothing; most of
  them are never computed.
  """
  return _score(_whole(params, base, spec), config, batch, spec)[0]


def completion_mask(batch: types.TrainBatch) -> jax.Array:
  """[P, G, T] bool, True where the policy chose the token."""
  positions = jnp.arange(batch.completions.shape[-1])
  return positions < batch.completion_lengths[..., None]


def _whole(params, base, spec):
  """The model that is scored."""
  if base is None:
    return params
  return model.with_adapters(base, model.Adapters(
      params, jnp.full(1, spec.adapter_scale, jnp.float32)))


def _score(params, config, batch, spec):
  """Log-probabilities and entropies, each [P, G, T] float32."""
  dtype, remat = jnp.dtype(spec.dtype), spec.remat
  prefix = model.prefill(
      params, config, batch.prompts, batch.prompt_lengths - 1, dtype=dtype,
      remat=remat)
  last = jnp.take_along_axis(
      batch.prompts, batch.prompt_lengths[:, None] - 1, axis=1)
  groups, members, length = batch.completions.shape
  last = jnp.broadcast_to(last[:, :, None], (groups, members, 1))
  inputs = jnp.concatenate([last, batch.completions[:, :, :-1]], axis=2)
  hidden, _ = model.forward(
      params, config, inputs, prefix=prefix, dtype=dtype, remat=remat)

  # What counts comes first, in each part of the mesh, and is scored in chunks;
  # chunks in which nothing counts are left out.
  num_parts = sharding.num_row_parts()
  counts = completion_mask(batch).reshape(num_parts, -1)
  num_counting = jnp.max(jnp.sum(counts, axis=1))
  size = counts.shape[1]
  chunk = min(size, max(_LOGIT_CHUNKS[0], min(_LOGIT_CHUNKS[1], size // 8)))
  order = jnp.pad(
      jnp.argsort(~counts, axis=1), [(0, 0), (0, -size % chunk)],
      constant_values=size)

  def in_chunks(x):  # [P, G, T, ...] -> chunks of [N, chunk, ...]
    x = sharding.take_in_parts(x.reshape(-1, *x.shape[3:]), order)
    x = x.reshape(num_parts, -1, chunk, *x.shape[1:])
    return jnp.moveaxis(x, 1, 0)

  @jax.checkpoint
  def score_chunk(hidden, tokens):
    logits = sharding.constrain(
        model.unembed(params, config, hidden), sharding.ROWS, None, 'tensor')
    logprobs = sampling.token_logprobs(logits, tokens, spec.temperature)
    return logprobs, sampling.entropy(logits, spec.temperature)

  def score_if_any_counts(xs):
    start, hidden, tokens = xs
    zeros = jnp.zeros(tokens.shape)
    return jax.lax.cond(
        start < num_counting, score_chunk, lambda *_: (zeros, zeros),
        hidden, tokens)

  scores = jax.lax.map(score_if_any_counts, (
      jnp.arange(0, order.shape[1], chunk), in_chunks(hidden),
      in_chunks(batch.completions)))
  return tuple(
      sharding.put_in_parts(
          jnp.zeros(counts.size), order,
          jnp.moveaxis(x, 0, 1).reshape(-1)).reshape(batch.completions.shape)
      for x in scores)


def _rules(config, spec):
  """Where the trained parameters lie."""
  if spec.adapter_scale is None:
    return sharding.param_rules(config.tied_head)
  return sharding.ADAPTER_RULES


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
  total, count = losses.supervised_loss(
      logprobs.reshape(mask.shape), mask)
  entropy = jnp.where(mask, entropy.reshape(mask.shape), 0.0)
  return total, count, {'tokens': count, 'entropy': jnp.sum(entropy)}
