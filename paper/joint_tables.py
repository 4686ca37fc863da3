"""Tables of MAGRPO's tasks (arXiv 2508.04652): quality and cost.

Quality has the paper's columns: `environments.writing.rewards.paper_metrics`
for writing, and for functions the fraction of the points of each term in
`environments.programming.functions.rewards`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from environments.writing import rewards
from paper import experiments
from paper import formats
from paper import published
from paper import records as records_lib
from paper import rows as rows_lib
from paper import statistics

# Title -> folder of the row, and its evaluation.
ROWS = {
    'Single agent': ('untrained_solo', 'evaluation'),
    'Parallel generation': ('untrained_pair', 'evaluation'),
    'Sequential pipeline': ('untrained_pipeline', 'evaluation'),
    'One-round discussion': ('untrained_discussion', 'evaluation'),
    'Single agent + GRPO': ('sa_grpo', 'after'),
    'Pipeline + AT-GRPO': ('at_grpo', 'after'),
    'IAC': ('iac', 'after'),
    'MAAC': ('maac', 'after'),
    'MAGRPO, all combinations': ('magrpo_cross', 'after'),
    'MAGRPO': (experiments.MAGRPO, 'after'),
}
# The row that all others are compared with.
BASELINE = 'MAGRPO'

# Table -> columns of quality; the last one is the success.
_QUALITY = {
    'writing': ('structure', 'style', 'coherence', 'all levels'),
    'functions': (
        'structure', 'syntax', 'tests', 'cooperation', 'all tests')}
_MAX_POINTS = {
    'structure': 1.0, 'syntax': 0.5, 'tests': 1.0, 'cooperation': 1.5}
_COLUMNS = (
    'response s', 'tokens/s', 'tokens a task', 'calls a task', 'updates',
    'budget used', 'generated tokens', 'minutes')
_NOTE = (
    '95 %: interval of the return of new seeds on new tasks. p: two-sided t '
    'test of the difference on the same tasks, not corrected for the number of '
    'rows. Both count seeds and tasks as drawn at random; one seed gives '
    'neither. {success}response s: tasks are played one by one; the time of '
    'the slowest agent, summed over what is done one after another. tokens/s: '
    'generated tokens over that time. calls: completions. budget used: share '
    "of the tokens that a run was allowed to generate, those of MAGRPO's.")
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
        'pass. ')}


def make_tables(records: records_lib.Records) -> list[formats.Table]:
  """One table for each task with a finished run."""
  return [
      found for table, kinds in experiments.JOINT_TASKS.items()
      for kind in kinds
      if (found := _make_table(records, table, kind)) is not None]


def _make_table(
    records: records_lib.Records, table: str,
    kind: str) -> formats.Table | None:
  rows = {
      title: row for title, (folder, evaluation) in ROWS.items()
      if (row := rows_lib.read_row(
          records, f'{table}/{kind}/{folder}', evaluation)) is not None}
  if not rows:
    return None
  title = f'{experiments.JOINT_TASKS[table][kind]}: {table}'
  rows_lib.check_comparable(f'{title}: rows', rows.values())
  reported = published.JOINT[table]
  lines = []
  for name, row in rows.items():
    cells = {
        '': name, **_quality(row, table), **_cost(row), **row.training_cells(),
        **{column: numbers.get(kind, {}).get(name, '')
           for column, numbers in reported.items()}}
    if BASELINE in rows and name != BASELINE:
      cells[f'minus {BASELINE}'], cells['p'] = formats.comparison(
          _returns(row, table), _returns(rows[BASELINE], table), row.clusters)
    lines.append(cells)
  columns = [
      '', 'return %', '95 %', 'seeds', f'minus {BASELINE}', 'p',
      *(f'{name} %' for name in _QUALITY[table]), *_COLUMNS, *reported]
  return formats.table(
      title, columns, lines, _NOTE.format(success=_SUCCESS_NOTE[table]))


def _returns(row: rows_lib.Row, table: str) -> np.ndarray:
  """[seeds, tasks] float, 0 to 1."""
  returns = np.array(
      [found['returns'] for found in row.evaluations], np.float64)
  if table == 'functions':  # Each turn is rewarded.
    returns /= np.array([[x['mean_turns']] for x in row.evaluations])
  return returns


def _quality(row: rows_lib.Row, table: str) -> dict[str, str]:
  returns = _returns(row, table)
  metrics = [
      _metrics(found['reward_terms'], table) for found in row.evaluations]
  *terms, success = _QUALITY[table]
  return {
      'return %': formats.percent(returns.mean()),
      '95 %': '' if len(returns) < 2 else formats.interval(
          *statistics.mean_interval(returns, row.clusters)),
      'seeds': str(len(returns)),
      **{f'{name} %': formats.percent(np.mean([x[name] for x in metrics]))
         for name in terms},
      f'{success} %': formats.percent(row.successes.mean())}


def _metrics(terms: Mapping[str, float], table: str) -> dict[str, float]:
  if table == 'writing':
    return rewards.paper_metrics(terms)
  return {name: terms[name] / points for name, points in _MAX_POINTS.items()}


def _cost(row: rows_lib.Row) -> dict[str, str]:
  """Cost of playing a task."""
  calls = np.mean([
      found['budget']['model_calls'] / found['num_tasks']
      for found in row.evaluations])
  cells = {
      'tokens a task': f'{row.tokens_per_task():.0f}',
      'calls a task': f'{calls:g}'}
  if row.timed:
    seconds, speed = (
        np.mean([found[name] for found in row.timed])
        for name in ('response_seconds', 'tokens_per_second'))
    cells |= {'response s': f'{seconds:.2f}', 'tokens/s': f'{speed:.0f}'}
  return cells
