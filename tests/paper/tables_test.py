"""tables.py: what stands in the tables, where, and which runs they are of."""

import numpy as np
import pytest

from atgrpo_jax import errors
from paper import records
from paper import rows as rows_lib
from paper import statistics
from paper import tables
from paper import text
from tests.paper import finished_runs

NUM_TASKS = finished_runs.NUM_TASKS
MAIN = 'main/plan_path'


def _rows(table):
  return {row[0]: dict(zip(table.header, row)) for row in table.rows}


def _main_table(runs):
  table, = tables.main_tables(rows_lib.read_systems(runs))
  return table


def _ablations(runs):
  return {
      table.title.removeprefix('Plan-Path: '): table
      for table in tables.ablation_tables(runs)}


def test_systems_beside_the_paper():
  rows = _rows(_main_table(finished_runs.some()))
  low, high = statistics.success_interval(
      np.arange(NUM_TASKS) < np.array([[48], [46]]), range(NUM_TASKS))
  assert rows['Team + AT-GRPO, shared'].items() >= {
      'success %': '94.0', '95 %': f'{100 * low:.1f} … {100 * high:.1f}',
      'seeds': '2', 'compared with': '', 'minus that': '', 'p': '',
      'turns an episode': '2.50', 'turns to solve': '1.50',
      'tokens a task': '24', 'updates': '3', 'budget used': '',
      'generated tokens': '1.2 M', 'prompt tokens': '3 k',
      'model calls': '21', 'minutes': '2.0', 'peak GiB': '1.3',
      'paper, 1.7B': '96', 'paper, 8B': '93'}.items()
  assert rows['Team + GRPO, by task'].items() >= {
      'compared with': 'Team + AT-GRPO, shared', 'minus that': '−70.0',
      'p': '< 0.0001'}.items()
  assert rows['Team'].items() >= {'success %': '10.0', 'minutes': ''}.items()
  # What only the paper has is there too; what nobody has is not.
  assert rows['Single agent'].items() >= {
      'success %': '', 'paper, 8B': '12'}.items()
  assert 'Team + GRPO, by task and turn' not in rows


def test_ablations():
  found = _ablations(finished_runs.some())
  assert found.keys() == {'reward', 'roles', 'group_size'}
  reward, roles = _rows(found['reward']), _rows(found['roles'])
  sizes = _rows(found['group_size'])
  assert reward['as in the first table']['success %'] == '94.0'
  assert roles['trained together']['success %'] == '98.0'
  assert sizes['unchanged']['success %'] == '84.0'
  assert list(sizes) == ['unchanged', '2', '16']
  # One seed tells nothing of others.
  assert reward['outcome'].items() >= {
      'success %': '0.0', 'turns to solve': '', 'turns an episode': '2.50',
      'seeds': '1', '95 %': '', 'p': ''}.items()
  assert roles['swapped'].items() >= {
      'success %': '6.0', 'minus that': '−92.0', 'paper, 1.7B': '6',
      'seeds': '1', '95 %': '', 'p': ''}.items()


def test_updates_and_the_share_of_the_budget():
  runs = {}
  for seed, (tool, planner) in enumerate([(30, 27), (31, 29), (32, 28)]):
    # 1.2 M tokens each.
    runs[f'{MAIN}/at_grpo_per_role/seed-{seed}'] = finished_runs.run(
        after=49, updates={'tool': tool, 'planner': planner},
        budget=1_220_000 + 5_000 * seed)
    runs[f'{MAIN}/mas_grpo/seed-{seed}'] = finished_runs.run(
        after=10, updates={'shared': 47 + seed},
        budget=1_200_000 + 25_000 * seed)
  rows = _rows(_main_table(finished_runs.some() | runs))
  assert rows['Team + AT-GRPO, per role'].items() >= {
      'updates': 'planner 28, tool 31', 'budget used': '98 %'}.items()
  assert rows['Team + GRPO, by task'].items() >= {
      'updates': '48', 'budget used': '98 % (96 … 100)'}.items()


def test_all_games():
  assert not tables.games_table(rows_lib.read_systems(finished_runs.some()))
  nums = {'plan_path': (48, 46), 'sokoban': (30, 40), 'sudoku': (50, 49, 50)}
  runs = {}
  for task, solved in nums.items():
    sure = [50] * len(solved)
    runs |= finished_runs.seeds(f'main/{task}/at_grpo', *solved)
    runs |= finished_runs.seeds(f'main/{task}/at_grpo_lora', *sure)
    # One seed is not enough, on whatever game.
    runs |= finished_runs.seeds(
        f'main/{task}/mas_grpo', *sure[:1 if task == 'sokoban' else 2])
  table, = tables.games_table(rows_lib.read_systems(runs))
  assert table.title == 'All games (Plan-Path, Sokoban, Sudoku): systems'
  rows = _rows(table)
  assert rows.keys() == {
      'Team + AT-GRPO, shared', 'Team + AT-GRPO, adapter per role'}
  low, high = statistics.bootstrap_interval(
      [np.array(solved) / NUM_TASKS for solved in nums.values()],
      statistics.mean_over_games)
  assert rows['Team + AT-GRPO, shared'].items() >= {
      'mean %': f'{(94 + 70 + 298 / 3) / 3:.1f}',
      'IQM %': f'{(92 + 96 + 98 + 100 + 80) / 5:.1f}',
      '95 % of the mean': f'{100 * low:.1f} … {100 * high:.1f}',
      'seeds of each game': '2, 2, 3'}.items()
  # All seeds are alike: no seed drawn anew says how sure that is.
  assert rows['Team + AT-GRPO, adapter per role'].items() >= {
      'mean %': '100.0', 'IQM %': '100.0', '95 % of the mean': '',
      '95 % of the IQM': ''}.items()


def test_nothing_is_no_number():
  """All seeds alike, in one row, in both, and with nothing solved."""
  table = _main_table({
      **finished_runs.seeds(f'{MAIN}/at_grpo', 50, 50, 50),
      **finished_runs.seeds(f'{MAIN}/mas_grpo', 50, 50, 50),
      **finished_runs.seeds(f'{MAIN}/mas_grpo_turn', 0, 0, 0)})
  assert 'nan' not in table.markdown()
  assert [row['p'] for row in _rows(table).values() if row['p']] == [
      '1.0000', '< 0.0001']


def test_rows_are_compared_in_equal_steps():
  rollout = 'rollout/plan_path'
  rows = _rows(_ablations({
      **finished_runs.some(),
      **finished_runs.seeds(f'{rollout}/tree_immediate', 45),
      **finished_runs.seeds(f'{rollout}/parallel_immediate', 20, 20),
  })['rollout'])
  # Of what it is compared with there is one seed.
  assert rows['parallel_immediate'].items() >= {
      'compared with': 'tree_immediate', 'minus that': '−50.0', 'p': '',
      'seeds': '2'}.items()
  assert rows['parallel_immediate']['95 %']
  assert rows['tree_immediate'].items() >= {
      'compared with': 'unchanged', 'minus that': '+6.0'}.items()
  assert not rows['unchanged']['compared with']


def test_credit():
  # Only the last two of three steps are diagnosed; the planner has no signal.
  logged = [
      {'tool/without_signal': 0.25, 'tool/advantage_mean': -1e-9,
       'tool/advantage_std': 0.5},
      {'tool/without_signal': 0.75, 'tool/advantage_mean': 1e-9,
       'tool/advantage_std': 1.0, 'diagnosis/tool/grad_norm': 2.0,
       'diagnosis/tool/entropy': 0.5, 'diagnosis/tool/kl_to_start': 0.1,
       'diagnosis/cosine/tool+planner': -0.25, 'planner/without_signal': 1.0},
      {'tool/without_signal': 0.5, 'diagnosis/tool/kl_to_start': 0.3}]
  runs = finished_runs.seeds(f'{MAIN}/at_grpo', 48, 46)
  for run in runs.values():
    for step, values in zip(run.steps, logged):
      step.update(values)
  table, = tables.credit_tables(rows_lib.read_systems(runs))
  assert table.title.startswith('Plan-Path: credit')
  assert [list(row) for row in table.rows] == [
      ['Team + AT-GRPO, shared: planner',
       '100.000', '', '', '', '', '', '−0.250'],
      ['Team + AT-GRPO, shared: tool',
       '50.000', '0.000', '0.750', '2.000', '0.500', '0.300', '−0.250']]


def test_cross_play():
  table, = tables.cross_play_tables(finished_runs.some())
  assert list(table.header) == ['', 'planner-0', 'tool-0']
  assert [list(row) for row in table.rows] == [['tool-0', '80.0', '50.0']]


# The files, and the runs that they are of.


def _make(out='', keep='', results=''):
  return tables.make(str(out), str(keep), str(results))


def _texts(paths):
  return [path.read_text() for path in paths if path.suffix != '.png']


def test_files(tmp_path):
  out, kept = tmp_path / 'out', tmp_path / 'kept'
  finished_runs.write(out, finished_runs.some())
  paths = _make(out)
  markdown, latex = _texts(paths)
  assert {path.parent for path in paths} == {out / 'tables'}
  drawn = {path.name: path for path in paths if path.suffix == '.png'}
  assert drawn.keys() == {
      f'plan_path_{name}.png' for name in ('success', 'turns', 'rollout')}
  for path in drawn.values():
    assert path.read_bytes().startswith(b'\x89PNG')
  for block in markdown.split('## ')[1:]:
    assert len({x.count('|') for x in block.splitlines() if x[:1] == '|'}) == 1
  assert r'Plan-Path: group\_size. ' in latex and r'success \%' in latex
  assert markdown.count('played alone') == latex.count('played alone') == 1
  assert latex.count(r'\begin{tab') == latex.count(r'\end{tab') == 10
  assert '…' not in latex and '−' not in latex
  # What is kept gives the same.
  for again in (_make(out, kept), _make(results=kept)):
    assert {path.parent for path in again} == {kept}
    assert [path.read_bytes() for path in again] == [
        path.read_bytes() for path in paths]


@pytest.fixture
def no_curves(monkeypatch):
  monkeypatch.setattr(tables.curves, 'draw', lambda *args: [])


def test_finished_runs_are_added_to_what_is_kept(tmp_path, no_curves):
  first, second, third, kept = (tmp_path / name for name in 'abck')
  shared, grpo = f'{MAIN}/at_grpo', f'{MAIN}/mas_grpo'
  finished_runs.write(first, finished_runs.seeds(shared, 48, 46))
  finished_runs.write(second, {
      f'{shared}/seed-1': finished_runs.run(after=20),  # Run again.
      **finished_runs.seeds(grpo, 10),
      f'{shared}/seed-0': finished_runs.run(before=5),  # Being run again.
      f'{grpo}/seed-1': finished_runs.run(before=5)})
  _make(first, kept)
  markdown, _ = _texts(_make(second, kept))
  assert [(workdir, run.evaluations['after']['success'])
          for workdir, run in records.read(kept).items()] == [
              (f'{shared}/seed-0', 0.96), (f'{shared}/seed-1', 0.4),
              (f'{grpo}/seed-0', 0.2)]
  assert '| Team + AT-GRPO, shared | 68.0 |' in markdown
  assert '| Team + GRPO, by task | 20.0 |' in markdown
  # Runs that do not compare with those that are kept leave them as they are.
  finished_runs.write(third, finished_runs.seeds(grpo, 10, split_hash='other'))
  before = [path.read_text() for path in sorted(kept.iterdir())]
  with pytest.raises(errors.UserError, match='different tasks'):
    _make(third, kept)
  assert [path.read_text() for path in sorted(kept.iterdir())] == before


@pytest.mark.parametrize('given, words', [
    ({}, '--out.*--results'), ({'out': 'a', 'results': 'b'}, '--out.*or'),
    ({'results': 'a', 'keep': 'b'}, '--out.*--keep.*or'),
    ({'out': 'a'}, 'a holds no finished run.*paper.sh'),
    ({'results': 'a'}, 'Cannot read kept results.*a/splits.jsonl')])
def test_flags_that_give_no_tables(tmp_path, monkeypatch, given, words):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(errors.UserError, match=words):
    _make(**given)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('row, words', [
    ('group_size/plan_path/unchanged', 'unchanged.*give it another'),
    (f'{MAIN}/at_grpo_per_role', 'Plan-Path: systems.*different')])
def test_rows_that_are_refused(tmp_path, row, words):
  runs = finished_runs.some() | finished_runs.seeds(row, 1, split_hash='other')
  with pytest.raises(errors.UserError, match=words):
    tables.make_tables(runs, tmp_path)


def test_rows_of_other_sandboxes_are_refused(tmp_path):
  # Bite: programs that could do other things count as one comparison.
  row = f'{MAIN}/at_grpo_per_role'
  runs = finished_runs.some()
  mixed = runs | finished_runs.seeds(row, 1, sandbox='bwrap')
  with pytest.raises(errors.UserError, match='levels .bwrap, kernel. and'):
    tables.make_tables(mixed, tmp_path)
  mixed = (finished_runs.seeds(row, 1)
           | {f'{row}/seed-1': finished_runs.run(after=1, sandbox='bwrap')})
  with pytest.raises(errors.UserError, match='seeds of .*levels .bwrap, kern'):
    tables.make_tables(mixed, tmp_path)


def test_numbers_are_short():
  assert [text.short(x) for x in (
      0.0, 999.4, 999.6, 12_340, 999_700, 2.5e9)] == [
          '0', '999', '1 k', '12.3 k', '1 M', '2.5 G']
