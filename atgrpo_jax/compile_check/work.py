"""Counts the FLOPs and memory traffic of a traced program.

XLA's own cost analysis counts the body of a loop once and a kernel not at all,
so matrix products are counted in the jaxpr, loops included.
"""

from __future__ import annotations

import math

from jax.extend import core
import numpy as np


def count_work(
    jaxpr: core.ClosedJaxpr, while_length: int) -> tuple[float, float]:
  """FLOPs, and bytes read and written, of all matrix products.

  The numbers are totals over all devices: within a `shard_map` a program has
  the shapes of one shard and is counted once per shard. A kernel reads its
  operands and writes its results once. Blocks that splash attention masks
  completely are not counted.

  Args:
    jaxpr: the program.
    while_length: trip count of `while` loops, such as the decoding loop.
  """
  return _count(
      jaxpr.jaxpr, dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts)), while_length)


def _count(jaxpr, constants, while_length):
  """`count_work`; `constants` maps variables to known values."""
  flops = traffic = 0
  for equation in jaxpr.eqns:
    name = equation.primitive.name
    is_kernel = name == 'pallas_call'
    if name == 'dot_general':
      (contracted, _), _ = equation.params['dimension_numbers']
      left = equation.invars[0].aval
      flops += 2 * equation.outvars[0].aval.size * math.prod(
          left.shape[i] for i in contracted)
    if name == 'dot_general' or is_kernel:
      traffic += sum(
          x.aval.size * x.aval.dtype.itemsize
          for x in (*equation.invars, *equation.outvars))
    repeats = {
        'scan': equation.params.get('length'), 'while': while_length,
    }.get(name, 1)
    if is_kernel:
      repeats = _num_blocks(equation, constants)
    if name == 'shard_map':
      mesh = equation.params['mesh']
      repeats = math.prod(
          mesh.shape[axis] for axis in equation.params['newly_manual_axes'])
    for inner in core.jaxprs_in_params(equation.params):
      inner_flops, inner_traffic = _count(
          inner, _inner_constants(equation, inner, constants), while_length)
      flops += repeats * inner_flops
      if not is_kernel:  # A kernel works in the chip's fast memory.
        traffic += repeats * inner_traffic
  return flops, traffic


def _inner_constants(equation, inner, constants):
  """The constants that an equation passes to the function that it calls."""
  outside = equation.invars
  if equation.primitive.name == 'scan':  # Carries and slices are not constant.
    outside = outside[:equation.params['num_consts']]
  elif len(outside) != len(inner.invars):
    return {}
  return {
      inside: constants[x] for inside, x in zip(inner.invars, outside)
      if isinstance(x, core.Var) and x in constants}


def _num_blocks(equation, constants):
  """An upper bound on the blocks of its grid that a kernel computes."""
  mapping = equation.params['grid_mapping']
  first = mapping.num_dynamic_grid_bounds
  prefetched = equation.invars[first:first + mapping.num_index_operands]
  if first:  # A dynamic grid has one prefetched number per block.
    return max(x.aval.size for x in prefetched)
  num_blocks = math.prod(mapping.grid)
  if 'splash' in (equation.params['name'] or ''):
    mask = constants.get(prefetched[1])  # 0 for a block that is masked.
    if mask is not None:
      num_blocks *= np.count_nonzero(mask) / np.size(mask)
  return num_blocks
