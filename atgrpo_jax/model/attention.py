"""Attention over a shared prefix and a private suffix.

Letters as in `atgrpo_jax.model.qwen3`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_MASKED = -1e30  # Finite, so that a row without any key has no NaN gradient.


def attend(q, k, v, suffix_mask, prefix, prefix_mask):
  """Softmax attention over prefix and suffix keys together.

  The two score blocks are never joined: they share a maximum and a sum, which
  gives the same number as a softmax over their concatenation.

  Args:
    q: [P, K, G, X, M, H] scaled queries.
    k: [P, K, G, Y, H] suffix keys.
    v: [P, K, G, Y, H] suffix values.
    suffix_mask: [X, Y] bool.
    prefix: ([P, K, S, H], [P, K, S, H]) or None.
    prefix_mask: [P, S] bool, or None without a prefix.

  Returns:
    [P, K, G, X, M, H]
  """
  groups, heads, members, queries, _, width = q.shape

  def own_rows(x):  # [P, K, G, X * M, ...]
    return x.reshape(groups, heads, members, -1, x.shape[-1])

  def shared_rows(x):  # [P, K, G * X * M, ...]
    return x.reshape(groups, heads, -1, x.shape[-1])

  bias = jnp.where(suffix_mask, 0.0, _MASKED)
  bias = jnp.repeat(bias, q.shape[4], axis=0)
  own = jnp.einsum(
      'pkgqh,pkgyh->pkgqy', own_rows(q), k,
      preferred_element_type=jnp.float32) + bias
  top = jnp.max(own, axis=-1, keepdims=True)
  if prefix is not None:
    bias = jnp.where(prefix_mask, 0.0, _MASKED)[:, None, None, :]
    shared = jnp.einsum(
        'pkqh,pksh->pkqs', shared_rows(q), prefix[0],
        preferred_element_type=jnp.float32) + bias
    top = jnp.maximum(
        top, own_rows(jnp.max(shared, axis=-1, keepdims=True)))
  top = jax.lax.stop_gradient(top)
  own = jnp.exp(own - top)
  total = jnp.sum(own, axis=-1, keepdims=True)
  mixed = jnp.einsum(
      'pkgqy,pkgyh->pkgqh', own.astype(v.dtype), v,
      preferred_element_type=jnp.float32)
  if prefix is not None:
    shared = jnp.exp(shared - shared_rows(top))
    total += own_rows(jnp.sum(shared, axis=-1, keepdims=True))
    mixed += own_rows(jnp.einsum(
        'pkqs,pksh->pkqh', shared.astype(v.dtype), prefix[1],
        preferred_element_type=jnp.float32))
  mixed = (mixed / total).astype(q.dtype)
  return mixed.reshape(groups, heads, members, queries, -1, width)
