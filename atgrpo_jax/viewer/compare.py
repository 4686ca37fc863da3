"""A page that compares runs: curves, held-out results, and their configs.

  python -m atgrpo_jax.main --mode compare --workdir runs/compare runs/a runs/b

Runs form a group if their configs differ only in the seed and in keys that a
resumed run may change, other than the length of the training. A run that cannot
be read is left out and named.
"""

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
  before: Mapping[str, Any] | None  # The evaluation before a training.
  final: Mapping[str, Any] | str  # The last evaluation, or why there is none.


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs of one config with different seeds."""

  letter: str
  label: str  # The letter, and the values that other groups do not have.
  runs: Sequence[Run]


@dataclasses.dataclass(frozen=True)
class Row:
  """The held-out tasks of a group: values [seeds, tasks] between 0 and 1."""

  group: Group
  values: np.ndarray
  before: float | None  # Mean before training.
  interval: tuple[float, float] | None  # None with one seed.
  difference: float | None  # From the first row, which has none.
  p: float | None
  p_holm: float | None

  @property
  def is_pilot(self) -> bool:
    return len(self.values) < statistics.MIN_SEEDS


def compare(
    folder: pathlib.Path, workdirs: Sequence[pathlib.Path],
    watch: bool = False) -> pathlib.Path:
  """Writes `compare.html` into `folder`; returns its path.

  With `watch`, the page is written again until no run is running or Ctrl-C, and
  the browser reloads it.

  Raises UserError if no run can be read.
  """
  path, printed = folder / PAGE, set()
  while True:
    runs, problems = read(workdirs)
    is_running = watch and any(run.state == 'running' for run in runs)
    groups, differing = make_groups(runs)
    tables, more = make_tables(groups)
    problems += more
    files.make_folder(folder)
    files.write_whole(path, pages.render(
        'compare.html', groups=groups, differing=differing,
        plots=make_plots(groups), problems=problems, tables=tables,
        refresh_seconds=_SECONDS if is_running else None))
    for problem in problems:
      if problem not in printed:
        print(f'warning: {problem}')
    printed |= {*problems}
    if not is_running:
      return path
    print(f'{path}: written at {time.strftime("%H:%M:%S")}', flush=True)
    try:
      time.sleep(_SECONDS)
    except KeyboardInterrupt:
      return path


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
    key = json.dumps(run.values), run.seed
    if key not in known:
      known[key] = workdir
      runs.append(run)
    elif known[key].resolve() == workdir.resolve():
      problems.append(f'{workdir} is given twice.')
    else:
      problems.append(
          f'{workdir} is left out: it has the seed of {known[key]}, and its '
          'config but for keys that a resumed run may change.')
  if not runs:
    raise errors.UserError(' '.join(problems) or (
        '--mode=compare: no run is given; name their workdirs after the flags, '
        'such as runs/a-seed-* runs/b-seed-*.'))
  return runs, problems


def _read_run(workdir: pathlib.Path) -> Run:
  content = report.read_run(workdir)
  config = workdir_lib.read_config(workdir)
  evaluations = {it['name']: it for it in content['evaluations']}
  num_steps, before = content['steps'], evaluations.get('before')
  values = workdir_lib.fixed_values(config) | {
      f'train.{key}': config['train'][key]
      for key in ('num_steps', 'completion_tokens')}
  seed = values.pop('seed')
  if num_steps or before:
    values['mode'], final = 'train', evaluations.get('after')
    if final is None or final['step'] != num_steps:
      final = f'{workdir} has no evaluation after its last step yet.'
  elif len(evaluations) == 1:
    values['mode'], (final,) = 'evaluate', evaluations.values()
  else:
    values['mode'], final = 'evaluate', (
        f'{workdir} has no training and {len(evaluations)} evaluations; '
        'expected one.')
  return Run(
      str(workdir), content['state'], seed,
      {key: json.dumps(value) for key, value in sorted(values.items())},
      content['metrics'], before, final)


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
    groups.append(
        Group(letter, f'{letter}: {text}' if text else letter, group))
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
  totals = itertools.accumulate(
      step['budget/completion_tokens'] for step in steps)
  tokens = {0: 0} | dict(zip((step['step'] for step in steps), totals))
  return [(tokens[x], value) for x, value in points if x in tokens]


# ---- Held-out tasks ---------------------------------------------------------


def make_tables(
    groups: Sequence[Group]) -> tuple[dict[str, list[Row]], list[str]]:
  """Measure -> rows, and a sentence for each run that is left out.

  The measures are the success and, if all returns are from 0 to 1, the return.
  """
  compared, problems = _comparable(groups)
  found = [run for _, runs in compared for run in runs]
  if not found:
    return {}, problems
  returns = [run.final['returns'] for run in found]
  measures = {'success': ('success', lambda it: [
      float(x == '1') for x in it['successes']])}
  if (returns != [measures['success'][1](run.final) for run in found]
      and all(0 <= x <= 1 for x in itertools.chain(*returns))):
    measures['return'] = 'mean_return', lambda it: it['returns']
  tables, clusters = {}, found[0].final['clusters']
  for measure, (mean, per_task) in measures.items():
    values = [
        np.array([per_task(run.final) for run in runs]) for _, runs in compared]
    p_values = {
        index: float(statistics.p_value(own, values[0], clusters))
        for index, own in enumerate(values)
        if index and min(len(own), len(values[0])) > 1}
    adjusted = dict(zip(p_values, statistics.holm(list(p_values.values()))))
    rows = tables[measure] = []
    for index, ((group, runs), own) in enumerate(zip(compared, values)):
      before = [run.before[mean] for run in runs if run.before]
      rows.append(Row(
          group, own, float(np.mean(before)) if before else None,
          statistics.interval(own, clusters) if len(runs) > 1 else None,
          own.mean() - values[0].mean() if index else None,
          p_values.get(index), adjusted.get(index)))
  return tables, problems


def _comparable(
    groups: Sequence[Group]
) -> tuple[list[tuple[Group, list[Run]]], list[str]]:
  """Groups, each with its runs of the same tasks, sampling and sandbox.

  Also returns a sentence for each run that is left out.
  """
  compared, problems, conditions, level = [], [], None, ''
  for group in groups:
    runs = []
    for run in group.runs:
      if isinstance(run.final, str):
        problems.append(run.final)
        continue
      if evaluate.FAILED in run.final['successes']:
        problems.append(
            f'{run.name} is left out of the table: tasks of its evaluation '
            'failed for reasons outside the model.')
        continue
      found = run.final['split_hash'], run.final['sampling']
      conditions = conditions or found
      # A run of which no program ran fits every level.
      found_level = evaluate.sandbox_of(run.final)
      level = level or found_level
      if found != conditions or found_level not in ('', level):
        problems.append(
            f'{run.name} is left out of the table: it was evaluated on other '
            'tasks, with another sampling or in another sandbox than the '
            'first run.')
        continue
      runs.append(run)
    if runs:
      compared.append((group, runs))
  return compared, problems
