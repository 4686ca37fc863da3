"""Decoders as pure functions over plain parameter dicts.

The unit is the group: P prompts, each with G private suffixes that see the
shared prompt. A prompt is a suffix without a prefix (G = 1), and its keys and
values become the prefix of its group.

Letters:

  P groups, G candidates per group, X queries, Y suffix keys, S prefix
  positions, Z positions of earlier completion tokens
  N shards of the mesh, R rows per shard, one for each decoding candidate
  L layers, V vocab_size, D hidden_size, F intermediate_size, N query heads,
  K key/value heads, M = N / K query heads per key head, H head_dim

Layers are stacked on a leading axis L. Sequences scan over layers; decoding
unrolls them, because a scan would copy the cache at every token.
"""

from flax import traverse_util
import jax
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import kv_cache
from atgrpo_jax.model import layers
from atgrpo_jax.model import products

Params = dict  # Nested; leaves are float32 unless loaded otherwise.


def init_params(rng: jax.Array, config: config_lib.ModelConfig) -> Params:
  """Random float32 parameters."""
  rng_embedding, rng_layers, rng_head = jax.random.split(rng, 3)
  x = jnp.zeros((1, 1, 1, config.hidden_size))
  angles = jnp.zeros((1, 1, config.head_dim // 2))
  mask = jnp.ones((1, 1), bool)

  def init_layer(rng):
    return layers.Block(config).init(rng, x, angles, mask)['params']

  table = (config.vocab_size, config.hidden_size)
  params = {
      'embedding': config.init_std * jax.random.normal(rng_embedding, table),
      'layers': jax.vmap(init_layer)(
          jax.random.split(rng_layers, config.num_layers)),
      'norm': {'scale': jnp.ones(config.hidden_size)},
  }
  if not config.tied_head:
    params['head'] = config.init_std * jax.random.normal(
        rng_head, table[::-1])
  return params


def param_shapes(config: config_lib.ModelConfig) -> Params:
  """Shapes and dtypes of `init_params`."""
  return jax.eval_shape(lambda: init_params(jax.random.key(0), config))


def forward(
    params: Params, config: config_lib.ModelConfig, tokens: jax.Array, *,
    prefix: kv_cache.PromptCache | None = None,
    past: kv_cache.CompletionCache | None = None,
    cache: kv_cache.RowCache | None = None, cache_index: jax.Array | int = 0,
    rows: kv_cache.Rows | None = None, dtype: jnp.dtype = jnp.float32,
    remat: bool = False):
  """Hidden states of suffixes, with their keys and values.

  Args:
    params: from `init_params`, `lora.with_adapters` or `unstack`.
    config: dimensions.
    tokens: [P, G, X] int32, padded at the end.
    prefix: the shared prompts, or None.
    past: tokens of each row that precede the cache.
    cache: earlier tokens of each row; the new token is added. Decoding has this
      and the other optional arrays, and sequences at most a prefix.
    cache_index: number of tokens in the cache.
    rows: the decoding candidates. All arguments but the prefix then have N * R
      for P, G = 1 and X = 1.
    dtype: dtype of the matrix products.
    remat: recompute each layer in the backward pass. Otherwise everything is
      kept, or on CPUs the products with parameters.

  Returns:
    hidden: [P, G, X, D], normalised; see `unembed`.
    kv: keys [L, P, K, G, H, X] and values [L, P, K, G, X, H]; with a cache, the
      updated `RowCache`.
  """
  num_queries = tokens.shape[-1]
  start, masks = jnp.zeros(1, jnp.int32) + cache_index, {}
  if prefix is not None:
    start += (
        prefix.lengths if rows is None else rows.take_groups(prefix.lengths))
    masks['prefix_mask'] = (
        jnp.arange(prefix.keys[0].shape[-1]) < prefix.lengths[:, None])
  if past is not None:
    start += past.lengths
    masks['past_mask'] = (
        jnp.arange(past.cache.keys[0].shape[-1]) < past.lengths[:, None])
  positions = jnp.broadcast_to(
      start[:, None] + jnp.arange(num_queries),
      (tokens.shape[0], num_queries))
  angles = layers.rotary_angles(positions, config)
  num_keys = num_queries if cache is None else cache.keys[0].shape[-1]
  mask = (
      jnp.arange(num_keys) <= (jnp.arange(num_queries) + cache_index)[:, None])
  block = layers.Block(config, dtype)

  def layer(x, layer_params, layer_lora, layer_prefix, **cache_args):
    variables = {'params': layer_params}
    if layer_lora is not None:
      variables['lora'] = layer_lora
    return block.apply(
        variables, x, angles, mask, prefix=layer_prefix, **masks, **cache_args)

  # The hidden axis is replicated.
  table = mesh_lib.constrain(
      products.rounded(params['embedding'], jnp.dtype(dtype)), 'tensor')
  x = _look_up(table, tokens).astype(products.activation_dtype(dtype))
  x = mesh_lib.constrain(x, mesh_lib.ROWS)
  if cache is None:
    prefix_kv = None if prefix is None else (prefix.keys, prefix.values)

    # The backward pass stores the input of each layer, sharded over `tensor`
    # and replicated only while the layer runs.
    def body(x, xs):
      bits, *others = xs
      x = mesh_lib.constrain(x, mesh_lib.ROWS, None, None, 'tensor')
      x, kv = layer(
          mesh_lib.constrain(x, mesh_lib.ROWS), products.from_bits(bits),
          *others)
      return mesh_lib.constrain(x, mesh_lib.ROWS, None, None, 'tensor'), kv

    if remat:
      body = jax.checkpoint(body)
    elif mesh_lib.platform() == 'cpu':
      # Recomputing attention and all that is cheap saves two thirds of the
      # memory. Kernels of TPUs and GPUs need little memory.
      body = jax.checkpoint(
          body, policy=jax.checkpoint_policies.save_only_these_names(
              layers.PRODUCT))
    x, kv = jax.lax.scan(body, x, (
        products.as_bits(params['layers']), params.get('lora'), prefix_kv))
    x = mesh_lib.constrain(x, mesh_lib.ROWS)
  else:
    params = unstack(params, config)
    lora = params.get('lora')

    def kv_of_layer(kv, index):
      return kv.keys[index], kv.values[index]

    pairs = []
    for index in range(config.num_layers):
      x, pair = layer(
          x, params['layers'][index], lora and lora[index],
          kv_of_layer(prefix, index), cache=kv_of_layer(cache, index),
          cache_index=cache_index, past=kv_of_layer(past.cache, index),
          rows=rows)
      pairs.append(pair)
    kv = kv_cache.RowCache(*zip(*pairs))
  norm = layers.Norm(config.norm_eps, products.rounds(dtype))
  x = norm.apply({'params': params['norm']}, x)
  return x, kv


def prefill(
    params: Params, config: config_lib.ModelConfig, prompts: jax.Array,
    lengths: jax.Array, *, dtype: jnp.dtype = jnp.float32,
    remat: bool = False) -> kv_cache.PromptCache:
  """Keys and values of prompts [P, S] int32 with `lengths` [P] int32."""
  _, kv = forward(
      params, config, prompts[:, None], dtype=dtype, remat=remat)
  keys, values = (
      mesh_lib.constrain(
          jnp.moveaxis(x, 3, 2).reshape(len(x), -1, x.shape[2], *x.shape[4:]),
          None, mesh_lib.ROWS, 'tensor')
      for x in kv)
  return kv_cache.PromptCache(keys, values, lengths)


def kept_bytes(config: config_lib.ModelConfig) -> int:
  """Bytes per token that `forward` keeps in float32 without `remat`."""
  c = config
  width = (
      (c.num_heads + 2 * c.num_kv_heads) * c.head_dim + 3 * c.hidden_size
      + 2 * c.intermediate_size)
  return 4 * c.num_layers * width


def cast(params: Params, dtype: jnp.dtype) -> Params:
  """Casts embeddings and kernels, but not the scales of norms.

  All functions cast their parameters; a loop casts them once, beforehand.
  """
  def cast_leaf(path, leaf):
    return leaf if path[-1].key == 'scale' else leaf.astype(dtype)

  return jax.tree_util.tree_map_with_path(cast_leaf, params)


def unstack(params: Params, config: config_lib.ModelConfig) -> Params:
  """Turns stacked layers and adapters into tuples of layers.

  XLA's CPU backend copies a layer out of its stack at each use, in a decoding
  loop once per token. Tuples are returned unchanged.
  """
  return params | {
      name: tuple(
          jax.tree.map(lambda leaf: leaf[index], params[name])
          for index in range(config.num_layers))
      for name in ('layers', 'lora')
      if name in params and not isinstance(params[name], tuple)}


def transpose_layers(
    params: Params, config: config_lib.ModelConfig) -> tuple[Params, ...]:
  """The unstacked layers with kernels [out, in], which decode faster on CPUs.

  A head [V, D] under the same name, `layers.TRANSPOSED`, belongs to them.
  """
  def transpose(layer):
    return traverse_util.unflatten_dict({
        (*path[:-1], layers.TRANSPOSED) if path[-1] == 'kernel' else path:
            leaf.T if path[-1] == 'kernel' else leaf
        for path, leaf in traverse_util.flatten_dict(layer).items()})

  return tuple(map(transpose, unstack(params, config)['layers']))


def head_params(params: Params, config: config_lib.ModelConfig) -> Params:
  """The parameters that `unembed` reads."""
  name = 'embedding' if config.tied_head else 'head'
  return {name: params[name]}


def _look_up(table, tokens):
  """`table[tokens]`, with `table` [V, D] sharded over `tensor`.

  XLA aborts on this gather in jax 0.11 and 0.12 if `fsdp` shards `tokens`.
  """
  if mesh_lib.free_axes().get('tensor', 1) == 1:
    return table[tokens]

  def look_up(tokens, split):
    table, ids = split
    at = tokens - ids[0]
    is_here = (at >= 0) & (at < len(ids))
    return jnp.where(is_here[..., None], table.at[at].get(mode='clip'), 0)[None]

  return mesh_lib.per_shard(look_up, ['tensor'])(
      tokens, (table, jnp.arange(len(table)))).sum(axis=0)


def unembed(
    params: Params, config: config_lib.ModelConfig,
    hidden: jax.Array, dtype: jnp.dtype = jnp.float32) -> jax.Array:
  """Logits [..., V] float32 of hidden states [..., D], a product in `dtype`."""
  if layers.TRANSPOSED in params:
    return layers.multiply_few_rows(hidden, params[layers.TRANSPOSED], dtype)
  (head,) = head_params(params, config).values()
  if not products.rounds(dtype):  # Exchange fewer bytes.
    head = head.astype(dtype)
  # XLA's CPU backend multiplies a transposed bfloat16 matrix as float32.
  axes, equation = ((None, 'tensor'), 'rd,dv->rv')
  if config.tied_head:
    axes, equation = (('tensor',), 'rd,vd->rv')
  rows = hidden.reshape(-1, hidden.shape[-1])
  logits = products.multiply(
      equation, rows, mesh_lib.constrain(head, *axes), dtype)
  return logits.reshape(*hidden.shape[:-1], -1)
