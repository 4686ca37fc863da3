"""The compiled sampler: G completions for each of P prompts.

Each prompt is prefilled once; its keys and values are read by all members of
its group. The last prompt token is the first token of every private suffix, so
the prefill needs no logits and the learner's forward (`rl.train_step`) has the
same form.
"""

from __future__ import annotations

import dataclasses
import functools

from flax import struct
import jax
import jax.numpy as jnp

from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax.rollout import sampling


@dataclasses.dataclass(frozen=True)
class SamplerSpec:
  """What a compiled sampler is fixed to.

  Attributes:
    group_size: members of a group (G).
    max_new_tokens: longest completion, stop token included (T).
    temperature: 0 for greedy decoding.
    stop_ids: ids that end a completion.
    dtype: name of the type of the matrix products.
  """

  group_size: int
  max_new_tokens: int
  temperature: float
  stop_ids: tuple[int, ...]
  dtype: str = 'float32'


@struct.dataclass
class Samples:
  """Completions; what stands behind a row's length means nothing."""

  completions: jax.Array  # [P, G, T] int32
  lengths: jax.Array  # [P, G] int32, the stop token included
  logprobs: jax.Array  # [P, G, T] float32


@functools.partial(jax.jit, static_argnames=('config', 'spec'))
def sample_groups(
    params: model.Params, prompts: jax.Array, prompt_lengths: jax.Array,
    keys: jax.Array, active: jax.Array, *,
    adapters: model.Adapters | None = None,
    adapter_ids: jax.Array | None = None, config: model.ModelConfig,
    spec: SamplerSpec) -> Samples:
  """Samples a group for each prompt.

  Args:
    params: of the model.
    prompts: [P, S] int32, padded at the end.
    prompt_lengths: [P] int32, at least 1.
    keys: [P] typed keys, one per group; a member's key is folded from it and
      its index, a token's from that and its position.
    active: [P] bool, False for rows that only fill the shape.
    adapters: over the model, one for each role.
    adapter_ids: [P] int32, which of them each prompt uses.
    config: the model's dimensions.
    spec: see `SamplerSpec`.
  """
  num_groups = prompts.shape[0]
  dtype = jnp.dtype(spec.dtype)
  # Decoding reads every parameter for every token, so each device first gets
  # all that it needs, in the type that it needs.
  params = sharding.constrain_tree(
      model.cast(params, dtype), sharding.param_rules(config.tied_head))
  params = sharding.constrain_tree(
      params, sharding.decoding_rules(config.tied_head))
  if adapters is not None:
    params = model.with_adapters(params, adapters, adapter_ids)
  shape = (num_groups, spec.group_size)
  prefix = model.prefill(
      params, config, prompts[:, :-1], prompt_lengths - 1, dtype=dtype)
  last = jnp.take_along_axis(prompts, prompt_lengths[:, None] - 1, axis=1)
  members = jnp.arange(spec.group_size)
  fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
  member_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
  keys = jax.vmap(member_keys, in_axes=(0, None))(keys, members)

  def keep_going(state):
    return (state['index'] < spec.max_new_tokens) & jnp.any(state['running'])

  def decode(state):
    index = state['index']
    hidden, cache = model.forward(
        params, config, state['last'][..., None], prefix=prefix,
        cache=state['cache'], cache_index=index, dtype=dtype)
    logits = model.unembed(params, config, hidden[:, :, 0])
    row_keys = fold(keys.reshape(-1), index).reshape(shape)
    tokens = sampling.sample_tokens(logits, row_keys, spec.temperature)
    logprobs = sampling.token_logprobs(logits, tokens, spec.temperature)
    stopped = jnp.isin(tokens, jnp.array(spec.stop_ids))
    return {
        'index': index + 1,
        'last': tokens,
        'cache': cache,
        'running': state['running'] & ~stopped,
        'lengths': state['lengths'] + state['running'],
        'completions': state['completions'].at[:, :, index].set(tokens),
        'logprobs': state['logprobs'].at[:, :, index].set(logprobs),
    }

  state = jax.lax.while_loop(keep_going, decode, {
      'index': jnp.int32(0),
      'last': jnp.broadcast_to(last, shape),
      'cache': model.init_cache(
          config, *shape, length=spec.max_new_tokens, dtype=dtype),
      'running': jnp.broadcast_to(active[:, None], shape),
      'lengths': jnp.zeros(shape, jnp.int32),
      'completions': jnp.zeros((*shape, spec.max_new_tokens), jnp.int32),
      'logprobs': jnp.zeros((*shape, spec.max_new_tokens), jnp.float32),
  })
  # On every device, since every process reads all of it.
  return Samples(*(
      sharding.constrain(state[name])
      for name in ('completions', 'lengths', 'logprobs')))
