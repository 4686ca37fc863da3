"""paper.py: cells that can be run, in an order in which they can be run."""

import fnmatch
import importlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from atgrpo_jax import errors
from atgrpo_jax import files
from atgrpo_jax import paper
from atgrpo_jax import policies
from atgrpo_jax.rollout import at_grpo
from environments import games

ROOT = pathlib.Path(__file__).parents[1]
PYTHON = sys.executable
CELLS = paper.make_cells('nano', 2)


@pytest.mark.parametrize('scale', ['nano', '1.7b', '8b'])
def test_cells_are_valid_configs(scale):
  for cell in paper.make_cells(scale, 1):
    file, _, arg = cell.config.partition(':')
    module = importlib.import_module(
        file.removesuffix('.py').replace('/', '.'))
    config = module.get_config(arg)
    # Keys that do not exist, and values of another type, are refused.
    config.update_from_flattened_dict(dict(cell.overrides))
    roles = games.TEAMS[config.environment.team]
    at_grpo.RolloutSpec(**{
        name: config.rollout[name] for name in (
            'rollout', 'selection', 'target')})
    environment = importlib.import_module(config.environment.module)
    environment.make_environment(
        **config.environment.options, sandbox=None, **{
            name: config.environment[name]
            for name in ('team', 'max_turns', 'reward')})
    if config.per_policy:
      policies._policy_configs(config, roles)


def test_no_cell_comes_twice():
  places = [(cell.path, cell.result) for cell in CELLS]
  assert len(set(places)) == len(places)
  # Two trainings in one place would be one that is refused.
  trained = [cell.path for cell in CELLS if cell.mode == 'train']
  assert len(set(trained)) == len(trained)


def test_rows_that_are_at_grpo_itself_are_left_out():
  for scale, own in (('nano', '8'), ('8b', '4')):
    sizes = {
        cell.path.split('/')[2] for cell in paper.make_cells(scale, 1)
        if cell.path.startswith('group_size/')}
    assert sizes == {'2', '4', '8', '16'} - {own}


def test_what_is_compared_has_one_budget():
  for cell in CELLS:
    if cell.mode == 'train' and not cell.path.startswith('main/'):
      assert cell.budget_of.startswith('main/'), cell
    if fnmatch.fnmatch(cell.path, 'main/*/at_grpo/*'):
      assert not cell.budget_of
    elif cell.mode == 'train':
      task, seed = cell.path.split('/')[1], cell.path.split('/')[-1]
      assert cell.budget_of == f'main/{task}/at_grpo/{seed}'
      table, _, row, _ = cell.path.split('/')
      share = 1 / 3 if table in (*paper.SWITCHES, 'unchanged') else 1.0
      assert cell.budget_share == (0.5 if row.startswith('only_') else share)


def test_each_table_has_its_rows():
  rows, players = {}, set()
  for cell in paper.make_cells('nano', 3):
    table, task, row, *rest = cell.path.split('/')
    if table == 'cross_play':
      players.add((row, *rest))
    else:
      rows.setdefault((table, task), set()).add(row)
  others = {f'mas_grpo{by}' for by in ('', '_agent', '_turn', '_agent_turn')}
  for task in paper.TASKS:
    assert rows.pop(('main', task)) == others | {
        'sa_grpo', 'sa_grpo_turns', 'at_grpo', 'at_grpo_per_role',
        'at_grpo_lora', 'mas_grpo_same_tasks'}
    assert rows.pop(('reward', task)) == {'outcome', 'outcome_and_plans'} | (
        {'oracle'} if task == 'sokoban' else set())
  assert {table: found for (table, _), found in rows.items()} == {
      'unchanged': {'at_grpo'},
      'agents': {'1', '3', '5', '7'},
      'roles': {'only_tool', 'only_planner', 'combined', 'swapped'},
      'rollout': {
          'tree_immediate', 'parallel_immediate', 'parallel_return_to_go'},
      'selection': {'team_greedy', 'softmax', 'uniform', 'epsilon_greedy'},
      'target': {'immediate_small_steps', 'monte_carlo_small_steps'},
      'normaliser': {'none', 'leave_one_out'},
      'group_size': {'2', '4', '16'}, 'turns': {'1', '2', '8'}}
  policies = {f'{role}-{seed}' for role in ('tool', 'planner')
              for seed in range(3)}
  assert players == set(itertools.product(policies, policies))
  # All can be compared: they are evaluated on the same tasks.
  assert all(
      cell.overrides['evaluation.test'] == 'test' for cell in CELLS)
  # What a row is compared with changes nothing but what the row says.
  cells = {cell.path: cell for cell in CELLS}
  for row, other in paper.SAME_STEPS.items():
    for path, cell in cells.items():
      if f'/{row}/' in path:
        compared = cells[path.replace(f'/{row}/', f'/{other}/')]
        number = 'rollout.num_tasks'
        assert cell.overrides[number] == compared.overrides[number]
        assert cell.budget_of == compared.budget_of


# A stand-in for the trainer, which writes what a cell would.
TRAINER = """
import fcntl, json, os, pathlib, signal, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
workdir = pathlib.Path(given['--workdir'])
print('said', flush=True)
if pathlib.Path('wait').exists():
  signal.signal(signal.SIGINT, lambda *_: sys.exit(42))
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(43))
  workdir.mkdir(parents=True, exist_ok=True)
  fcntl.flock(os.open(workdir, os.O_RDONLY), fcntl.LOCK_EX)
  (pathlib.Path('wait') / str(os.getpid())).touch()
  time.sleep(60)
if pathlib.Path('fail').exists():
  sys.exit(3)
results = {
    'train': ['evals/after.json', 'metrics.jsonl'],
    'evaluate': ['evals/evaluation.json'],
    'export': ['export/tool/tokenizer.json', 'export/planner/tokenizer.json'],
}[given['--mode']]
for result in results:
  path = workdir / result
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(''.join(
      json.dumps({'budget/completion_tokens': x}) + chr(10)
      for x in (100.0, 23.0)))
"""


@pytest.fixture
def out(tmp_path, monkeypatch):
  """Where cells are run; they are Python, started once for each."""
  package = tmp_path / 'atgrpo_jax'
  package.mkdir()
  (package / '__init__.py').touch()
  (package / 'main.py').write_text(TRAINER)
  monkeypatch.chdir(tmp_path)
  python = tmp_path / 'python'
  # What stands in the current folder comes first, and no site-packages.
  python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
  python.chmod(0o755)
  monkeypatch.setattr(sys, 'executable', str(python))
  return tmp_path / 'out'


FEW = [cell for cell in paper.make_cells('nano', 1)
       if cell.path.split('/')[0] in ('main', 'roles', 'unchanged')
       and 'plan_path' in cell.path]
# They need none of the others.
FIRST = [cell for cell in paper.make_cells('nano', 1)
         if fnmatch.fnmatch(cell.path, 'main/*/at_grpo/seed-0')]


@pytest.fixture
def two_cores(monkeypatch):
  """As if there were two, whatever the machine has."""
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1})
  monkeypatch.setattr(os, 'sched_setaffinity', lambda pid, cores: None)


def test_cells_run_once(out, capsys):
  assert paper.run_cells(FEW, out) == 0
  printed = capsys.readouterr().out
  assert printed.count('python -m atgrpo_jax.main') == len(FEW)
  assert f'[{len(FEW)}/{len(FEW)}] ' in printed and '{out}' not in printed
  limits = set(re.findall(r'--config.train.completion_tokens=(\S*)', printed))
  assert limits == {'123', '61', '41'}
  log = out / 'logs' / f'{FEW[0].path}.train'
  assert log.read_text() == 'said\n'
  # The folders of the cells hold nothing but what the cells wrote.
  assert {p.name for p in (out / FEW[0].path).iterdir()} == {
      'evals', 'metrics.jsonl'}

  assert paper.run_cells(FEW, out) == 0
  assert not capsys.readouterr().out
  (out / FEW[4].path / 'evals/after.json').unlink()
  assert paper.run_cells(FEW, out) == 0
  assert capsys.readouterr().out.startswith(f'[5/{len(FEW)}]')


def test_several_at_a_time_wait_for_what_they_need(
    out, two_cores, monkeypatch):
  processes, at_once = [], []
  start = paper._start

  def noting(*args):
    at_once.append(1 + sum(x.poll() is None for x in processes))
    processes.append(start(*args))
    return processes[-1]

  monkeypatch.setattr(paper, '_start', noting)
  # A budget that is not there yet cannot be read.
  assert paper.run_cells(FEW, out, num_jobs=2) == 0
  assert len(processes) == len(FEW) and max(at_once) == 2
  assert all((out / cell.path / cell.result).exists() for cell in FEW)


def test_one_core_has_one_device(out):
  core = min(os.sched_getaffinity(0))
  # It looks where it is once it has been put there.
  paper._start(
      ['-c', 'import os, time; time.sleep(1); '
       'print(os.sched_getaffinity(0), os.environ["JAX_NUM_CPU_DEVICES"])'],
      out / 'log', [core]).wait()
  assert (out / 'log').read_text() == f'{{{core}}} 1\n'


def test_a_cell_that_fails_stops_the_run(out, two_cores, capsys):
  pathlib.Path('fail').touch()
  assert paper.run_cells(FEW, out, num_jobs=2) == 3
  captured = capsys.readouterr()
  assert captured.out.count('atgrpo_jax.main') == 1
  assert 'status 3' in captured.err and f'{FEW[0].path}.train' in captured.err


@pytest.mark.parametrize('number, status', [
    (signal.SIGINT, 42), (signal.SIGTERM, 43), (signal.SIGHUP, 43)])
def test_signals_reach_the_trainers_which_end_as_they_will(
    out, two_cores, number, status, capsys):
  waits = pathlib.Path('wait')
  waits.mkdir()

  def stop():
    while len(list(waits.iterdir())) < 2:
      time.sleep(0.05)
    os.kill(os.getpid(), number)

  own = signal.signal(number, signal.SIG_DFL)  # Whatever nohup has left.
  thread = threading.Thread(target=stop)
  thread.start()
  try:
    assert paper.run_cells(FIRST, out, num_jobs=2) == status
    assert signal.getsignal(number) is signal.SIG_DFL
  finally:
    thread.join()
    signal.signal(number, own)
  captured = capsys.readouterr()
  assert captured.out.count('atgrpo_jax.main') == 2 < len(FIRST)
  assert captured.err.count(f'status {status}') == 2


def test_a_killed_sweep_goes_on_after_the_trainer_it_left(
    out, monkeypatch, capsys):
  waits = pathlib.Path('wait')
  waits.mkdir()
  child = subprocess.Popen(
      [PYTHON, '-P', '-c', """if True:
          import pathlib, sys
          from atgrpo_jax import paper
          cells, sys.executable = paper.make_cells('nano', 1), sys.argv[1]
          paper.run_cells(cells, pathlib.Path(sys.argv[2]))""",
       sys.executable, out], env=os.environ | {'PYTHONPATH': str(ROOT)})
  deadline = time.monotonic() + 60
  while not list(waits.iterdir()):
    assert time.monotonic() < deadline
    time.sleep(0.05)
  trainer, = waits.iterdir()
  child.kill()
  child.wait()
  shutil.rmtree(waits)
  try_lock = files.try_lock

  def end_trainer(folder):
    held = try_lock(folder)
    if held is None:
      os.kill(int(trainer.name), signal.SIGKILL)
    return held

  monkeypatch.setattr(files, 'try_lock', end_trainer)
  assert paper.run_cells(FEW, out) == 0
  printed = capsys.readouterr().out
  assert printed.startswith(
      f'waits for the trainer that is at work in {out / FEW[0].path}\n')
  assert printed.count('atgrpo_jax.main') == len(FEW)


def test_two_sweeps_in_one_folder_are_refused(out):
  with paper._lock(out):
    with pytest.raises(errors.UserError, match='already; wait, or .*--out'):
      paper.run_cells(FEW, out)
  assert paper.run_cells(FEW, out) == 0


def test_an_error_of_its_own_leaves_no_trainer(out, two_cores, monkeypatch):
  pathlib.Path('wait').mkdir()
  processes = []
  start = paper._start

  def failing(*args):
    if processes:
      raise OSError('no space left')
    processes.append(start(*args))
    return processes[0]

  monkeypatch.setattr(paper, '_start', failing)
  with pytest.raises(OSError, match='no space'):
    paper.run_cells(FIRST, out, num_jobs=2)
  assert processes[0].poll() is not None


@pytest.mark.parametrize('only, also', [
    ('main/sokoban/mas_grpo/*', ['main/sokoban/at_grpo']),
    ('roles/plan_path/combined/*', [
        'main/plan_path/at_grpo', 'main/plan_path/at_grpo_per_role',
        'roles/plan_path/only_tool', 'roles/plan_path/only_planner']),
    ('roles/plan_path/swapped/*', [
        'main/plan_path/at_grpo', 'main/plan_path/at_grpo_per_role']),
    ('group_size/plan_path/2/*', [
        'main/plan_path/at_grpo', 'unchanged/plan_path/at_grpo']),
    ('rollout/plan_path/parallel_immediate/*', [
        'main/plan_path/at_grpo', 'unchanged/plan_path/at_grpo',
        'rollout/plan_path/tree_immediate'])])
def test_cells_come_with_those_they_need(only, also, tmp_path):
  chosen = [cell for cell in CELLS if fnmatch.fnmatch(cell.path, only)]
  cells = paper.with_needed(chosen, CELLS, tmp_path)
  assert cells == [cell for cell in CELLS if cell in cells]
  assert {cell.path.rpartition('/')[0] for cell in cells} == {
      only.removesuffix('/*'), *also}

  # What is there is not needed again, nor what only that needed.
  for cell in cells:
    if cell not in chosen:
      result = tmp_path / cell.path / cell.result
      result.parent.mkdir(parents=True, exist_ok=True)
      result.touch()
  assert paper.with_needed(chosen, CELLS, tmp_path) == chosen


def test_a_pattern_that_fits_no_cell_is_named():
  chosen = paper.choose(CELLS, ['agents/*/seed-0', 'turns/*'])
  assert {cell.path.split('/')[0] for cell in chosen} == {'agents', 'turns'}
  with pytest.raises(errors.UserError, match="'agent/.'.*dry_run"):
    paper.choose(CELLS, ['turns/*', 'agent/*'])
  with pytest.raises(errors.UserError, match="no cell fits ''"):
    paper.choose(CELLS, [])
  with pytest.raises(errors.UserError, match='arguments: agents/x'):
    errors.refuse_arguments(['paper', 'agents/x'])


@pytest.mark.parametrize('scale', ['nano', '8b'])
def test_printed_commands(scale, tmp_path, capsys):
  cells = paper.make_cells(scale, 1)
  paper.print_cells(cells, tmp_path, scale)
  lines = capsys.readouterr().out.splitlines()
  if scale == 'nano':
    assert all(x.startswith('python -m atgrpo_jax.main --mode') for x in lines)
  else:
    first, *lines = lines
    assert '16 TPU v6e' in first
    assert all(x.startswith('bash launch/tpu_pod.sh --') for x in lines)
    assert all("-- --config.seed=0 " in x for x in lines)
    assert all('--config.mesh.fsdp=4' in x for x in lines)
  assert len(lines) == len(cells)
  assert "'--config.train.completion_tokens=<tokens of main/" in lines[1]
  assert sum('=<0.5 x the tokens of main/' in line for line in lines) == 2
  shortened = sum('=<0.33 x the tokens of main/' in line for line in lines)
  assert shortened == sum(
      cell.path.split('/')[0] in (*paper.SWITCHES, 'unchanged')
      for cell in cells)
  assert not any('{out}' in line for line in lines)
  assert not list(tmp_path.iterdir())

  result = tmp_path / cells[2].path / cells[2].result
  result.parent.mkdir(parents=True)
  result.touch()
  paper.print_cells(cells, tmp_path, scale)
  done = [
      line.endswith('  # done')
      for line in capsys.readouterr().out.splitlines()[-len(cells):]]
  assert done == [cell is cells[2] for cell in cells]
