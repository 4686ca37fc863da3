"""The attention of prompts on an NVIDIA GPU: cuDNN's, by way of `jax.nn`.

Only sequences without a prefix have it. A suffix would need the log-sum of the
scores from two calls, but jax gives it in the type of the values, and cuDNN's
rule drops its gradient; or a mask over prefix and suffix, which jax turns into
a bias with a gradient, in memory both as large as the scores of a head.

cuDNN wants a GPU of the Ampere generation or a newer one.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def fits(
    device: jax.sharding.AbstractDevice, q: jax.Array,
    prefix_length: int) -> bool:
  """Whether `attend` can take queries [P, K, G, X, M, H] on such a device."""
  width = q.shape[-1]
  return (
      device.device_kind.startswith('NVIDIA') and not prefix_length
      and q.dtype in (jnp.bfloat16, jnp.float16)
      and width <= 128 and not width % 8)


def attend(q, k, v, prefix, prefix_mask, implementation: str = 'cudnn'):
  """What `attention.attend` computes for causal suffixes alone.

  Args:
    q: [P, K, G, X, M, H] scaled queries.
    k: [P, K, G, H, X] suffix keys.
    v: [P, K, G, X, H] suffix values.
    prefix: None; `fits` says so.
    prefix_mask: None as well.
    implementation: of `jax.nn.dot_product_attention`; 'xla' for tests.

  Returns:
    [P, K, G, X, M, H]
  """
  del prefix, prefix_mask
  groups, heads, candidates, queries, per_head, width = q.shape
  rows = groups * candidates
  # The M queries of a key head stand side by side.
  q = q.transpose(0, 2, 3, 1, 4, 5).reshape(
      rows, queries, heads * per_head, width)
  k = k.transpose(0, 2, 4, 1, 3).reshape(rows, queries, heads, width)
  v = v.transpose(0, 2, 3, 1, 4).reshape(rows, queries, heads, width)
  mixed = jax.nn.dot_product_attention(
      q, k, v, is_causal=True, scale=1.0, implementation=implementation)
  mixed = mixed.reshape(groups, candidates, queries, heads, per_head, width)
  return mixed.transpose(0, 3, 1, 2, 4, 5)
