"""tables.py: what stands in the tables, and where."""

import numpy as np
import pytest

from atgrpo_jax import errors
from paper import cells
from paper import published
from paper import statistics
from paper import tables
from paper import workdirs
from tests.paper import finished_runs

NUM_TASKS = finished_runs.NUM_TASKS


def _rows(table):
  return {row[0]: dict(zip(table.header, row)) for row in table.rows}


def _main_table(results):
  table, = tables.main_tables(workdirs.read_systems(results))
  return table


def _main_rows(results):
  return _rows(_main_table(results))


def _ablations(results):
  return {
      table.title.removeprefix('Plan-Path: '): table
      for table in tables.ablation_tables(results)}


def test_systems_beside_the_paper(results):
  rows = _main_rows(results)
  ours = rows['Team + AT-GRPO, shared']
  assert ours['success %'] == '94.0' and ours['seeds'] == '2'
  assert (ours['paper, 1.7B'], ours['paper, 8B']) == ('96', '93')
  assert ours['compared with'] == ours['minus that'] == ours['p'] == ''
  assert ours['generated tokens'] == '1.2 M' and ours['minutes'] == '2.0'
  assert ours['prompt tokens'] == '3 k' and ours['model calls'] == '21'
  assert ours['peak GiB'] == '1.3' and ours['updates'] == '3'
  assert ours['turns an episode'] == '2.50'
  assert ours['turns to solve'] == '1.50' and ours['tokens a task'] == '24'
  grpo = rows['Team + GRPO, by task']
  assert grpo['compared with'] == 'Team + AT-GRPO, shared'
  assert grpo['minus that'] == '−70.0' and grpo['p'] == '< 0.0001'
  low, high = statistics.success_interval(
      np.array([finished_runs.solved(48), finished_runs.solved(46)]),
      range(NUM_TASKS))
  assert ours['95 %'] == f'{100 * low:.1f} … {100 * high:.1f}'
  before = rows['Team']
  assert before['success %'] == '10.0' and before['minutes'] == ''
  # What only the paper has is there too; what nobody has is not.
  assert rows['Single agent']['success %'] == ''
  assert rows['Single agent']['paper, 8B'] == '12'
  assert 'Team + GRPO, by task and turn' not in rows


def test_ablations(results):
  found = _ablations(results)
  assert found.keys() == {'reward', 'roles', 'group_size'}
  reward = _rows(found['reward'])
  assert reward['as in the first table']['success %'] == '94.0'
  assert reward['outcome']['success %'] == '0.0'
  assert reward['outcome']['turns to solve'] == ''
  assert reward['outcome']['turns an episode'] == '2.50'
  roles = _rows(found['roles'])
  assert roles['trained together']['success %'] == '98.0'
  # One seed tells nothing of others.
  assert roles['swapped']['minus that'] == '−92.0'
  for row in (reward['outcome'], *roles.values()):
    assert row['seeds'] == '1' and row['95 %'] == row['p'] == ''
  assert roles['swapped']['success %'] == '6.0'
  assert roles['swapped']['paper, 1.7B'] == '6'
  assert 'played alone' in found['roles'].note
  sizes = _rows(found['group_size'])
  assert list(sizes) == ['unchanged', '2', '16']
  assert sizes['unchanged']['success %'] == '84.0'


def test_updates_are_those_of_each_optimiser(results):
  main = results / 'main/plan_path'
  for seed, (tool, planner) in enumerate([(30, 27), (31, 29), (32, 28)]):
    finished_runs.write(
        main / 'at_grpo_per_role', seed, 49, steps=100,
        updates={'tool': tool, 'planner': planner})
    finished_runs.write(
        main / 'mas_grpo', seed, 10, steps=683, updates={'shared': 47 + seed})
  rows = _main_rows(results)
  assert rows['Team + AT-GRPO, per role']['updates'] == 'tool 31, planner 28'
  assert rows['Team + GRPO, by task']['updates'] == '48'


def test_the_share_of_the_budget_that_was_used(results):
  # All generate 1.2 M tokens.
  for row, budgets in (('mas_grpo', (1_200_000, 1_250_000)),
                       ('at_grpo_per_role', (1_220_000, 1_230_000))):
    for seed, budget in enumerate(budgets):
      finished_runs.write(
          results / 'main/plan_path' / row, seed, 10, budget=budget)
  rows = _main_rows(results)
  assert rows['Team + GRPO, by task']['budget used'] == '98 % (96 … 100)'
  assert rows['Team + AT-GRPO, per role']['budget used'] == '98 %'
  assert rows['Team + AT-GRPO, shared']['budget used'] == ''
  assert rows['Team']['budget used'] == ''


def test_tasks_of_a_kind_are_counted_together(results):
  found = {}
  for clusters in (np.arange(NUM_TASKS), np.arange(NUM_TASKS) // 10 * 10):
    for row, nums in (('at_grpo', (48, 46)), ('mas_grpo', (38, 40))):
      for seed, num in enumerate(nums):
        for name in ('before', 'after'):
          finished_runs.write(
              results / 'main/plan_path' / row, seed, num, name=name,
              clusters=clusters.tolist())
    table = _main_table(results)
    num_clusters = len(set(clusters))
    assert f'50 tasks in {num_clusters} clusters' in table.note
    found[num_clusters] = _rows(table)['Team + GRPO, by task']
  assert found[50]['success %'] == found[5]['success %']
  assert float(found[50]['p']) < float(found[5]['p'])
  low = {num: float(row['95 %'].split()[0]) for num, row in found.items()}
  assert low[5] < low[50]


def test_all_games(results):
  assert not tables.games_table(workdirs.read_systems(results))
  nums = {'plan_path': (48, 46), 'sokoban': (30, 40), 'sudoku': (50, 49, 50)}
  for task, seeds in nums.items():
    main = results / 'main' / task
    for seed, num in enumerate(seeds):
      for row in ('at_grpo', 'mas_grpo'):
        finished_runs.write(main / row, seed, num)
      finished_runs.write(main / 'at_grpo_lora', seed, 50)
    # One seed is not enough, on whatever game.
    for seed in range(1 if task == 'sokoban' else 2):
      finished_runs.write(main / 'mas_grpo_turn', seed, 30)
  table, = tables.games_table(workdirs.read_systems(results))
  assert table.title == 'All games (Plan-Path, Sokoban, Sudoku): systems'
  rows = _rows(table)
  assert rows.keys() == {
      'Team + GRPO, by task', 'Team + AT-GRPO, shared',
      'Team + AT-GRPO, adapter per role'}
  row = rows['Team + AT-GRPO, shared']
  assert row['mean %'] == f'{(94 + 70 + 298 / 3) / 3:.1f}'
  assert row['IQM %'] == f'{(92 + 96 + 98 + 100 + 80) / 5:.1f}'
  scores = [np.array(seeds) / NUM_TASKS for seeds in nums.values()]
  low, high = statistics.bootstrap_interval(
      scores, statistics.mean_over_games)
  assert row['95 % of the mean'] == f'{100 * low:.1f} … {100 * high:.1f}'
  assert row['seeds of each game'] == '2, 2, 3'
  # All seeds are alike: no seed drawn anew says how sure that is.
  sure = rows['Team + AT-GRPO, adapter per role']
  assert sure['mean %'] == sure['IQM %'] == '100.0'
  assert sure['95 % of the mean'] == sure['95 % of the IQM'] == ''
  assert 'too narrow' in table.note


def test_nothing_is_no_number(results):
  """All seeds alike, in one row, in both, and with nothing solved."""
  for row, num in (('at_grpo', 50), ('mas_grpo', 50), ('mas_grpo_turn', 0),
                   ('at_grpo_per_role', 49)):
    for seed in range(3):
      finished_runs.write(results / 'main/plan_path' / row, seed, num)
  for path in tables.make_tables(results)[:2]:
    assert 'nan' not in path.read_text().lower().replace('nano', '')
  rows = _main_rows(results)
  assert rows['Team + GRPO, by task']['p'] == '1.0000'
  assert rows['Team + GRPO, by task and turn']['p'] == '< 0.0001'
  low, high = rows['Team + AT-GRPO, shared']['95 %'].split(' … ')
  assert float(low) < 94 and high == '100.0'


def test_rows_are_compared_in_equal_steps(results):
  rollout = results / 'rollout/plan_path'
  finished_runs.write(rollout / 'tree_immediate', 0, 45)
  # With one seed and with two; of what it is compared with there is one.
  for seed in (0, 1):
    finished_runs.write(rollout / 'parallel_immediate', seed, 20)
    rows = _rows(_ablations(results)['rollout'])
    parallel = rows['parallel_immediate']
    assert parallel['compared with'] == 'tree_immediate'
    assert parallel['minus that'] == '−50.0' and parallel['p'] == ''
    assert parallel['seeds'] == str(seed + 1)
    assert bool(parallel['95 %']) == (seed == 1)
  assert rows['tree_immediate']['compared with'] == 'unchanged'
  assert rows['tree_immediate']['minus that'] == '+6.0'
  assert not rows['unchanged']['compared with']


def test_credit(results):
  # Only the last two of three steps are diagnosed; the planner has no signal.
  steps = [
      {'tool/without_signal': 0.25, 'tool/advantage_mean': -1e-9,
       'tool/advantage_std': 0.5},
      {'tool/without_signal': 0.75, 'tool/advantage_mean': 1e-9,
       'tool/advantage_std': 1.0, 'diagnosis/tool/grad_norm': 2.0,
       'diagnosis/tool/entropy': 0.5, 'diagnosis/tool/kl_to_start': 0.1,
       'diagnosis/cosine/tool+planner': -0.25, 'planner/without_signal': 1.0},
      {'tool/without_signal': 0.5, 'diagnosis/tool/kl_to_start': 0.3}]
  for seed in (0, 1):
    finished_runs.write_steps(
        results / f'main/plan_path/at_grpo/seed-{seed}',
        [{'shared/num_updates': 3, **step} for step in steps])
  table, = tables.credit_tables(workdirs.read_systems(results))
  assert table.title.startswith('Plan-Path: credit')
  assert [list(row) for row in table.rows] == [
      ['Team + AT-GRPO, shared: planner',
       '100.000', '', '', '', '', '', '−0.250'],
      ['Team + AT-GRPO, shared: tool',
       '50.000', '0.000', '0.750', '2.000', '0.500', '0.300', '−0.250']]


def test_cross_play(results):
  table, = tables.cross_play_tables(results)
  assert list(table.header) == ['', 'planner-0', 'tool-0']
  assert [list(row) for row in table.rows] == [
      ['planner-0', '25.0', '25.0'], ['tool-0', '75.0', '75.0']]


def test_files(results):
  paths = {path.name: path for path in tables.make_tables(results)}
  assert paths.keys() >= {'tables.md', 'tables.tex', 'plan_path_success.png'}
  markdown = paths['tables.md'].read_text()
  for block in markdown.split('## ')[1:]:
    widths = {
        line.count('|') for line in block.splitlines() if line.startswith('|')}
    assert len(widths) == 1
  latex = paths['tables.tex'].read_text()
  assert r'Plan-Path: group\_size. ' in latex and r'success \%' in latex
  assert markdown.count('played alone') == latex.count('played alone') == 1
  for begin, end in ((r'\begin{table}', r'\end{table}'),
                     (r'\begin{tabular}', r'\end{tabular}')):
    assert latex.count(begin) == latex.count(end) == 5
  assert '…' not in latex and '−' not in latex


def test_nothing_to_tell(tmp_path):
  with pytest.raises(errors.UserError, match='no finished run.*paper.sh'):
    tables.make_tables(tmp_path)


def test_a_row_by_the_name_of_the_baseline_is_refused(results):
  finished_runs.write(results / 'group_size/plan_path/unchanged', 0, 1)
  with pytest.raises(errors.UserError, match='unchanged.*give it another'):
    tables.ablation_tables(results)


def test_what_is_no_cell_is_passed_over(tmp_path):
  (tmp_path / 'cross_play/plan_path/tool-0/tool-0').mkdir(parents=True)
  (tmp_path / 'cross_play/.DS_Store').touch()
  assert not tables.cross_play_tables(tmp_path)


@pytest.mark.parametrize('number, text', [
    (0.0, '0'), (999.4, '999'), (999.6, '1 k'), (12_340, '12.3 k'),
    (999_700, '1 M'), (2.5e9, '2.5 G')])
def test_numbers_are_short(number, text):
  assert tables._short(number) == text


def test_rows_on_other_tasks_are_not_compared(results):
  row = results / 'main/plan_path/at_grpo_per_role'
  finished_runs.write(row, 0, 1, split_hash='other')
  with pytest.raises(errors.UserError, match='Plan-Path: systems.*different'):
    _main_table(results)


def test_every_published_row_has_its_place():
  shown = {name for *_, name in workdirs.SYSTEMS.values()} | {
      cell.path.split('/')[2] for cell in cells.make_cells('nano', 1)}
  for table in (published.QWEN3_1_7B, published.QWEN3_8B):
    assert table.keys() <= shown
    assert {task for row in table.values() for task in row} <= set(cells.TASKS)
