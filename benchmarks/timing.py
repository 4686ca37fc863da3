"""Interleaved timing of contestants.

Other programs slow a shared machine down for a while. Therefore each repeat
times every contestant of every case once, and the result is the best and the
median over repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import statistics
import time

OURS = 'ours'


@dataclasses.dataclass(frozen=True)
class Amounts:
  """A lower bound of the work of a task, or the rate of a machine."""

  flops: float  # In float32 matrix products.
  bytes: float  # Read or written.


@dataclasses.dataclass(frozen=True)
class Case:
  """One task.

  Attributes:
    name: description.
    contestants: name -> function that does the task and returns its seconds;
      `OURS` comes first.
    counts: unit -> number of units that the task produces.
    min_work: lower bound for any program.
  """

  name: str
  contestants: Mapping[str, Callable[[], float]]
  counts: Mapping[str, float] = dataclasses.field(default_factory=dict)
  min_work: Amounts | None = None


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


def fastest(
    cases: Sequence[Case], seconds: Sequence[Mapping[str, Sequence[float]]],
    unit: str) -> float:
  """The highest measured rate of a unit."""
  return max(
      case.counts[unit] / min(times[OURS])
      for case, times in zip(cases, seconds) if unit in case.counts)


def summarise(
    case: Case, seconds: Mapping[str, Sequence[float]],
    rates: Amounts | None) -> dict:
  """The result of a case; `rates` are the best rates of the machine."""
  summary = {'name': case.name, 'contestants': {}}
  ours = None
  for name, all_seconds in seconds.items():
    best, median = min(all_seconds), statistics.median(all_seconds)
    ours = ours or (best, median)
    summary['contestants'][name] = {
        'best': best, 'median': median, 'seconds': list(all_seconds),
        'per_second': {
            unit: count / best for unit, count in case.counts.items()},
        'times_ours': {'best': best / ours[0], 'median': median / ours[1]}}
  if case.min_work is not None:
    min_seconds = {
        'arithmetic': case.min_work.flops / rates.flops,
        'memory': case.min_work.bytes / rates.bytes}
    summary['least_seconds'] = min_seconds
    summary['share_of_machine'] = max(min_seconds.values()) / ours[0]
  return summary


def describe(summary: Mapping) -> str:
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
  if 'share_of_machine' in summary:
    min_seconds = summary['least_seconds']
    lines.append(
        f'  {100 * summary["share_of_machine"]:.0f} % of the machine: at least '
        f'{min_seconds["arithmetic"]:.4f} s of arithmetic, '
        f'{min_seconds["memory"]:.4f} s of memory')
  return '\n'.join(lines)
