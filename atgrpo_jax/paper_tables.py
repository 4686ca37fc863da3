"""From workdirs to the paper's tables (Markdown, LaTeX) and curves (PNG).

  python -m atgrpo_jax.paper_tables --out runs/paper/nano

reads what `paper` has run so far below OUT and writes OUT/tables. A row is a
folder `OUT/<table>/<task>/<row>` with a workdir `seed-<n>` for each seed, so
rows of your own beside those of an ablation appear as well. With --keep DIR
what the tables and curves were made of is copied to DIR, without the
checkpoints: small enough to be kept, and a folder like OUT.

A success is the mean over seeds and held-out tasks, one answer per prompt and
no selection. Intervals and p count seeds and tasks as drawn, tasks of one kind
as one (`paper_statistics`). A row of one seed has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import pathlib
import re
import shutil
import sys

from absl import app
from absl import flags
from matplotlib import colormaps
from matplotlib import figure
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import metrics
from atgrpo_jax import paper
from atgrpo_jax import paper_statistics

# What `main` calls a row: folder, which evaluation, title, and the row of the
# paper's table 1.
_SYSTEMS = (
    ('sa_grpo', 'before', 'Single agent', 'SA'),
    ('sa_grpo_turns', 'before', 'Single agent, several turns', ''),
    ('sa_grpo', 'after', 'Single agent + GRPO', 'SA+GRPO'),
    ('sa_grpo_turns', 'after', 'Single agent + GRPO, several turns', ''),
    ('at_grpo', 'before', 'Team', 'MAS'),
    ('mas_grpo', 'after', 'Team + GRPO, by task', 'MAS+GRPO'),
    ('mas_grpo_same_tasks', 'after', 'Team + GRPO, by task, as many tasks in '
     'a step as AT-GRPO', ''),
    ('mas_grpo_agent', 'after', 'Team + GRPO, by task and agent', ''),
    ('mas_grpo_turn', 'after', 'Team + GRPO, by task and turn', ''),
    ('mas_grpo_agent_turn', 'after',
     'Team + GRPO, by task, agent and turn', ''),
    ('at_grpo', 'after', 'Team + AT-GRPO, shared', 'shared'),
    ('at_grpo_per_role', 'after', 'Team + AT-GRPO, per role', 'per role'),
    ('at_grpo_lora', 'after', 'Team + AT-GRPO, adapter per role', ''),
)

# Folder -> title, of what was trained.
_TRAINED = {
    system: title for system, name, title, _ in _SYSTEMS if name == 'after'}

# Published success in per cent (arXiv 2510.11062, tables 1, 2, 4 and 6):
# task -> row -> with Qwen3-1.7B, with Qwen3-8B.
_PUBLISHED = {
    'plan_path': {
        'SA': ('5', '12'), 'SA+GRPO': ('11', '47'), 'MAS': ('10', '71'),
        'MAS+GRPO': ('', '96'), 'shared': ('96', '93'),
        'per role': ('97', '96'), 'outcome': ('', '89'),
        'only_tool': ('11', ''), 'only_planner': ('14.5', ''),
        'combined': ('16', ''), 'swapped': ('6', '')},
    'sokoban': {
        'SA': ('0', '9'), 'SA+GRPO': ('3', '14'), 'MAS': ('0', '16'),
        'MAS+GRPO': ('', '30'), 'shared': ('10', '96'),
        'per role': ('11.5', '98'), 'outcome': ('', '93')},
    'sudoku': {
        'SA': ('7', '48'), 'SA+GRPO': ('29', '54'), 'MAS': ('69', '72'),
        'MAS+GRPO': ('', '99'), 'shared': ('99', '99.5'),
        'per role': ('99', '99'), 'outcome': ('', '99.5')},
}

# Table of an ablation -> what it calls AT-GRPO itself.
_UNCHANGED = {
    'reward': 'as in the first table', 'agents': '2',
    'roles': 'trained together'}

# Table -> what is to be said below it.
_NOTES = {
    'roles': (
        "The paper's only_tool and only_planner were trained and played alone. "
        "Here the other role is played by the untrained model, and the row's "
        'budget, half of the tokens, counts what it says as well.')}

# Ends the name of the metric that counts a policy's updates since the start.
_UPDATES = '/num_updates'

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

_LEDGER = {
    'generated tokens': 'budget/completion_tokens',
    'prompt tokens': 'budget/prompt_tokens',
    'model calls': 'budget/model_calls',
    'program runs': 'budget/program_runs',
    'environment steps': 'budget/environment_steps',
}


@dataclasses.dataclass(frozen=True)
class Row:
  """What the seeds of one row gave.

  Attributes:
    successes: [seeds, tasks] bool.
    clusters: [tasks], the same number for tasks of one kind.
    turns: mean turns of an episode.
    turns_to_solve: mean turns of solved episodes, over the seeds that have
      some; NaN if none has.
    tokens_a_task: mean tokens that were generated for a task.
    split_hash: of the tasks.
    lines: of `metrics.jsonl`, for each seed; empty if nothing was trained.
    budget_used: share of the tokens that it was given, for each seed that was
      given some.
  """

  successes: np.ndarray
  clusters: Sequence[int]
  turns: float
  turns_to_solve: float
  tokens_a_task: float
  split_hash: str
  lines: tuple[list[dict], ...] = ()
  budget_used: tuple[float, ...] = ()

  @property
  def success(self) -> float:
    return float(self.successes.mean())

  def total(self, metric: str) -> float:
    """The sum over the steps of a run, in the mean over seeds."""
    return float(np.mean([
        sum(line[metric] for line in lines) for lines in self.lines]))

  def values(self, metric: str) -> list[list[float]]:
    """What was logged of it, for each seed that has some."""
    found = [
        [line[metric] for line in lines if metric in line]
        for lines in self.lines]
    return [values for values in found if values]


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

    def line(cells):
      return '  ' + ' & '.join(map(escape, cells)) + ' \\\\\n'

    caption = f'{self.title}. {self.note}' if self.note else self.title
    return (
        '\\begin{table}\n'
        f'  \\caption{{{escape(caption)}}}\n'
        f'  \\begin{{tabular}}{{l{"r" * (len(self.header) - 1)}}}\n'
        '  \\toprule\n' + line(self.header) + '  \\midrule\n'
        + ''.join(map(line, self.rows))
        + '  \\bottomrule\n  \\end{tabular}\n\\end{table}\n')


def read_row(folder: pathlib.Path, name: str) -> Row | None:
  """The finished seeds of a row, or None if there are none.

  `name` is that of the evaluation; of one before training, nothing was spent.
  """
  workdirs = [
      path.parent.parent
      for path in sorted(folder.glob(f'seed-*/evals/{name}.json'))]
  if not workdirs:
    return None
  evals = [evaluate.read(workdir, name) for workdir in workdirs]
  hashes = {result['split_hash'] for result in evals}
  if len(hashes) > 1:
    raise errors.UserError(
        f'The seeds in {folder} were evaluated on different tasks; evaluate '
        'all on the same config.evaluation.test.')
  lines, budget_used = (), []
  if name == 'after':
    lines = tuple(map(_read_steps, workdirs))
    for workdir, of_one in zip(workdirs, lines):
      if budget := _read_budget(workdir):
        generated = sum(line[_LEDGER['generated tokens']] for line in of_one)
        budget_used.append(generated / budget)
  successes = np.array(
      [[x == '1' for x in result['successes']] for result in evals])
  to_solve = [
      result['mean_turns_to_solve'] for result in evals
      if result['mean_turns_to_solve'] is not None]
  tokens = [result['budget']['completion_tokens'] for result in evals]
  return Row(
      successes, clusters=evals[0]['clusters'],
      turns=float(np.mean([result['mean_turns'] for result in evals])),
      turns_to_solve=float(np.mean(to_solve or [math.nan])),
      tokens_a_task=float(np.mean(tokens)) / successes.shape[1],
      split_hash=hashes.pop(), lines=lines, budget_used=tuple(budget_used))


def _read_steps(workdir: pathlib.Path) -> list[dict]:
  """The lines of `metrics.jsonl` of a run that is done."""
  lines = metrics.read(workdir)
  if not lines:
    raise errors.UserError(
        f'{workdir}/metrics.jsonl is empty, but the run is done; delete '
        f'{workdir} and run it again.')
  if not any(name.endswith(_UPDATES) for name in lines[-1]):
    raise errors.UserError(
        f'{workdir}/metrics.jsonl has no POLICY{_UPDATES}, since an older '
        f'version wrote it; delete {workdir} and run it again.')
  return lines


def _read_budget(workdir: pathlib.Path) -> int:
  """How many tokens a run may generate; 0 if its steps are limited."""
  path = workdir / 'config.json'
  try:
    return json.loads(path.read_text())['config']['train']['completion_tokens']
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.UserError(
        f'{path} is no config of a run that can be read ({error!r}); put back '
        f'the one that was written there, or delete {workdir} and run it again.'
    ) from error


def make_table(
    title: str, rows: Mapping[str, tuple[Row | None, tuple[str, str]]],
    compared: Mapping[str, str], note: str = '') -> Table:
  """A table of named rows.

  Args:
    title: of the table.
    rows: name -> the row and what was published of it.
    compared: name -> name of the row that it is compared with, if there is
      one of that name.
    note: below the table.
  """
  found = [row for row, _ in rows.values() if row is not None]
  hashes = {row.split_hash for row in found}
  if len(hashes) > 1:
    raise errors.UserError(
        f'{title}: rows were evaluated on different tasks and cannot be '
        'compared; evaluate all on the same config.evaluation.test.')
  header = [
      '', 'success %', '95 %', 'seeds', 'compared with', 'minus that', 'p',
      'turns an episode', 'turns to solve', 'tokens a task', 'updates',
      'budget used', *_LEDGER, 'minutes', 'peak GiB',
      'paper, 1.7B', 'paper, 8B']
  lines = []
  for name, (row, published) in rows.items():
    if row is not None or any(published):
      other = compared.get(name, '')
      baseline = rows[other][0] if other in rows else None
      lines.append([name, *_cells(row, other, baseline), *published])
  statistics = _STATISTICS_NOTE.format(
      tasks=len(found[0].clusters), clusters=len(set(found[0].clusters)))
  return Table(title, header, lines, f'{note} {statistics}'.strip())


def _cells(row: Row | None, other: str, baseline: Row | None) -> list[str]:
  """A row without its name and without what was published."""
  if row is None:
    return [''] * (13 + len(_LEDGER))
  cells = [
      f'{100 * row.success:.1f}',
      '' if len(row.successes) < 2 else _interval(
          *paper_statistics.success_interval(row.successes, row.clusters)),
      str(len(row.successes))]
  if baseline is None:
    cells += [''] * 3
  else:
    difference = 100 * (row.success - baseline.success)
    p = ''
    if min(len(row.successes), len(baseline.successes)) > 1:
      value = paper_statistics.p_value(
          row.successes, baseline.successes, row.clusters)
      p = f'{value:.4f}' if value >= 1e-4 else '< 0.0001'
    cells += [other, f'{difference:+.1f}'.replace('-', '−'), p]
  cells += [
      f'{row.turns:.2f}',
      '' if math.isnan(row.turns_to_solve) else f'{row.turns_to_solve:.2f}',
      f'{row.tokens_a_task:.0f}']
  if not row.lines:
    return cells + [''] * (4 + len(_LEDGER))
  return cells + [_updates(row), _budget_used(row)] + [
      _short(row.total(metric)) for metric in _LEDGER.values()] + [
          f'{row.total("time/step") / 60:.1f}', f'{_peak(row):.1f}']


def _interval(low: float, high: float) -> str:
  return f'{100 * low:.1f} … {100 * high:.1f}'


def _updates(row: Row) -> str:
  """What the optimisers counted, of each policy if there are several."""
  metric_names = dict.fromkeys(
      name for lines in row.lines for name in lines[-1]
      if name.endswith(_UPDATES))
  counts = {
      name.removesuffix(_UPDATES):
          f'{np.mean([values[-1] for values in row.values(name)]):.0f}'
      for name in metric_names}
  if len(counts) == 1:
    return counts.popitem()[1]
  return ', '.join(f'{policy} {count}' for policy, count in counts.items())


def _budget_used(row: Row) -> str:
  if not row.budget_used:
    return ''
  shares = 100 * np.array(row.budget_used)
  text = f'{shares.mean():.0f} %'
  if shares.max() - shares.min() > 1:
    text += f' ({shares.min():.0f} … {shares.max():.0f})'
  return text


def _peak(row: Row) -> float:
  """Of a device, or of the host where devices do not tell."""
  on_device = row.values('memory/device_peak_gib')
  return max(max(x) for x in on_device or row.values('memory/host_peak_gib'))


def _short(number: float) -> str:
  number = float(f'{number:.3g}')  # 999 700 is 1 M.
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if number >= size:
      return f'{number / size:.3g}{unit}'
  return f'{number:.0f}'


def read_systems(out: pathlib.Path, task: str) -> dict[str, Row | None]:
  """Title -> row, of all compared systems."""
  return {
      title: read_row(out / 'main' / task / system, name)
      for system, name, title, _ in _SYSTEMS}


def main_tables(out: pathlib.Path) -> list[Table]:
  """The compared systems, a table for each task."""
  compared = {
      title: _TRAINED['at_grpo'] for *_, title, _ in _SYSTEMS
      if title != _TRAINED['at_grpo']}
  tables = []
  for task in paper.TASKS:
    rows = read_systems(out, task)
    if any(rows.values()):
      tables.append(make_table(
          f'{_titled(task)}: systems', {
              title: (rows[title], _PUBLISHED[task].get(published, ('', '')))
              for *_, title, published in _SYSTEMS},
          compared))
  return tables


def games_table(out: pathlib.Path) -> list[Table]:
  """The systems that several seeds were run of on each game, over all."""
  of_games = [read_systems(out, task) for task in paper.TASKS]
  lines = []
  for *_, title, _ in _SYSTEMS:
    rows = [systems[title] for systems in of_games]
    if any(row is None or len(row.successes) < 2 for row in rows):
      continue
    scores = [row.successes.mean(axis=1) for row in rows]
    cells = [title]
    for statistic in (paper_statistics.mean_over_games,
                      paper_statistics.interquartile_mean):
      low, high = paper_statistics.bootstrap_interval(scores, statistic)
      cells += [
          f'{100 * statistic(scores):.1f}',
          _interval(low, high) if low < high else '']
    lines.append([*cells, ', '.join(str(len(of_one)) for of_one in scores)])
  if not lines:
    return []
  games = ', '.join(map(_titled, paper.TASKS))
  return [Table(
      f'All games ({games}): systems',
      ['', 'mean %', '95 % of the mean', 'IQM %', '95 % of the IQM',
       'seeds of each game'], lines, _GAMES_NOTE)]


def ablation_tables(out: pathlib.Path) -> list[Table]:
  """What each of the other tables of `paper` changes, beside AT-GRPO."""
  tables = []
  for name in (*_UNCHANGED, *paper.SWITCHES):
    for task in paper.TASKS:
      folders = sorted(
          (out / name / task).glob('*'),
          key=lambda path: (len(path.name), path.name))  # 2 before 16.
      system = 'at_grpo_per_role' if name == 'roles' else 'at_grpo'
      place = 'unchanged' if name in paper.SWITCHES else 'main'
      rows = {
          folder.name: (
              read_row(folder, 'after') or read_row(folder, 'evaluation'),
              _PUBLISHED[task].get(folder.name, ('', '')))
          for folder in folders}
      if any(row for row, _ in rows.values()):
        unchanged = _UNCHANGED.get(name, 'unchanged')
        if unchanged in rows:
          raise errors.UserError(
              f'{out / name / task / unchanged} has the name of the row that '
              'the others are compared with; give it another.')
        baseline = read_row(out / place / task / system, 'after')
        compared = {row: paper.SAME_STEPS.get(row, unchanged) for row in rows}
        tables.append(make_table(
            f'{_titled(task)}: {name}',
            {unchanged: (baseline, ('', '')), **rows}, compared,
            _NOTES.get(name, '')))
  return tables


def credit_tables(out: pathlib.Path) -> list[Table]:
  """What the roles of the trained systems learned from, for each task."""
  tables = []
  for task in paper.TASKS:
    lines = []
    for title, row in read_systems(out, task).items():
      logged = sorted({
          name for step in (row.lines if row is not None else ())
          for line in step for name in line})
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
          f'{_titled(task)}: credit, mean over the steps that tell it',
          ['', *_CREDIT, 'cosine with the gradients of other roles'], lines,
          _CREDIT_NOTE))
  return tables


def _logged(
    row: Row, names: Sequence[str], unit: float, only_last: bool) -> str:
  """The mean over seeds, and over the steps if it is not the last alone."""
  found = [values for name in names for values in row.values(name)]
  if not found:
    return ''
  mean = unit * np.mean([
      values[-1] if only_last else np.mean(values) for values in found])
  return f'{round(mean, 3) + 0.0:.3f}'.replace('-', '−')


def cross_play_table(out: pathlib.Path) -> list[Table]:
  """Success of each role played by each role's policy of each seed."""
  tables = []
  for task in paper.TASKS:
    results = {
        (path.parents[2].name, path.parents[1].name):
            evaluate.read(path.parents[1], 'evaluation')['success']
        for path in (out / 'cross_play' / task).glob(
            '*/*/evals/evaluation.json')}
    if not results:
      continue
    tools = sorted({tool for tool, _ in results})
    planners = sorted({planner for _, planner in results})
    tables.append(Table(
        f'{_titled(task)}: success % of the tool (rows) and the planner '
        '(columns) played by the policy ROLE-SEED',
        ['', *planners],
        [[tool, *(
            f'{100 * results[tool, planner]:.1f}'
            if (tool, planner) in results else '' for planner in planners)]
         for tool in tools]))
  return tables


def draw_curves(out: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws what becomes of a run against the tokens that it has generated.

  For each task, in validation with one answer per prompt: success, the turns of
  episodes that were solved, and, of AT-GRPO, success beside that of the greedy
  spine in training.
  """
  paths = []
  for task in paper.TASKS:
    found = {
        title: row for title, row in read_systems(out, task).items()
        if row is not None and row.lines}
    trees = {
        title: row for title, row in found.items() if 'AT-GRPO' in title}
    colors = dict(zip(found, colormaps['tab20'].colors, strict=False))
    for file, rows, label, styles in (
        ('success', found, 'success', {'k1/success': '-'}),
        ('turns', found, 'turns to solve', {'k1/turns_to_solve': '-'}),
        ('spine', trees, 'success (dotted: greedy spine)',
         {'k1/success': '-', 'spine/success': ':'})):
      if not rows:
        continue
      drawing = figure.Figure(figsize=(7, 4.5), layout='constrained')
      axes = drawing.subplots()
      for title, row in rows.items():
        axes.plot([], [], color=colors[title], label=title)
        for lines in row.lines:
          for metric, style in styles.items():
            axes.plot(
                *curve(lines, metric), style, color=colors[title], alpha=0.8,
                linewidth=1.2, drawstyle='steps-post')
      axes.set_xlabel('generated tokens (millions); a line for each seed')
      axes.set_ylabel(label)
      axes.set_title(f'{_titled(task)}, validation, one answer per prompt')
      axes.legend(fontsize='small')
      paths.append(folder / f'{task}_{file}.png')
      drawing.savefig(paths[-1], dpi=150)
  return paths


def curve(
    lines: Sequence[Mapping[str, float]],
    metric: str) -> tuple[np.ndarray, np.ndarray]:
  """Millions of generated tokens, and a metric, after each step of a run."""
  tokens = np.cumsum([line['budget/completion_tokens'] for line in lines]) / 1e6
  # Where nothing was solved, no turns are known.
  known = np.array([
      line['k1/success'] > 0 or metric != 'k1/turns_to_solve'
      for line in lines])
  return tokens[known], np.array([
      line[metric] for line, is_known in zip(lines, known) if is_known])


def keep(out: pathlib.Path, folder: pathlib.Path) -> None:
  """Copies to `folder` what tables are made of, and what tells of credit."""
  read = re.compile('|'.join([
      'step', 'k1/.*', 'spine/.*', *_LEDGER.values(), 'time/step',
      'memory/.*', f'.*{_UPDATES}', '.*/without_signal', '.*/advantage_.*',
      'diagnosis/.*']))
  for path in sorted(out.glob('**/evals/*.json')):
    workdir = path.parents[1]
    copy = folder / workdir.relative_to(out)
    (copy / 'evals').mkdir(parents=True, exist_ok=True)
    shutil.copy(path, copy / 'evals')
    record = workdir / 'metrics.jsonl'
    if record.exists():
      shutil.copy(workdir / 'config.json', copy)
      lines = map(json.loads, record.read_text().splitlines())  # As they are.
      (copy / record.name).write_text(''.join(
          json.dumps({
              name: value for name, value in line.items()
              if read.fullmatch(name)}) + '\n'
          for line in lines))


def _titled(task: str) -> str:
  return {'plan_path': 'Plan-Path', 'sokoban': 'Sokoban', 'sudoku': 'Sudoku'}[
      task]


def make_tables(out: pathlib.Path) -> list[pathlib.Path]:
  """Writes OUT/tables; returns its files."""
  tables = [
      *main_tables(out), *games_table(out),
      *ablation_tables(out), *cross_play_table(out),
      *credit_tables(out)]
  if not tables:
    raise errors.UserError(
        f'{out} holds no finished run; run launch/paper.sh first, or name the '
        'folder it was given in --out.')
  folder = out / 'tables'
  folder.mkdir(exist_ok=True)
  markdown, latex = folder / 'tables.md', folder / 'tables.tex'
  markdown.write_text('\n'.join(table.markdown() for table in tables))
  latex.write_text('\n'.join(table.latex() for table in tables))
  return [markdown, latex, *draw_curves(out, folder)]


def main(argv: list[str]) -> int:
  out = pathlib.Path(flags.FLAGS.out)
  try:
    errors.refuse_arguments(argv)
    paths = make_tables(out)
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  if flags.FLAGS.keep:
    keep(out, pathlib.Path(flags.FLAGS.keep))
  print(paths[0].read_text())
  print('written: ' + ', '.join(map(str, paths)))
  return 0


if __name__ == '__main__':
  flags.DEFINE_string('out', 'runs/paper/nano', 'Folder of all workdirs.')
  flags.DEFINE_string(
      'keep', '', 'Folder for a copy of what the tables were made of.')
  app.run(main)
