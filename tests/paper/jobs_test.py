"""Jobs are valid, ordered, comparable and run once in a pool."""

import asyncio
import importlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

from etils import epath
import pytest

from atgrpo_jax import settings
from atgrpo_jax.algorithms import play as play_lib
from atgrpo_jax.algorithms import spec as spec_lib
from paper import experiments
from paper import records
from paper import run
from tests import checkout
from tests.paper import finished_runs

JOBS = experiments.make_jobs('nano', 2)
NO_RECORDS = records.Records()


@pytest.mark.parametrize(
    'scale', ['nano', 'coder-0.5b', 'coder-3b', '1.7b', '8b'])
def test_jobs_are_valid_configs(scale):
  for job in experiments.make_jobs(scale, 1):
    if job.mode == 'pretrain':
      continue
    file, _, argument = job.config.partition(':')
    config = importlib.import_module(
        file.removesuffix('.py').replace('/', '.')).get_config(argument)
    # Raises for an unknown key and for a value of another type.
    config.update_from_flattened_dict(dict(job.overrides))
    rollout = settings.rollout_spec(config)
    advantage = spec_lib.AdvantageSpec(**config.advantage)
    spec_lib.check_terms(rollout, advantage)
    spec_lib.check_critic(
        spec_lib.CriticSpec(**config.critic), rollout, advantage)
    play_lib.check(settings.make_environment(config, None), rollout)


@pytest.mark.parametrize('scale', ['nano', '8b'])
def test_main_comparisons_come_before_ablations(scale):
  tables = [
      job.path.split('/')[0] for job in experiments.make_jobs(scale, 2)
      if job.mode != 'pretrain']
  main = {'main', 'problems', 'writing', 'functions', 'depot'}
  first_ablation = next(i for i, x in enumerate(tables) if x not in main)
  assert not main & set(tables[first_ablation:])
  assert {'reward', 'roles', 'agents'} <= set(tables[first_ablation:])


@pytest.mark.parametrize('scale, magrpo', [
    ('nano', 'magrpo'), ('coder-0.5b', 'magrpo_cross'),
    ('coder-3b', 'magrpo')])
def test_jobs_follow_their_needs_and_have_equal_budgets(scale, magrpo):
  before, all_jobs = set(), experiments.make_jobs(scale, 2)
  for job in all_jobs:
    assert job.key not in before
    assert before.issuperset(job.needs), job
    before.add(job.key)
  jobs = {job.path: job for job in all_jobs if job.mode == 'train'}
  for path, job in jobs.items():
    table, task, row, seed = path.split('/')
    # The config has the budget, or the job itself.
    if table.startswith('depot'):
      assert not job.budget_of
      continue
    first = {
        'writing': f'writing/{task}/magrpo/{seed}',
        'functions': f'functions/{task}/{magrpo}/{seed}',
        'problems': f'problems/{task}/at_grpo/{seed}',
    }.get(table, f'main/{task}/at_grpo/{seed}')
    assert job.budget_of == ('' if path == first else first)
    assert job.budget_ratio == (0.5 if row.startswith('only_') else 1.0)


def test_needs_are_added_unless_their_results_are_kept(tmp_path):
  chosen = run.choose(JOBS, ['roles/plan_path/swapped/*'])
  kept = finished_runs.merge(*(
      finished_runs.run(job.path, before=1, after=2) for job in JOBS
      if job.path.startswith('main/') and '/at_grpo' in job.path))
  # An export needs the checkpoints of the training, not only its results.
  for found, needed in (
      (NO_RECORDS, ['main/plan_path/at_grpo', 'main/plan_path/at_grpo_per_role',
                    'roles/plan_path/swapped']),
      (kept, ['main/plan_path/at_grpo_per_role', 'roles/plan_path/swapped'])):
    jobs = run.with_needs(chosen, JOBS, tmp_path, found)
    assert jobs == [job for job in JOBS if job in jobs]
    assert {job.path.rpartition('/')[0] for job in jobs} == set(needed)


def test_base_models_are_made_only_for_missing_runs(tmp_path):
  row = 'depot/mixed/at_grpo'
  chosen = run.choose(JOBS, [f'{row}/*', 'depot_models/*'])
  for num_recorded in range(3):
    kept = records.Records(
        curves={f'{row}/seed-{seed}': {} for seed in range(num_recorded)})
    missing = range(num_recorded, 2)
    assert [job.path for job in run.with_needs(
        chosen, JOBS, tmp_path, kept)] == [
            *(f'depot_models/seed-{seed}' for seed in missing),
            *(f'{row}/seed-{seed}' for seed in missing)]


def test_dry_run_prints_recorded_minutes(tmp_path, capsys):
  rows = 'main/plan_path/at_grpo', 'depot/mixed/at_grpo'
  jobs = run.choose(JOBS, [f'{row}/*' for row in rows])
  # A run has three steps of 40 seconds.
  known = finished_runs.run(f'{rows[0]}/seed-0', after=1).updated(
      records.Records(curves={
          f'{rows[1]}/seed-1': {'minutes': 16.0},
          'depot_roles/scout/seed-0': {'returns': [0.16]}}))
  run.print_jobs(jobs, tmp_path, 'nano', known.minutes())
  *lines, total = capsys.readouterr().out.splitlines()
  assert {
      job.path: line.rpartition('  # ')[2]
      for job, line in zip(jobs, lines) if '  # ' in line} == {
          f'{rows[0]}/seed-0': '2.0 min', f'{rows[1]}/seed-1': '16.0 min'}
  assert total.startswith('#') and '2 of these 4 jobs took 0.3 hours' in total


def test_workdirs_beyond_nano_may_be_in_a_bucket(tmp_path, capsys):
  jobs = run.choose(experiments.make_jobs('8b', 1), ['roles/*/combined/*'])
  jobs += run.choose(experiments.make_jobs('8b', 1), ['main/sudoku/*'])
  run.print_jobs(jobs, epath.Path('gs://bucket/runs'), '8b', {})
  printed = capsys.readouterr().out
  assert 'gs://bucket/runs/roles/plan_path/only_tool/seed-0/export/tool' in (
      printed)
  assert '--workdir gs://bucket/runs/main/sudoku/mas_grpo/seed-0 ' in printed


def test_wrong_options_are_refused():
  refused = subprocess.run(
      [sys.executable, '-m', 'paper.run', '--out=gs://bucket/runs'],
      cwd=checkout.ROOT, capture_output=True, text=True)
  assert refused.returncode == 2
  assert 'error: --out=gs://bucket/runs' in refused.stderr


# The pool.

# Writes the files that a trainer would, or fails, or waits for SIGTERM.
TRAINER = """
import json, os, pathlib, signal, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if pathlib.Path('wait').exists():
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(43))
  pathlib.Path('wait', str(os.getpid())).touch()
  time.sleep(60)
if pathlib.Path('fail').exists():
  sys.exit(3)
results = {
    'train': ['evals/after.json', 'metrics.jsonl'],
    'evaluate': ['evals/evaluation.json'],
    'export': ['export/tool/tokenizer.json', 'export/planner/tokenizer.json'],
}[given['--mode']]
for result in results:
  path = pathlib.Path(given['--workdir'], result)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text('{"budget/completion_tokens": 123}')
"""
POOL_JOBS = run.choose(
    experiments.make_jobs('nano', 1), ['roles/*', 'main/plan*'])


@pytest.fixture
def run_jobs(tmp_path, monkeypatch):
  """Runs jobs, with a stand-in for `atgrpo_jax.main` in the current folder."""
  (tmp_path / 'atgrpo_jax').mkdir()
  (tmp_path / 'atgrpo_jax/__init__.py').touch()
  (tmp_path / 'atgrpo_jax/main.py').write_text(TRAINER)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1})
  monkeypatch.setattr(os, 'sched_setaffinity', lambda pid, cores: None)
  return lambda jobs, num_parallel, kept=NO_RECORDS, launch='': asyncio.run(
      run.run_jobs(jobs, tmp_path / 'out', num_parallel, kept, launch))


def test_jobs_run_once_with_the_budget_of_their_needs(run_jobs, capsys):
  assert run_jobs(POOL_JOBS, 2) == 0
  printed = capsys.readouterr().out
  assert printed.count('python -m atgrpo_jax.main') == len(POOL_JOBS)
  limits = set(re.findall(r'--config.train.completion_tokens=(\S*)', printed))
  assert limits == {'123', '61'} and '{out}' not in printed

  # Its budget comes from records if these contain the job that sets it.
  pathlib.Path('out', POOL_JOBS[4].path, 'evals/after.json').unlink()
  kept = finished_runs.run(POOL_JOBS[4].budget_of, after=2)
  assert run_jobs(POOL_JOBS, 2, kept) == 0
  printed, = capsys.readouterr().out.splitlines()
  assert '--config.train.completion_tokens=1200000' in printed


def test_a_launch_script_starts_each_job_and_is_waited_for(
    run_jobs, capsys, monkeypatch):
  monkeypatch.setattr(run, '_POLL_SECONDS', 0.1)
  pathlib.Path('submit').write_text(
      '#!/bin/sh\n(sleep 1; python -m atgrpo_jax.main "$@") > /dev/null 2>&1 &')
  launch = ('sh submit --mode {mode} --workdir {workdir} --config {config} '
            '{overrides}')
  jobs = run.choose(experiments.make_jobs('8b', 1), ['main/sudoku/*grpo/*'])
  assert run_jobs(jobs, 2, launch=launch) == 0
  printed = capsys.readouterr().out
  assert printed.count('sh submit --mode train') == len(jobs) > 1
  assert printed.count('Waits for') == len(jobs)
  assert printed.count('completion_tokens=123') == len(jobs) - 1
  assert run_jobs(jobs, 2, launch=launch) == 0
  assert not capsys.readouterr().out


def test_failure_stops_the_pool(run_jobs, capsys):
  pathlib.Path('fail').touch()
  assert run_jobs(POOL_JOBS, 1) == 3
  captured = capsys.readouterr()
  assert captured.out.count('atgrpo_jax.main') == 1
  assert f'{POOL_JOBS[0].path}.train' in captured.err


def test_signal_terminates_the_trainers(run_jobs):
  waits = pathlib.Path('wait')
  waits.mkdir()

  def stop():
    checkout.wait_until(lambda: len(list(waits.iterdir())) == 2)
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=stop)
  thread.start()
  jobs = [job for job in JOBS if job.mode == 'train' and not job.needs]
  assert run_jobs(jobs[:4], 2) == 43
  thread.join()
