"""Attention of prompts on NVIDIA GPUs: cuDNN through `jax.nn`.

It serves only sequences without a prefix. Suffixes would need either the
log-sum of the scores of two calls, which jax rounds to the dtype of the values
and whose gradient cuDNN's rule drops, or a mask, which jax turns into a bias
with a gradient, each as large as the scores of a head.

cuDNN needs an Ampere GPU or newer.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def fits(
    device: jax.sharding.AbstractDevice, q: jax.Array,
    prefix_length: int) -> bool:
  """Whether `attend` supports queries [P, K, G, X, M, H] on this device."""
  width = q.shape[-1]
  return (
      device.device_kind.startswith('NVIDIA') and not prefix_length
      and q.dtype in (jnp.bfloat16, jnp.float16)
      and width <= 128 and not width % 8)


def attend(q, k, v, prefix, prefix_mask, implementation: str = 'cudnn'):
  """`attention.attend` for causal suffixes without prefix or past.

  Args:
    q: [P, K, G, X, M, H] scaled queries.
    k: [P, K, G, H, X] suffix keys.
    v: [P, K, G, X, H] suffix values.
    prefix: None.
    prefix_mask: None.
    implementation: for `jax.nn.dot_product_attention`; tests use 'xla'.

  Returns:
    [P, K, G, X, M, H]
  """
  del prefix, prefix_mask
  groups, heads, candidates, queries, per_head, width = q.shape
  rows = groups * candidates
  # The M queries of a key head are adjacent.
  q = q.transpose(0, 2, 3, 1, 4, 5).reshape(
      rows, queries, heads * per_head, width)
  k = k.transpose(0, 2, 4, 1, 3).reshape(rows, queries, heads, width)
  v = v.transpose(0, 2, 3, 1, 4).reshape(rows, queries, heads, width)
  mixed = jax.nn.dot_product_attention(
      q, k, v, is_causal=True, scale=1.0, implementation=implementation)
  mixed = mixed.reshape(groups, candidates, queries, heads, per_head, width)
  return mixed.transpose(0, 3, 1, 2, 4, 5)
