"""The tables of AT-GRPO's mathematics and code: success on each benchmark."""

from __future__ import annotations

from paper import problem_cells
from paper import published
from paper import records
from paper import rows as rows_lib
from paper import statistics
from paper import text

# Title -> row; of nano, where nothing but training is run, the evaluation.
ROWS = {
    'Single agent': ('untrained_solo', 'sa_grpo', 'before'),
    'Single agent + GRPO': ('sa_grpo', 'sa_grpo', 'after'),
    'Single agent with the tool': ('untrained_tool', 'sa_tool_grpo', 'before'),
    'Single agent with the tool + GRPO':
        ('sa_tool_grpo', 'sa_tool_grpo', 'after'),
    'Team': ('untrained_pair', 'at_grpo', 'before'),
    'Team + GRPO, by task': ('mas_grpo', 'mas_grpo', 'after'),
    'Team + AT-GRPO, shared': ('at_grpo', 'at_grpo', 'after'),
    'Team + AT-GRPO, per role':
        ('at_grpo_per_role', 'at_grpo_per_role', 'after'),
}
_NOT_PUBLISHED = '', '', ''  # A row that the paper's tables do not have.
_NOTE = (
    '95 %: interval of the success of new seeds on new tasks. p: two-sided t '
    'test of the difference on the same tasks, not corrected for the number of '
    'rows. Both count seeds and tasks as drawn at random; one seed gives '
    'neither. budget used: share of the tokens that a run was allowed to '
    "generate, those of AT-GRPO's.")


def make_tables(runs: records.Runs) -> list[text.Table]:
  """A table for each benchmark of which a run is finished."""
  tables = []
  for task, benchmarks in problem_cells.BENCHMARKS.items():
    small, small_title = problem_cells.SMALL[task]
    tables += [
        _make_table(small, small_title, {
            title: rows_lib.read_row(runs, f'problems/{task}/{row}', name)
            for title, (_, row, name) in ROWS.items()})]
    tables += [
        _make_table(benchmark, benchmark_title, {
            title: rows_lib.read_row(
                runs, f'problems/{task}/{row}/{benchmark}', 'evaluation')
            for title, (row, _, _) in ROWS.items()})
        for benchmark, benchmark_title in benchmarks.items()]
  return [table for table in tables if table is not None]


def _make_table(
    benchmark: str, title: str,
    found: dict[str, rows_lib.Row | None]) -> text.Table | None:
  rows = {name: row for name, row in found.items() if row is not None}
  if not rows:
    return None
  rows_lib.check_comparable(f'{title}: problems', rows.values())
  baseline = rows.get(rows_lib.AT_GRPO)
  header = [
      '', 'success %', '95 %', 'seeds', 'minus AT-GRPO', 'p', 'turns',
      'tokens a task', 'updates', 'budget used', *records.LEDGER, 'minutes',
      'paper, 1.7B', 'paper, 8B']
  return text.Table(f'{title}: problems', header, [
      [name, *_success(row, None if name == rows_lib.AT_GRPO else baseline),
       *_cost(row),
       *published.of_qwen3(
           rows_lib.SYSTEMS.get(name, _NOT_PUBLISHED)[2], benchmark)]
      for name, row in rows.items()], _NOTE)


def _success(
    row: rows_lib.Row, baseline: rows_lib.Row | None) -> list[str]:
  """All columns from `success %` to `p`."""
  several = len(row.successes) > 1
  difference = p = ''
  if baseline is not None:
    difference = text.signed(f'{100 * (row.success - baseline.success):+.1f}')
    if several and len(baseline.successes) > 1:
      p = text.p_value(statistics.p_value(
          row.successes, baseline.successes, row.clusters))
  return [
      f'{100 * row.success:.1f}',
      text.interval(*statistics.success_interval(row.successes, row.clusters))
      if several else '',
      str(len(row.successes)), difference, p]


def _cost(row: rows_lib.Row) -> list[str]:
  """All columns from `turns` to `minutes`."""
  played = [f'{row.turns:.2f}', f'{row.tokens_a_task:.0f}']
  if not row.steps:
    return played + [''] * (3 + len(records.LEDGER))
  return [
      *played, text.updates(row.num_updates()), text.shares(row.budget_used),
      *(text.short(row.total(metric)) for metric in records.LEDGER.values()),
      f'{row.total("time/step") / 60:.1f}']
