"""The layers of a decoder. Letters as in `atgrpo_jax.model.decoder`."""

import functools
import math

from flax import linen as nn
import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import kernels
from atgrpo_jax.model import products

# Name of a kernel that is [out, in].
TRANSPOSED = 'transposed_kernel'
# Name of the results that the backward pass keeps if it recomputes no product.
PRODUCT = 'product'


def multiply_few_rows(
    x: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """x [R, in] @ kernel [out, in].T, with the product in `dtype`, for CPUs.

  XLA's CPU backend packs the right operand of a float32 product, which takes a
  quarter of the time if this is a kernel and R is 32. The barrier keeps XLA
  from exchanging the operands.
  """
  if dtype != jnp.float32:
    return products.multiply('ri,oi->ro', x, kernel, dtype)
  return jax.lax.optimization_barrier(jnp.matmul(kernel, x.T)).T


class Norm(nn.Module):
  """Root-mean-square normalisation over the last axis, in float32."""

  eps: float
  in_order: bool = False  # See `products`.

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = self.param(
        'scale', nn.initializers.ones, x.shape[-1:], jnp.float32)
    x32 = x.astype(jnp.float32)
    if self.in_order:
      variance = (jnp.square(x32) @ products.ones(x.shape[-1]))[..., :1]
      variance /= x.shape[-1]
    else:
      variance = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    x32 = x32 * jax.lax.rsqrt(variance + self.eps)
    return (x32 * scale).astype(x.dtype)


class Linear(nn.Module):
  """A matrix product in `dtype`; the kernel is [in, out].

  A kernel from `decoder.transpose_layers` is [out, in] and has another name.

  The collection `lora` may hold A adapters side by side, `a` [in, A * R] and
  `b` [A * R, out], and the weight of each adapter for each group, `use` [P, A].
  """

  features: int
  init_std: float
  dtype: jnp.dtype
  use_bias: bool = False
  out_axis: str | None = 'tensor'  # The mesh axis of the features.

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    # With several row axes, the gradient is five times slower on XLA's CPU
    # backend.
    rows = x.reshape(-1, x.shape[-1])

    def multiply(rows, kernel):
      return products.multiply('ri,io->ro', rows, kernel, self.dtype, x.dtype)

    if self.has_variable('params', TRANSPOSED):
      y = multiply_few_rows(
          rows, self.get_variable('params', TRANSPOSED), self.dtype)
    else:
      kernel = self.param(
          'kernel', nn.initializers.normal(self.init_std),
          (x.shape[-1], self.features), jnp.float32)
      y = multiply(rows, kernel)
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros, self.features)
      y += products.rounded(bias, self.dtype).astype(x.dtype)
    if self.has_variable('lora', 'a'):
      a, b = (self.get_variable('lora', name) for name in 'ab')
      rank = a.shape[-1]  # Of all adapters together.
      if products.rounds(self.dtype):  # The sampler may have more adapters.
        a = jnp.pad(a, [(0, 0), (0, max(0, products.MIN_COLUMNS - rank))])
      low = mesh_lib.constrain(multiply(rows, a)[:, :rank], mesh_lib.ROWS)
      if self.has_variable('lora', 'use'):
        use = self.get_variable('lora', 'use').astype(x.dtype)
        groups, num_adapters = use.shape
        low = low.reshape(groups, -1, num_adapters, rank // num_adapters)
        low = (low * use[:, None, :, None]).reshape(-1, rank)
      added = multiply(low, mesh_lib.constrain(b, None, self.out_axis))
      # Without these constraints XLA moves kernels for every decoded token.
      y, added = (
          mesh_lib.constrain(x, mesh_lib.ROWS, self.out_axis)
          for x in (y, added))
      y += added
      if mesh_lib.current_size() > 1:
        # Otherwise libtpu 0.0.50 aborts on the gradient of q's adapter ("split
        # of a padded window dim").
        y = jax.lax.optimization_barrier(y)
    y = ad_checkpoint.checkpoint_name(y, PRODUCT)
    return y.reshape(*x.shape[:-1], self.features)


class Attention(nn.Module):
  """Grouped-query attention of private suffixes that see a shared prefix.

  Prefill is a suffix without a prefix, decoding a suffix of one query over a
  cache, and training a whole suffix.
  """

  config: config_lib.ModelConfig
  dtype: jnp.dtype

  @nn.compact
  def __call__(
      self, x, angles, suffix_mask, prefix=None, prefix_mask=None, cache=None,
      cache_index=None, past=None, past_mask=None, rows=None):
    """Returns the outputs [P, G, X, D] and the suffix's keys and values.

    `x` is [P, G, X, D] and `angles` [P, X, H / 2] float32. `cache` holds keys
    and values of earlier tokens, to which the new ones are added at
    `cache_index`. The other arguments are those of `attention.attend`.
    """
    c = self.config

    def project(name, num_heads):
      y = Linear(
          num_heads * c.head_dim, c.init_std, self.dtype, c.family.qkv_bias,
          name=name)(x)
      return y.reshape(*x.shape[:3], num_heads, c.head_dim)

    q = project('q', c.num_heads)
    k = project('k', c.num_kv_heads)
    v = project('v', c.num_kv_heads)
    in_order = products.rounds(self.dtype)
    if c.family.qk_norm:
      q = Norm(c.norm_eps, in_order, name='q_norm')(q)
      k = Norm(c.norm_eps, in_order, name='k_norm')(k)
    q, k = rotate(q, angles), rotate(k, angles)

    groups, candidates, queries, *_ = q.shape
    q, k, v = (
        mesh_lib.constrain(y, mesh_lib.ROWS, None, None, 'tensor')
        for y in (q, k, v))
    # Head-major, with keys in columns. The M query heads of a key head are rows
    # of one matrix, so that the scores are batched matrix products.
    k = k.transpose(0, 3, 1, 4, 2)
    v = v.transpose(0, 3, 1, 2, 4)
    q = q.reshape(
        groups, candidates, queries, c.num_kv_heads, -1, c.head_dim)
    q = q.transpose(0, 3, 1, 2, 4, 5) * c.head_dim**-0.5

    if cache is not None:
      k, v = (
          jax.lax.dynamic_update_slice_in_dim(
              old, new[:, :, 0].astype(old.dtype), cache_index, axis)
          for old, new, axis in zip(cache, (k, v), (-1, -2)))
    capacities = [kv[0].shape[-1] for kv in (prefix, past) if kv is not None]
    if cache is None and (kernel := kernels.find(q, sum(capacities))):
      mixed = kernel(q, k, v, prefix, prefix_mask)
    else:
      kernel = None if rows is None else kernels.find_for_rows(q, capacities)
      attend = functools.partial(attention.attend, in_order=in_order)
      mixed = (kernel or attend)(
          q, k, v, suffix_mask, prefix, prefix_mask, past, past_mask, rows)
    mixed = mixed.transpose(0, 2, 3, 1, 4, 5).reshape(
        groups, candidates, queries, -1)
    out = Linear(
        c.hidden_size, c.init_std, self.dtype, out_axis=None, name='o')
    return out(mixed), (k, v)


class Block(nn.Module):
  """One layer: attention and SwiGLU, each normalised and residual."""

  config: config_lib.ModelConfig
  dtype: jnp.dtype = jnp.float32  # Of matrix products.

  @nn.compact
  def __call__(self, x, angles, suffix_mask, **attention_args):
    c = self.config

    def linear(features, name, out_axis='tensor'):
      return Linear(
          features, c.init_std, self.dtype, out_axis=out_axis, name=name)

    def norm(name):
      return Norm(c.norm_eps, products.rounds(self.dtype), name=name)

    mixed, kv = Attention(c, self.dtype, name='attention')(
        norm('attention_norm')(x), angles, suffix_mask, **attention_args)
    x = x + mixed
    y = norm('mlp_norm')(x)
    gate = linear(c.intermediate_size, 'gate')(y)
    up = linear(c.intermediate_size, 'up')(y)
    hidden = mesh_lib.constrain(
        nn.silu(gate) * up, mesh_lib.ROWS, None, None, 'tensor')
    x = x + linear(c.hidden_size, 'down', None)(hidden)
    return mesh_lib.constrain(x, mesh_lib.ROWS), kv


def rotary_angles(
    positions: jax.Array, config: config_lib.ModelConfig) -> jax.Array:
  """Angles [..., H / 2] in float32 for integer positions [...]."""
  width = config.head_dim
  exponents = jnp.arange(0, width, 2, dtype=jnp.float32) / width
  frequencies = config.rope_theta**-exponents
  if (scaling := config.rope_scaling) is not None:
    # Rotations over the original context. Below `low_freq_factor` frequencies
    # are divided by `factor`, above `high_freq_factor` they stay.
    rotations = (
        frequencies * scaling.original_max_position_embeddings / (2 * math.pi))
    kept = jnp.clip(
        (rotations - scaling.low_freq_factor)
        / (scaling.high_freq_factor - scaling.low_freq_factor), 0, 1)
    frequencies *= kept + (1 - kept) / scaling.factor
  return positions[..., None].astype(jnp.float32) * frequencies


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
  """Rotates the halves of each head of x [P, G, X, heads, H].

  `angles` is [P, X, H / 2] float32.
  """
  angles = angles[:, None, :, None, :]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], axis=-1)
  return rotated.astype(x.dtype)
