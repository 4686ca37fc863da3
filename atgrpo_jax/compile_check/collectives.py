"""What the devices of a mesh tell each other in a compiled program.

Read from the compiled program itself, with the loops that it stands in: what
the partitioner added is in it, and what the compiler merged is merged.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import dataclasses
import math
import re

_KINDS = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all',
    'ragged-all-to-all', 'collective-permute', 'collective-broadcast')
# Attributes that name what an instruction runs.
_CALLS = (
    'body|branch_computations|called_computations|calls|condition|'
    'false_computation|to_apply|true_computation')


@dataclasses.dataclass(frozen=True)
class Collective:
  """Collectives of a program that are alike.

  Attributes:
    kind: as XLA calls it, such as 'all-reduce'.
    num_bytes: of one, whole: what all of its devices reduce or gather.
    num_devices: that take part in one.
    loops: how often each loop runs that it stands in, the outermost first.
    number: of such collectives in the program's text.
  """

  kind: str
  num_bytes: int
  num_devices: int
  loops: tuple[int, ...]
  number: int = 1

  @property
  def times(self) -> int:
    """How often they run in one call of the program, all together."""
    return self.number * math.prod(self.loops)

  @property
  def num_sent(self) -> float:
    """Bytes that a device sends for all of them, at least."""
    share = (self.num_devices - 1) / self.num_devices
    if self.kind == 'all-reduce':  # Scattered, then gathered.
      share *= 2
    if self.kind in ('collective-permute', 'collective-broadcast'):
      share = 1.0
    elif self.kind.endswith('all-to-all'):  # Each holds its part.
      share /= self.num_devices
    return self.times * share * self.num_bytes


def find(text: str, while_length: int) -> list[Collective]:
  """The collectives of a compiled program, those that send most first.

  Args:
    text: of the program, in HLO, of one device.
    while_length: how often a loop runs whose length the compiler does not know.
  """
  computations, entry = _parse(text)
  counts = collections.Counter(_walk(computations, entry, (), while_length))
  return sorted(
      (dataclasses.replace(found, number=number)
       for found, number in counts.items()),
      key=lambda found: (-found.num_sent, found.kind, found.num_bytes))


def _parse(text):
  """Name of each computation -> its lines, and the name of the entry."""
  computations, entry, current = {}, None, None
  for line in text.splitlines():
    if header := re.match(r'(ENTRY )?%?([\w.\-]+) .*\{$', line):
      current = computations[header[2]] = []
      if header[1]:
        entry = header[2]
    elif current is not None and ' = ' in line:
      current.append(line)
  if entry is None:
    raise ValueError('The text is not that of a compiled program in HLO.')
  return computations, entry


def _walk(computations, name, loops, while_length) -> Iterator[Collective]:
  for line in computations[name]:
    yield from _of_line(line, loops)
    inner = loops
    if re.search(r'\swhile\(', line):
      inner += (_length(computations, line) or while_length,)
    for called in re.findall(rf'\b(?:{_CALLS})=(\{{[^}}]*\}}|%[\w.\-]+)', line):
      for other in re.findall(r'%([\w.\-]+)', called):
        yield from _walk(computations, other, inner, while_length)


def _length(computations, line):
  """How often a `while` runs: as the compiler says it, or as it is compared."""
  if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line):
    return int(known[1])
  condition = re.search(r'condition=%([\w.\-]+)', line)[1]
  return max(
      map(int, re.findall(
          r's32\[\]\S* constant\((\d+)\)', '\n'.join(computations[condition]))),
      default=0)


def _of_line(line, loops):
  """The collective of an instruction; the start of one that is in parts."""
  found = re.search(rf'= (.*?)\s({"|".join(_KINDS)})(-start)?\(', line)
  num_devices = _num_devices(line) if found else 1
  if num_devices == 1:
    return
  shapes, kind, start = found.groups()
  sizes = [
      math.prod(map(int, filter(None, sizes.split(',')))) * _bits(dtype) // 8
      for dtype, sizes in re.findall(r'\b([a-z]\w*)\[([\d,]*)\]', shapes)]
  if start and kind == 'collective-permute':  # With two flags.
    sizes = sizes[:2]
  if start and kind != 'all-reduce':  # Operands, then results.
    sizes = sizes[len(sizes) // 2:]
  num_bytes = sum(sizes)
  if kind == 'reduce-scatter' or kind.endswith('all-to-all'):
    num_bytes *= num_devices  # The result is one device's.
  yield Collective(kind, num_bytes, num_devices, loops)


def _bits(dtype):
  if dtype == 'pred':
    return 8
  return int(re.search(r'\d+', dtype)[0])


def _num_devices(line):
  """How many take part, in any of the forms in which XLA writes it."""
  if groups := re.search(r'replica_groups=\{\{([\d,]*)\}', line):
    return groups[1].count(',') + 1
  if groups := re.search(r'replica_groups=\[\d+,(\d+)\]', line):
    return int(groups[1])
  if groups := re.search(r"replica_groups=mesh\[(.*?)\].*?\{('.*?)\}", line):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", groups[1]))
    return math.prod(
        int(part or sizes[axis])
        for axis, part in re.findall(
            r"'(\w+)'(?::\(\d+\)(\d+))?", groups[2]))
  if pairs := re.search(r'source_target_pairs=\{((?:\{.*?\})?)\}', line):
    return len(set(re.findall(r'\d+', pairs[1]))) or 1
  raise ValueError(f'No devices are named in {line.strip()[:200]!r}.')
