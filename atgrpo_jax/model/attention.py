"""Attention over a shared prefix and a private suffix.

The queries of a long sequence are taken in spans, and those of a span see no
keys behind it: so most scores that a causal mask would hide are never computed.

Where the scores of all queries together would be large, each span is taken in
blocks, one after another, and the backward pass computes the scores of a block
anew: so memory grows with the length of a sequence, not with its square. Only
queries and what they see are cut. Groups and key heads, which a mesh may hold
in pieces, stay axes of their own and whole.

Keys stand in columns, values in rows, so that both products of decoding read
memory in the order in which it lies: on a CPU the scores of 64 keys to each of
128 pairs of queries took a third of the time that they take with keys in rows.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from atgrpo_jax.model import kv_cache

# Float32 scores of one group that exist at the same time, over all heads and
# candidates. A group of `models/nano` never needs that many.
_SCORE_BYTES = 256 * 2**20

# Spans of a sequence at most, and the fewest queries of one. Of 4 spans, five
# eighths of the scores are computed; twice as many would save a tenth more, and
# each takes time to compile.
_SPANS, _SPAN = 4, 256

_MASKED = -1e30  # Finite, so that a row without any key has no NaN gradient.


def attend(
    q, k, v, suffix_mask, prefix, prefix_mask, past=None, past_mask=None,
    rows=None):
  """Softmax attention over prefix, past and suffix keys together.

  Args:
    q: [P, K, G, X, M, H] scaled queries.
    k: [P, K, G, H, Y] suffix keys.
    v: [P, K, G, Y, H] suffix values.
    suffix_mask: [X, Y] bool. But over a cache, X is Y and no query sees a later
      key.
    prefix: keys [P, K, H, S] and values [P, K, S, H], or None. With `rows`
      perhaps `kv_cache.Quantized`.
    prefix_mask: [P, S] bool, or None without a prefix.
    past: keys [N * R, K, H, Z] and values [N * R, K, Z, H], which the query of
      a row sees, or None without `rows`; perhaps `kv_cache.Quantized`.
    past_mask: [N * R, Z] bool, or None without a past.
    rows: `kv_cache.Rows`, where rows are decoded: then all but the prefix have
      N * R for P, 1 for G, and X is 1; and keys and values have no axis G.
      (With one of size 1, XLA's CPU backend would copy the cache three times
      for each token.)

  Returns:
    [P, K, G, X, M, H]
  """
  _, heads, candidates, queries, per_head, _ = q.shape
  if k.ndim == 4:  # Of a cache.
    return _attend_block(
        q, k, v, suffix_mask, prefix, prefix_mask, past, past_mask, rows)

  # The gradients of keys and values are sums over the parts, in the type that
  # they have outside of them.
  kv = jax.tree.map(lambda x: x.astype(jnp.float32), (k, v, prefix))

  def attend_part(q, suffix_mask):
    end = suffix_mask.shape[-1]
    k, v, prefix = jax.tree.map(lambda x: x.astype(q.dtype), kv)
    return _attend_block(
        q, k[..., :end], v[..., :end, :], suffix_mask, prefix, prefix_mask,
        None, None, None)

  keys = queries + (prefix[0].shape[-1] if prefix else 0)
  most = max(1, _SCORE_BYTES // (4 * heads * candidates * per_head * keys))
  attend_span = attend_part
  if queries > most:
    attend_span = functools.partial(
        _in_blocks, attend_part, 2**(most.bit_length() - 1))
  span = -(-queries // min(_SPANS, max(1, queries // _SPAN)))
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
  # Within a loop, nothing could merge the two computations of a block.
  mixed = jax.lax.map(
      lambda xs: jax.checkpoint(attend_part, prevent_cse=False)(*xs),
      (jnp.moveaxis(q, 3, 0), suffix_mask))
  mixed = jnp.moveaxis(mixed, 0, 3).reshape(
      groups, heads, candidates, -1, per_head, width)
  return mixed[:, :, :, :queries]


def _attend_block(
    q, k, v, suffix_mask, prefix, prefix_mask, past, past_mask, rows):
  """`attend`, with all scores at once.

  The blocks of scores, over the prefix, the past and the suffix, are never
  joined: they share a maximum and a sum, which gives the same number as a
  softmax over their concatenation.
  """
  groups, heads, candidates, queries, _, width = q.shape

  def own_rows(x):  # [P, K, G, X * M, ...], G where the keys have it.
    return x.reshape(*k.shape[:-2], -1, x.shape[-1])

  def shared_rows(x):  # The queries of a group: [P, K, G * X * M, ...]
    if rows is not None:
      x = rows.spread_heads(own_rows(x))
    return x.reshape(len(x), heads, -1, x.shape[-1])

  def parted(x):  # Back from `shared_rows` to `own_rows`.
    if rows is not None:
      x = rows.take_heads(x.reshape(
          len(x), heads, rows.group_size, -1, x.shape[-1]))
    return own_rows(x)

  # Keys and values of the candidates' own, with a bias for each.
  bias = jnp.where(suffix_mask, 0.0, _MASKED)
  blocks = [(k, v, jnp.repeat(bias, q.shape[4], axis=0))]
  if past is not None:
    bias = jnp.where(past_mask, 0.0, _MASKED)
    blocks.append((*past, bias[:, None, None, :]))
  own = [
      _score('...qh,...hy->...qy', own_rows(q), keys) + bias
      for keys, _, bias in blocks]
  top = functools.reduce(
      jnp.maximum, [jnp.max(x, axis=-1, keepdims=True) for x in own])
  if prefix is not None:
    bias = jnp.where(prefix_mask, 0.0, _MASKED)[:, None, None, :]
    shared = _score('pkqh,pkhs->pkqs', shared_rows(q), prefix[0]) + bias
    top = jnp.maximum(
        top, parted(jnp.max(shared, axis=-1, keepdims=True)))
  top = jax.lax.stop_gradient(top)
  own = [jnp.exp(x - top) for x in own]
  total = sum(jnp.sum(x, axis=-1, keepdims=True) for x in own)
  mixed = sum(
      _mix('...qy,...yh->...qh', x, values, v.dtype)
      for x, (_, values, _) in zip(own, blocks))
  if prefix is not None:
    shared = jnp.exp(shared - shared_rows(top))
    total += parted(jnp.sum(shared, axis=-1, keepdims=True))
    mixed += parted(_mix('pkqs,pksh->pkqh', shared, prefix[1], v.dtype))
  mixed = (mixed / total).astype(q.dtype)
  return mixed.reshape(groups, heads, candidates, queries, -1, width)


def attend_rooms(
    attend_room, q, k, v, suffix_mask, prefix, prefix_mask, past, past_mask,
    rows):
  """`attend` over a cache, where a kernel mixes what stands in rooms.

  Args:
    attend_room: as `kernels.ragged.attend`; its rooms are the prompts of the
      groups and the pasts of the rows, whose first positions count.
    q: as of `attend`, as are the others.
    k: [N * R, K, H, Y]
    v: [N * R, K, Y, H]
    suffix_mask: [1, Y] bool.
    prefix: see `attend`.
    prefix_mask: [P, S] bool.
    past: see `attend`.
    past_mask: [N * R, Z] bool.
    rows: see `attend`.

  Returns:
    [N * R, K, 1, 1, M, H]
  """
  own = q[:, :, 0, 0]
  scores = jnp.einsum(
      'rkmh,rkhy->rkmy', own, k, preferred_element_type=jnp.float32)
  scores = jnp.where(suffix_mask, scores, _MASKED)
  top = jnp.max(scores, axis=-1, keepdims=True)
  weights = jnp.exp(scores - top)
  parts = [(
      jnp.einsum(
          'rkmy,rkyh->rkmh', weights.astype(v.dtype), v,
          preferred_element_type=jnp.float32),
      top, jnp.sum(weights, axis=-1, keepdims=True))]
  if past is not None:
    parts.append(attend_room(own, *past, _count(past_mask)))
  if prefix is not None:
    of_groups = rows.spread_heads(own)  # [P, K, G, M, H]
    groups, heads, *_, width = of_groups.shape
    found = attend_room(
        of_groups.reshape(groups, heads, -1, width), *prefix,
        _count(prefix_mask))
    parts.append(tuple(
        rows.take_heads(x.reshape(*of_groups.shape[:-1], -1)) for x in found))
  mixed, tops, totals = zip(*parts)
  top = functools.reduce(jnp.maximum, tops)
  shares = [jnp.exp(own_top - top) for own_top in tops]
  total = sum(x * share for x, share in zip(totals, shares))
  mixed = sum(x * share for x, share in zip(mixed, shares))
  return (mixed / total).astype(q.dtype)[:, :, None, None]


def _score(equation, q, keys):
  """Scores in float32; of `kv_cache.Quantized` keys, scaled afterwards."""
  scales = None
  if isinstance(keys, kv_cache.Quantized):
    keys, scales = keys.codes.astype(q.dtype), keys.scales[..., None, :]
  scores = jnp.einsum(equation, q, keys, preferred_element_type=jnp.float32)
  return scores if scales is None else scores * scales


def _mix(equation, weights, values, dtype):
  """Weighted sums in float32; `kv_cache.Quantized` values scale the weights."""
  if isinstance(values, kv_cache.Quantized):
    weights, values = weights * values.scales[..., None, :], values.codes
  return jnp.einsum(
      equation, weights.astype(dtype), values.astype(dtype),
      preferred_element_type=jnp.float32)


def _count(mask):
  return jnp.sum(mask, axis=-1, dtype=jnp.int32)
