"""Which arrays hold NaN or infinity, asked where their shards are.

An array is reduced to one bool on its devices, and nothing else moves.
"""

from typing import Any

import jax
import jax.numpy as jnp

_MAX_SHOWN = 10  # Names in a sentence.


def nonfinite_leaves(tree: Any) -> list[str]:
  """Names, as in layers/gate/kernel, of the leaves with NaN or infinity.

  A process that holds no part of a leaf is told nothing of it.
  """
  # One after the other, as in `digests`.
  return [
      jax.tree_util.keystr(path, simple=True, separator='/')
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
      if leaf.addressable_shards
      and not jax.device_get(jax.block_until_ready(_is_finite(leaf)))]


def flags(tree: Any) -> Any:
  """The same tree of [] bool, whether each leaf is finite; traced."""
  return jax.tree.map(lambda x: jnp.all(jnp.isfinite(x)), tree)


def names(tree_of_flags: Any) -> list[str]:
  """Names of the leaves that are False."""
  return [
      jax.tree_util.keystr(path, simple=True, separator='/')
      for path, ok in jax.tree_util.tree_leaves_with_path(tree_of_flags)
      if not ok]


def listed(names_of_leaves: list[str]) -> str:
  """The first few names, and how many more there are."""
  more = len(names_of_leaves) - _MAX_SHOWN
  return ', '.join(names_of_leaves[:_MAX_SHOWN]) + (
      f' and {more} more' if more > 0 else '')


@jax.jit
def _is_finite(x: jax.Array) -> jax.Array:
  return jnp.all(jnp.isfinite(x))
