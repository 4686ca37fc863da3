"""A page that compares runs: curves, held-out results, and their configs.

  python -m atgrpo_jax.main --mode compare --workdir runs/compare runs/a runs/b

Runs form a group if they differ only in the seed and in keys that a resumed
run may change. A run that cannot be read is left out and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import pathlib
import string
import time
from typing import Any

import numpy as np
from scipy import stats

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import statistics
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import pages
from atgrpo_jax.viewer import report

PAGE = 'compare.html'
_SECONDS = 30  # Between two pages of running runs.
_MAX_LABEL = 60  # Letters of the keys that name a group.

# Title of a plot -> metric.
_PLOTS = {
    'Validation success': 'validation/success',
    'Validation return': 'validation/return',
    'Return of the rollouts': 'return/mean'}


@dataclasses.dataclass(frozen=True)
class Run:
  """What the page shows of a workdir."""

  name: str  # As given.
  state: str
  seed: int
  values: Mapping[str, str]  # Config key -> JSON, without the seed.
  metrics: Sequence[Mapping[str, float]]  # Of each step.
  # Name -> result of `evaluate.evaluate`.
  evaluations: Mapping[str, Mapping[str, Any]]

  @property
  def final(self) -> Mapping[str, Any] | None:
    """The evaluation after training, or the only one if nothing was trained."""
    if self.metrics or len(self.evaluations) != 1:
      return self.evaluations.get('after')
    return next(iter(self.evaluations.values()))


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs of one config with different seeds."""

  label: str
  runs: Sequence[Run]


@dataclasses.dataclass(frozen=True)
class Row:
  """The held-out tasks of a group: values [seeds, tasks] between 0 and 1."""

  label: str
  values: np.ndarray
  before: float | None  # Mean before training.
  interval: tuple[float, float] | None  # None with one seed.
  difference: float | None = None  # From the first row.
  p: float | None = None
  p_holm: float | None = None

  @property
  def is_pilot(self) -> bool:
    return len(self.values) < statistics.MIN_SEEDS


def compare(
    folder: pathlib.Path, workdirs: Sequence[pathlib.Path],
    watch: bool = False) -> pathlib.Path:
  """Writes `compare.html` into `folder`; returns its path.

  With `watch`, the page is written again until no run is running, and the
  browser reloads it.

  Raises UserError if no run can be read.
  """
  while True:
    runs, problems = read(workdirs)
    is_running = any(run.state.startswith('running') for run in runs)
    path = folder / PAGE
    files.make_folder(folder)
    files.write_whole(path, render(runs, problems, is_running and watch))
    if not (is_running and watch):
      return path
    print(f'{path}: written at {time.strftime("%H:%M:%S")}', flush=True)
    time.sleep(_SECONDS)


def read(
    workdirs: Sequence[pathlib.Path]) -> tuple[list[Run], list[str]]:
  """The runs, and a sentence for each workdir that is left out."""
  runs, problems, known = [], [], {}
  for workdir in workdirs:
    try:
      with report.unreadable_as_user_errors(workdir):
        run = _read_run(workdir)
    except errors.UserError as error:
      problems.append(f'{workdir} is left out. {error}')
      continue
    same = known.setdefault((json.dumps(run.values), run.seed), workdir)
    if same != workdir:
      problems.append(
          f'{workdir} is left out: it has the config and the seed of {same}.')
    else:
      runs.append(run)
  if not runs:
    raise errors.UserError(' '.join(problems) or (
        '--mode=compare: no run is given; name their workdirs after the flags, '
        'such as runs/a-seed-* runs/b-seed-*.'))
  return runs, problems


def _read_run(workdir: pathlib.Path) -> Run:
  content = report.read_run(workdir)
  config = workdir_lib.read_config(workdir)
  values = workdir_lib.fixed_values(config)
  # A limit in tokens may depend on the seed.
  values['train.num_steps'] = config['train']['num_steps']
  seed = values.pop('seed')
  evaluations = {it['name']: it for it in content['evaluations']}
  for it in evaluations.values():
    _measures(it)  # Raises LookupError if it is damaged.
  return Run(
      str(workdir), content['state'], seed,
      {key: json.dumps(value) for key, value in sorted(values.items())},
      metrics_lib.read(workdir) if content['steps'] else [], evaluations)


def make_groups(
    runs: Sequence[Run]) -> tuple[list[Group], dict[str, list[str]]]:
  """The groups, in the order of the runs, and the keys in which they differ.

  Returns:
    The groups, and key -> its JSON in each group ('' if it is missing).
  """
  by_config = {}
  for run in runs:
    by_config.setdefault(json.dumps(run.values), []).append(run)
  members = list(by_config.values())
  keys = sorted({key for runs in members for key in runs[0].values})
  differing = {}
  for key in keys:
    found = [runs[0].values.get(key, '') for runs in members]
    if len(set(found)) > 1:
      differing[key] = found
  letters = map(''.join, itertools.chain.from_iterable(
      itertools.product(string.ascii_uppercase, repeat=n) for n in (1, 2)))
  groups = []
  for index, (letter, group) in enumerate(zip(letters, members)):
    text = ', '.join(
        f'{key}={found[index]}' for key, found in differing.items())
    if len(text) > _MAX_LABEL:
      text = f'{text[:_MAX_LABEL]}…'
    groups.append(Group(f'{letter}: {text}' if text else letter, group))
  return groups, differing


# ---- Curves -----------------------------------------------------------------


def make_plots(groups: Sequence[Group]) -> list[pages.Plot]:
  """Each metric over steps and over generated tokens."""
  plots = []
  for (title, metric), axis in itertools.product(
      _PLOTS.items(), ('steps', 'tokens')):
    lines = [_line(group, metric, axis) for group in groups]
    end = max(
        (x for line in lines for part in line.parts for x, _ in part),
        default=0)
    # On some tasks the return is the success.
    if end and all(lines != plot.lines for plot in plots):
      plots.append(pages.Plot(
          f'{title} over {axis}', lines, end, f'{end:,.0f} {axis}'))
  return plots


def _line(group: Group, metric: str, axis: str) -> pages.Line:
  """The mean of the seeds as far as all have come, with a 95 % interval."""
  parts = [
      _points(run.metrics, metric, axis) for run in group.runs if run.metrics]
  parts = [part for part in parts if part]
  if not parts:
    return pages.Line(group.label, ())
  low = max(part[0][0] for part in parts)
  high = min(part[-1][0] for part in parts)
  x = np.unique([x for part in parts for x, _ in part if low <= x <= high])
  y = np.array([np.interp(x, *zip(*part)) for part in parts])
  mean, band = y.mean(axis=0), ()
  if len(parts) > 1 and len(x):
    spread = stats.t.ppf(0.975, len(parts) - 1) * stats.sem(y)
    band = [*zip(x, mean + spread), *zip(x[::-1], (mean - spread)[::-1])]
  return pages.Line(group.label, [*zip(x, mean)], parts, band)


def _points(
    steps: Sequence[Mapping[str, float]], metric: str,
    axis: str) -> list[tuple[float, float]]:
  points = report.points(steps, metric)
  if axis == 'steps':
    return points
  tokens = np.cumsum([0, *(step['budget/completion_tokens'] for step in steps)])
  return [(tokens[int(step)], value) for step, value in points]


# ---- Held-out tasks ---------------------------------------------------------


def _measures(evaluation: Mapping[str, Any]) -> dict[str, list[float]]:
  """Measure -> its value for each task; the return only if it is from 0 to 1.

  Raises ValueError if a task has failed for a reason outside the model.
  """
  measures = {'success': [float(x == '1') for x in evaluation['successes']]}
  returns = evaluation['returns']
  if (evaluate.FAILED not in evaluation['successes']
      and returns != measures['success']
      and all(0 <= value <= 1 for value in returns)):
    measures['return'] = returns
  return measures


def _conditions(evaluation: Mapping[str, Any]) -> tuple[str, ...]:
  """What two evaluations must have in common to be compared."""
  return (
      evaluation['split_hash'], json.dumps(evaluation['sampling']),
      evaluate.sandbox_of(evaluation))


def make_rows(
    groups: Sequence[Group],
    measure: str) -> tuple[list[Row], list[str]]:
  """Rows of a table, and a sentence for each run that is left out of it."""
  rows, problems, conditions, clusters = [], [], None, ()
  for group in groups:
    values, before = [], []
    for run in group.runs:
      if run.final is None:
        problems.append(f'{run.name} has no final evaluation yet.')
        continue
      if evaluate.FAILED in run.final['successes']:
        problems.append(
            f'{run.name} is left out of the table: tasks of its evaluation '
            'failed for reasons outside the model.')
        continue
      if conditions is None:
        conditions, clusters = _conditions(run.final), run.final['clusters']
      if _conditions(run.final) != conditions:
        problems.append(
            f'{run.name} is left out of the table: it was evaluated on other '
            'tasks, with another sampling or in another sandbox than the '
            'first run.')
        continue
      if measure not in (found := _measures(run.final)):
        continue
      values.append(found[measure])
      if 'before' in run.evaluations and run.metrics:
        first = _measures(run.evaluations['before'])
        before += first.get(measure, [])
    if values:
      array = np.array(values)
      rows.append(Row(
          group.label, array, float(np.mean(before)) if before else None,
          statistics.interval(array, clusters) if len(array) > 1 else None))
  return _with_p(rows, clusters), problems


def _with_p(rows: Sequence[Row], clusters: Sequence[int]) -> list[Row]:
  """Compares the rows with the first one."""
  p_values = {
      index: float(statistics.p_value(
          row.values, rows[0].values, clusters))
      for index, row in enumerate(rows)
      if index and min(len(row.values), len(rows[0].values)) > 1}
  adjusted = dict(zip(p_values, statistics.holm(list(p_values.values()))))
  return [
      row if not index else dataclasses.replace(
          row, difference=row.values.mean() - rows[0].values.mean(),
          p=p_values.get(index), p_holm=adjusted.get(index))
      for index, row in enumerate(rows)]


# ---- Page -------------------------------------------------------------------


def render(
    runs: Sequence[Run], problems: Sequence[str], refreshes: bool) -> str:
  """The text of the page."""
  groups, differing = make_groups(runs)
  tables = {
      measure: make_rows(groups, measure) for measure in ('success', 'return')}
  return pages.render(
      'compare.html', groups=groups, differing=differing,
      letters=[group.label.partition(':')[0] for group in groups],
      plots=make_plots(groups), problems=[*problems, *tables['success'][1]],
      tables={name: rows for name, (rows, _) in tables.items() if rows},
      refresh_seconds=_SECONDS if refreshes else None)
