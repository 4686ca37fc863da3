"""Interleaved timing of contestants.

Other programs slow a shared machine down for a while. Therefore each repeat
times every contestant of every case once, and the result is the best and the
median over repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import datetime
import os
import pathlib
import re
import statistics
import time
from typing import Any

import jax

OURS = 'ours'


@dataclasses.dataclass(frozen=True)
class Case:
  """One task."""

  name: str
  # Name -> function that does the task and returns its seconds; `OURS` comes
  # first.
  contestants: Mapping[str, Callable[[], float]]
  # Unit -> number of units that the task produces, or that any program for it
  # must compute or move.
  counts: Mapping[str, float] = dataclasses.field(default_factory=dict)


def timed(function: Callable[[], None]) -> Callable[[], float]:
  """A contestant that runs in this process."""
  def contestant() -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start

  return contestant


def run(cases: Sequence[Case], repeats: int) -> list[dict[str, list[float]]]:
  """Seconds of each contestant of each case, after a call that compiles."""
  for case in cases:
    for contestant in case.contestants.values():
      contestant()
  seconds = [{name: [] for name in case.contestants} for case in cases]
  for _ in range(repeats):
    for case, times in zip(cases, seconds):
      for name, contestant in case.contestants.items():
        times[name].append(contestant())
  return seconds


def summarise(
    case: Case, seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
  """The result of a case."""
  contestants = {}
  for name, all_seconds in seconds.items():
    best, median = min(all_seconds), statistics.median(all_seconds)
    contestants[name] = {
        'best': best, 'median': median, 'seconds': list(all_seconds),
        'per_second': {
            unit: count / best for unit, count in case.counts.items()}}
    ours = contestants[OURS]
    contestants[name]['times_ours'] = {
        'best': best / ours['best'], 'median': median / ours['median']}
  return {'name': case.name, 'contestants': contestants}


def describe(summary: Mapping[str, Any]) -> str:
  """The summary of a case as text."""
  lines = [summary['name']]
  for name, row in summary['contestants'].items():
    line = (f'  {name:17s} best {row["best"]:8.4f} s, '
            f'median {row["median"]:8.4f} s')
    for unit, rate in row['per_second'].items():
      line += f'{rate:10.1f} {unit}/s'
    if name != OURS:
      times = row['times_ours']
      line += f'   ours x {times["best"]:.2f} (best), {times["median"]:.2f}'
    lines.append(line)
  return '\n'.join(lines)


def describe_machine() -> dict[str, Any]:
  """The provenance that is stored with every result."""
  device = jax.devices()[0]
  kind = device.device_kind
  if device.platform == 'cpu':
    found = re.search(
        r'model name\s*:\s*(.+)', pathlib.Path('/proc/cpuinfo').read_text())
    kind = found[1] if found else kind
  return {
      'device': kind, 'num_devices': jax.device_count(),
      'cores': len(os.sched_getaffinity(0)), 'jax': jax.__version__,
      'date': datetime.datetime.now(datetime.UTC).isoformat(
          timespec='seconds'),
  }
