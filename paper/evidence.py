"""Comparisons of our records that speak for or against a claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
import dataclasses
import json
import pathlib

import numpy as np
from scipy import stats

from configs import depot as depot_config
from paper import depot
from paper import experiments
from paper import records as records_lib
from paper import rows as rows_lib
from paper import statistics
from paper import tables

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Rows below the first value before and after training find no reward. Rows
# above the second are too near the maximum to show a loss.
_FLOOR, _CEILING = 0.05, 0.95

REPRODUCED, CONTRADICTED, NOT_VISIBLE, NOT_RUN, NOT_TESTABLE = (
    'reproduced', 'contradicted', 'not visible at this scale', 'not run',
    'not testable here')
# Verdict -> its rule.
VERDICTS = {
    REPRODUCED: 'the difference has the claimed sign, and p is below 0.05',
    CONTRADICTED: 'it has the opposite sign, and p is below 0.05',
    NOT_VISIBLE: 'p is 0.05 or more, so our records do not decide',
    NOT_RUN: 'a row has fewer than two seeds; the command runs it',
    NOT_TESTABLE: 'no record could decide, for the stated reason',
}

# Scale -> records.
Records = Mapping[str, records_lib.Records]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The cells of a line, and the comparison that gives its verdict."""

  ours: str = ''
  seeds: str = ''
  verdict: str = ''  # '' if p decides.
  excess: float = 0.0  # By how much the claim holds.
  p: float = 1.0  # Of the excess, before Holm's correction.


@dataclasses.dataclass(frozen=True)
class Rows:
  """Claims that `first` exceeds `second` by more than `margin`."""

  first: str  # <table>/<task>/<row>, with ' before' if it is untrained.
  second: str
  margin: float = 0.0
  measure: str = 'success'  # A key of `_MEASURES`.
  scale: str = 'nano'

  def compare(self, records: Records) -> Outcome:
    paths = self.first, self.second
    rows = [_read(records[self.scale], path) for path in paths]
    if any(row is None or len(row.evaluations) < 2 for row in rows):
      return Outcome(verdict=NOT_RUN)
    rows_lib.check_comparable(' and '.join(paths), rows)
    task = self.first.split('/')[0]
    clusters = rows[0].clusters
    values = [_MEASURES[self.measure](row, task) for row in rows]
    ours = ' against '.join(
        _with_interval(value, *statistics.interval(value, clusters))
        for value in values)
    outcome = Outcome(
        f'{_task_title(self.first)}: {ours}',
        _seeds(values))
    for path, value in zip(paths, values):
      before = _read(records[self.scale], f'{path} before')
      if before is not None and max(
          value.mean(), _MEASURES[self.measure](before, task).mean()) < _FLOOR:
        return dataclasses.replace(
            outcome,
            verdict=f'{NOT_TESTABLE}: `{path.split("/")[-1]}` finds no reward')
    first, second = values
    if self.margin < 0 and min(first.mean(), second.mean()) > _CEILING:
      return dataclasses.replace(outcome, verdict=NOT_VISIBLE)
    return dataclasses.replace(
        outcome, excess=first.mean() - second.mean() - self.margin,
        p=float(statistics.p_value(first - self.margin, second, clusters)))

  def command(self) -> str:
    if self.scale == '135m':
      return 'bash launch/real.sh --task factbook --seed 0'
    return _command(self.first, self.second)


@dataclasses.dataclass(frozen=True)
class Curves:
  """As `Rows`, about the learning curves on Depot."""

  first: str  # <table>/<preset>/<row>.
  second: str
  margin: float = 0.0
  is_last: bool = False  # Compares returns after training instead of areas.

  def compare(self, records: Records) -> Outcome:
    rows = [depot.seeds_of(records['nano'].curves, path)
            for path in (self.first, self.second)]
    if min(map(len, rows)) < 2:
      return Outcome(verdict=NOT_RUN)
    presets = [path.split('/')[1] for path in (self.first, self.second)]
    budget = min(depot_config.BUDGETS[preset][0] for preset in presets)
    first, second = (
        np.array([
            curve['returns'][-1] if self.is_last else depot.area(curve, budget)
            for curve in curves]) for curves in rows)
    ours = ' against '.join(
        _with_interval(values, *statistics.interval_of_seeds(
            values, depot.NUM_TASKS)) for values in (first, second))
    title = ', '.join(dict.fromkeys(f'`{preset}`' for preset in presets))
    return Outcome(
        f'Depot, {title}: {ours}', _seeds(rows),
        excess=first.mean() - second.mean() - self.margin,
        p=statistics.p_value_of_seeds(
            first - self.margin, second, depot.NUM_TASKS))

  def command(self) -> str:
    return _command(self.first, self.second)


@dataclasses.dataclass(frozen=True)
class Laboratory:
  """Claims that `first` exceeds `second` in a column, for T = 4 and K = 4."""

  file: str  # In benchmarks/results.
  first: str  # Methods.
  second: str
  column: str

  def compare(self, records: Records) -> Outcome:
    del records
    lines = [
        line for method in (self.first, self.second)
        for line in self._result()['rows']
        if (line['method'], line['turns'], line['group_size'])
        == (method, 4, 4)]
    if len(lines) < 2:
      return Outcome(verdict=NOT_RUN)
    values = [line[self.column] for line in lines]
    spreads = [line[f'{self.column}_error'] for line in lines]
    freedom = min(line['rollouts'] for line in lines) - 1
    t = stats.t.ppf(0.975, freedom)
    ours = ' against '.join(
        '{:.3f} ({:.3f} … {:.3f})'.format(
            # Corrected cosines can exceed 1.
            *np.clip((value, value - t * spread, value + t * spread), 0, 1))
        for value, spread in zip(values, spreads))
    excess = values[0] - values[1]
    return Outcome(
        f'{_LABORATORY_COLUMNS[self.column]}: {ours}', excess=excess,
        p=float(2 * stats.t.sf(abs(excess) / np.hypot(*spreads), freedom)))

  def command(self) -> str:
    out = f'benchmarks/results/{self.file}.json'
    return f'{self._result()["command"]} --out {out}'

  def _result(self):
    path = ROOT / f'benchmarks/results/{self.file}.json'
    return json.loads(path.read_text())


@dataclasses.dataclass(frozen=True)
class Untestable:
  """Nothing here can test the claim, for a reason of at most five words."""

  reason: str

  def compare(self, records: Records) -> Outcome:
    del records
    return Outcome(verdict=f'{NOT_TESTABLE}: {self.reason}')

  def command(self) -> str:
    return ''


@dataclasses.dataclass(frozen=True)
class Claim:
  """A line of the ledger."""

  text: str  # At most 15 words.
  source: str
  published: str  # '' if the source has no number.
  evidence: Rows | Curves | Laboratory | Untestable


@dataclasses.dataclass(frozen=True)
class Line:
  """A claim beside our records."""

  claim: Claim
  outcome: Outcome
  p: str  # Adjusted.
  verdict: str


def judge(claims: Sequence[Claim], records: Records) -> list[Line]:
  """A line for each claim; p is adjusted for all of them."""
  outcomes = [claim.evidence.compare(records) for claim in claims]
  adjusted = iter(statistics.holm(
      [outcome.p for outcome in outcomes if not outcome.verdict]))
  lines = []
  for claim, outcome in zip(claims, outcomes):
    p_text, verdict = '', outcome.verdict
    if not verdict:
      p = next(adjusted)
      p_text = rows_lib.p_text(p)
      verdict = REPRODUCED if outcome.excess > 0 else CONTRADICTED
      if p >= 0.05:
        verdict = NOT_VISIBLE
    lines.append(Line(claim, outcome, p_text, verdict))
  return lines


def _read(
    records: records_lib.Records, path: str) -> rows_lib.Row | None:
  """The seeds of a row, trained if it was."""
  if path.endswith(' before'):
    return rows_lib.read_row(records, path.removesuffix(' before'), 'before')
  return (rows_lib.read_row(records, path, 'after')
          or rows_lib.read_row(records, path, 'evaluation'))


def _seeds(rows: Iterable[Sized]) -> str:
  """The number of seeds, or both numbers if rows differ."""
  return ' and '.join(dict.fromkeys(rows_lib.seeds(len(row)) for row in rows))


def _command(*paths: str) -> str:
  patterns = dict.fromkeys(
      f'{path.removesuffix(" before")}/*' for path in paths)
  return f"bash launch/paper.sh --only '{','.join(patterns)}'"


def _with_interval(values: np.ndarray, low: float, high: float) -> str:
  return f'{rows_lib.percent(values.mean())} ({rows_lib.between(low, high)})'


def _task_title(path: str) -> str:
  table, task, _ = path.split('/')
  if table == 'problems':
    return experiments.NANO_BENCHMARK[task][1]
  return experiments.JOINT_TASKS.get(table, experiments.GAMES)[task]


# Measure of a row -> (row, table) -> [seeds, tasks] from 0 to 1.
_MEASURES: Mapping[str, Callable[[rows_lib.Row, str], np.ndarray]] = {
    'success': lambda row, table: row.successes.astype(float),
    'return': tables.returns,
}
_LABORATORY_COLUMNS = {
    'bias': 'bias', 'deviation': 'deviation', 'cosine': 'cosine',
    'step': 'cosine of one rollout'}
