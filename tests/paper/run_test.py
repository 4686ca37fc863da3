"""run.py: cells run once, in their order, and end as they are told."""

import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import files
from paper import cells as cells_lib
from paper import run
from tests import checkout
from tests.paper import finished_runs

PYTHON = sys.executable
CELLS = cells_lib.make_cells('nano', 1)
FEW = [cell for cell in CELLS
       if cell.path.split('/')[0] in ('main', 'roles', 'unchanged')
       and 'plan_path' in cell.path]
# They need none of the others.
FIRST = [cell for cell in CELLS
         if fnmatch.fnmatch(cell.path, 'main/*/at_grpo/seed-0')]

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


@pytest.fixture
def two_cores(monkeypatch):
  """As if there were two, whatever the machine has."""
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1})
  monkeypatch.setattr(os, 'sched_setaffinity', lambda pid, cores: None)


@pytest.mark.parametrize('num_jobs', [1, 2])
def test_cells_run_once(out, two_cores, num_jobs, capsys):
  # A cell whose budget is not there yet cannot be started.
  assert run.run_cells(FEW, out, num_jobs, {}) == 0
  printed = capsys.readouterr().out
  assert printed.count('python -m atgrpo_jax.main') == len(FEW)
  assert all(cell.is_done(out) for cell in FEW)
  limits = set(re.findall(r'--config.train.completion_tokens=(\S*)', printed))
  assert limits == {'123', '61', '41'} and '{out}' not in printed
  assert (out / 'logs' / f'{FEW[0].path}.train').read_text() == 'said\n'

  (out / FEW[4].path / 'evals/after.json').unlink()
  assert run.run_cells(FEW, out, num_jobs, {}) == 0
  printed = capsys.readouterr().out
  assert printed.startswith(f'[5/{len(FEW)}]') and printed.count('\n') == 1


def test_the_budget_is_that_of_the_run_that_is_kept(out, capsys):
  budget_of = FIRST[0].path
  cell = next(cell for cell in CELLS if cell.budget_of == budget_of)
  kept = {budget_of: finished_runs.run(after=2)}
  assert run.run_cells([cell], out, 1, kept) == 0
  assert '--config.train.completion_tokens=1200000' in capsys.readouterr().out


def test_one_core_has_one_device(out):
  core = min(os.sched_getaffinity(0))
  # It looks where it is once it has been put there.
  run._start(
      ['-c', 'import os, time; time.sleep(1); '
       'print(os.sched_getaffinity(0), os.environ["JAX_NUM_CPU_DEVICES"])'],
      out / 'log', [core]).wait()
  assert (out / 'log').read_text() == f'{{{core}}} 1\n'


def test_a_cell_that_fails_stops_the_run(out, two_cores, capsys):
  pathlib.Path('fail').touch()
  assert run.run_cells(FEW, out, 2, {}) == 3
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
    checkout.wait_until(lambda: len(list(waits.iterdir())) == 2)
    os.kill(os.getpid(), number)

  before = signal.signal(number, signal.SIG_DFL)  # Whatever nohup has left.
  thread = threading.Thread(target=stop)
  thread.start()
  try:
    assert run.run_cells(FIRST, out, 2, {}) == status
    assert signal.getsignal(number) is signal.SIG_DFL
  finally:
    thread.join()
    signal.signal(number, before)
  captured = capsys.readouterr()
  assert captured.out.count('atgrpo_jax.main') == 2 < len(FIRST)
  assert captured.err.count(f'status {status}') == 2


def test_a_killed_sweep_goes_on_after_the_trainer_it_left(
    out, monkeypatch, capsys):
  waits = pathlib.Path('wait')
  waits.mkdir()
  script = (
      'import pathlib, sys; from paper import cells, run; '
      'sys.executable = sys.argv[1]; run.run_cells('
      'cells.make_cells("nano", 1), pathlib.Path(sys.argv[2]), 1, {})')
  child = subprocess.Popen(
      [PYTHON, '-P', '-c', script, sys.executable, out],
      env=os.environ | {'PYTHONPATH': str(checkout.ROOT)})
  checkout.wait_until(lambda: list(waits.iterdir()))
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
  assert run.run_cells(FIRST, out, 1, {}) == 0
  printed = capsys.readouterr().out
  assert printed.startswith(
      f'waits for the trainer that is at work in {out / FIRST[0].path}\n')
  assert printed.count('atgrpo_jax.main') == len(FIRST)


def test_two_sweeps_in_one_folder_are_refused(out):
  with run._lock(out):
    with pytest.raises(errors.UserError, match='already; wait, or .*--out'):
      run.run_cells(FEW, out, 1, {})


@pytest.mark.parametrize('scale', ['nano', '8b'])
def test_printed_commands(scale, tmp_path, capsys, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'data'))
  apps = tmp_path / 'data/downloads/manual/apps'
  apps.mkdir(parents=True)
  (apps / 'train.jsonl').write_text('{}')
  (apps / 'test.jsonl').write_text('a' * 7)
  cells = cells_lib.make_cells(scale, 1)
  done = tmp_path / cells[2].path / cells[2].result
  done.parent.mkdir(parents=True)
  done.touch()
  run.print_cells(cells, tmp_path, scale)
  lines = capsys.readouterr().out.splitlines()
  if scale == '8b':
    assert '16 TPU v6e' in lines.pop(0)
    assert lines.pop(0) == 'They read of the hub:'
    size = 7 + len('{}')
    folder = tmp_path / 'data/downloads/manual'
    assert f'codeparrot/apps: {size} bytes in {folder / "apps"}' in lines
    assert f'math-ai/aime24: nothing in {folder / "aime24"}' in [
        line.replace(line.partition(':')[0], 'math-ai/aime24')
        for line in lines if 'aime24' in line]
    lines = [line for line in lines if line.startswith('bash ')]
  start = {'nano': 'python -m atgrpo_jax.main', '8b': 'bash launch/tpu_pod.sh'}
  assert len(lines) == len(cells)
  for line, cell in zip(lines, cells):
    assert line.startswith(start[scale]) and '{out}' not in line
    assert line.endswith('  # done') == (cell is cells[2])
    for share, text in ((1, ''), (1 / 2, '0.5 x the '), (1 / 3, '0.33 x the ')):
      assert (f'=<{text}tokens of {cell.budget_of}>' in line) == bool(
          cell.budget_of and cell.budget_share == share)
