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
RUN = ('--config', CONFIG, '--workdir', 'w')
# An override that a careless shell script would split or expand.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""

# Prints its arguments.
TRAINER = "import sys; print('arguments:', *sys.argv[1:], sep='|')"


@pytest.fixture
def checkout(tmp_path):
  return checkout_lib.Checkout(tmp_path)


@pytest.fixture(scope='module')
def untouched(tmp_path_factory):
  """A checkout for scripts that fail before the installation."""
  return checkout_lib.Checkout(tmp_path_factory.mktemp('untouched'))


@pytest.mark.parametrize('script, args, words', [
    ('quickstart.sh', '--sed 1', ['--sed', '--help']),
    ('quickstart.sh', '--seed --workdir', ['--seed']),
    ('quickstart.sh', '--seed one', ["'one'"]),
    ('slurm.sh', '--workdir w', ['--config']),
    ('gpu.sh', '--config configs/no.py:a --workdir w',
     ["'configs/no.py'"]),
    ('slurm.sh', f'--config {CONFIG} --workdir s3://b/x', ["'s3://b/x'"]),
    ('gpu.sh', f'--config {CONFIG} --workdir w --mode replay', ["'replay'"]),
    ('slurm.sh', f'--config {CONFIG} --workdir w --nodes 0', ["'0'"]),
    ('tpu_pod.sh', f'--name pod --zone z --config {CONFIG} --workdir runs/x',
     ["'runs/x'", 'gs://']),
])
def test_bad_options_are_refused(untouched, script, args, words):
  checkout_lib.assert_stops_with(
      untouched.run(script, *shlex.split(args)), *words)
  assert not (untouched.root / '.venv').exists()


@pytest.mark.parametrize(
    'script', sorted(p.name for p in (ROOT / 'launch').glob('[a-z]*.sh')))
def test_help(untouched, script):
  result = untouched.run(script, '--help')
  assert result.returncode == 0, result.stderr
  assert result.stdout.startswith(f'Usage: bash launch/{script}')


# The installation.


def test_an_installation_is_reused_until_setup_py_changes(checkout):
  result = checkout.run('test.sh', 'tests/some_test.py', '-k', 'a  or b')
  assert result.returncode == 0, result.stderr
  venv, pip, ruff, pytest_call = checkout.calls()
  assert venv == f'-m venv --clear {checkout.root}/.venv'
  assert pip.endswith(f'--editable {checkout.root}[test]')
  assert ruff == '-m ruff check'
  assert pytest_call.startswith('-m pytest ')
  assert pytest_call.endswith(' tests/some_test.py -k a  or b')

  # Every extra includes the plain installation.
  assert checkout.run('quickstart.sh').returncode == 0
  assert not any('pip install' in call for call in checkout.calls())

  with open(checkout.root / 'setup.py', 'a') as f:
    f.write('# One more requirement.\n')
  assert checkout.run('quickstart.sh').returncode == 0
  assert checkout.calls()[0].endswith(f'--editable {checkout.root}')
  assert checkout.run('test.sh').returncode == 0
  assert checkout.calls()[0].endswith(f'--editable {checkout.root}[test]')


@pytest.mark.parametrize('script', [
    'echo 3.9', 'case "$2" in *venv*) exit 1;; esac; echo 3.12'])
def test_unsuitable_python_is_refused(checkout, script):
  checkout.write_python(f'#!/bin/sh\n{script}\n')
  checkout_lib.assert_stops_with(
      checkout.run('quickstart.sh'), 'python-to-use', '3.11', 'PYTHON')
  assert not (checkout.root / '.venv').exists()


# One process.


def test_quickstart_trains(checkout):
  result = checkout.run(
      'quickstart.sh', '--seed', '7', '--', '--config.team=solo')
  assert result.returncode == 0, result.stderr
  call = checkout.calls()[-1]
  for words in (
      '-m atgrpo_jax.main', '--config configs/plan_path.py:size=nano',
      f'--workdir {checkout.root}/runs/quickstart-seed-7', '--config.seed=7'):
    assert f'{words} ' in call
  assert call.endswith(' --config.team=solo')


def test_quickstart_resumes(checkout):
  workdir = checkout.root / 'runs/quickstart-seed-0'
  workdir.mkdir(parents=True)
  assert 'resuming' in checkout.run('quickstart.sh').stdout


def test_paper_passes_its_options_on(checkout):
  result = checkout.run('paper.sh', '--only', 'main/*', '--dry-run')
  assert result.returncode == 0, result.stderr
  assert checkout.calls()[-1] == '-m paper.run --only main/* --dry_run'


def test_a_dry_run_can_be_pasted(checkout):
  checkout.write_program('trainer', TRAINER)
  dry = checkout.run('gpu.sh', *RUN, '--dry-run', '--', OVERRIDE)
  assert dry.returncode == 0, dry.stderr
  assert not any(checkout.calls())
  assert not (checkout.root / '.venv').exists()
  assert not list(checkout.folder.glob('w*'))
  pasted = checkout.paste(dry.stdout)
  assert pasted.returncode == 0, pasted.stderr
  assert OVERRIDE in pasted.stdout
  expected = sorted(checkout.calls())
  shutil.rmtree(checkout.root / '.venv')
  assert checkout.run('gpu.sh', *RUN, '--', OVERRIDE).returncode == 0
  assert sorted(checkout.calls()) == expected


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
