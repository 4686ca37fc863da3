"""Content of each table, and the runs that tables and records are made of."""

import itertools

import pytest

from atgrpo_jax import errors
from paper import depot_tables
from paper import records as records_lib
from paper import rows as rows_lib
from paper import tables
from tests import checkout
from tests.paper import finished_runs

NUM_TASKS = finished_runs.NUM_TASKS
MAIN = 'main/plan_path'
STORED = checkout.ROOT / 'paper/results/nano'
_run = finished_runs.run


def _read(table):
  """Title of a row -> column -> text."""
  return {line[0]: dict(zip(table.columns, line)) for line in table.lines()}


def test_every_trained_system_has_a_row():
  experiments = tables.experiments
  assert {system for system, _, _ in rows_lib.SYSTEMS.values()} == {
      *experiments.GAME_SYSTEMS,
      *itertools.chain(*experiments.PROBLEM_SYSTEMS.values())}


def test_ablations():
  found = {
      table.title.removeprefix('Plan-Path: '): table
      for table in tables.ablation_tables(finished_runs.some())}
  assert found.keys() == {'reward', 'roles', 'agents'}
  reward, roles, agents = (
      _read(found[name]) for name in ('reward', 'roles', 'agents'))
  assert reward['as in the first table']['success %'] == '94.0'
  assert roles['trained together']['success %'] == '98.0'
  assert list(agents) == ['2', '3', '16']
  # One seed has no interval and no p.
  assert reward['outcome'].items() >= {
      'success %': '0.0', 'turns to solve': '', 'turns an episode': '2.50',
      'seeds': '1, pilot', '95 %': '', 'p': '', 'p (Holm)': ''}.items()
  assert roles['swapped'].items() >= {
      'success %': '6.0', 'minus that': '−92.0', 'paper, 1.7B': '6'}.items()


@pytest.mark.parametrize('row', [
    f'{MAIN}/at_grpo_per_role', 'problems/contests/sa_grpo/apps'])
@pytest.mark.parametrize('changes, named', [
    ({'split_hash': 'other'}, 'different tasks'),
    ({'sandbox': 'bwrap'}, 'bwrap, kernel')])
def test_rows_of_other_tasks_or_sandboxes_are_refused(
    tmp_path, row, changes, named):
  name = 'after' if row.startswith(MAIN) else 'evaluation'
  changed = _run(f'{row}/seed-1', **{name: 1}, **changes)
  for other in (row.replace('sa_grpo', 'at_grpo'), row):
    mixed = finished_runs.merge(
        finished_runs.some(), _run(f'{other}/seed-0', **{name: 1}), changed)
    with pytest.raises(errors.UserError, match=named):
      tables.write_tables(mixed, tmp_path)


@pytest.mark.parametrize('name, remedy', [
    ('after', 'evals/after.json'), ('before', 'workdir')])
def test_tasks_without_a_result_are_refused(name, remedy):
  runs = _run(f'{MAIN}/at_grpo/seed-0', before=5, after=9)
  evaluation = runs.evaluations[f'{MAIN}/at_grpo/seed-0', name]
  evaluation['successes'] = '-' + evaluation['successes'][1:]
  with pytest.raises(errors.UserError, match=f'{name}.*delete its {remedy}'):
    rows_lib.read_row(runs, f'{MAIN}/at_grpo', name)


# The files.


@pytest.fixture
def no_curves(monkeypatch):
  for module, name in ((tables, 'draw_curves'), (depot_tables, 'draw')):
    monkeypatch.setattr(module, name, lambda *args: [])


@pytest.mark.parametrize('scale', ['nano', '135m', 'coder-0.5b'])
def test_stored_tables_and_records_are_reproduced(scale, tmp_path, no_curves):
  stored = STORED.parent / scale
  records = records_lib.read(stored)
  tables.write_tables(records, tmp_path)
  records_lib.write(tmp_path, records)
  for path in tmp_path.iterdir():
    assert path.read_bytes() == (stored / path.name).read_bytes()
  assert len(list(tmp_path.iterdir())) == 5


def test_every_stored_row_has_jobs():
  records = records_lib.read(STORED)
  rows, jobs = (
      {path.rpartition('/')[0] for path in paths} for paths in (
          (*records.workdirs(), *records.curves),
          [job.path for job in tables.experiments.make_jobs('nano', 1)]))
  assert records.curves and rows <= jobs, rows - jobs


def test_curves_are_drawn(tmp_path):
  path = tmp_path / 'depot.png'
  systems = rows_lib.read_systems(finished_runs.some(), MAIN)
  drawn = tables.draw_curves({'plan_path': systems}, tmp_path)
  assert drawn == [tmp_path / 'plan_path_success.png']
  assert depot_tables.draw(records_lib.read(STORED), path) == [path]
  assert all(x.stat().st_size > 10_000 for x in (*drawn, path))
  assert not depot_tables.draw(finished_runs.some(), path)


def test_finished_runs_are_added_to_records(tmp_path, no_curves):
  first, second, third, kept = (tmp_path / name for name in 'abck')
  shared, grpo = f'{MAIN}/at_grpo', f'{MAIN}/mas_grpo'
  finished_runs.write(first, finished_runs.seeds(shared, 48, 46))
  finished_runs.write(second, finished_runs.merge(
      _run(f'{shared}/seed-1', after=20),  # Replaces the stored run.
      finished_runs.seeds(grpo, 10),
      _run(f'{shared}/seed-0', before=5),  # Unfinished.
      _run(f'{grpo}/seed-1', before=5)))
  from_workdirs = tables.make(str(first), '', '')
  from_records = tables.make(str(first), str(kept), '')
  for path, other in zip(from_workdirs, from_records, strict=True):
    assert path.read_text() == other.read_text()

  markdown, = tables.make(str(second), str(kept), '')
  assert {key: found['success'] for key, found in records_lib.read(
      kept).evaluations.items()} == {
          (f'{shared}/seed-0', 'after'): 0.96,
          (f'{shared}/seed-1', 'after'): 0.4,
          (f'{grpo}/seed-0', 'after'): 0.2}
  assert '| Team + AT-GRPO | 68.0 |' in markdown.read_text()
  before = [path.read_text() for path in sorted(kept.iterdir())]
  tables.make('', '', str(kept))
  # Runs that do not compare leave the records unchanged.
  finished_runs.write(third, finished_runs.seeds(grpo, 10, split_hash='other'))
  with pytest.raises(errors.UserError, match='different tasks'):
    tables.make(str(third), str(kept), '')
  assert [path.read_text() for path in sorted(kept.iterdir())] == before
