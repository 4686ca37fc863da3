"""Attention over a shared prefix and a private suffix.

Where the scores of all queries together would be large, the queries are taken
in blocks, one after another, and the backward pass computes the scores of a
block anew: so memory grows with the length of a sequence, not with its square.
Only the queries are cut. Groups and key heads, which a mesh may hold in
pieces, stay axes of their own and whole.

Letters as in `atgrpo_jax.model.qwen3`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Float32 scores of one group that exist at the same time, over all heads and
# members. A group of `models/nano` never needs that many.
_SCORE_BYTES = 256 * 2**20

_MASKED = -1e30  # Finite, so that a row without any key has no NaN gradient.


def attend(q, k, v, suffix_mask, prefix, prefix_mask):
  """Softmax attention over prefix and suffix keys together.

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
  groups, heads, members, queries, per_head, width = q.shape
  keys = k.shape[-2] + (0 if prefix is None else prefix[0].shape[-2])
  most = _SCORE_BYTES // (4 * heads * members * per_head * keys)
  if queries <= most:
    return _attend_block(q, k, v, suffix_mask, prefix, prefix_mask)

  block = 2**(max(most, 1).bit_length() - 1)
  pad = -queries % block
  q = jnp.pad(q, [(0, 0)] * 3 + [(0, pad)] + [(0, 0)] * 2)
  q = q.reshape(groups, heads, members, -1, block, per_head, width)
  suffix_mask = jnp.pad(suffix_mask, [(0, pad), (0, 0)])
  suffix_mask = suffix_mask.reshape(-1, block, suffix_mask.shape[-1])
  # The gradients of keys and values are sums over the blocks, in the type that
  # they have outside the loop.
  kv = jax.tree.map(lambda x: x.astype(jnp.float32), (k, v, prefix))

  def attend_block(xs):
    q, suffix_mask = xs
    k, v, prefix = jax.tree.map(lambda x: x.astype(q.dtype), kv)
    return _attend_block(q, k, v, suffix_mask, prefix, prefix_mask)

  # Within a loop, nothing could merge the two computations of a block.
  mixed = jax.lax.map(
      jax.checkpoint(attend_block, prevent_cse=False),
      (jnp.moveaxis(q, 3, 0), suffix_mask))
  mixed = jnp.moveaxis(mixed, 0, 3).reshape(
      groups, heads, members, -1, per_head, width)
  return mixed[:, :, :, :queries]


def _attend_block(q, k, v, suffix_mask, prefix, prefix_mask):
  """`attend`, with all scores at once.

  The two blocks of scores, over the prefix and over the suffix, are never
  joined: they share a maximum and a sum, which gives the same number as a
  softmax over their concatenation.
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
