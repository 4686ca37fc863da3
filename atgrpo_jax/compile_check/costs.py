"""Counts the FLOPs, memory traffic and collectives of a program.

XLA's own cost analysis counts the body of a loop once and a kernel not at all,
so matrix products are counted in the jaxpr, loops included. Collectives are
read from the HLO text of the compiled program, together with the loops around
them, so collectives that the partitioner adds are counted, too.
"""

from collections.abc import Iterator
import math
import re
from typing import NamedTuple

from jax.extend import core
import numpy as np

_KINDS = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all',
    'collective-permute')
# Attributes that name the computations an instruction runs.
_CALLS = (
    'body|branch_computations|called_computations|calls|condition|'
    'false_computation|to_apply|true_computation')


def count_work(
    jaxpr: core.ClosedJaxpr, while_length: int) -> tuple[float, float]:
  """FLOPs, and bytes read and written, of all matrix products.

  The numbers are totals over all devices: within a `shard_map` a program has
  the shapes of one shard and is counted once per shard. A kernel with products
  reads its operands and writes its results once. Its FLOPs are its cost
  estimate, or else those of its grid, without blocks that splash attention
  masks; those of cuDNN have a formula.
  `while_length` is the trip count of `while` loops, such as the decoding loop.
  """
  return _count(
      jaxpr.jaxpr, dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts)), while_length)


def _count(jaxpr, constants, while_length):
  """`count_work`; `constants` maps variables to known values."""
  flops = traffic = 0
  for equation in jaxpr.eqns:
    name = equation.primitive.name
    # cuDNN's causal attention multiplies two matrices, and its gradient five;
    # half of the scores are masked.
    cudnn = re.match('dot_product_attention_(fwd|bwd)', name)
    is_kernel = name == 'pallas_call' or cudnn
    cost = equation.params.get('cost_estimate')
    if cost and not cost.flops:
      continue
    if name == 'dot_general':
      (contracted, _), _ = equation.params['dimension_numbers']
      left = equation.invars[0].aval
      flops += 2 * equation.outvars[0].aval.size * math.prod(
          left.shape[i] for i in contracted)
    if name == 'dot_general' or is_kernel:
      traffic += sum(
          x.aval.size * x.aval.dtype.itemsize
          for x in (*equation.invars, *equation.outvars))
    if cudnn:
      q, k, *_ = (x.aval for x in equation.invars)  # [B, S, heads, H]
      flops += {'fwd': 2, 'bwd': 5}[cudnn[1]] * q.size * k.shape[1]
      continue
    repeats = {
        'scan': equation.params.get('length'), 'while': while_length,
    }.get(name, 1)
    if is_kernel:
      if cost:
        flops += cost.flops
        continue
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
  if equation.primitive.name == 'scan':
    # Slices have an axis less inside; of the others, carries are also results.
    outside = outside[:(
        _num_whole(outside, inner.invars)
        - _num_whole(equation.outvars, inner.outvars))]
  elif len(outside) != len(inner.invars):
    return {}
  return {
      inside: constants[x] for inside, x in zip(inner.invars, outside)
      if isinstance(x, core.Var) and x in constants}


def _num_whole(outside, inside):
  return sum(x.aval.ndim == y.aval.ndim for x, y in zip(outside, inside))


def _num_blocks(equation, constants):
  """The blocks of its grid that a kernel computes."""
  num_blocks = math.prod(equation.params['grid_mapping'].grid)
  if 'splash' in (equation.params['name'] or ''):
    mask = constants.get(equation.invars[1])  # 0 for a block that is masked.
    if mask is not None:
      num_blocks *= np.count_nonzero(mask) / np.size(mask)
  return num_blocks


class Collective(NamedTuple):
  """One collective instruction."""

  kind: str  # XLA's name, such as 'all-reduce'.
  num_bytes: int  # Of the whole array that is reduced, gathered or sent.
  num_devices: int
  num_calls: int  # In one call of the program, loops included.

  @property
  def bytes_sent(self) -> float:
    """A lower bound on the bytes that a device sends in all calls."""
    if self.kind == 'collective-permute':
      return self.num_calls * self.num_bytes
    ratio = (self.num_devices - 1) / self.num_devices
    if self.kind == 'all-reduce':  # A reduce-scatter and an all-gather.
      ratio *= 2
    return self.num_calls * ratio * self.num_bytes


def find_collectives(text: str, while_length: int) -> list[Collective]:
  """The collectives in the HLO of a program for one device.

  `while_length` is the trip count of loops of unknown length.
  """
  computations, entry, lines = {}, None, None
  for line in text.splitlines():
    if header := re.match(r'(ENTRY )?%?([\w.\-]+) .*\{$', line):
      lines = computations[header[2]] = []
      entry = header[2] if header[1] else entry
    elif lines is not None and ' = ' in line:
      lines.append(line)
  return list(_walk(computations, entry, 1, while_length))


def _walk(computations, name, num_calls, while_length) -> Iterator[Collective]:
  for line in computations[name]:
    yield from _parse_instruction(line, num_calls)
    inner = num_calls
    if re.search(r'\swhile\(', line):
      inner *= _trip_count(computations, line) or while_length
    for called in re.findall(rf'\b(?:{_CALLS})=(\{{[^}}]*\}}|%[\w.\-]+)', line):
      for callee in re.findall(r'%([\w.\-]+)', called):
        yield from _walk(computations, callee, inner, while_length)


def _trip_count(computations, line):
  """The compiler's trip count, or the constant in the loop's condition."""
  if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line):
    return int(known[1])
  condition = re.search(r'condition=%([\w.\-]+)', line)[1]
  return max(
      map(int, re.findall(
          r's32\[\]\S* constant\((\d+)\)', '\n'.join(computations[condition]))),
      default=0)


def _parse_instruction(line, num_calls):
  """Yields the collective of a line; skips the end of an asynchronous one."""
  match = re.search(rf'= (.*?)\s({"|".join(_KINDS)})(-start)?\(', line)
  num_devices = _num_devices(line) if match else 1
  if num_devices == 1:
    return
  shapes, kind, is_start = match.groups()
  sizes = [
      math.prod(map(int, filter(None, sizes.split(',')))) * _bits(dtype) // 8
      for dtype, sizes in re.findall(r'\b([a-z]\w*)\[([\d,]*)\]', shapes)]
  if is_start and kind == 'collective-permute':  # Two flags follow.
    sizes = sizes[:2]
  if is_start and kind != 'all-reduce':  # The operands come first.
    sizes = sizes[len(sizes) // 2:]
  # The result of a reduce-scatter is the shard of a device.
  num_bytes = sum(sizes) * (num_devices if kind == 'reduce-scatter' else 1)
  yield Collective(kind, num_bytes, num_devices, num_calls)


def _bits(dtype):
  return 8 if dtype == 'pred' else int(re.search(r'\d+', dtype)[0])


def _num_devices(line):
  """Devices of one group, in any of XLA's notations."""
  if groups := re.search(r'replica_groups=\{\{([\d,]*)\}', line):
    return groups[1].count(',') + 1
  if groups := re.search(r'replica_groups=\[\d+,(\d+)\]', line):
    return int(groups[1])
  if groups := re.search(r"replica_groups=mesh\[(.*?)\].*?\{('.*?)\}", line):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", groups[1]))
    return math.prod(
        int(size or sizes[axis])
        for axis, size in re.findall(
            r"'(\w+)'(?::\(\d+\)(\d+))?", groups[2]))
  pairs = re.search(r'source_target_pairs=\{((?:\{.*?\})?)\}', line)
  return len(set(re.findall(r'\d+', pairs[1]))) or 1
