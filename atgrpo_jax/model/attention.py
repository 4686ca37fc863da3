"""Attention over a shared prefix and a private suffix.

The queries of a long sequence are split into spans. A span skips all keys after
its end, so most scores that the causal mask would hide are never computed.

If the scores of all queries would need much memory, each span is processed in
blocks, and the backward pass recomputes the scores of a block. Memory then
grows with the sequence length, not with its square.

Keys are stored in columns and values in rows, so that both products of decoding
read memory sequentially. On a CPU, the scores of 128 pairs of queries and 64
keys were computed three times as fast as with keys in rows.

Letters as in `atgrpo_jax.model.decoder`.
"""

import functools

import jax
import jax.numpy as jnp

from atgrpo_jax.model import products

# Finite, so that a row without any key has no NaN gradient.
MASKED = -1e30

# Bound of the float32 scores of one group, over all heads and candidates.
_MAX_SCORE_BYTES = 256 * 2**20

# 4 spans compute 5/8 of the scores. 8 would save a tenth, but compile longer.
_MAX_SPANS, _MIN_SPAN = 4, 256


def attend(
    q, k, v, suffix_mask, prefix, prefix_mask, past=None, past_mask=None,
    rows=None, in_order=False):
  """Softmax attention over prefix, past and suffix keys together.

  Args:
    q: [P, K, G, X, M, H] scaled queries.
    k: [P, K, G, H, Y] suffix keys.
    v: [P, K, G, Y, H] suffix values.
    suffix_mask: [X, Y] bool; causal with X = Y, except over a cache.
    prefix: keys [P, K, H, S] and values [P, K, S, H], or None.
    prefix_mask: [P, S] bool, or None without a prefix.
    past: earlier keys [N * R, K, H, Z] and values [N * R, K, Z, H] of each row;
      None without `rows`.
    past_mask: [N * R, Z] bool, or None without a past.
    rows: `kv_cache.Rows` while decoding. All arguments but the prefix then have
      N * R for P, G = 1 and X = 1, and keys and values have no axis G (with an
      axis of size 1, XLA's CPU backend copies the cache three times per token).
    in_order: add terms in the order of keys; see `products`.

  Returns:
    [P, K, G, X, M, H]
  """
  _, heads, candidates, queries, per_head, _ = q.shape
  if k.ndim == 4:  # A cache.
    return _attend_block(
        q, k, v, suffix_mask, prefix, prefix_mask, past, past_mask, rows,
        in_order)

  # The gradients of keys and values are sums over blocks; float32 outside of
  # the blocks keeps these sums in float32.
  kv = jax.tree.map(lambda x: x.astype(jnp.float32), (k, v, prefix))

  def attend_part(q, suffix_mask):
    end = suffix_mask.shape[-1]
    k, v, prefix = jax.tree.map(lambda x: x.astype(q.dtype), kv)
    return _attend_block(
        q, k[..., :end], v[..., :end, :], suffix_mask, prefix, prefix_mask,
        None, None, None, in_order)

  keys = queries + (prefix[0].shape[-1] if prefix else 0)
  row_bytes = 4 * heads * candidates * per_head * keys
  max_block = max(1, _MAX_SCORE_BYTES // row_bytes)
  attend_span = attend_part
  if queries > max_block:
    attend_span = functools.partial(
        _in_blocks, attend_part, 2**(max_block.bit_length() - 1))
  span = -(-queries // min(_MAX_SPANS, max(1, queries // _MIN_SPAN)))
  return jnp.concatenate([
      attend_span(q[:, :, :, end - span:end], suffix_mask[end - span:end, :end])
      for end in range(span, queries + span, span)], axis=3)


def _in_blocks(attend_part, block, q, suffix_mask):
  """`attend_part(q, suffix_mask)`, `block` queries at a time."""
  groups, heads, candidates, queries, per_head, width = q.shape
  pad = -queries % block
  q = jnp.pad(q, [(0, 0)] * 3 + [(0, pad)] + [(0, 0)] * 2)
  q = q.reshape(groups, heads, candidates, -1, block, per_head, width)
  suffix_mask = jnp.pad(suffix_mask, [(0, pad), (0, 0)])
  suffix_mask = suffix_mask.reshape(-1, block, suffix_mask.shape[-1])
  # A loop already prevents common subexpression elimination.
  mixed = jax.lax.map(
      lambda xs: jax.checkpoint(attend_part, prevent_cse=False)(*xs),
      (jnp.moveaxis(q, 3, 0), suffix_mask))
  mixed = jnp.moveaxis(mixed, 0, 3).reshape(
      groups, heads, candidates, -1, per_head, width)
  return mixed[:, :, :, :queries]


def _attend_block(
    q, k, v, suffix_mask, prefix, prefix_mask, past, past_mask, rows, in_order):
  """`attend` with all scores in memory.

  The scores over prefix, past and suffix are never concatenated. They share a
  maximum and a sum, which equals a softmax over their concatenation.
  """
  groups, heads, candidates, queries, _, width = q.shape
  einsum = functools.partial(products.einsum, dtype=q.dtype)

  def private_rows(x):  # [P, K, G, X * M, ...], with G if the keys have it.
    return x.reshape(*k.shape[:-2], -1, x.shape[-1])

  def shared_rows(x):  # The queries of a group: [P, K, G * X * M, ...]
    if rows is not None:
      x = rows.spread_heads(private_rows(x))
    return x.reshape(len(x), heads, -1, x.shape[-1])

  def split_rows(x):  # From `shared_rows` back to `private_rows`.
    if rows is not None:
      x = rows.take_heads(x.reshape(
          len(x), heads, rows.group_size, -1, x.shape[-1]))
    return private_rows(x)

  def blocks_of(x, axis):
    size = x.shape[axis]
    step = products.MAX_SIZE // width if in_order else size
    return [jax.lax.slice_in_dim(x, i, min(i + step, size), axis=axis)
            for i in range(0, size, step)]

  def score(q, keys):
    num_keys = keys.shape[-1]
    if in_order:
      pad = [(0, 0)] * (keys.ndim - 1) + [(0, -num_keys % products.COLUMNS)]
      keys = jnp.pad(keys, pad)
    scores = [einsum('...qh,...hy->...qy', q, x) for x in blocks_of(keys, -1)]
    return jnp.concatenate(scores, axis=-1)[..., :num_keys]

  def add(sums, weights, values=None):
    """Adds the weighted values, or the weights, of further keys to `sums`."""
    if values is None and in_order:
      values = products.ones(weights.shape[-1])
    if sums is not None and in_order:
      # One product, so that the order is that of all keys together.
      eye = jnp.eye(weights.shape[-2])
      eye = jnp.broadcast_to(eye, (*weights.shape[:-1], len(eye)))
      values = jnp.broadcast_to(
          values, (*sums.shape[:-2], *values.shape[-2:]))
      weights = jnp.concatenate([eye, weights], axis=-1)
      values, sums = jnp.concatenate([sums, values], axis=-2), None
    if values is None:
      added = jnp.sum(weights, axis=-1, keepdims=True)
    else:
      added = sum(
          einsum('...qy,...yh->...qh', x, y)
          for x, y in zip(blocks_of(weights, -1), blocks_of(values, -2)))
    return added if sums is None else sums + added

  # Keys and values of each candidate, with a bias per key.
  blocks = []
  if past is not None:
    bias = jnp.where(past_mask, 0.0, MASKED)
    blocks.append((*past, bias[:, None, None, :]))
  bias = jnp.where(suffix_mask, 0.0, MASKED)
  blocks.append((k, v, jnp.repeat(bias, q.shape[4], axis=0)))
  private = [
      score(private_rows(q), keys) + bias
      for keys, _, bias in blocks]
  top = functools.reduce(
      jnp.maximum, [jnp.max(x, axis=-1, keepdims=True) for x in private])
  if prefix is not None:
    bias = jnp.where(prefix_mask, 0.0, MASKED)[:, None, None, :]
    shared = score(shared_rows(q), prefix[0]) + bias
    top = jnp.maximum(
        top, split_rows(jnp.max(shared, axis=-1, keepdims=True)))
  top = jax.lax.stop_gradient(top)
  mixed = total = None
  for scores, (_, values, _) in zip(private, blocks):
    weights = jnp.exp(scores - top)
    mixed, total = add(mixed, weights, values), add(total, weights)
  if prefix is not None:
    weights = jnp.exp(shared - shared_rows(top))
    mixed += split_rows(add(None, weights, prefix[1]))
    total += split_rows(add(None, weights))
  mixed = (mixed / total[..., :1]).astype(q.dtype)
  return mixed.reshape(groups, heads, candidates, queries, -1, width)
