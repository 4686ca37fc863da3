"""The tables of MAGRPO's tasks (arXiv 2508.04652): quality and cost.

The columns of quality are the paper's: for writing those of
`environments.writing.rewards.paper_metrics`, for functions the shares of the
points of `environments.programming.functions.rewards`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from environments.writing import rewards
from paper import joint_cells
from paper import published
from paper import records
from paper import rows as rows_lib
from paper import statistics
from paper import text

# Title -> row of a table, and which evaluation.
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
    'MAGRPO': (joint_cells.MAGRPO, 'after'),
}
# What all others are compared with.
BASELINE = 'MAGRPO'

# Table -> columns of quality; the last one is the success.
_QUALITY = {
    'writing': ('structure', 'style', 'coherence', 'all levels'),
    'functions': (
        'structure', 'syntax', 'tests', 'cooperation', 'all tests')}
# The most points of a term of functions.
_POINTS = {'structure': 1.0, 'syntax': 0.5, 'tests': 1.0, 'cooperation': 1.5}
_NOTE = (
    '95 %: interval of the return of new seeds on new tasks. p: two-sided t '
    'test of the difference on the same tasks, not corrected for the number of '
    'rows. Both count seeds and tasks as drawn at random; one seed gives '
    'neither. {success}response s: tasks are played one by one; the time of '
    'the slowest agent, summed over what is done one after another. tokens/s: '
    'generated tokens over that time. calls: completions. budget used: share '
    "of the tokens that a run was allowed to generate, those of MAGRPO's.")
_SUCCESS = {
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


def make_tables(runs: records.Runs) -> list[text.Table]:
  """A table for each task of which a run is finished."""
  return [
      found for table, kinds in joint_cells.TASKS.items() for kind in kinds
      if (found := _make_table(runs, table, kind)) is not None]


def _make_table(
    runs: records.Runs, table: str, kind: str) -> text.Table | None:
  rows = {
      title: row for title, (folder, evaluation) in ROWS.items()
      if (row := rows_lib.read_row(
          runs, f'{table}/{kind}/{folder}', evaluation)) is not None}
  if not rows:
    return None
  title = f'{joint_cells.TASKS[table][kind]}: {table}'
  rows_lib.check_comparable(title, rows.values())
  reported = published.JOINT[table]
  header = [
      '', 'return %', '95 %', 'seeds', f'minus {BASELINE}', 'p',
      *(f'{name} %' for name in _QUALITY[table]), 'response s', 'tokens/s',
      'tokens a task', 'calls a task', 'updates', 'budget used',
      'generated tokens', 'minutes', *reported]
  return text.Table(
      title, header, [
          [name, *_quality(row, name, rows.get(BASELINE), table), *_cost(row),
           *(column.get(kind, {}).get(name, '')
             for column in reported.values())]
          for name, row in rows.items()],
      _NOTE.format(success=_SUCCESS[table]))


def _quality(
    row: rows_lib.Row, title: str, baseline: rows_lib.Row | None,
    table: str) -> list[str]:
  """All columns from `return %` to the success."""
  returns = _returns(row, table)
  metrics = [
      _metrics(found['reward_terms'], table) for found in row.evaluations]
  difference = p = ''
  if baseline is not None and title != BASELINE:
    others = _returns(baseline, table)
    difference = text.signed(f'{100 * (returns.mean() - others.mean()):+.1f}')
    if min(len(returns), len(others)) > 1:
      p = text.p_value(statistics.p_value(returns, others, row.clusters))
  return [
      f'{100 * returns.mean():.1f}',
      text.interval(*statistics.mean_interval(returns, row.clusters))
      if len(returns) > 1 else '',
      str(len(returns)), difference, p,
      *(f'{100 * np.mean([x[name] for x in metrics]):.1f}'
        for name in _QUALITY[table][:-1]),
      f'{100 * row.success:.1f}']


def _returns(row: rows_lib.Row, table: str) -> np.ndarray:
  """[seeds, tasks] float, 0 to 1."""
  returns = np.array(
      [found['returns'] for found in row.evaluations], np.float64)
  if table == 'functions':  # Each turn is paid.
    returns /= np.array([[x['mean_turns']] for x in row.evaluations])
  return returns


def _metrics(terms: Mapping[str, float], table: str) -> dict[str, float]:
  if table == 'writing':
    return rewards.paper_metrics(terms)
  return {name: terms[name] / most for name, most in _POINTS.items()}


def _cost(row: rows_lib.Row) -> list[str]:
  """All columns from `response s` to `minutes`."""
  calls = np.mean([
      found['budget']['model_calls'] / found['num_tasks']
      for found in row.evaluations])
  played = [
      *(f'{np.mean([found[name] for found in row.timed]):{form}}'
        if row.timed else ''
        for name, form in (
            ('response_seconds', '.2f'), ('tokens_per_second', '.0f'))),
      f'{row.tokens_a_task:.0f}', f'{calls:g}']
  if not row.steps:
    return [*played, *[''] * 4]
  return [
      *played, text.updates(row.num_updates()), text.shares(row.budget_used),
      text.short(row.total(records.LEDGER['generated tokens'])),
      f'{row.total("time/step") / 60:.1f}']
