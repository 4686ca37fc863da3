"""How much work a program is, and the time that it must take at least.

Work is counted in the traced program: the FLOPs of all matrix products, and
the bytes of what they read and write, loops included.
"""

from __future__ import annotations

import math
import re

from jax.extend import core
import numpy as np

from atgrpo_jax.distributed import chips


def min_seconds(
    flops: float, traffic: float, sent: float,
    chip: chips.Chip) -> dict[str, float]:
  """What a program takes at least: the longest of these.

  Args:
    flops: of the program, on each device.
    traffic: bytes that it reads and writes, on each device.
    sent: bytes that a device sends to others.
    chip: what it runs on.

  Returns:
    seconds for the 'products' at the chip's peak, for the 'memory' and for the
    'links' at their bandwidth.
  """
  return {
      'products': flops / chip.flops, 'memory': traffic / chip.bandwidth,
      'links': sent / chip.links}


def needed_bytes(message: str) -> int:
  """What the compiler says that a program needs, which it gives up on.

  0 if it names no number of bytes of the chip's memory.
  """
  size = r'([\d.]+)([KMGT]?)B?'
  found = re.search(
      rf'Used {size} of \S+ hbm|\({size}\) exceeds available HBM|'
      rf'\(size={size}\) would exceed memory', message)
  if not found:
    return 0
  number, unit = filter(lambda group: group is not None, found.groups())
  return int(float(number) * 1024**' KMGT'.index(unit or ' '))


def count_work(
    jaxpr: core.ClosedJaxpr, while_length: int) -> tuple[float, float]:
  """FLOPs, and bytes read and written, of all matrix products of a program.

  Of all devices together: within a `shard_map` a program has the shapes of one
  shard, and is counted once for each. A `while` loop, such as that of decoding,
  is taken to run `while_length` times. A kernel reads its operands and writes
  its results once; what splash attention masks altogether it does not compute.
  """
  return _count(
      jaxpr.jaxpr, dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts)), while_length)


def _count(jaxpr, known, while_length):
  """`count_work`; `known` are the variables whose values are."""
  flops = traffic = 0
  for equation in jaxpr.eqns:
    name = equation.primitive.name
    kernel = name == 'pallas_call'
    if name == 'dot_general':
      (contracted, _), _ = equation.params['dimension_numbers']
      left = equation.invars[0].aval
      flops += 2 * equation.outvars[0].aval.size * math.prod(
          left.shape[i] for i in contracted)
    if name == 'dot_general' or kernel:
      traffic += sum(
          x.aval.size * x.aval.dtype.itemsize
          for x in (*equation.invars, *equation.outvars))
    repeats = {
        'scan': equation.params.get('length'), 'while': while_length,
    }.get(name, 1)
    if kernel:
      repeats = _num_blocks(equation, known)
    if name == 'shard_map':
      mesh = equation.params['mesh']
      repeats = math.prod(
          mesh.shape[axis] for axis in equation.params['newly_manual_axes'])
    for inner in core.jaxprs_in_params(equation.params):
      inner_flops, inner_traffic = _count(
          inner, _known_inside(equation, inner, known), while_length)
      flops += repeats * inner_flops
      if not kernel:  # What is inside is in the chip's fast memory.
        traffic += repeats * inner_traffic
  return flops, traffic


def _known_inside(equation, inner, known):
  """What of `known` a function is handed that an equation calls."""
  outside = equation.invars
  if equation.primitive.name == 'scan':  # What it carries and slices is new.
    outside = outside[:equation.params['num_consts']]
  elif len(outside) != len(inner.invars):
    return {}
  return {
      inside: known[x] for inside, x in zip(inner.invars, outside)
      if isinstance(x, core.Var) and x in known}


def _num_blocks(equation, known):
  """How many blocks of its grid a kernel computes, at most."""
  mapping = equation.params['grid_mapping']
  first = mapping.num_dynamic_grid_bounds
  prefetched = equation.invars[first:first + mapping.num_index_operands]
  if first:  # As many as it is told when it runs, with a number for each.
    return max(x.aval.size for x in prefetched)
  num_blocks = math.prod(mapping.grid)
  if 'splash' in (equation.params['name'] or ''):
    mask = known.get(prefetched[1])  # 0 where all of a block is masked.
    if mask is not None:
      num_blocks *= np.count_nonzero(mask) / np.size(mask)
  return num_blocks
