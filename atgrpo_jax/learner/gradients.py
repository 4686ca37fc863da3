"""Compiled scoring and gradients of one microbatch.

As in the sampler, the prompt (without its last token) is computed once for the
completions in its row, private suffixes that start with that last token.
Repeating the prompt for each candidate gives the same gradient up to rounding.

An update calls `zero_sums`, `accumulate` for each microbatch, and
`update.apply_update`. Each shard of `data` sums losses and gradients over its
microbatches. The sum over shards is divided once, by a number from the host.
Only the trained parameters have gradients (see `policy`).
"""

import functools

from flax import struct
import jax
import jax.numpy as jnp

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.model import products
from atgrpo_jax.rl import losses

# Bounds of the chunk of tokens whose logits a device holds at a time. Between
# them, a chunk is an eighth of all tokens, so that few chunks hold padding.
_MIN_LOGIT_CHUNK, _MAX_LOGIT_CHUNK = 256, 2048


@struct.dataclass
class Sums:
  """Sums over microbatches; the leading axis D holds the shards of `data`."""

  grads: policy_lib.Params
  loss: jax.Array  # [D] float32
  metrics: dict[str, jax.Array]  # name -> [D] float32, sums over tokens


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def zero_sums(
    params: policy_lib.Params, *, config: model.ModelConfig,
    spec: policy_lib.LearnerSpec) -> Sums:
  """The sums before the first microbatch."""
  return mesh_lib.zeros_over_data(
      sums_of(params, spec), policy_lib.sharding_rules(config, spec))


def sums_of(
    grads: policy_lib.Params, spec: policy_lib.LearnerSpec) -> Sums:
  """`grads` with zero loss and metrics, without the axis D."""
  names = () if spec.value_head else ('entropy',)
  if spec.loss is not None:
    names += ('clipped', 'mismatch', 'approx_kl')
  return Sums(
      grads, jnp.zeros(()), {name: jnp.zeros(()) for name in names})


@functools.partial(
    jax.jit, static_argnames=('config', 'spec'), donate_argnames='sums')
def accumulate(
    params: policy_lib.Params, sums: Sums,
    batch: types.TrainBatch | types.ValueBatch, *,
    frozen_params: model.Params | None = None, config: model.ModelConfig,
    spec: policy_lib.LearnerSpec) -> Sums:
  """Adds the gradient of a microbatch; donates `sums`.

  A critic takes a `ValueBatch`. `frozen_params` is the model under an adapter.
  """
  def accumulate_shard(whole, split):
    params, frozen_params = whole
    sums, batch = split

    def loss_fn(params):
      if spec.value_head:
        return losses.value_loss(
            _values(params, batch.inputs, batch.lengths, config, spec),
            batch.targets, batch.weights), {}
      logprobs, entropy = _score(params, frozen_params, config, batch, spec)
      return _loss(logprobs, entropy, batch, spec.loss)

    (loss, metrics), grads = jax.value_and_grad(
        loss_fn, has_aux=True)(params)
    grads = mesh_lib.constrain_tree(
        grads, policy_lib.sharding_rules(config, spec))
    return jax.tree.map(jnp.add, sums, Sums(grads, loss, metrics))

  return mesh_lib.per_shard(accumulate_shard, ['data'])(
      (params, frozen_params), (sums, batch))


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def add_up(
    sums: Sums, *, config: model.ModelConfig,
    spec: policy_lib.LearnerSpec) -> Sums:
  """The sums over all shards, without the axis D."""
  return mesh_lib.sum_over_data(sums, policy_lib.sharding_rules(config, spec))


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def score(
    params: policy_lib.Params, batch: types.TrainBatch, *,
    frozen_params: model.Params | None = None, config: model.ModelConfig,
    spec: policy_lib.LearnerSpec) -> jax.Array:
  """Log-probabilities [P, G, T] float32 of the completions.

  Padding positions hold arbitrary values; most are never computed.
  """
  def score_shard(whole, batch):
    return _score(*whole, config, batch, spec)[0]

  return mesh_lib.per_shard(score_shard, ['data'])(
      (params, frozen_params), batch)


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def values(
    params: policy_lib.Params, inputs: jax.Array, lengths: jax.Array, *,
    config: model.ModelConfig, spec: policy_lib.LearnerSpec) -> jax.Array:
  """A critic's values [B] float32 of inputs [B, S] with lengths [B]."""
  def values_shard(params, split):
    return _values(params, *split, config, spec)

  result = mesh_lib.per_shard(values_shard, ['data'])(params, (inputs, lengths))
  if jax.process_count() > 1:
    result = mesh_lib.constrain(result)  # Every process reads all values.
  return result


def completion_mask(batch: types.TrainBatch) -> jax.Array:
  """[P, G, T] bool, True for sampled tokens."""
  positions = jnp.arange(batch.completions.shape[-1])
  return positions < batch.completion_lengths[..., None]


def _score(params, frozen_params, config, batch, spec):
  """Log-probabilities and entropies, each [P, G, T] float32."""
  dtype, remat = jnp.dtype(spec.dtype), spec.remat
  has_frozen_head = frozen_params is not None
  if has_frozen_head:
    params = model.with_adapters(frozen_params, model.Adapters(
        params, jnp.full(1, spec.adapter_scale, jnp.float32)))
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

  def score_chunk(head, hidden, tokens):
    logits = mesh_lib.constrain(
        model.unembed(head, config, hidden, dtype), None, 'tensor')
    entropy = losses.entropy(
        jax.lax.stop_gradient(logits), batch.temperature)
    return losses.token_logprobs(logits, tokens, batch.temperature), entropy

  def score_shard(head, split):
    hidden, tokens, mask = split
    hidden = hidden.reshape(-1, hidden.shape[-1])
    # Unmasked tokens come first; fully masked chunks are skipped.
    size = mask.size
    chunk = min(
        size, max(_MIN_LOGIT_CHUNK, min(_MAX_LOGIT_CHUNK, size // 8)))
    order = jnp.pad(
        jnp.argsort(~mask.ravel()), (0, -size % chunk), constant_values=size)

    def in_chunks(x):  # [N, ...] -> chunks [N / chunk, chunk, ...]
      return jnp.take(x, order, axis=0, mode='clip').reshape(
          -1, chunk, *x.shape[1:])

    scores = _map_first(
        score_chunk, has_frozen_head, -(-jnp.sum(mask) // chunk), head,
        in_chunks(hidden), in_chunks(tokens.ravel()))
    return tuple(
        jnp.zeros(size).at[order].set(x.ravel(), mode='drop').reshape(
            mask.shape) for x in scores)

  return mesh_lib.per_shard(score_shard)(
      model.head_params(params, config),
      (hidden, batch.completions, completion_mask(batch)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _map_first(function, is_frozen, count, whole, xs, indices):
  """`function(whole, x, index)` of the first `count` xs, and zeros of the rest.

  `function` returns numbers for each row of x [C, D]. If `whole` is frozen, the
  forward pass computes their gradients, too. Otherwise the backward pass
  computes the function again. Neither keeps logits, and `jax.checkpoint` would
  copy `whole` for each x.
  """
  del is_frozen  # Only the gradients depend on it.

  def call(scanned):
    i, *args = scanned
    shapes = jax.eval_shape(function, whole, *args)
    return jax.lax.cond(
        i < count, function,
        lambda *_: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
        whole, *args)

  return jax.lax.map(call, (jnp.arange(len(xs)), xs, indices))


def _map_first_forward(function, is_frozen, *args):
  def with_gradients(whole, x, index):
    numbers = function(whole, x, index)
    return numbers, [
        jax.grad(lambda x: jnp.sum(function(whole, x, index)[i]))(x)
        for i in range(len(numbers))]

  if is_frozen:
    return _map_first(with_gradients, is_frozen, *args)
  return _map_first(function, is_frozen, *args), args


def _map_first_backward(function, is_frozen, residuals, cotangents):
  if is_frozen:
    of_xs = sum(
        gradient * cotangent[..., None]
        for gradient, cotangent in zip(residuals, cotangents))
    return None, None, of_xs, None
  count, whole, xs, indices = residuals

  def add(total, x, index, cotangent):
    _, backward = jax.vjp(
        lambda whole, x: function(whole, x, index), whole, x)
    of_whole, of_x = backward(cotangent)
    return jax.tree.map(jnp.add, total, of_whole), of_x

  def call(total, scanned):
    i, x, *args = scanned
    return jax.lax.cond(
        i < count, add, lambda total, x, *_: (total, jnp.zeros_like(x)), total,
        x, *args)

  grads = jax.lax.scan(
      call, jax.tree.map(jnp.zeros_like, whole),
      (jnp.arange(len(xs)), xs, indices, cotangents))
  return None, *grads, None


_map_first.defvjp(_map_first_forward, _map_first_backward)


def _values(params, inputs, lengths, config, spec):
  """w . h + b [B] float32, with the hidden state h of the last token."""
  hidden, _ = model.forward(
      params['model'], config, inputs[:, None], dtype=jnp.dtype(spec.dtype),
      remat=spec.remat)
  last = jnp.take_along_axis(
      hidden[:, 0], lengths[:, None, None] - 1, axis=1)[:, 0]
  head = params['head']
  return products.multiply(
      'rd,d->r', last, head['kernel'], jnp.float32) + head['bias']


def _loss(logprobs, entropy, batch, spec):
  """Loss and metrics of completions; supervised if `spec` is None."""
  def rows(x):
    return x.reshape(-1, x.shape[-1])

  mask = rows(completion_mask(batch))
  if spec is None:
    loss = losses.aggregate(-rows(logprobs), mask, 'token_mean')
    return loss, {'entropy': jnp.sum(jnp.where(mask, rows(entropy), 0.0))}
  old = batch.old_logprobs
  if old is None:  # Only one update: the old policy is the current one.
    old = jax.lax.stop_gradient(logprobs)
  reference = batch.reference_logprobs
  return losses.policy_loss(
      rows(logprobs), rows(old), rows(batch.behavior_logprobs), rows(entropy),
      batch.advantages.reshape(-1), mask,
      None if reference is None else rows(reference), spec)
