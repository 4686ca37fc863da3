"""How much work a program is, and the time that it must take at least.

Work is counted in the traced program: the FLOPs of all matrix products, and
the bytes of what they read and write, loops included.
"""

from __future__ import annotations

import dataclasses
import math

from jax.extend import core

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device, as docs.cloud.google.com/tpu/docs has it."""

  memory: int  # Bytes that the compiler lets a program use.
  flops: float  # Peak of bfloat16 products, a second.
  bandwidth: float  # Bytes of its memory, a second.


CHIPS = {
    'v5e': Chip(int(15.75 * _GIB), 197e12, 819e9),
    'v5p': Chip(int(95.74 * _GIB), 459e12, 2765e9),
    'v6e': Chip(int(31.25 * _GIB), 918e12, 1638e9),
}


def min_seconds(flops: float, traffic: float, chip: Chip) -> float:
  """At the chip's peak, or at its bandwidth if that takes longer.

  Args:
    flops: of a program, on each device.
    traffic: bytes that it reads and writes, on each device.
    chip: what it runs on.
  """
  return max(flops / chip.flops, traffic / chip.bandwidth)


def count_work(
    jaxpr: core.ClosedJaxpr, while_length: int) -> tuple[float, float]:
  """FLOPs, and bytes read and written, of all matrix products of a program.

  A `while` loop, such as that of decoding, is taken to run `while_length`
  times. A kernel reads its operands and writes its results once; blocks that
  its mask leaves out are counted where its grid has them.
  """
  return _count(jaxpr.jaxpr, while_length)


def _count(jaxpr, while_length):
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
      repeats = math.prod(equation.params['grid_mapping'].grid)
    for inner in core.jaxprs_in_params(equation.params):
      inner_flops, inner_traffic = _count(inner, while_length)
      flops += repeats * inner_flops
      if not kernel:  # What is inside is in the chip's fast memory.
        traffic += repeats * inner_traffic
  return flops, traffic
