"""paper_tables.py: from workdirs to tables and curves."""

import itertools
import json

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import paper
from atgrpo_jax import paper_statistics
from atgrpo_jax import paper_tables

NUM_TASKS = 50


def _write(
    folder, seed, successes, *, name='after', split_hash='abc', steps=3,
    updates=None, budget=0, clusters=range(NUM_TASKS)):
  workdir = folder / f'seed-{seed}'
  evaluate.write(workdir, name, {
      'num_tasks': NUM_TASKS,
      'successes': ''.join('01'[int(x)] for x in successes),
      'clusters': list(clusters),
      'success': float(np.mean(successes)), 'mean_turns': 2.5,
      'mean_turns_to_solve': 1.0 + seed if np.any(successes) else None,
      'budget': {'completion_tokens': 1200}, 'split_hash': split_hash})
  if name == 'after':
    (workdir / 'config.json').write_text(json.dumps(
        {'config': {'train': {'completion_tokens': budget}}}))
    (workdir / 'metrics.jsonl').write_text(''.join(
        json.dumps({
            'step': step, 'k1/success': step / steps, 'k1/turns_to_solve': 1.5,
            'spine/success': 0.5,
            'time/step': 40.0, 'memory/host_peak_gib': 1.0 + step / 10,
            'budget/completion_tokens': 400_000.0,
            'budget/prompt_tokens': 1_000.0, 'budget/model_calls': 7.0,
            'budget/program_runs': 0.0, 'budget/environment_steps': 30.0,
            **{f'{policy}/num_updates': step * count / steps
               for policy, count in (updates or {'shared': steps}).items()},
        }) + '\n' for step in range(1, steps + 1)))


def _successes(num):
  return np.arange(NUM_TASKS) < num


def _seeds(*nums):
  return np.array(list(map(_successes, nums)))


@pytest.fixture
def out(tmp_path_factory):
  """Two systems on two seeds, one of them measured before training too."""
  tmp_path = tmp_path_factory.mktemp('out')
  main = tmp_path / 'main/plan_path'
  for seed, (good, poor) in enumerate([(48, 10), (46, 14)]):
    _write(main / 'at_grpo', seed, _successes(good))
    _write(main / 'at_grpo', seed, _successes(5), name='before')
    _write(main / 'mas_grpo', seed, _successes(poor))
  _write(tmp_path / 'roles/plan_path/swapped', 0, _successes(3),
         name='evaluation')
  _write(main / 'at_grpo_per_role', 0, _successes(49))
  _write(tmp_path / 'reward/plan_path/outcome', 0, _successes(0))
  for size in ('2', '16'):
    _write(tmp_path / 'group_size/plan_path' / size, 0, _successes(40))
  _write(tmp_path / 'unchanged/plan_path/at_grpo', 0, _successes(42))
  for tool, planner in itertools.product(('tool-0', 'planner-0'), repeat=2):
    evaluate.write(
        tmp_path / f'cross_play/plan_path/{tool}/{planner}', 'evaluation',
        {'success': 0.25 + 0.5 * (tool == 'tool-0'), 'successes': '',
         'clusters': [], 'num_tasks': 0})
  return tmp_path


def _rows(table):
  return {row[0]: dict(zip(table.header, row)) for row in table.rows}


def test_systems_beside_the_paper(out):
  table, = paper_tables.main_tables(out)
  rows = _rows(table)
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
  low, high = paper_statistics.success_interval(
      _seeds(48, 46), range(NUM_TASKS))
  assert ours['95 %'] == f'{100 * low:.1f} … {100 * high:.1f}'
  before = rows['Team']
  assert before['success %'] == '10.0' and before['minutes'] == ''
  # What only the paper has is there too; what nobody has is not.
  assert rows['Single agent']['success %'] == ''
  assert rows['Single agent']['paper, 8B'] == '12'
  assert 'Team + GRPO, by task and turn' not in rows


def test_ablations(out):
  tables = {
      table.title: _rows(table) for table in paper_tables.ablation_tables(out)}
  assert tables.keys() == {
      f'Plan-Path: {name}' for name in ('reward', 'roles', 'group_size')}
  reward = tables['Plan-Path: reward']
  assert reward['as in the first table']['success %'] == '94.0'
  assert reward['outcome']['success %'] == '0.0'
  assert reward['outcome']['turns to solve'] == ''
  assert reward['outcome']['turns an episode'] == '2.50'
  roles = tables['Plan-Path: roles']
  assert roles['trained together']['success %'] == '98.0'
  # One seed tells nothing of others.
  assert roles['swapped']['minus that'] == '−92.0'
  for row in (reward['outcome'], *roles.values()):
    assert row['seeds'] == '1' and row['95 %'] == row['p'] == ''
  assert roles['swapped']['success %'] == '6.0'
  assert roles['swapped']['paper, 1.7B'] == '6'
  note = [table.note for table in paper_tables.ablation_tables(out)
          if table.title == 'Plan-Path: roles']
  assert 'played alone' in note[0]
  assert list(tables['Plan-Path: group_size']) == [
      'unchanged', '2', '16']
  unchanged = tables['Plan-Path: group_size']['unchanged']
  assert unchanged['success %'] == '84.0'


def test_updates_are_those_of_each_optimiser(out):
  main = out / 'main/plan_path'
  for seed, (tool, planner) in enumerate([(30, 27), (31, 29), (32, 28)]):
    _write(main / 'at_grpo_per_role', seed, _successes(49), steps=100,
           updates={'tool': tool, 'planner': planner})
    _write(main / 'mas_grpo', seed, _successes(10), steps=683,
           updates={'shared': 47 + seed})
  rows = _rows(paper_tables.main_tables(out)[0])
  assert rows['Team + AT-GRPO, per role']['updates'] == 'tool 31, planner 28'
  assert rows['Team + GRPO, by task']['updates'] == '48'


def test_the_share_of_the_budget_that_was_used(out):
  main = out / 'main/plan_path'
  # All generate 1.2 M tokens.
  _write(main / 'mas_grpo', 0, _successes(10), budget=1_200_000)
  _write(main / 'mas_grpo', 1, _successes(14), budget=1_250_000)
  _write(main / 'at_grpo_per_role', 0, _successes(49), budget=1_220_000)
  _write(main / 'at_grpo_per_role', 1, _successes(49), budget=1_230_000)
  rows = _rows(paper_tables.main_tables(out)[0])
  assert rows['Team + GRPO, by task']['budget used'] == '98 % (96 … 100)'
  assert rows['Team + AT-GRPO, per role']['budget used'] == '98 %'
  assert rows['Team + AT-GRPO, shared']['budget used'] == ''
  assert rows['Team']['budget used'] == ''


def test_tasks_of_a_kind_are_counted_together(out):
  main = out / 'main/plan_path'
  rows = {}
  for clusters in (np.arange(NUM_TASKS), np.arange(NUM_TASKS) // 10 * 10):
    for row, nums in (('at_grpo', (48, 46)), ('mas_grpo', (38, 40))):
      for seed, num in enumerate(nums):
        for name in ('before', 'after'):
          _write(main / row, seed, _successes(num), name=name,
                 clusters=clusters.tolist())
    table, = paper_tables.main_tables(out)
    assert f'50 tasks in {len(set(clusters))} clusters' in table.note
    rows[len(set(clusters))] = _rows(table)
  grpo = {num: of_one['Team + GRPO, by task'] for num, of_one in rows.items()}
  assert grpo[50]['success %'] == grpo[5]['success %']
  assert float(grpo[50]['p']) < float(grpo[5]['p'])
  least = {num: float(row['95 %'].split()[0]) for num, row in grpo.items()}
  assert least[5] < least[50]


def test_all_games(out):
  assert not paper_tables.games_table(out)
  nums = {'plan_path': (48, 46), 'sokoban': (30, 40), 'sudoku': (50, 49, 50)}
  for task, seeds in nums.items():
    for seed, num in enumerate(seeds):
      for row in ('at_grpo', 'mas_grpo', 'at_grpo_lora'):
        _write(out / 'main' / task / row, seed, _successes(
            50 if row == 'at_grpo_lora' else num))
    # One seed is not enough, on whatever game.
    for seed in range(1 if task == 'sokoban' else 2):
      _write(out / 'main' / task / 'mas_grpo_turn', seed, _successes(num))
  table, = paper_tables.games_table(out)
  rows = _rows(table)
  assert rows.keys() == {
      'Team + GRPO, by task', 'Team + AT-GRPO, shared',
      'Team + AT-GRPO, adapter per role'}
  row = rows['Team + AT-GRPO, shared']
  assert row['mean %'] == f'{(94 + 70 + 298 / 3) / 3:.1f}'
  assert row['IQM %'] == f'{(92 + 96 + 98 + 100 + 80) / 5:.1f}'
  scores = [np.array(seeds) / NUM_TASKS for seeds in nums.values()]
  low, high = paper_statistics.bootstrap_interval(
      scores, paper_statistics.mean_over_games)
  assert row['95 % of the mean'] == f'{100 * low:.1f} … {100 * high:.1f}'
  assert row['seeds of each game'] == '2, 2, 3'
  # All seeds are alike: no seed drawn anew says how sure that is.
  sure = rows['Team + AT-GRPO, adapter per role']
  assert sure['mean %'] == sure['IQM %'] == '100.0'
  assert sure['95 % of the mean'] == sure['95 % of the IQM'] == ''
  assert 'too narrow' in table.note
  text = paper_tables.make_tables(out)[0].read_text()
  assert 'All games (Plan-Path, Sokoban, Sudoku)' in text


def test_nothing_is_no_number(out):
  """All seeds alike, in one row, in both, and with nothing solved."""
  main = out / 'main/plan_path'
  for row, num in (('at_grpo', 50), ('mas_grpo', 50), ('mas_grpo_turn', 0),
                   ('at_grpo_per_role', 49)):
    for seed in range(3):
      _write(main / row, seed, _successes(num))
  paths = paper_tables.make_tables(out)
  for path in paths[:2]:
    assert 'nan' not in path.read_text().lower().replace('nano', '')
  rows = _rows(paper_tables.main_tables(out)[0])
  assert rows['Team + GRPO, by task']['p'] == '1.0000'
  assert rows['Team + GRPO, by task and turn']['p'] == '< 0.0001'
  low, high = rows['Team + AT-GRPO, shared']['95 %'].split(' … ')
  assert float(low) < 94 and high == '100.0'


def test_rows_are_compared_in_equal_steps(out):
  rollout = out / 'rollout/plan_path'
  _write(rollout / 'parallel_immediate', 0, _successes(20))
  _write(rollout / 'tree_immediate', 0, _successes(45))
  table, = [table for table in paper_tables.ablation_tables(out)
            if table.title == 'Plan-Path: rollout']
  rows = _rows(table)
  assert rows['parallel_immediate']['compared with'] == 'tree_immediate'
  assert rows['parallel_immediate']['minus that'] == '−50.0'
  # Of what it is compared with there is one seed.
  _write(rollout / 'parallel_immediate', 1, _successes(20))
  table, = [table for table in paper_tables.ablation_tables(out)
            if table.title == 'Plan-Path: rollout']
  parallel = _rows(table)['parallel_immediate']
  assert parallel['seeds'] == '2' and parallel['95 %'] != ''
  assert parallel['minus that'] == '−50.0' and parallel['p'] == ''
  assert rows['tree_immediate']['compared with'] == 'unchanged'
  assert rows['tree_immediate']['minus that'] == '+6.0'
  assert not rows['unchanged']['compared with']


def test_credit(out):
  # Two steps, of which the second alone is diagnosed; a role that is alone.
  lines = [
      {'tool/without_signal': 0.25, 'tool/advantage_mean': -1e-9,
       'tool/advantage_std': 0.5},
      {'tool/without_signal': 0.75, 'tool/advantage_mean': 1e-9,
       'tool/advantage_std': 1.0, 'diagnosis/tool/grad_norm': 2.0,
       'diagnosis/tool/entropy': 0.5, 'diagnosis/tool/kl_to_start': 0.1,
       'diagnosis/cosine/tool+planner': -0.25, 'planner/without_signal': 1.0},
      {'tool/without_signal': 0.5, 'diagnosis/tool/kl_to_start': 0.3}]
  for seed in (0, 1):
    path = out / f'main/plan_path/at_grpo/seed-{seed}/metrics.jsonl'
    path.write_text(''.join(
        json.dumps({'k1/success': 1.0, 'shared/num_updates': 3, **line}) + '\n'
        for line in lines))
  table, = paper_tables.credit_tables(out)
  assert table.title.startswith('Plan-Path: credit')
  rows = _rows(table)
  assert rows.keys() == {
      'Team + AT-GRPO, shared: planner', 'Team + AT-GRPO, shared: tool'}
  assert list(rows['Team + AT-GRPO, shared: tool'].values())[1:] == [
      '50.000', '0.000', '0.750', '2.000', '0.500', '0.300', '−0.250']
  assert list(rows['Team + AT-GRPO, shared: planner'].values())[1:] == [
      '100.000', '', '', '', '', '', '−0.250']


def test_the_memory_is_that_of_devices_where_they_tell(out):
  path = out / 'main/plan_path/at_grpo/seed-1/metrics.jsonl'
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  path.write_text(''.join(
      json.dumps({**line, 'memory/device_peak_gib': 9.0}) + '\n'
      for line in lines))
  table, = paper_tables.main_tables(out)
  assert _rows(table)['Team + AT-GRPO, shared']['peak GiB'] == '9.0'


def test_cross_play(out):
  table, = paper_tables.cross_play_table(out)
  assert list(table.header) == ['', 'planner-0', 'tool-0']
  assert [list(row) for row in table.rows] == [
      ['planner-0', '25.0', '25.0'], ['tool-0', '75.0', '75.0']]


def test_curves_leave_out_the_turns_that_nobody_needed():
  lines = [
      {'budget/completion_tokens': 5e5, 'k1/success': 0.0,
       'spine/success': 0.25},
      {'budget/completion_tokens': 1e6, 'k1/success': 0.5,
       'spine/success': 0.75, 'k1/turns_to_solve': 3.0}]
  for metric, tokens, values in (
      ('k1/success', [0.5, 1.5], [0.0, 0.5]),
      ('spine/success', [0.5, 1.5], [0.25, 0.75]),
      ('k1/turns_to_solve', [1.5], [3.0])):
    x, y = paper_tables.curve(lines, metric)
    assert (x.tolist(), y.tolist()) == (tokens, values)
  with pytest.raises(KeyError):
    paper_tables.curve(lines, 'k1/turns')


def test_files(out):
  paths = {path.name: path for path in paper_tables.make_tables(out)}
  assert paths.keys() == {
      'tables.md', 'tables.tex', 'plan_path_success.png',
      'plan_path_turns.png', 'plan_path_spine.png'}
  for path in paths.values():
    if path.suffix == '.png':
      assert path.read_bytes().startswith(b'\x89PNG')
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


def test_what_is_kept_gives_the_same_tables(out, tmp_path):
  for path in out.glob('**/evals'):
    (path.parent / 'checkpoints').mkdir()
    (path.parent / 'checkpoints/large').touch()
  paths = paper_tables.make_tables(out)
  folder = tmp_path / 'kept'
  paper_tables.keep(out, folder)
  again = paper_tables.make_tables(folder)
  assert [path.read_bytes() for path in again] == [
      path.read_bytes() for path in paths]
  names = {path.name for path in folder.rglob('*') if path.is_file()}
  assert names - {path.name for path in paths} == {
      'config.json', 'metrics.jsonl', 'after.json', 'before.json',
      'evaluation.json'}


def test_nothing_to_tell(tmp_path):
  with pytest.raises(errors.UserError, match='no finished run.*paper.sh'):
    paper_tables.make_tables(tmp_path)


def test_a_run_without_steps_is_named(out):
  path = out / 'main/plan_path/at_grpo/seed-1/metrics.jsonl'
  path.write_text('')
  with pytest.raises(errors.UserError, match='seed-1/metrics.jsonl is empty'):
    paper_tables.main_tables(out)


def test_files_of_older_versions_are_named(out):
  workdir = out / 'main/plan_path/at_grpo/seed-1'
  path = workdir / 'metrics.jsonl'
  whole = path.read_text()
  path.write_text(whole.replace('shared/num_updates', 'shared/updates'))
  with pytest.raises(
      errors.UserError, match='no POLICY/num_updates.*older.*run it again'):
    paper_tables.main_tables(out)
  path.write_text(whole)
  for text in ('{}', 'no JSON'):
    (workdir / 'config.json').write_text(text)
    with pytest.raises(errors.UserError, match='config.json is no config'):
      paper_tables.main_tables(out)
  result = json.loads((workdir / 'evals/after.json').read_text())
  del result['clusters']
  (workdir / 'evals/after.json').write_text(json.dumps(result))
  with pytest.raises(
      errors.UserError, match='after.json .*without clusters.*run it again'):
    paper_tables.make_tables(out)


def test_a_row_by_the_name_of_the_baseline_is_refused(out):
  _write(out / 'group_size/plan_path/unchanged', 0, _successes(1))
  with pytest.raises(errors.UserError, match='unchanged.*give it another'):
    paper_tables.ablation_tables(out)


def test_what_is_no_cell_is_passed_over(tmp_path):
  (tmp_path / 'cross_play/plan_path/tool-0/tool-0').mkdir(parents=True)
  (tmp_path / 'cross_play/.DS_Store').touch()
  assert not paper_tables.cross_play_table(tmp_path)


@pytest.mark.parametrize('number, text', [
    (0.0, '0'), (999.4, '999'), (999.6, '1 k'), (12_340, '12.3 k'),
    (999_700, '1 M'), (2.5e9, '2.5 G')])
def test_numbers_are_short(number, text):
  assert paper_tables._short(number) == text


def test_other_tasks_are_not_compared(out):
  folder = out / 'main/plan_path/mas_grpo'
  _write(folder, 2, _successes(1), split_hash='other')
  with pytest.raises(errors.UserError, match='seeds in .*mas_grpo.*different'):
    paper_tables.main_tables(out)
  for seed in (0, 1):
    (folder / f'seed-{seed}/evals/after.json').unlink()
  with pytest.raises(errors.UserError, match='Plan-Path: systems.*different'):
    paper_tables.main_tables(out)


def test_every_published_row_has_a_place():
  systems = {published for *_, published in paper_tables._SYSTEMS}
  folders = {
      cell.path.split('/')[2] for cell in paper.make_cells('nano', 1)}
  assert paper_tables._PUBLISHED.keys() == set(paper.TASKS)
  for rows in paper_tables._PUBLISHED.values():
    assert rows.keys() <= systems | folders
