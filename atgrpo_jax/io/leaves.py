"""The leaves of a tree of arrays by name, and what a checkpoint has of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from atgrpo_jax import errors

_MAX_SHOWN = 10  # Rows of the table of differing leaves.


def named(tree: Any) -> dict[str, Any]:
  """Leaf name -> leaf, in the order of the tree: `planner/params/w`."""
  leaves = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if not isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
      raise errors.CheckpointError(
          f'leaf {name} is a {type(leaf).__name__}: expected a jax.Array. '
          'Convert it with jnp.asarray, or put it into meta.'
      )
    if name in leaves:
      raise errors.CheckpointError(f'two leaves are called {name}: rename one.')
    leaves[name] = leaf
  return leaves


def signature(leaf: Any) -> list[Any]:
  return [list(leaf.shape), str(leaf.dtype)]


def check_same_model(
    path: Any, saved: Mapping[str, Any], wanted: Mapping[str, Any]
):
  """Raises a table of the leaves whose name, shape or dtype differ."""
  in_file = {name: entry[:2] for name, entry in saved.items()}
  in_model = {name: signature(leaf) for name, leaf in wanted.items()}
  names = [
      name
      for name in {**in_file, **in_model}
      if in_file.get(name) != in_model.get(name)
  ]
  if not names:
    return

  def show(signature):
    if signature is None:
      return 'missing'
    shape, dtype = signature
    return f'({",".join(map(str, shape))}) {dtype}'

  rows = [('name', 'file', 'model')] + [
      (name, show(in_file.get(name)), show(in_model.get(name)))
      for name in names[:_MAX_SHOWN]
  ]
  widths = [max(map(len, column)) for column in zip(*rows)]
  raise errors.CheckpointError(
      f'{path} holds another model; nothing was loaded. Resume with the '
      f'config it was saved with. {len(names)} leaves differ:\n'
      + '\n'.join(
          '  '.join(map(str.ljust, row, widths)).rstrip() for row in rows
      )
  )
