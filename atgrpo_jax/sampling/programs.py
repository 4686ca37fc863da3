"""The compiled programs of the sampler.

`fill` prefills prompts into free slots, `decode` samples a few tokens for all
rows, and `move_slots` and `move_rows` change the number of slots and rows.
`engine` defines slots and rows, and keeps the map from candidates to rows.

The last prompt token is the first token of every private suffix, so the
prefill needs no logits and the learner's forward pass (`learner.gradients`) has
the same form. The prefill computes that token too, although its keys are
masked. The longest prefix then has the length of its bucket, and the TPU
compiler is 5 to 16 times faster with 8192 positions than with 8191.
"""

import dataclasses
import functools
from typing import NamedTuple

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.rl import losses

# Blocks of the vocabulary in `sample_tokens`. A power of two, so that each
# device has whole blocks if the vocabulary is sharded.
_NUM_BLOCKS = 128
# Without top-k, top-p keeps no more tokens.
_MAX_NUCLEUS = 1024


@dataclasses.dataclass(frozen=True)
class SamplerSpec:
  """Static switches of the compiled sampler."""

  group_size: int  # Candidates of a group (G).
  temperature: float  # 0 for greedy decoding.
  stop_ids: tuple[int, ...]  # Ids that end a completion.
  dtype: str  # Dtype of matrix products.
  # For evaluations. Training would score tokens by another distribution.
  top_k: int = 0  # 0 for all tokens.
  top_p: float = 1.0


@struct.dataclass
class Slots:
  """P groups of different ages that are decoded together."""

  prefix: model.PromptCache  # One array per layer.
  lengths: jax.Array  # [P, G] int32, tokens of each running candidate
  last: jax.Array  # [P, G] int32, the next input token
  running: jax.Array  # [P, G] bool, False if finished and in free slots
  budgets: jax.Array  # [P] int32, longest completion, stop token included
  keys: jax.Array  # [P, G] typed keys; each token folds in its index
  adapter_ids: jax.Array  # [P] int32

  @property
  def prompt_length(self) -> int:
    return self.prefix.keys[0].shape[-1]


class Chunk(NamedTuple):
  """The tokens of one call; positions beyond a row's length are arbitrary."""

  tokens: np.ndarray  # [N * R, T] int32
  logprobs: np.ndarray  # [N * R, T] float32
  lengths: np.ndarray  # [N * R] int32
  running: np.ndarray  # [N * R] bool, False if finished

  @classmethod
  def split(cls, chunk: np.ndarray) -> 'Chunk':
    """Splits the chunk of `decode`."""
    tokens, logprobs = np.split(chunk[:, :-2], 2, axis=1)
    return cls(
        tokens, np.ascontiguousarray(logprobs).view(np.float32),
        chunk[:, -2], chunk[:, -1].astype(bool))


@functools.partial(jax.jit, static_argnames=('config', 'dtype'))
def prepare(
    params: model.Params, *, config: model.ModelConfig,
    dtype: str) -> model.Params:
  """The parameters for decoding, prepared once per update.

  Decoding reads every parameter for every token, so each device holds all that
  it needs, in the dtype of the matrix products.
  """
  params = mesh_lib.constrain_tree(
      model.cast(params, jnp.dtype(dtype)),
      mesh_lib.param_rules(config.tied_head))
  return mesh_lib.constrain_tree(
      params, mesh_lib.decoding_rules(config.tied_head))


def prepare_for_cpu(
    params: model.Params, *, config: model.ModelConfig) -> model.Params:
  """The parameters of `prepare` with transposed layers and head."""
  head = params['embedding'] if config.tied_head else params['head'].T
  return params | {
      'layers': _transpose_layers(params, config), model.TRANSPOSED: head}


_transpose_layers = jax.jit(model.transpose_layers, static_argnames='config')


@functools.partial(jax.jit, static_argnames=(
    'num_slots', 'prompt_length', 'config', 'spec'))
def empty_slots(
    *, num_slots: int, prompt_length: int, config: model.ModelConfig,
    spec: SamplerSpec) -> Slots:
  """Free slots for prompts of `prompt_length`."""
  shape = num_slots, spec.group_size
  prefix = model.init_cache(
      config, num_slots, prompt_length, jnp.dtype(spec.dtype))
  zeros = jnp.zeros(num_slots, jnp.int32)
  slots = Slots(
      prefix=model.PromptCache(prefix.keys, prefix.values, zeros),
      lengths=jnp.zeros(shape, jnp.int32), last=jnp.zeros(shape, jnp.int32),
      running=jnp.zeros(shape, bool), budgets=zeros,
      keys=jax.random.split(jax.random.key(0), shape), adapter_ids=zeros)
  return _constrain(slots)


@functools.partial(
    jax.jit, static_argnames=('num_rows', 'capacity', 'config', 'spec'))
def empty_rows(
    *, num_rows: int, capacity: int, config: model.ModelConfig,
    spec: SamplerSpec) -> model.RowCache:
  """Free rows for `capacity` tokens."""
  return model.init_cache(config, num_rows, capacity, jnp.dtype(spec.dtype))


@functools.partial(
    jax.jit, static_argnames=('config', 'spec'), donate_argnames='slots')
def fill(
    params: model.Params, slots: Slots, slot_ids: jax.Array, prompts: jax.Array,
    prompt_lengths: jax.Array, key_ids: jax.Array, budgets: jax.Array,
    adapter_ids: jax.Array, *, adapters: model.Adapters | None,
    config: model.ModelConfig, spec: SamplerSpec) -> Slots:
  """Prefills prompts, each once for its group, into free slots.

  Args:
    params: from `prepare`.
    slots: current slots; donated.
    slot_ids: [N, B] int32, slots of the B prompts of each of the N shards;
      padding rows have a number beyond the last slot.
    prompts: [N * B, S] int32, padded at the end; no longer than the slots.
    prompt_lengths: [N * B] int32, at least 1.
    key_ids: [N * B, K] uint32, see `group_keys`; each candidate folds its index
      into the key of its group.
    budgets: [N * B] int32, see `Slots`.
    adapter_ids: [N * B] int32, the adapter of each prompt in `adapters`.
    adapters: stacked adapters, or None.
    config: dimensions of the model.
    spec: static switches.
  """
  if adapters is not None:
    params = model.with_adapters(params, adapters, adapter_ids)
  prefix = model.prefill(
      params, config, prompts, prompt_lengths - 1,
      dtype=jnp.dtype(spec.dtype))
  last = jnp.take_along_axis(prompts, prompt_lengths[:, None] - 1, axis=1)
  shape = len(prompts), spec.group_size
  candidate_keys = jax.vmap(
      jax.vmap(jax.random.fold_in, in_axes=(None, 0)), in_axes=(0, None))
  filled = Slots(
      prefix=_prompts_of(
          prefix, slots.prompt_length,
          lambda x: x.astype(slots.prefix.keys[0].dtype)),
      lengths=jnp.zeros(shape, jnp.int32),
      last=jnp.broadcast_to(last, shape), running=jnp.ones(shape, bool),
      budgets=budgets,
      keys=candidate_keys(group_keys(key_ids), jnp.arange(spec.group_size)),
      adapter_ids=adapter_ids)
  return _constrain(jax.tree.map(
      lambda x, y: mesh_lib.scatter_per_shard(x, slot_ids, y), slots, filled))


@functools.partial(
    jax.jit, static_argnames=('config', 'spec', 'num_tokens'),
    donate_argnames=('slots', 'past'))
def decode(
    params: model.Params, slots: Slots, past: model.RowCache,
    candidate_of_row: jax.Array | None, *, adapters: model.Adapters | None,
    config: model.ModelConfig, spec: SamplerSpec,
    num_tokens: int) -> tuple[Slots, model.RowCache, jax.Array]:
  """Samples up to `num_tokens` tokens for every candidate that has a row.

  A shard on a single device stops as soon as its candidates have finished.

  Args:
    params: from `prepare`, or from `prepare_for_cpu` after it.
    slots: current slots; donated.
    past: earlier tokens of N * R rows, with capacity for `num_tokens` more;
      donated.
    candidate_of_row: [N, R] int32, index of each row's candidate among the
      P / N * G candidates of its shard. A free row names any finished one.
      None if the rows are all candidates in order.
    adapters: as in `fill`.
    config: dimensions of the model.
    spec: static switches.
    num_tokens: longest chunk (T).

  Returns:
    The updated slots and rows, and the chunk [N * R, 2 T + 2] int32, see
    `Chunk.split`. One array needs only one transfer.
  """
  def decode_shard(whole, split):
    params, adapters = whole
    slots, past, candidate_of_row = split
    rows = model.Rows.of(candidate_of_row, *slots.last.shape)
    last, running, keys, ages = (
        rows.take(x.ravel())
        for x in (slots.last, slots.running, slots.keys, slots.lengths))
    budgets = rows.take_groups(slots.budgets)
    if adapters is not None:
      params = model.with_adapters(
          params, adapters, rows.take_groups(slots.adapter_ids))
    if isinstance(params['layers'], tuple):  # Unstacks the adapters, too.
      params = model.unstack(params, config)
    fold = jax.vmap(jax.random.fold_in)
    sampled = slots.running & rows.have
    # Other groups have no prefix, so a kernel reads nothing for them.
    prefix = slots.prefix.replace(
        lengths=jnp.any(sampled, axis=1) * slots.prefix.lengths)

    def keep_going(state):
      in_chunk = state['index'] < num_tokens
      # Devices of a shard communicate for each token. Not every kind of device
      # may allow this after another shard has stopped, and asking all shards
      # for each token takes longer than the last tokens of a chunk.
      if mesh_lib.current_size() > 1:
        return in_chunk
      return in_chunk & jnp.any(state['running'])

    def step(state):
      index = state['index']
      hidden, cache = model.forward(
          params, config, state['last'][:, None, None], prefix=prefix,
          past=model.CompletionCache(past, running * ages),
          cache=state['cache'],
          cache_index=index, rows=rows, dtype=jnp.dtype(spec.dtype))
      logits = model.unembed(
          params, config, hidden[:, 0, 0], jnp.dtype(spec.dtype))
      tokens, logprobs = sample_tokens(
          logits, fold(keys, ages + index), spec.temperature, spec.top_k,
          spec.top_p)
      stopped = (
          jnp.isin(tokens, jnp.array(spec.stop_ids))
          | (ages + index + 1 >= budgets))
      return {
          'index': index + 1,
          'last': tokens,
          'cache': cache,
          'running': state['running'] & ~stopped,
          'lengths': state['lengths'] + state['running'],
          'tokens': state['tokens'].at[:, index].set(tokens),
          'logprobs': state['logprobs'].at[:, index].set(logprobs),
      }

    state = jax.lax.while_loop(keep_going, step, {
        'index': jnp.int32(0),
        'last': last,
        'cache': model.init_cache(
            config, len(last), num_tokens, jnp.dtype(spec.dtype)),
        'running': running,
        'lengths': jnp.zeros(last.shape, jnp.int32),
        'tokens': jnp.zeros((*last.shape, num_tokens), jnp.int32),
        'logprobs': jnp.zeros((*last.shape, num_tokens), jnp.float32),
    })

    def changed(name, old):
      new = rows.spread(state[name]).reshape(old.shape)
      return jnp.where(sampled, new, old)

    slots = slots.replace(
        lengths=slots.lengths + sampled * state['index'],
        last=changed('last', slots.last),
        running=changed('running', slots.running))
    past = model.append_chunk(past, state['cache'], ages)
    chunk = jnp.concatenate([
        state['tokens'],
        jax.lax.bitcast_convert_type(state['logprobs'], jnp.int32),
        state['lengths'][:, None], state['running'][:, None]], axis=1)
    return slots, past, chunk

  slots, past, chunk = mesh_lib.per_shard(decode_shard)(
      (params, adapters), (slots, past, candidate_of_row))
  if jax.process_count() > 1:
    chunk = mesh_lib.constrain(chunk)  # Every process reads all of it.
  return _constrain(slots), _constrain(past), chunk


@functools.partial(jax.jit, static_argnames='prompt_length')
def move_slots(
    slots: Slots, order: jax.Array, *, prompt_length: int) -> Slots:
  """Reorders slots, or changes their number and the length of prompts.

  `order` [N, B] int32 is the old slot of each new slot within its shard, or a
  number beyond the last one for a free slot.
  """
  num_slots = slots.running.shape[0] // len(order)
  gather = functools.partial(mesh_lib.gather_per_shard, at=order)
  prefix = _prompts_of(slots.prefix, prompt_length, gather)
  moved = jax.tree.map(gather, slots.replace(prefix=prefix.lengths))
  moved = moved.replace(prefix=prefix.replace(lengths=moved.prefix))
  return _constrain(moved.replace(
      running=moved.running & (order < num_slots).reshape(-1, 1)))


def _prompts_of(prefix, length, change=lambda x: x):
  """Prompts with an array per layer and `length`, each after `change`."""
  def changed(axis, x):
    # Never larger than needed while it changes.
    x = _resized(x, min(length, x.shape[axis]), axis)
    return _resized(change(x), length, axis)

  cache = model.along_positions(
      changed, model.RowCache(tuple(prefix.keys), tuple(prefix.values)))
  return model.PromptCache(cache.keys, cache.values, prefix.lengths)


@functools.partial(jax.jit, static_argnames='capacity')
def move_rows(
    past: model.RowCache, order: jax.Array, *, capacity: int) -> model.RowCache:
  """Reorders rows, or changes their number and capacity (positions per row).

  `order` [N, B] int32 is the old row of each new row within its shard; it is
  arbitrary for a free row.
  """
  def moved(axis, x):
    size = min(capacity, x.shape[axis])
    x = mesh_lib.gather_per_shard(_resized(x, size, axis), order)
    return _resized(x, capacity, axis)

  return _constrain(model.along_positions(moved, past))


def _resized(x, size, axis):
  """x with `size` positions: the first ones, or zeros after them."""
  x = jax.lax.slice_in_dim(x, 0, min(size, x.shape[axis]), axis=axis)
  pad = [(0, 0)] * x.ndim
  pad[axis] = 0, size - x.shape[axis]
  return jnp.pad(x, pad)


def axes_of(x: jax.Array) -> tuple:
  """The mesh axes that shard an array of slots or rows."""
  return (mesh_lib.ROWS, 'tensor') if x.ndim > 2 else (mesh_lib.ROWS,)


def _constrain(tree):
  return jax.tree.map(lambda x: mesh_lib.constrain(x, *axes_of(x)), tree)


def sample_tokens(
    logits: jax.Array, keys: jax.Array, temperature: float, top_k: int = 0,
    top_p: float = 1.0) -> tuple[jax.Array, jax.Array]:
  """Samples a token from each row of logits.

  Each row has a separate key, so its token does not depend on its neighbours.
  Two random numbers choose a token: one selects a block of the vocabulary, the
  other a token in it. One number per vocabulary entry would cost more than the
  logits.

  If the vocabulary is sharded, devices exchange only the largest logit, the
  weight of each block, and the logits of the selected block.

  Args:
    logits: [R, V] float32.
    keys: [R] typed keys.
    temperature: 0 for the most likely token.
    top_k: number of most likely tokens that are kept; 0 for all.
    top_p: of these, the fewest with this probability are kept.

  Returns:
    tokens: [R] int32.
    logprobs: [R] float32, as `losses.token_logprobs` computes them if all
      tokens are kept.
  """
  if temperature == 0.0:
    tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return tokens, losses.token_logprobs(logits, tokens, temperature)
  scaled = logits / temperature
  if top_k or top_p < 1:
    scaled = _truncated(scaled, top_k, top_p)
  top = jnp.max(scaled, axis=-1, keepdims=True)
  scaled = jnp.pad(
      scaled, ((0, 0), (0, -scaled.shape[1] % _NUM_BLOCKS)),
      constant_values=-jnp.inf)
  scaled = scaled.reshape(len(scaled), _NUM_BLOCKS, -1)
  weights = mesh_lib.constrain(
      jnp.sum(jnp.exp(scaled - top[:, :, None]), axis=-1))
  numbers = jax.vmap(lambda key: jax.random.uniform(key, 2))(keys)
  block = _draw(weights, numbers[:, 0])
  block_logits = mesh_lib.constrain(
      jnp.take_along_axis(scaled, block[:, None, None], axis=1)[:, 0])
  in_block = _draw(jnp.exp(block_logits - top), numbers[:, 1])
  tokens = block * block_logits.shape[1] + in_block
  picked = jnp.take_along_axis(block_logits, in_block[:, None], axis=1)
  logprobs = picked - top - jnp.log(jnp.sum(weights, axis=-1, keepdims=True))
  return tokens.astype(jnp.int32), logprobs[:, 0]


def _truncated(logits, top_k, top_p):
  """Logits [R, V] with -inf for all tokens that top-k and top-p drop."""
  size = min(top_k or _MAX_NUCLEUS, logits.shape[-1])
  largest, _ = jax.lax.top_k(logits, size)
  weights = jnp.exp(largest - jax.nn.logsumexp(
      largest if top_k else logits, axis=-1, keepdims=True))
  is_kept = jnp.cumsum(weights, axis=-1) - weights <= top_p
  smallest = jnp.min(
      jnp.where(is_kept, largest, jnp.inf), axis=-1, keepdims=True)
  return jnp.where(logits < smallest, -jnp.inf, logits)


def _draw(weights, numbers):
  """Indices [R] drawn in proportion to `weights` [R, N].

  `numbers` [R] are uniform in [0, 1). An index of weight 0 is never drawn: the
  cumulative sums before and after it may differ by rounding.
  """
  ends = jnp.where(weights > 0, jnp.cumsum(weights, axis=-1), 0)
  total = jnp.max(ends, axis=-1, keepdims=True)
  return jnp.argmax(ends > numbers[:, None] * total, axis=-1)


def group_keys(ids: jax.Array) -> jax.Array:
  """Typed keys [P] from `ids` [P, K] uint32: a seed and numbers to fold in."""
  keys = jax.vmap(jax.random.key)(ids[:, 0])
  for numbers in ids.T[1:]:
    keys = jax.vmap(jax.random.fold_in)(keys, numbers)
  return keys
