"""From runs to the paper's tables (Markdown, LaTeX) and curves (PNG).

  python -m paper.tables --out runs/paper/nano
  python -m paper.tables --out runs/paper/nano --keep paper/results/nano
  python -m paper.tables --results paper/results/nano

The first makes OUT/tables of what `paper.run` has finished so far. A row is a
folder `OUT/<table>/<task>/<row>` with a workdir `seed-<n>` for each seed, so
rows of your own beside those of an ablation appear as well. The second adds the
finished runs to the records in the folder of --keep (`paper/records.py`), where
each replaces a run of the same path, and makes the tables of all of them there.
The third makes the tables of a folder of records again.

A success is the mean over seeds and held-out tasks, one answer per prompt and
no selection. Intervals and p count seeds and tasks as drawn, tasks of one kind
as one (`paper/statistics.py`). A row of one seed has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import pathlib
import sys

from absl import app
from absl import flags
import numpy as np

from atgrpo_jax import errors
from paper import curves
from paper import game_cells
from paper import joint_tables
from paper import problem_tables
from paper import published
from paper import records
from paper import rows as rows_lib
from paper import statistics
from paper import text

# Table of an ablation -> what it calls AT-GRPO itself.
_UNCHANGED = {
    'reward': 'as in the first table', 'agents': '2',
    'roles': 'trained together',
    **dict.fromkeys(game_cells.SWITCHES, 'unchanged')}

# Table -> what is to be said below it.
_NOTES = {
    'roles': (
        "The paper's only_tool and only_planner were trained and played alone. "
        "Here the other role is played by the untrained model, and the row's "
        'budget, half of the tokens, counts what it says as well.')}

# Column of the table of credit -> metric of a role, its unit, and if the last
# value is shown instead of the mean over the steps.
_CREDIT = {
    'groups without signal %': ('{}/without_signal', 100, False),
    'advantage mean': ('{}/advantage_mean', 1, False),
    'advantage spread': ('{}/advantage_std', 1, False),
    'gradient norm': ('diagnosis/{}/grad_norm', 1, False),
    'entropy': ('diagnosis/{}/entropy', 1, False),
    'KL to the start, at last': ('diagnosis/{}/kl_to_start', 1, True),
}
_COSINE = 'diagnosis/cosine/'
_CREDIT_NOTE = (
    'Gradients, entropy and KL are over groups with a signal, in the steps '
    'that were diagnosed. GRPO weighs an episode once, however many answers it '
    'has; the mean of its advantages here weighs answers.')

_STATISTICS_NOTE = (
    '95 %: interval of the success of new seeds on new tasks. p: two-sided t '
    'test of the difference on the same tasks, not corrected for the number of '
    'rows. Both count seeds and tasks as drawn at random: the seeds that a row '
    'has, and {tasks} tasks in {clusters} clusters, since copies of a task, '
    'turned or renamed, are one cluster. One seed gives no interval and no p. '
    "updates: of each policy's optimiser. budget used: share of the tokens "
    'that a run was allowed to generate (least … most of the seeds).')
_GAMES_NOTE = (
    'Systems with at least two seeds on each game. IQM: interquartile mean, '
    'that of the middle half of the scores of all seeds on all games. 95 %: '
    'percentiles of a bootstrap that draws seeds anew within each game, as in '
    'rliable (arXiv 2108.13264), and leaves the tasks as they are. With few '
    'seeds it is too narrow: in simulations with 3 seeds on each of three '
    'games it covered the truth in 85 % instead of 95 %, and with 2 in 74 to '
    '78 %. It is left out where no seed differs from another.')


def _make_table(
    task: str, name: str, rows: Mapping[str, rows_lib.Row | None],
    baseline: str) -> text.Table:
  """A table of rows on the same tasks.

  Args:
    task: that was played.
    name: of the table.
    rows: title -> row, None if only the paper may have it.
    baseline: title of the row that others are compared with, unless
      `game_cells.SAME_STEPS` names another.
  """
  title = f'{game_cells.TASKS[task]}: {name}'
  found = [row for row in rows.values() if row is not None]
  rows_lib.check_comparable(title, found)
  header = [
      '', 'success %', '95 %', 'seeds', 'compared with', 'minus that', 'p',
      'turns an episode', 'turns to solve', 'tokens a task', 'updates',
      'budget used', *records.LEDGER, 'minutes', 'peak GiB',
      'paper, 1.7B', 'paper, 8B']
  lines = []
  for row_title, row in rows.items():
    reported = _published(row_title, task)
    if row is not None:
      other = game_cells.SAME_STEPS.get(row_title, baseline)
      compared = None if row_title == baseline else rows.get(other)
      lines.append([
          row_title, *_success(row), *_difference(row, other, compared),
          *_cost(row), *reported])
    elif any(reported):
      lines.append([row_title, *[''] * (len(header) - 3), *reported])
  note = _STATISTICS_NOTE.format(
      tasks=len(found[0].clusters), clusters=len(set(found[0].clusters)))
  return text.Table(
      title, header, lines, f'{_NOTES.get(name, "")} {note}'.strip())


def _published(title: str, task: str) -> list[str]:
  """See `published.of_qwen3`."""
  name = rows_lib.SYSTEMS[title][2] if title in rows_lib.SYSTEMS else title
  return published.of_qwen3(name, task)


def _success(row: rows_lib.Row) -> list[str]:
  """Success, its interval, seeds."""
  return [
      f'{100 * row.success:.1f}',
      '' if len(row.successes) < 2 else text.interval(
          *statistics.success_interval(row.successes, row.clusters)),
      str(len(row.successes))]


def _difference(
    row: rows_lib.Row, title: str, compared: rows_lib.Row | None) -> list[str]:
  """What it is compared with, the difference, p."""
  if compared is None:
    return [''] * 3
  p = ''
  if min(len(row.successes), len(compared.successes)) > 1:
    p = text.p_value(statistics.p_value(
        row.successes, compared.successes, row.clusters))
  difference = 100 * (row.success - compared.success)
  return [title, text.signed(f'{difference:+.1f}'), p]


def _cost(row: rows_lib.Row) -> list[str]:
  """All columns from `turns an episode` to `peak GiB`."""
  played = [
      f'{row.turns:.2f}',
      '' if math.isnan(row.turns_to_solve) else f'{row.turns_to_solve:.2f}',
      f'{row.tokens_a_task:.0f}']
  if not row.steps:
    return played + [''] * (4 + len(records.LEDGER))
  return [
      *played, text.updates(row.num_updates()), text.shares(row.budget_used),
      *(text.short(row.total(metric)) for metric in records.LEDGER.values()),
      f'{row.total("time/step") / 60:.1f}', f'{row.peak_gib:.1f}']


def main_tables(systems: rows_lib.SystemRows) -> list[text.Table]:
  """The compared systems, a table for each task."""
  return [
      _make_table(task, 'systems', rows, rows_lib.AT_GRPO)
      for task, rows in systems.items() if any(rows.values())]


def games_table(systems: rows_lib.SystemRows) -> list[text.Table]:
  """The systems that several seeds were run of on each game, over all."""
  lines = []
  for title in rows_lib.SYSTEMS:
    rows = [systems[task][title] for task in game_cells.TASKS]
    if any(row is None or len(row.successes) < 2 for row in rows):
      continue
    scores = [row.successes.mean(axis=1) for row in rows]
    line = [title]
    for statistic in (statistics.mean_over_games,
                      statistics.interquartile_mean):
      low, high = statistics.bootstrap_interval(scores, statistic)
      line += [
          f'{100 * statistic(scores):.1f}',
          text.interval(low, high) if low < high else '']
    lines.append([*line, ', '.join(str(len(game)) for game in scores)])
  if not lines:
    return []
  return [text.Table(
      f'All games ({", ".join(game_cells.TASKS.values())}): systems',
      ['', 'mean %', '95 % of the mean', 'IQM %', '95 % of the IQM',
       'seeds of each game'], lines, _GAMES_NOTE)]


def ablation_tables(runs: records.Runs) -> list[text.Table]:
  """What each other table of `paper.game_cells` changes, beside AT-GRPO."""
  tables = []
  for table, unchanged in _UNCHANGED.items():
    for task in game_cells.TASKS:
      names = sorted(
          {workdir.split('/')[2] for workdir in runs
           if workdir.startswith(f'{table}/{task}/')},
          key=lambda name: (len(name), name))  # 2 before 16.
      rows = {}
      for name in names:
        row = f'{table}/{task}/{name}'
        rows[name] = (
            rows_lib.read_row(runs, row, 'after')
            or rows_lib.read_row(runs, row, 'evaluation'))
      if not any(rows.values()):
        continue
      if unchanged in rows:
        raise errors.UserError(
            f'{table}/{task}/{unchanged} has the name of the row that the '
            'others are compared with; give it another.')
      other = 'unchanged' if table in game_cells.SWITCHES else 'main'
      system = 'at_grpo_per_role' if table == 'roles' else 'at_grpo'
      baseline = rows_lib.read_row(runs, f'{other}/{task}/{system}', 'after')
      tables.append(
          _make_table(task, table, {unchanged: baseline, **rows}, unchanged))
  return tables


def credit_tables(systems: rows_lib.SystemRows) -> list[text.Table]:
  """What the roles of the trained systems learned from, for each task."""
  tables = []
  for task, rows in systems.items():
    lines = []
    for title, row in rows.items():
      logged = sorted({
          name for steps in (row.steps if row is not None else ())
          for step in steps for name in step})
      roles = [
          name.removesuffix('/without_signal') for name in logged
          if name.endswith('/without_signal')]
      for role in roles:
        cosines = [
            name for name in logged if name.startswith(_COSINE)
            and role in name.removeprefix(_COSINE).split('+')]
        lines.append([f'{title}: {role}', *(
            _logged(row, [metric.format(role)], unit, last)
            for metric, unit, last in _CREDIT.values()),
                      _logged(row, cosines, 1, False)])
    if lines:
      tables.append(text.Table(
          f'{game_cells.TASKS[task]}: credit, mean over the steps that tell '
          'it',
          ['', *_CREDIT, 'cosine with the gradients of other roles'], lines,
          _CREDIT_NOTE))
  return tables


def _logged(
    row: rows_lib.Row, names: Sequence[str], unit: float,
    only_last: bool) -> str:
  """The mean over seeds, and over the steps if it is not the last alone."""
  found = [values for name in names for values in row.values(name)]
  if not found:
    return ''
  mean = unit * np.mean([
      values[-1] if only_last else np.mean(values) for values in found])
  return text.signed(f'{round(mean, 3) + 0.0:.3f}')


def cross_play_tables(runs: records.Runs) -> list[text.Table]:
  """Success of each role played by each role's policy of each seed."""
  tables = []
  for task, task_title in game_cells.TASKS.items():
    results = {}
    for workdir, run in runs.items():
      if (workdir.startswith(f'cross_play/{task}/')
          and 'evaluation' in run.evaluations):
        success = run.evaluations['evaluation']['success']
        results[tuple(workdir.split('/')[2:])] = f'{100 * success:.1f}'
    if results:
      tools, planners = (sorted(set(names)) for names in zip(*results))
      tables.append(text.Table(
          f'{task_title}: success % of the tool (rows) and the planner '
          '(columns) played by the policy ROLE-SEED',
          ['', *planners],
          [[tool, *(results.get((tool, planner), '') for planner in planners)]
           for tool in tools]))
  return tables


def make_tables(
    runs: records.Runs, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes tables and curves to `folder`; returns the files."""
  systems = rows_lib.read_systems(runs)
  tables = [
      *main_tables(systems), *games_table(systems), *ablation_tables(runs),
      *problem_tables.make_tables(runs), *joint_tables.make_tables(runs),
      *cross_play_tables(runs), *credit_tables(systems)]
  folder.mkdir(parents=True, exist_ok=True)
  markdown, latex = folder / 'tables.md', folder / 'tables.tex'
  markdown.write_text('\n'.join(table.markdown() for table in tables))
  latex.write_text('\n'.join(table.latex() for table in tables))
  return [markdown, latex, *curves.draw(systems, folder)]


def make(out: str, keep: str, results: str) -> list[pathlib.Path]:
  """Makes what flags of these names ask for; returns its tables."""
  if bool(out) == bool(results) or (keep and results):
    raise errors.UserError(
        'Give --out, a folder of workdirs such as runs/paper/nano, with --keep '
        'or without; or --results, a folder that --keep has made, such as '
        'paper/results/nano.')
  folder = pathlib.Path(results or keep or f'{out}/tables')
  if results:
    return make_tables(records.read(folder), folder)
  runs = records.read_workdirs(pathlib.Path(out))
  if keep:
    runs = {workdir: run for workdir, run in runs.items() if run.is_done}
  if not runs:
    raise errors.UserError(
        f'{out} holds no finished run; run launch/paper.sh first, or name the '
        'folder of its workdirs in --out.')
  if not keep:
    return make_tables(runs, folder)
  if (folder / records.EVALUATIONS).exists():
    runs = {**records.read(folder), **runs}
  paths = make_tables(runs, folder)  # Refuses runs that do not compare.
  records.write(folder, runs)
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
  flags.DEFINE_string('keep', '', 'Folder to add the records of OUT to.')
  flags.DEFINE_string('results', '', 'Folder of kept records.')
  app.run(main)
