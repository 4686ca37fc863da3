"""The collectives of a compiled program, and which of them have no order."""

from __future__ import annotations

import itertools
import re

_KINDS = (
    'all-reduce', 'all-gather', 'all-to-all', 'collective-permute',
    'reduce-scatter', 'collective-broadcast')
_CALLS = ('while', 'conditional', 'call')

# Instruction -> (opcode, names it reads or waits for, computations it calls).
_Computation = dict[str, tuple[str, set[str], list[str]]]


def parse(text: str) -> dict[str, _Computation]:
  """Name -> computation of an HLO module's text."""
  computations, current = {}, None
  for line in text.splitlines():
    header = re.match(r'(?:ENTRY )?%?([\w.\-]+) .*\{$', line)
    if header:
      current = computations[header[1]] = {}
      continue
    found = re.match(r'\s+(?:ROOT )?%?([\w.\-]+) = (.*)$', line)
    if found is None or current is None:
      continue
    name, rest = found.groups()
    opcode = re.search(r'(?:^|[\s)\]}])([a-z][a-z\-]*)\(', rest)[1]
    called = re.findall(
        r'(?:body|condition|to_apply|\w+_computation)=%?([\w.\-]+)', rest)
    branches = re.search(r'branch_computations=\{([^}]*)\}', rest)
    if branches:
      called += [x.strip().lstrip('%') for x in branches[1].split(',')]
    current[name] = opcode, set(re.findall(r'%([\w.\-]+)', rest)), called
  return computations


def count(text: str) -> int:
  """How many collectives stand in a module."""
  return sum(
      _is_collective(opcode) for computation in parse(text).values()
      for opcode, _, _ in computation.values())


def unordered(text: str) -> list[tuple[str, str]]:
  """Pairs of collectives, or of what holds some, that may run in any order.

  Of two that run one after the other, one waits for what the other made.
  """
  computations, holds = parse(text), {}

  def holds_some(name):
    if name not in holds:
      holds[name] = any(
          _is_collective(opcode) or opcode in _CALLS and any(
              map(holds_some, called))
          for opcode, _, called in computations.get(name, {}).values())
    return holds[name]

  pairs = []
  for computation in computations.values():
    before: dict[str, set[str]] = {}
    for name, (_, reads, _) in computation.items():  # Operands come first.
      known = reads & before.keys()
      before[name] = known.union(*(before[other] for other in known))
    some = [
        name for name, (opcode, _, called) in computation.items()
        if _is_collective(opcode)
        or opcode in _CALLS and any(map(holds_some, called))]
    pairs += [
        (one, other) for one, other in itertools.combinations(some, 2)
        if one not in before[other]]
  return pairs


def _is_collective(opcode: str) -> bool:
  return opcode.startswith(_KINDS)
