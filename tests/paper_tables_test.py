"""paper_tables.py: from workdirs to tables, with statistics that are right."""

import itertools
import json

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import paper
from atgrpo_jax import paper_tables

NUM_TASKS = 50


def _write(folder, seed, successes, *, name='after', split_hash='abc', steps=3):
  workdir = folder / f'seed-{seed}'
  evaluate.write(workdir, name, {
      'num_tasks': NUM_TASKS,
      'successes': ''.join('01'[int(x)] for x in successes),
      'success': float(np.mean(successes)), 'mean_turns': 2.5,
      'mean_turns_to_solve': 1.0 + seed if np.any(successes) else None,
      'budget': {'completion_tokens': 1200}, 'split_hash': split_hash})
  if name == 'after':
    (workdir / 'metrics.jsonl').write_text(''.join(
        json.dumps({
            'step': step, 'k1/success': step / steps, 'k1/turns_to_solve': 1.5,
            'spine/success': 0.5,
            'time/step': 40.0, 'memory/host_peak_gib': 1.0 + step / 10,
            'budget/completion_tokens': 400_000.0,
            'budget/prompt_tokens': 1_000.0, 'budget/model_calls': 7.0,
            'budget/program_runs': 0.0, 'budget/environment_steps': 30.0,
        }) + '\n' for step in range(1, steps + 1)))


def _successes(num):
  return np.arange(NUM_TASKS) < num


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
         'num_tasks': 0})
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
  assert roles['swapped']['success %'] == '6.0'
  assert roles['swapped']['paper, 1.7B'] == '6'
  note = [table.note for table in paper_tables.ablation_tables(out)
          if table.title == 'Plan-Path: roles']
  assert 'played alone' in note[0]
  assert list(tables['Plan-Path: group_size']) == [
      'unchanged', '2', '16']
  unchanged = tables['Plan-Path: group_size']['unchanged']
  assert unchanged['success %'] == '84.0'


def test_the_whole_test_split(out):
  assert not paper_tables.whole_test_tables(out)
  for row, num in (('at_grpo', 49), ('mas_grpo', 39)):
    for seed in (0, 1):
      _write(out / 'main/plan_path' / row, seed, _successes(num),
             name='whole_test', split_hash='whole')
  table, = paper_tables.whole_test_tables(out)
  assert table.title == 'Plan-Path: the whole test split'
  rows = _rows(table)
  assert rows.keys() == {'Team + AT-GRPO, shared', 'Team + GRPO, by task'}
  grpo = rows['Team + GRPO, by task']
  assert grpo['success %'] == '78.0' and grpo['minus that'] == '−20.0'
  assert grpo['compared with'] == 'Team + AT-GRPO, shared'
  assert grpo['seeds'] == '2' and grpo['updates'] == ''


def test_rows_are_compared_in_equal_steps(out):
  main = out / 'main/plan_path'
  _write(main / 'mas_grpo_small_steps', 0, _successes(30))
  table, = paper_tables.main_tables(out)
  small = 'Team + GRPO, by task, a third of the tasks in a step'
  # What it would be compared with is not there.
  assert not _rows(table)[small]['compared with']
  _write(main / 'at_grpo_small_steps', 0, _successes(49))
  table, = paper_tables.main_tables(out)
  assert _rows(table)[small]['compared with'] == (
      'Team + AT-GRPO, shared, a third of the tasks in a step')
  assert _rows(table)[small]['minus that'] == '−38.0'

  rollout = out / 'rollout/plan_path'
  _write(rollout / 'parallel_immediate', 0, _successes(20))
  _write(rollout / 'tree_immediate', 0, _successes(45))
  table, = [table for table in paper_tables.ablation_tables(out)
            if table.title == 'Plan-Path: rollout']
  rows = _rows(table)
  assert rows['parallel_immediate']['compared with'] == 'tree_immediate'
  assert rows['parallel_immediate']['minus that'] == '−50.0'
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
        json.dumps({'k1/success': 1.0, **line}) + '\n' for line in lines))
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
  assert r'Plan-Path: group\_size}' in latex and r'success \%' in latex
  assert markdown.count('played alone') == latex.count('played alone') == 1
  for begin, end in ((r'\begin{table}', r'\end{table}'),
                     (r'\begin{tabular}', r'\end{tabular}')):
    assert latex.count(begin) == latex.count(end) == 5
  assert '…' not in latex and '−' not in latex


def test_what_is_kept_gives_the_same_tables(out, tmp_path):
  for path in out.glob('**/evals'):
    (path.parent / 'config.json').write_text('{}')
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


# Statistics.


def test_interval_of_one_seed_is_wilsons():
  assert paper_tables.success_interval(_successes(10)[None]) == (
      evaluate.wilson_interval(10, NUM_TASKS))


def test_interval_where_nothing_varies():
  """Three perfect seeds are no proof of a certainty."""
  assert paper_tables.success_interval(np.ones((3, NUM_TASKS), bool)) == (
      pytest.approx(evaluate.wilson_interval(NUM_TASKS, NUM_TASKS)))


@pytest.mark.parametrize('luck', [0.0, 0.3, 1.0])
def test_interval_covers_the_truth(luck):
  """Of three seeds of unlike luck, on tasks of unlike difficulty."""
  rng = np.random.default_rng(0)
  covered, trials = 0, 400
  for _ in range(trials):
    difficulty = rng.normal(size=(1, 100))
    seeds = luck * rng.normal(size=(3, 1))
    low, high = paper_tables.success_interval(
        difficulty + seeds + rng.logistic(size=(3, 100)) > 0)
    covered += low <= 0.5 <= high
  assert 0.93 * trials <= covered


def test_interval_by_hand():
  successes = np.zeros((3, 100), bool)
  for row, num in zip(successes, (40, 50, 60)):
    row[:num] = True
  low, high = paper_tables.success_interval(successes)
  spread = 4.3027 * 0.1 / 3**0.5
  for found, wilson in zip((low, high), evaluate.wilson_interval(50, 100)):
    assert abs(found - 0.5) == pytest.approx(
        np.hypot(wilson - 0.5, spread), rel=1e-4)


def test_paired_test_by_counting():
  one = np.array([[1, 1, 1, 1, 1, 0, 0, 1]], bool)
  other = np.array([[0, 0, 0, 0, 0, 1, 0, 1]], bool)
  # Six tasks differ, five of them for one: of 64 signs 14 give |sum| >= 4.
  p = paper_tables.paired_test(one, other)
  assert p == pytest.approx(14 / 64, abs=0.02)
  assert p == paper_tables.paired_test(other, one)
  assert paper_tables.paired_test(one, one) == 1


def test_paired_test_uses_the_pairs():
  """The same two shares: on the same tasks, and on unlike ones."""
  one = (np.arange(100) < 60)[None]
  p_same = paper_tables.paired_test(one, (np.arange(100) < 50)[None])
  p_unlike = paper_tables.paired_test(one, (np.arange(100) >= 50)[None])
  assert p_same < 0.01 < 0.2 < p_unlike
