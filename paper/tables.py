"""Writes the paper's tables (Markdown) and curves (PNG) from runs.

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
one kind as one cluster (`atgrpo_jax/statistics.py`). One seed has neither. A
row with fewer than five seeds is marked as a pilot.
"""

from collections.abc import Mapping, Sequence
import math
import pathlib
import sys

from absl import app
from absl import flags
from matplotlib import colormaps
from matplotlib import figure
import numpy as np
import pandas as pd

from atgrpo_jax import errors
from atgrpo_jax import statistics
from atgrpo_jax.io import files
from environments.writing import rewards
from paper import depot_tables
from paper import experiments
from paper import published
from paper import records as records_lib
from paper import rows as rows_lib

# Table of an ablation -> title of its AT-GRPO row.
_UNCHANGED = {
    'reward': 'as in the first table', 'agents': '2',
    'roles': 'trained together'}

# The rows that others are compared with; the second if there is no first.
MAGRPO, MAGRPO_CROSS = 'MAGRPO', 'MAGRPO, all combinations'

# Title of a row of MAGRPO's tasks -> its folder and evaluation.
JOINT_ROWS = {
    'Single agent': ('untrained_solo', 'evaluation'),
    'Parallel generation': ('untrained_pair', 'evaluation'),
    'Sequential pipeline': ('untrained_pipeline', 'evaluation'),
    'One-round discussion': ('untrained_discussion', 'evaluation'),
    'Single agent + GRPO': ('sa_grpo', 'after'),
    'Pipeline + AT-GRPO, Monte-Carlo returns': ('at_grpo', 'after'),
    'IAC': ('iac', 'after'),
    'MAAC': ('maac', 'after'),
    MAGRPO_CROSS: ('magrpo_cross', 'after'),
    MAGRPO: (experiments.MAGRPO, 'after'),
}
# Task of MAGRPO -> columns of quality; the last one is the success.
_QUALITY = {
    'writing': ('structure', 'style', 'coherence', 'all levels'),
    'functions': (
        'structure', 'syntax', 'tests', 'cooperation', 'all tests')}
# Maximum of the reward terms of `functions`.
_MAX_POINTS = {
    'structure': 1.0, 'syntax': 0.5, 'tests': 1.0, 'cooperation': 1.5}

_HOLM = 'p (Holm)'
_COST_COLUMNS = ('updates', 'budget used', *records_lib.COSTS, 'minutes')
_PUBLISHED_COLUMNS = ('paper, 1.7B', 'paper, 8B')
_GAME_COLUMNS = (
    '', 'success %', '95 %', 'seeds', 'compared with', 'minus that', 'p',
    _HOLM, 'turns an episode', 'turns to solve', 'tokens a task',
    *_COST_COLUMNS, 'peak GiB', *_PUBLISHED_COLUMNS)
_PROBLEM_COLUMNS = (
    '', 'success %', '95 %', 'seeds', 'minus AT-GRPO', 'p', _HOLM, 'turns',
    'tokens a task', *_COST_COLUMNS, *_PUBLISHED_COLUMNS)
_JOINT_COSTS = (
    'response s', 'tokens/s', 'tokens a task', 'calls a task', 'updates',
    'budget used', 'generated tokens', 'minutes')

# Notes below the tables. The stored tables contain them, so a new wording
# changes paper/results.
_INTERVAL_NOTE = (
    'pilot: fewer than five seeds. 95 %: interval of the {score} of new seeds '
    "on new tasks. p: Welch's two-sided t test of the difference on the same "
    'tasks. p (Holm): adjusted for the number of comparisons in this table. '
    'All count seeds and tasks as drawn at random')
_GAME_NOTE = (
    ': the seeds that a row has, and {tasks} tasks in {clusters} clusters, '
    'since copies of a task, turned or renamed, are one cluster. One seed '
    "gives no interval and no p. updates: of each policy's optimiser. budget "
    'used: share of the tokens that a run was allowed to generate (least … '
    'most of the seeds).')
_PROBLEM_NOTE = (
    '; one seed gives neither. budget used: share of the tokens that a run was '
    "allowed to generate, those of AT-GRPO's.")
_JOINT_NOTE = (
    '; one seed gives neither. {success}response s: tasks are played one by '
    'one; the time of the slowest agent, summed over what is done one after '
    'another. tokens/s: generated tokens over that time. calls: completions. '
    "budget used: share of the tokens that a run was allowed to generate, "
    "those of MAGRPO's.")
_SUCCESS_NOTE = {
    'writing': (
        'all levels: share of the tasks in which nothing stopped the '
        'scoring. Published single agents are Qwen3-4B, all else Qwen3-1.7B. '
        ),
    'functions': (
        'Of several turns the return is the mean, and all else is of the last '
        'one. That of a single agent is a share of 2.1 points, of all others '
        'of 4: it writes no helper, so 60 % is all of its structure, and it '
        'has no cooperation. all tests: share of the tasks whose tests all '
        'pass. Published: Qwen2.5-Coder-3B. ')}
_ROLES_NOTE = (
    " The paper's only_tool and only_planner were trained and played alone. "
    "Here the other role is played by the untrained model, and the row's "
    'budget, half of the tokens, counts what it says as well.')


def _compare(
    title: str, columns: Sequence[str],
    rows: Mapping[str, rows_lib.Row | None], baseline: str, note: str,
    *, values: Mapping[str, np.ndarray],
    cells: Mapping[str, Mapping[str, str]]) -> rows_lib.Table:
  """A table of rows that played the same tasks, compared with `baseline`.

  A row is None if only the paper may have it. `values` has the compared values
  [seeds, tasks] of a row, `cells` the texts of the papers and of the scores.
  """
  rows_lib.check_comparable(f'{title}: rows', [
      evaluation for row in rows.values() if row is not None
      for evaluation in row.evaluations])
  lines, p_values = [], {}  # p_values: index of a line -> p.
  for name, row in rows.items():
    line = {'': name, **cells[name]}
    if row is not None:
      line |= {
          **row.training_cells(),
          'tokens a task': f'{row.mean_per_task("completion_tokens"):.0f}'}
      if name != baseline and baseline in values:
        found, others = values[name], values[baseline]
        line |= {'compared with': baseline} | dict.fromkeys(
            ('minus that', 'minus AT-GRPO', f'minus {baseline}'),
            rows_lib.signed(f'{100 * (found.mean() - others.mean()):+.1f}'))
        if min(len(found), len(others)) > 1:
          p_values[len(lines)] = statistics.p_value(
              found, others, row.clusters)
    if row is not None or any(cells[name].values()):
      lines.append(line)
  adjusted = statistics.holm(list(p_values.values()))
  for (index, p), p_adjusted in zip(p_values.items(), adjusted):
    lines[index] |= {
        'p': rows_lib.p_text(p), _HOLM: rows_lib.p_text(p_adjusted)}
  return rows_lib.Table(title, columns, lines, note)


# Games and problems.


def _success_table(
    title: str, columns: Sequence[str],
    rows: Mapping[str, rows_lib.Row | None], baseline: str, task: str,
    note: str) -> rows_lib.Table:
  """A table of success; `task` is its name in `published`."""
  values, cells = {}, {}
  for name, row in rows.items():
    _, _, row_of_paper = rows_lib.SYSTEMS.get(name, ('', '', name))
    cells[name] = dict(zip(
        _PUBLISHED_COLUMNS, published.qwen3_success(row_of_paper, task)))
    if row is not None:
      values[name] = row.successes
      turns, to_solve = row.mean('mean_turns'), row.mean('mean_turns_to_solve')
      cells[name] |= {
          **row.score_cells('success', row.successes),
          'turns': f'{turns:.2f}', 'turns an episode': f'{turns:.2f}',
          'turns to solve': '' if math.isnan(to_solve) else f'{to_solve:.2f}'}
  return _compare(
      title, columns, rows, baseline,
      _INTERVAL_NOTE.format(score='success') + note, values=values, cells=cells)


def _game_table(
    task: str, name: str, rows: Mapping[str, rows_lib.Row | None],
    baseline: str) -> rows_lib.Table:
  clusters = next(
      row.clusters for row in rows.values() if row is not None)
  note = _GAME_NOTE.format(
      tasks=len(clusters), clusters=len(set(clusters)))
  return _success_table(
      f'{experiments.GAMES[task]}: {name}', _GAME_COLUMNS, rows, baseline, task,
      note + _ROLES_NOTE * (name == 'roles'))


def ablation_tables(records: records_lib.Records) -> list[rows_lib.Table]:
  """The other tables of games, beside AT-GRPO."""
  tables = []
  for table, unchanged in _UNCHANGED.items():
    for task in experiments.GAMES:
      names = sorted(
          {workdir.split('/')[2] for workdir in records.workdirs()
           if workdir.startswith(f'{table}/{task}/')},
          key=lambda name: (len(name), name))  # 2 before 16.
      rows = {
          name: rows_lib.read_last(records, f'{table}/{task}/{name}')
          for name in names}
      if not any(rows.values()):
        continue
      if unchanged in rows:
        raise errors.UserError(
            f'{table}/{task}/{unchanged} has the name of the row that others '
            'are compared with; rename the folder.')
      system = 'at_grpo_per_role' if table == 'roles' else 'at_grpo'
      baseline = rows_lib.read_row(records, f'main/{task}/{system}', 'after')
      tables.append(
          _game_table(task, table, {unchanged: baseline, **rows}, unchanged))
  return tables


def problem_tables(records: records_lib.Records) -> list[rows_lib.Table]:
  """Success on each benchmark of mathematics and code."""
  found = []  # (benchmark, title, rows)
  for task, local in experiments.LOCAL_BENCHMARKS.items():
    found.append((*local, rows_lib.read_systems(records, f'problems/{task}')))
  for task, benchmarks in experiments.BENCHMARKS.items():
    folders = {
        title: system if evaluation == 'after'
        else experiments.UNTRAINED.get(system)
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
          benchmark, _PROBLEM_NOTE))
  return tables


# MAGRPO's tasks (arXiv 2508.04652).


def joint_tables(records: records_lib.Records) -> list[rows_lib.Table]:
  """Quality and cost, one table for each task with a finished run.

  Quality has the paper's columns: `environments.writing.rewards.paper_metrics`
  for writing, and for functions the fraction of the points of each term in
  `environments.programming.functions.env`.
  """
  tables = []
  for task, kinds in experiments.JOINT_TASKS.items():
    for kind, title in kinds.items():
      rows = {
          name: row for name, (folder, evaluation) in JOINT_ROWS.items()
          if (row := rows_lib.read_row(
              records, f'{task}/{kind}/{folder}', evaluation)) is not None}
      reported = {
          column: numbers[kind]
          for column, numbers in published.JOINT[task].items()
          if kind in numbers}
      baseline = MAGRPO if MAGRPO in rows else MAGRPO_CROSS
      columns = [
          '', 'return %', '95 %', 'seeds', f'minus {baseline}', 'p', _HOLM,
          *(f'{name} %' for name in _QUALITY[task]), *_JOINT_COSTS, *reported]
      note = (_INTERVAL_NOTE + _JOINT_NOTE).format(
          score='return', success=_SUCCESS_NOTE[task])
      if rows:
        tables.append(_compare(
            f'{title}: {task}', columns, rows, baseline, note,
            values={name: returns(row, task) for name, row in rows.items()},
            cells={
                name: {column: numbers.get(name, '')
                       for column, numbers in reported.items()}
                | _joint_cells(row, task) for name, row in rows.items()}))
  return tables


def returns(row: rows_lib.Row, task: str) -> np.ndarray:
  """[seeds, tasks] float, 0 to 1."""
  returns = np.array([x['returns'] for x in row.evaluations], np.float64)
  if task == 'functions':  # Each turn is rewarded.
    returns /= np.array([[x['mean_turns']] for x in row.evaluations])
  return returns


def _joint_cells(row: rows_lib.Row, task: str) -> dict[str, str]:
  metrics = pd.DataFrame([
      rewards.paper_metrics(x['reward_terms']) if task == 'writing'
      else {name: x['reward_terms'][name] / points
            for name, points in _MAX_POINTS.items()}
      for x in row.evaluations]).mean()
  *terms, success = _QUALITY[task]
  cells = {
      **row.score_cells('return', returns(row, task)),
      **{f'{name} %': rows_lib.percent(metrics[name]) for name in terms},
      f'{success} %': rows_lib.percent(row.successes.mean()),
      'calls a task': f'{row.mean_per_task("model_calls"):g}'}
  if row.timed:
    timed = pd.DataFrame(row.timed)[['response_seconds', 'tokens_per_second']]
    seconds, speed = timed.mean()
    cells |= {'response s': f'{seconds:.2f}', 'tokens/s': f'{speed:.0f}'}
  return cells


# The files.


def draw_curves(
    systems: Mapping[str, rows_lib.Systems],
    folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws success against generated tokens; returns the files."""
  paths = []
  for task, rows in systems.items():
    trained = {
        title: row for title, row in rows.items()
        if row is not None and not row.steps.empty}
    colors = dict(zip(trained, colormaps['tab10'].colors, strict=False))
    if not trained:
      continue
    drawing = figure.Figure(figsize=(7, 4.5), layout='constrained')
    axes = drawing.subplots()
    for title, row in trained.items():
      axes.plot([], [], color=colors[title], label=title)
      for _, steps in row.steps.groupby(level='workdir'):
        tokens = steps[records_lib.COSTS['generated tokens']].cumsum() / 1e6
        values = steps.set_index(tokens)['validation/success'].dropna()
        axes.plot(
            values.index, values, color=colors[title], alpha=0.8,
            linewidth=1.2, drawstyle='steps-post')
    axes.set_xlabel('generated tokens (millions); a line for each seed')
    axes.set_ylabel('success')
    axes.set_title(
        f'{experiments.GAMES[task]}, validation, one candidate per prompt')
    axes.legend(fontsize='small')
    paths.append(folder / f'{task}_success.png')
    drawing.savefig(paths[-1], dpi=150)
  return paths


def write_tables(
    records: records_lib.Records, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes tables and curves to `folder`; returns the files."""
  systems = {
      task: rows_lib.read_systems(records, f'main/{task}')
      for task in experiments.GAMES}
  tables = [
      *depot_tables.make(records),
      *(_game_table(task, 'systems', rows, rows_lib.AT_GRPO)
        for task, rows in systems.items() if any(rows.values())),
      *ablation_tables(records), *problem_tables(records),
      *joint_tables(records)]
  folder.mkdir(parents=True, exist_ok=True)
  markdown = folder / 'tables.md'
  markdown.write_text('\n'.join(table.markdown() for table in tables))
  return [
      markdown, *depot_tables.draw(records, folder / 'depot.png'),
      *draw_curves(systems, folder)]


def make(out: str, keep: str, results: str) -> list[pathlib.Path]:
  """Writes the tables that flags of these names ask for."""
  if bool(out) == bool(results) or (keep and results):
    raise errors.UserError(
        f'--out={out!r}, --keep={keep!r}, --results={results!r}: expected '
        'either --out, a folder of workdirs such as runs/paper/nano, with or '
        'without --keep; or --results, a folder that --keep has written, such '
        'as paper/results/nano.')
  folder = pathlib.Path(results or keep or f'{out}/tables')
  if results:
    return write_tables(records_lib.read(folder), folder)
  records = records_lib.read_workdirs(files.as_path(out, '--out'))
  if keep:
    records = records.finished()
  if not records.evaluations and not records.curves:
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
