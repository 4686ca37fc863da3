"""Chooses the attention kernel for a device, and runs it on each one.

TPUs use `splash` and `ragged`. NVIDIA GPUs use cuDNN through `jax.nn`, only for
sequences without a prefix. Suffixes would need either the log-sum of the scores
of two calls, which jax rounds to the dtype of the values and whose gradient
cuDNN's rule drops, or a mask, which jax turns into a bias with a gradient, each
as large as the scores of a head.

Letters as in `atgrpo_jax.model.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools

import jax
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model.kernels import ragged
from atgrpo_jax.model.kernels import splash


def find(q: jax.Array, prefix_length: int) -> Callable[..., jax.Array] | None:
  """The kernel of prefill and learner for queries [P, K, G, X, M, H].

  None stands for `attention.attend`. The device comes from the mesh of
  `set_mesh`; without a mesh there is no kernel.
  """
  device = _device(q)
  if device is None:
    return None
  if splash.fits(device, q, prefix_length):
    attend = splash.attend
  elif _fits_cudnn(device, q, prefix_length):
    attend = attend_with_cudnn
  else:
    return None
  return functools.partial(
      _on_each_device, attend, (True, True, True, True, False))


def find_for_rows(
    q: jax.Array, capacities: Sequence[int]) -> Callable[..., jax.Array] | None:
  """The kernel of decoding for queries [N * R, K, 1, 1, M, H]."""
  device = _device(q)
  if device is None or not all(
      ragged.fits(device, q.shape[-1], size) for size in capacities):
    return None
  return functools.partial(
      _on_each_device,
      functools.partial(attention.attend_ragged, ragged.attend),
      (True, True, True, None, True, False, True, False, False))


def _fits_cudnn(device, q, prefix_length):
  """Whether cuDNN supports these queries; it needs Ampere or newer."""
  width = q.shape[-1]
  return (
      device.device_kind.startswith('NVIDIA') and not prefix_length
      and q.dtype in (jnp.bfloat16, jnp.float16)
      and width <= 128 and not width % 8)


def attend_with_cudnn(
    q, k, v, prefix, prefix_mask, implementation: str = 'cudnn'):
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


def _device(q):
  """The device of the mesh; None if a head would be split."""
  mesh = jax.sharding.get_abstract_mesh()
  device = mesh.abstract_device
  if device is None or q.shape[1] % mesh.shape['tensor']:
    return None  # The compiler pads a fraction of a head; a kernel cannot.
  return device


def _on_each_device(attend, have_heads, *args):
  """Runs the kernel on the groups (or rows) and heads of each device.

  `have_heads` has an entry per argument: True if its axes start with groups and
  heads, False if with groups alone, None if with neither.
  """
  axes = mesh_lib.free_axes()
  # All axes, even of size 1: cuDNN's call cannot be partitioned.
  if axes and jax.sharding.get_abstract_mesh().size > 1:
    heads_spec = mesh_lib.free_spec(mesh_lib.ROWS, 'tensor')
    specs = {
        True: heads_spec, False: mesh_lib.free_spec(mesh_lib.ROWS),
        None: mesh_lib.free_spec()}
    attend = jax.shard_map(
        attend, in_specs=tuple(specs[has] for has in have_heads),
        out_specs=heads_spec, axis_names=set(axes),
        check_vma=False)
  return attend(*args)
