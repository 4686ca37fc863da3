"""Writes the paper's tables (Markdown, LaTeX) and curves (PNG) from runs.

  python -m paper.tables --out runs/paper/nano
  python -m paper.tables --out runs/paper/nano --keep paper/results/nano
  python -m paper.tables --results paper/results/nano

The first command writes OUT/tables from everything that `paper.run` has
finished so far. A row is a folder `OUT/<table>/<task>/<row>` with one workdir
`seed-<n>` per seed; rows that you add beside those of an ablation appear too.
The second command adds finished runs to the records in the folder of --keep
(`paper/records.py`), replacing runs of the same path, and writes the tables of
all records there. The third writes the tables of existing records again.

Success is the mean over seeds and held-out tasks, with one candidate per prompt
and no selection. Intervals and p treat seeds and tasks as random, and tasks of
one kind as one cluster (`paper/statistics.py`). One seed has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import pathlib
import sys

from absl import app
from absl import flags
import pandas as pd

from atgrpo_jax import errors
from paper import curves
from paper import experiments
from paper import formats
from paper import joint_tables
from paper import published
from paper import records as records_lib
from paper import rows as rows_lib
from paper import statistics

# Table of an ablation -> title of its AT-GRPO row.
_UNCHANGED = {
    'reward': 'as in the first table', 'agents': '2',
    'roles': 'trained together',
    **dict.fromkeys(experiments.SWITCHES, 'unchanged')}

_ROLES_NOTE = (
    "The paper's only_tool and only_planner were trained and played alone. "
    "Here the other role is played by the untrained model, and the row's "
    'budget, half of the tokens, counts what it says as well. ')

# Column of the credit table -> metric of a role, its unit, and whether the last
# value is shown instead of the mean over the steps.
_CREDIT = {
    'groups without signal %': ('{}/without_signal', 100, False),
    'advantage mean': ('{}/advantage_mean', 1, False),
    'advantage spread': ('{}/advantage_std', 1, False),
    'gradient norm': ('diagnosis/{}/grad_norm', 1, False),
    'entropy': ('diagnosis/{}/entropy', 1, False),
    'KL to the start, at last': ('diagnosis/{}/kl_to_start', 1, True),
}
_COSINE_COLUMN = 'cosine with the gradients of other roles'
_COSINE = 'diagnosis/cosine/'
_CREDIT_NOTE = (
    'Gradients, entropy and KL are over groups with a signal, in the steps '
    'that were diagnosed. GRPO weighs an episode once, however many answers it '
    'has; the mean of its advantages here weighs answers.')

_INTERVAL_NOTE = (
    '95 %: interval of the success of new seeds on new tasks. p: two-sided t '
    'test of the difference on the same tasks, not corrected for the number of '
    'rows. Both count seeds and tasks as drawn at random')
_STATISTICS_NOTE = (
    ': the seeds that a row has, and {tasks} tasks in {clusters} clusters, '
    'since copies of a task, turned or renamed, are one cluster. One seed '
    "gives no interval and no p. updates: of each policy's optimiser. budget "
    'used: share of the tokens that a run was allowed to generate (least … '
    'most of the seeds).')
_PROBLEMS_NOTE = (
    '; one seed gives neither. budget used: share of the tokens that a run was '
    "allowed to generate, those of AT-GRPO's.")
_GAMES_NOTE = (
    'Systems with at least two seeds on each game. IQM: interquartile mean, '
    'that of the middle half of the scores of all seeds on all games. 95 %: '
    'percentiles of a bootstrap that draws seeds anew within each game, as in '
    'rliable (arXiv 2108.13264), and leaves the tasks as they are. With few '
    'seeds it is too narrow: in simulations with 3 seeds on each of three '
    'games it covered the truth in 85 % instead of 95 %, and with 2 in 74 to '
    '78 %. It is left out where no seed differs from another.')

_COST_COLUMNS = ('updates', 'budget used', *records_lib.LEDGER, 'minutes')
_PUBLISHED_COLUMNS = ('paper, 1.7B', 'paper, 8B')
_GAME_COLUMNS = (
    '', 'success %', '95 %', 'seeds', 'compared with', 'minus that', 'p',
    'turns an episode', 'turns to solve', 'tokens a task', *_COST_COLUMNS,
    'peak GiB', *_PUBLISHED_COLUMNS)
_PROBLEM_COLUMNS = (
    '', 'success %', '95 %', 'seeds', 'minus AT-GRPO', 'p', 'turns',
    'tokens a task', *_COST_COLUMNS, *_PUBLISHED_COLUMNS)


def _published_cells(title: str, task: str) -> dict[str, str]:
  name = rows_lib.SYSTEMS[title][2] if title in rows_lib.SYSTEMS else title
  return dict(zip(_PUBLISHED_COLUMNS, published.qwen3_success(name, task)))


def _success_table(
    title: str, columns: Sequence[str],
    rows: Mapping[str, rows_lib.Row | None], baseline: str, task: str,
    note: str) -> formats.Table:
  """A table of rows on the same tasks.

  Args:
    title: of the table.
    columns: the columns to show.
    rows: title -> row, None if only the paper may have it.
    baseline: title of the row that others are compared with, unless
      `experiments.SAME_STEPS` names another.
    task: its name in `published`.
    note: below the table.
  """
  rows_lib.check_comparable(
      f'{title}: rows', [row for row in rows.values() if row is not None])
  lines = []
  for name, row in rows.items():
    cells = _published_cells(name, task)
    if row is not None:
      turns, to_solve = row.mean('mean_turns'), row.mean('mean_turns_to_solve')
      cells |= {
          **row.success_cells(), **row.training_cells(),
          'turns': f'{turns:.2f}', 'turns an episode': f'{turns:.2f}',
          'turns to solve': '' if math.isnan(to_solve) else f'{to_solve:.2f}',
          'tokens a task': f'{row.tokens_per_task():.0f}'}
      other_name = experiments.SAME_STEPS.get(name, baseline)
      other = rows.get(other_name)
      if name != baseline and other is not None:
        difference, p = formats.comparison(
            row.successes, other.successes, row.clusters)
        cells |= {'compared with': other_name, 'minus that': difference,
                  'minus AT-GRPO': difference, 'p': p}
    if any(cells.values()):
      lines.append({'': name, **cells})
  return formats.table(title, columns, lines, note)


def _game_table(
    task: str, name: str, rows: Mapping[str, rows_lib.Row | None],
    baseline: str) -> formats.Table:
  """A table of rows on one game; see `_success_table`."""
  clusters = next(
      row.clusters for row in rows.values() if row is not None)
  note = _INTERVAL_NOTE + _STATISTICS_NOTE.format(
      tasks=len(clusters), clusters=len(set(clusters)))
  return _success_table(
      f'{experiments.GAMES[task]}: {name}', _GAME_COLUMNS, rows, baseline, task,
      _ROLES_NOTE * (name == 'roles') + note)


def main_tables(systems: rows_lib.SystemRows) -> list[formats.Table]:
  """The compared systems, one table per game."""
  return [
      _game_table(task, 'systems', rows, rows_lib.AT_GRPO)
      for task, rows in systems.items() if any(rows.values())]


def all_games_table(systems: rows_lib.SystemRows) -> list[formats.Table]:
  """Systems with several seeds on each game, aggregated over games."""
  lines = []
  for title in rows_lib.SYSTEMS:
    rows = [systems[task][title] for task in experiments.GAMES]
    if any(row is None or len(row.evaluations) < 2 for row in rows):
      continue
    scores = [row.successes.mean(axis=1) for row in rows]
    cells = {'': title, 'seeds of each game': ', '.join(
        str(len(game)) for game in scores)}
    for name, statistic in (('mean', statistics.mean_over_games),
                            ('IQM', statistics.interquartile_mean)):
      low, high = statistics.bootstrap_interval(scores, statistic)
      cells[f'{name} %'] = formats.percent(statistic(scores))
      if low < high:
        cells[f'95 % of the {name}'] = formats.interval(low, high)
    lines.append(cells)
  if not lines:
    return []
  return [formats.table(
      f'All games ({", ".join(experiments.GAMES.values())}): systems',
      ['', 'mean %', '95 % of the mean', 'IQM %', '95 % of the IQM',
       'seeds of each game'], lines, _GAMES_NOTE)]


def ablation_tables(records: records_lib.Records) -> list[formats.Table]:
  """The other tables of games, beside AT-GRPO."""
  tables = []
  for table, unchanged in _UNCHANGED.items():
    for task in experiments.GAMES:
      names = sorted(
          {workdir.split('/')[2] for workdir in records.workdirs()
           if workdir.startswith(f'{table}/{task}/')},
          key=lambda name: (len(name), name))  # 2 before 16.
      rows = {}
      for name in names:
        row = f'{table}/{task}/{name}'
        rows[name] = (
            rows_lib.read_row(records, row, 'after')
            or rows_lib.read_row(records, row, 'evaluation'))
      if not any(rows.values()):
        continue
      if unchanged in rows:
        raise errors.UserError(
            f'{table}/{task}/{unchanged} has the name of the row that others '
            'are compared with; rename the folder.')
      other = 'unchanged' if table in experiments.SWITCHES else 'main'
      system = 'at_grpo_per_role' if table == 'roles' else 'at_grpo'
      baseline = rows_lib.read_row(records, f'{other}/{task}/{system}', 'after')
      tables.append(
          _game_table(task, table, {unchanged: baseline, **rows}, unchanged))
  return tables


def problem_tables(records: records_lib.Records) -> list[formats.Table]:
  """Success on each benchmark of mathematics and code."""
  found = []  # (benchmark, title, rows)
  for task, benchmarks in experiments.BENCHMARKS.items():
    found.append((*experiments.NANO_BENCHMARK[task], rows_lib.read_systems(
        records, [task], 'problems')[task]))
    folders = {
        title: system if evaluation == 'after'
        else f'untrained_{experiments.TEAM_OF_SYSTEM.get(system)}'
        for title, (system, evaluation, _) in rows_lib.SYSTEMS.items()}
    for benchmark, title in benchmarks.items():
      found.append((benchmark, title, {
          name: rows_lib.read_row(
              records, f'problems/{task}/{folder}/{benchmark}', 'evaluation')
          for name, folder in folders.items()}))
  tables = []
  for benchmark, title, rows in found:
    known = {name: row for name, row in rows.items() if row is not None}
    if known:
      tables.append(_success_table(
          f'{title}: problems', _PROBLEM_COLUMNS, known, rows_lib.AT_GRPO,
          benchmark, _INTERVAL_NOTE + _PROBLEMS_NOTE))
  return tables


def credit_tables(systems: rows_lib.SystemRows) -> list[formats.Table]:
  """Groups, advantages and gradients of each role, one table per game."""
  tables = []
  for task, rows in systems.items():
    lines = []
    for title, row in rows.items():
      if row is None or row.steps.empty:
        continue
      steps = row.steps.dropna(axis='columns', how='all')
      for role in sorted(
          name.removesuffix('/without_signal')
          for name in steps.filter(regex='/without_signal$')):
        cosines = [
            name for name in steps if name.startswith(_COSINE)
            and role in name.removeprefix(_COSINE).split('+')]
        lines.append({
            '': f'{title}: {role}',
            **{column: _logged(steps, [metric.format(role)], unit, is_last)
               for column, (metric, unit, is_last) in _CREDIT.items()},
            _COSINE_COLUMN: _logged(steps, cosines, 1, False)})
    if lines:
      tables.append(formats.table(
          f'{experiments.GAMES[task]}: credit, mean over the steps that tell '
          'it', ['', *_CREDIT, _COSINE_COLUMN], lines, _CREDIT_NOTE))
  return tables


def _logged(
    steps: pd.DataFrame, names: Sequence[str], unit: float,
    is_last: bool) -> str:
  """Mean over seeds of the last value, or of the mean over steps."""
  seeds = steps.filter(items=names).groupby(level='workdir')
  values = (seeds.last() if is_last else seeds.mean()).stack()
  if values.empty:
    return ''
  return formats.signed(f'{round(unit * values.mean(), 3) + 0.0:.3f}')


def write_tables(
    records: records_lib.Records, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes tables and curves to `folder`; returns the files."""
  systems = rows_lib.read_systems(records, experiments.GAMES)
  tables = [
      *main_tables(systems), *all_games_table(systems),
      *ablation_tables(records), *problem_tables(records),
      *joint_tables.make_tables(records), *credit_tables(systems)]
  folder.mkdir(parents=True, exist_ok=True)
  markdown, latex = folder / 'tables.md', folder / 'tables.tex'
  markdown.write_text('\n'.join(table.markdown() for table in tables))
  latex.write_text('\n'.join(table.latex() for table in tables))
  return [markdown, latex, *curves.draw(systems, folder)]


def make(out: str, keep: str, results: str) -> list[pathlib.Path]:
  """Writes the tables that flags of these names ask for."""
  if bool(out) == bool(results) or (keep and results):
    raise errors.UserError(
        'Give either --out, a folder of workdirs such as runs/paper/nano, with '
        'or without --keep; or --results, a folder that --keep has written, '
        'such as paper/results/nano.')
  folder = pathlib.Path(results or keep or f'{out}/tables')
  if results:
    return write_tables(records_lib.read(folder), folder)
  records = records_lib.read_workdirs(pathlib.Path(out))
  if keep:
    records = records.finished()
  if not records.evaluations:
    raise errors.UserError(
        f'--out={out} has no finished run; run launch/paper.sh first, or give '
        'the folder of its workdirs.')
  if not keep:
    return write_tables(records, folder)
  if (folder / records_lib.EVALUATIONS).exists():
    records = records_lib.read(folder).updated(records)
  paths = write_tables(records, folder)  # Refuses runs that do not compare.
  records_lib.write(folder, records)
  return paths


def main(argv: list[str]) -> int:
  given = flags.FLAGS
  try:
    errors.refuse_arguments(argv)
    paths = make(given.out, given.keep, given.results)
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(paths[0].read_text())
  print('written: ' + ', '.join(map(str, paths)))
  return 0


if __name__ == '__main__':
  flags.DEFINE_string('out', '', 'Folder of all workdirs.')
  flags.DEFINE_string('keep', '', 'Folder of records to add the runs to.')
  flags.DEFINE_string('results', '', 'Folder of records.')
  app.run(main)
