"""problem_tables.py: success on benchmarks of mathematics and code."""

import pytest

from atgrpo_jax import errors
from paper import cells
from paper import problem_cells
from paper import problem_tables
from tests.paper import finished_runs

_run = finished_runs.run


def _read(table):
  return {row[0]: dict(zip(table.header, row)) for row in table.rows}


def test_a_small_task_is_tested_where_it_is_trained():
  table, = problem_tables.make_tables({
      'problems/maths/at_grpo/seed-0': _run(before=5, after=40),
      'problems/maths/at_grpo/seed-1': _run(before=5, after=38),
      'problems/maths/sa_grpo/seed-0': _run(
          before=1, after=20, budget=1_000_000)})
  assert table.title == 'Word problems: problems'
  rows = _read(table)
  assert list(rows) == [
      'Single agent', 'Single agent + GRPO', 'Team', 'Team + AT-GRPO, shared']
  assert [rows[name]['success %'] for name in rows] == [
      '2.0', '40.0', '10.0', '78.0']
  assert rows['Single agent + GRPO'].items() >= {
      'minus AT-GRPO': '−38.0', 'p': '', 'budget used': '120 %',
      'paper, 8B': ''}.items()
  assert rows['Team']['minutes'] == '' != rows['Single agent + GRPO']['minutes']


def test_a_benchmark_stands_beside_what_the_paper_reports():
  table, = problem_tables.make_tables({
      f'problems/contests/{row}/apps/seed-0': _run(evaluation=number)
      for row, number in (('untrained_solo', 1), ('at_grpo', 10))})
  assert table.title == 'APPS: problems'
  rows = _read(table)
  assert rows['Single agent'].items() >= {
      'success %': '2.0', 'paper, 1.7B': '16.2', 'paper, 8B': '30.2'}.items()
  assert rows['Team + AT-GRPO, shared'].items() >= {
      'success %': '20.0', 'paper, 1.7B': '17.6', 'minutes': ''}.items()


def test_rows_on_other_tasks_are_refused():
  with pytest.raises(errors.UserError, match='APPS: problems.*different tasks'):
    problem_tables.make_tables({
        'problems/contests/at_grpo/apps/seed-0': _run(evaluation=1),
        'problems/contests/sa_grpo/apps/seed-0': _run(
            evaluation=1, split_hash='other')})


@pytest.mark.parametrize('scale', ['nano', '8b'])
def test_every_row_has_its_cells(scale):
  paths = {
      cell.path.removesuffix('/seed-0')
      for cell in cells.make_cells(scale, 1)
      if cell.path.startswith('problems/')}
  wanted = {
      f'problems/{task}/{system}'
      for task, systems in problem_cells.SYSTEMS.items() for system in systems}
  if scale != 'nano':
    wanted |= {
        f'problems/{task}/{row}/{benchmark}'
        for task, benchmarks in problem_cells.BENCHMARKS.items()
        for benchmark in benchmarks
        for row, *_ in problem_tables.ROWS.values()
        if task == 'maths' or 'tool' not in row}
  assert paths == wanted


def test_an_untrained_team_plays_as_many_turns_as_a_trained_one():
  configs = {
      cell.path: cell.config for cell in cells.make_cells('1.7b', 1)
      if cell.mode == 'evaluate'}
  for task, benchmarks in problem_cells.BENCHMARKS.items():
    for before, after in (
        ('untrained_pair', 'at_grpo'), ('untrained_solo', 'sa_grpo'),
        *[('untrained_tool', 'sa_tool_grpo')] * (task == 'maths')):
      for name in benchmarks:
        paths = (
            f'problems/{task}/{row}/{name}/seed-0' for row in (before, after))
        assert len({configs[path] for path in paths}) == 1
