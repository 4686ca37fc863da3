"""From workdirs to the paper's tables (Markdown, LaTeX) and curves (PNG).

  python -m paper.tables --out runs/paper/nano

reads what `paper.run` has finished so far below OUT and writes OUT/tables. A
row is a folder `OUT/<table>/<task>/<row>` with a workdir `seed-<n>` for each
seed, so rows of your own beside those of an ablation appear as well. With
--keep DIR what the tables and curves were made of is copied to DIR, without the
checkpoints: small enough to be kept, and a folder like OUT.

A success is the mean over seeds and held-out tasks, one answer per prompt and
no selection. Intervals and p count seeds and tasks as drawn, tasks of one kind
as one (`paper/statistics.py`). A row of one seed has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
import sys

from absl import app
from absl import flags
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from paper import cells
from paper import curves
from paper import published
from paper import statistics
from paper import workdirs

# Table of an ablation -> what it calls AT-GRPO itself.
_UNCHANGED = {
    'reward': 'as in the first table', 'agents': '2',
    'roles': 'trained together', **dict.fromkeys(cells.SWITCHES, 'unchanged')}

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


@dataclasses.dataclass(frozen=True)
class Table:
  """Text in rows and columns."""

  title: str
  header: Sequence[str]
  rows: Sequence[Sequence[str]]
  note: str = ''

  def markdown(self) -> str:
    lines = [self.header, ['---'] * len(self.header), *self.rows]
    return f'## {self.title}\n\n' + ''.join(
        f'| {" | ".join(line)} |\n' for line in lines) + (
            self.note and f'\n{self.note}\n')

  def latex(self) -> str:
    def escape(text):
      for plain, escaped in (
          ('\\', r'\textbackslash{}'), ('%', r'\%'), ('_', r'\_'),
          ('&', r'\&'), ('#', r'\#'), ('…', r'\ldots{}'), ('−', '$-$'),
          ('<', '$<$')):
        text = text.replace(plain, escaped)
      return text

    def line(texts):
      return '  ' + ' & '.join(map(escape, texts)) + ' \\\\\n'

    caption = f'{self.title}. {self.note}' if self.note else self.title
    return (
        '\\begin{table}\n'
        f'  \\caption{{{escape(caption)}}}\n'
        f'  \\begin{{tabular}}{{l{"r" * (len(self.header) - 1)}}}\n'
        '  \\toprule\n' + line(self.header) + '  \\midrule\n'
        + ''.join(map(line, self.rows))
        + '  \\bottomrule\n  \\end{tabular}\n\\end{table}\n')


def _make_table(
    task: str, name: str, rows: Mapping[str, workdirs.Row | None],
    baseline: str) -> Table:
  """A table of rows on the same tasks.

  Args:
    task: that was played.
    name: of the table.
    rows: title -> row, None if only the paper may have it.
    baseline: title of the row that others are compared with, unless
      `cells.SAME_STEPS` names another.
  """
  title = f'{cells.TASKS[task]}: {name}'
  found = [row for row in rows.values() if row is not None]
  if len({row.split_hash for row in found}) > 1:
    raise errors.UserError(
        f'{title}: rows were evaluated on different tasks and cannot be '
        'compared; evaluate all on the same config.evaluation.test.')
  header = [
      '', 'success %', '95 %', 'seeds', 'compared with', 'minus that', 'p',
      'turns an episode', 'turns to solve', 'tokens a task', 'updates',
      'budget used', *workdirs.LEDGER, 'minutes', 'peak GiB',
      'paper, 1.7B', 'paper, 8B']
  lines = []
  for row_title, row in rows.items():
    reported = _published(row_title, task)
    if row is not None:
      other = cells.SAME_STEPS.get(row_title, baseline)
      compared = None if row_title == baseline else rows.get(other)
      lines.append([
          row_title, *_success(row), *_difference(row, other, compared),
          *_cost(row), *reported])
    elif any(reported):
      lines.append([row_title, *[''] * (len(header) - 3), *reported])
  note = _STATISTICS_NOTE.format(
      tasks=len(found[0].clusters), clusters=len(set(found[0].clusters)))
  return Table(title, header, lines, f'{_NOTES.get(name, "")} {note}'.strip())


def _published(title: str, task: str) -> list[str]:
  """Success with Qwen3-1.7B and with Qwen3-8B, '' where there is none."""
  name = workdirs.SYSTEMS[title][2] if title in workdirs.SYSTEMS else title
  numbers = [
      table.get(name, {}).get(task)
      for table in (published.QWEN3_1_7B, published.QWEN3_8B)]
  return ['' if number is None else f'{number:g}' for number in numbers]


def _success(row: workdirs.Row) -> list[str]:
  """Success, its interval, seeds."""
  return [
      f'{100 * row.success:.1f}',
      '' if len(row.successes) < 2 else _interval(
          *statistics.success_interval(row.successes, row.clusters)),
      str(len(row.successes))]


def _difference(
    row: workdirs.Row, title: str, compared: workdirs.Row | None) -> list[str]:
  """What it is compared with, the difference, p."""
  if compared is None:
    return [''] * 3
  p = ''
  if min(len(row.successes), len(compared.successes)) > 1:
    value = statistics.p_value(row.successes, compared.successes, row.clusters)
    p = f'{value:.4f}' if value >= 1e-4 else '< 0.0001'
  return [title, _signed(f'{100 * (row.success - compared.success):+.1f}'), p]


def _cost(row: workdirs.Row) -> list[str]:
  """All columns from `turns an episode` to `peak GiB`."""
  played = [
      f'{row.turns:.2f}',
      '' if math.isnan(row.turns_to_solve) else f'{row.turns_to_solve:.2f}',
      f'{row.tokens_a_task:.0f}']
  if not row.lines:
    return played + [''] * (4 + len(workdirs.LEDGER))
  return [
      *played, _updates(row.num_updates()), _budget_used(row.budget_used),
      *(_short(row.total(metric)) for metric in workdirs.LEDGER.values()),
      f'{row.total("time/step") / 60:.1f}', f'{row.peak_gib:.1f}']


def _interval(low: float, high: float) -> str:
  return f'{100 * low:.1f} … {100 * high:.1f}'


def _signed(number: str) -> str:
  return number.replace('-', '−')


def _updates(num_updates: Mapping[str, float]) -> str:
  """Of each policy if there are several."""
  if len(num_updates) == 1:
    return f'{sum(num_updates.values()):.0f}'
  return ', '.join(f'{policy} {num:.0f}' for policy, num in num_updates.items())


def _budget_used(shares: Sequence[float]) -> str:
  if not shares:
    return ''
  percent = 100 * np.array(shares)
  text = f'{percent.mean():.0f} %'
  if percent.max() - percent.min() > 1:
    text += f' ({percent.min():.0f} … {percent.max():.0f})'
  return text


def _short(number: float) -> str:
  number = float(f'{number:.3g}')  # 999 700 is 1 M.
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if number >= size:
      return f'{number / size:.3g}{unit}'
  return f'{number:.0f}'


def main_tables(systems: workdirs.SystemRows) -> list[Table]:
  """The compared systems, a table for each task."""
  return [
      _make_table(task, 'systems', rows, workdirs.AT_GRPO)
      for task, rows in systems.items() if any(rows.values())]


def games_table(systems: workdirs.SystemRows) -> list[Table]:
  """The systems that several seeds were run of on each game, over all."""
  lines = []
  for title in workdirs.SYSTEMS:
    rows = [systems[task][title] for task in cells.TASKS]
    if any(row is None or len(row.successes) < 2 for row in rows):
      continue
    scores = [row.successes.mean(axis=1) for row in rows]
    line = [title]
    for statistic in (statistics.mean_over_games,
                      statistics.interquartile_mean):
      low, high = statistics.bootstrap_interval(scores, statistic)
      line += [
          f'{100 * statistic(scores):.1f}',
          _interval(low, high) if low < high else '']
    lines.append([*line, ', '.join(str(len(game)) for game in scores)])
  if not lines:
    return []
  return [Table(
      f'All games ({", ".join(cells.TASKS.values())}): systems',
      ['', 'mean %', '95 % of the mean', 'IQM %', '95 % of the IQM',
       'seeds of each game'], lines, _GAMES_NOTE)]


def ablation_tables(out: pathlib.Path) -> list[Table]:
  """What each of the other tables of `paper.cells` changes, beside AT-GRPO."""
  tables = []
  for name, unchanged in _UNCHANGED.items():
    for task in cells.TASKS:
      folders = sorted(
          (out / name / task).glob('*'),
          key=lambda path: (len(path.name), path.name))  # 2 before 16.
      rows = {
          folder.name: (
              workdirs.read_row(folder, 'after')
              or workdirs.read_row(folder, 'evaluation'))
          for folder in folders}
      if not any(rows.values()):
        continue
      if unchanged in rows:
        raise errors.UserError(
            f'{out / name / task / unchanged} has the name of the row that '
            'the others are compared with; give it another.')
      table = 'unchanged' if name in cells.SWITCHES else 'main'
      system = 'at_grpo_per_role' if name == 'roles' else 'at_grpo'
      baseline = workdirs.read_row(out / table / task / system, 'after')
      tables.append(
          _make_table(task, name, {unchanged: baseline, **rows}, unchanged))
  return tables


def credit_tables(systems: workdirs.SystemRows) -> list[Table]:
  """What the roles of the trained systems learned from, for each task."""
  tables = []
  for task, rows in systems.items():
    lines = []
    for title, row in rows.items():
      logged = sorted({
          name for steps in (row.lines if row is not None else ())
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
      tables.append(Table(
          f'{cells.TASKS[task]}: credit, mean over the steps that tell it',
          ['', *_CREDIT, 'cosine with the gradients of other roles'], lines,
          _CREDIT_NOTE))
  return tables


def _logged(
    row: workdirs.Row, names: Sequence[str], unit: float,
    only_last: bool) -> str:
  """The mean over seeds, and over the steps if it is not the last alone."""
  found = [values for name in names for values in row.values(name)]
  if not found:
    return ''
  mean = unit * np.mean([
      values[-1] if only_last else np.mean(values) for values in found])
  return _signed(f'{round(mean, 3) + 0.0:.3f}')


def cross_play_tables(out: pathlib.Path) -> list[Table]:
  """Success of each role played by each role's policy of each seed."""
  tables = []
  for task, task_title in cells.TASKS.items():
    results = {}
    for path in (out / 'cross_play' / task).glob('*/*/evals/evaluation.json'):
      workdir = path.parents[1]
      results[workdir.parent.name, workdir.name] = (
          f'{100 * evaluate.read(workdir, "evaluation")["success"]:.1f}')
    if results:
      tools, planners = (sorted(set(names)) for names in zip(*results))
      tables.append(Table(
          f'{task_title}: success % of the tool (rows) and the planner '
          '(columns) played by the policy ROLE-SEED',
          ['', *planners],
          [[tool, *(results.get((tool, planner), '') for planner in planners)]
           for tool in tools]))
  return tables


def make_tables(out: pathlib.Path) -> list[pathlib.Path]:
  """Writes OUT/tables; returns its files."""
  systems = workdirs.read_systems(out)
  tables = [
      *main_tables(systems), *games_table(systems), *ablation_tables(out),
      *cross_play_tables(out), *credit_tables(systems)]
  if not tables:
    raise errors.UserError(
        f'{out} holds no finished run; run launch/paper.sh first, or name the '
        'folder it was given in --out.')
  folder = out / 'tables'
  folder.mkdir(exist_ok=True)
  markdown, latex = folder / 'tables.md', folder / 'tables.tex'
  markdown.write_text('\n'.join(table.markdown() for table in tables))
  latex.write_text('\n'.join(table.latex() for table in tables))
  return [markdown, latex, *curves.draw(systems, folder)]


def main(argv: list[str]) -> int:
  out = pathlib.Path(flags.FLAGS.out)
  try:
    errors.refuse_arguments(argv)
    paths = make_tables(out)
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  if flags.FLAGS.keep:
    workdirs.keep(out, pathlib.Path(flags.FLAGS.keep))
  print(paths[0].read_text())
  print('written: ' + ', '.join(map(str, paths)))
  return 0


if __name__ == '__main__':
  flags.DEFINE_string('out', 'runs/paper/nano', 'Folder of all workdirs.')
  flags.DEFINE_string(
      'keep', '', 'Folder for a copy of what the tables were made of.')
  app.run(main)
