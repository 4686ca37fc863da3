"""The launch scripts of one machine work, or say why they do not.

Nothing is installed from a package index: a stand-in for Python records its
calls and pretends that pip succeeds.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests import checkout as checkout_lib

ROOT = checkout_lib.ROOT
CONFIG = 'configs/plan_path.py:size=nano,debug'
RUN = ('--config', CONFIG, '--workdir', 'w')
# An override that a careless shell script would split or expand.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""

# Prints its arguments and platforms; exits as the file `status-I` says.
TRAINER = r"""
import os, pathlib, re, sys
print('arguments:', *sys.argv[1:], sep='|')
print('platforms:', os.environ['JAX_PLATFORMS'])
print('gpu:', os.environ.get('JAX_LOCAL_DEVICE_IDS'))
i = re.findall(r'--process_id=(\d+)', ' '.join(sys.argv))
path = pathlib.Path(os.environ['HOME'], f'status-{i[0] if i else 0}')
sys.exit(int(path.read_text()) if path.exists() else 0)
"""


@pytest.fixture
def checkout(tmp_path):
  checkout = checkout_lib.Checkout(tmp_path)
  checkout.write_program('nvidia-smi', 'print("580.65.06\\n580.65.06")')
  return checkout


@pytest.fixture(scope='module')
def untouched(tmp_path_factory):
  """A checkout in which no script gets as far as an installation."""
  return checkout_lib.Checkout(tmp_path_factory.mktemp('untouched'))


@pytest.mark.parametrize('script, args, words', [
    ('quickstart.sh', '--sed 1', ['--sed', '--help']),
    ('quickstart.sh', '--seed --fresh', ['--seed needs a value']),
    ('quickstart.sh', '--seed one', ["'one'"]),
    ('paper.sh', '--cells x', ['--cells']),
    ('paper.sh', "--out ''", ['--out needs a value']),
    ('paper.sh', '--scale 70b', ["'70b'", 'nano']),
    ('paper.sh', '--seeds 0', ["'0'"]),
    ('paper.sh', '--sandbox none', ["'none'", 'bwrap']),
    ('docs.sh', '--server', ['--server', '--help']),
    ('gpu.sh', '--conf x', ['--conf', '--help']),
    ('slurm.sh', '--workdir w', ['--config is missing', 'configs/']),
    ('local_processes.sh', '--config configs/no.py:a --workdir w',
     ["'configs/no.py'"]),
    ('local_processes.sh', f'--config {CONFIG}', ['--workdir is missing']),
    ('slurm.sh', f'--config {CONFIG} --workdir s3://b/x',
     ["'s3://b/x'", 'gs://bucket/folder']),
    ('slurm.sh', f'--config {CONFIG} --workdir gs://b',
     ["'gs://b'", 'gs://bucket/folder']),
    ('gpu.sh', f'--config {CONFIG} --workdir w --mode replay',
     ["'replay'", 'evaluate']),
    ('slurm.sh', f'--config {CONFIG} --workdir w --nodes 0',
     ["'0'", 'above 0']),
    ('slurm.sh', f'--config {CONFIG} --workdir w --time 90',
     ["'90'", 'HOURS:MM:SS']),
    ('slurm.sh', f'--config {CONFIG} --workdir w --time 00:19:59',
     ['00:19:59', '600 seconds', '--grace']),
    ('tpu_pod.sh', f'--zone z --config {CONFIG} --workdir /w', ['--name']),
    ('tpu_pod.sh', '--name pod --stop', ['--zone is missing', 'us-']),
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

  python = checkout.root / '.venv/bin/python'
  python.write_text(python.read_text() + '[ "$2" != ruff ] || exit 3\n')
  assert checkout.run('test.sh').returncode == 3
  assert checkout.calls() == ['-m ruff check']


def test_continuous_integration_installs_a_browser(checkout):
  (checkout.root / '.ci').mkdir()
  shutil.copy(ROOT / '.ci/run', checkout.root / '.ci')
  for name in ('dirname', 'basename'):
    (checkout.folder / 'bin' / name).symlink_to(shutil.which(name))
  checkout.write_program('id', 'print(0)')
  checkout.write_program('apt-get', r"""
import os, pathlib, sys
with pathlib.Path(os.environ['HOME'], 'apt').open('a') as f:
  f.write(f'{sys.argv[1]} {sys.argv[-1]}\n')
""")
  # A PATH without a browser.
  for name in ('bash', 'sh', 'cat', 'mkdir', 'cp', 'tee', 'grep', 'env'):
    (checkout.folder / 'bin' / name).symlink_to(shutil.which(name))
  result = checkout.run('../.ci/run', PATH=str(checkout.folder / 'bin'))
  assert result.returncode == 0, result.stderr
  assert (checkout.folder / 'apt').read_text() == (
      'update update\ninstall chromium\n')
  assert checkout.calls()[-1].startswith('-m pytest ')

  checkout.write_program('id', 'print(1000)')
  result = checkout.run('../.ci/run', PATH=str(checkout.folder / 'bin'))
  assert result.returncode == 0, result.stderr
  assert 'apt-get install chromium' in result.stdout


@pytest.mark.parametrize('script, words', [
    ('echo 3.9', ['python-to-use is Python 3.9', '3.11', 'PYTHON']),
    ('exit 127', ['python-to-use does not run', 'PYTHON']),
    ('case "$2" in *venv*) exit 1;; esac; echo 3.12',
     ['python-to-use', 'venv', 'python3.12-venv'])])
def test_unsuitable_python_is_refused(checkout, script, words):
  checkout.write_python(f'#!/bin/sh\n{script}\n')
  checkout_lib.assert_stops_with(checkout.run('quickstart.sh'), *words)
  assert not (checkout.root / '.venv').exists()


def test_the_newest_python_that_runs_is_used(checkout):
  checkout.write_program('python3.13', 'raise SystemExit(127)')
  shutil.copy(checkout.python, checkout.folder / 'bin/python3.12')
  checkout.write_program('python3.11', 'print("3.11")')
  result = checkout.run('test.sh', PYTHON='')
  assert result.returncode == 0, result.stderr
  assert 'making' in result.stdout and 'with python3.12' in result.stdout
  # The Python of .venv now comes first.
  checkout.write_program('python3.13', 'print("3.13")')
  assert 'which is up to date' in checkout.run('test.sh', PYTHON='').stdout


def test_a_failure_of_pip_is_reported(checkout):
  log = checkout.root / '.cache/install.log'
  script = checkout.python.read_text()
  checkout.write_python(
      f'{script}[ "$2" != pip ] || {{ echo "no space left"; exit 1; }}\n')
  checkout_lib.assert_stops_with(
      checkout.run('test.sh'), 'could not install', str(log))
  assert 'no space left' in log.read_text()

  checkout.write_python(
      f'{script}[ "$2" != pip ] || exec {sys.executable} "$@"\n')
  shutil.rmtree(checkout.root / '.venv')
  with socket.socket() as closed:  # Bound, but it refuses connections.
    closed.bind(('127.0.0.1', 0))
    result = checkout.run(
        'quickstart.sh', PIP_CONFIG_FILE=os.devnull, PIP_DRY_RUN='1',
        PIP_RETRIES='1',
        PIP_INDEX_URL=f'http://127.0.0.1:{closed.getsockname()[1]}/')
  checkout_lib.assert_stops_with(
      result, 'package index cannot be reached', str(log))
  assert not list((checkout.root / '.venv').glob('installed-*'))


# One process.


def test_quickstart_trains(checkout):
  variables = (
      'TFDS_DATA_DIR', 'JAX_COMPILATION_CACHE_DIR', 'GLIBC_TUNABLES',
      'JAX_NUM_CPU_DEVICES')
  checkout.write_python(checkout.python.read_text() + ''.join(
      f'echo "{name}: ${name}"\n' for name in variables))
  result = checkout.run(
      'quickstart.sh', '--seed', '7', '--', '--config.team=solo')
  assert result.returncode == 0, result.stderr
  call = checkout.calls()[-1]
  for words in (
      '-m atgrpo_jax.main', '--config configs/plan_path.py:size=nano',
      f'--workdir {checkout.root}/runs/quickstart-seed-7', '--config.seed=7'):
    assert f'{words} ' in call
  assert call.endswith(' --config.team=solo')
  for name, start in zip(variables, (
      f'{checkout.root}/.cache/datasets\n', f'{checkout.root}/.cache/jax\n',
      'glibc.malloc.', '2\n')):
    assert f'\n{name}: {start}' in result.stdout

  result = checkout.run(
      'quickstart.sh', '--workdir=mine/', **dict.fromkeys(variables, '/mine'))
  assert f' --workdir {checkout.folder}/mine ' in checkout.calls()[-1]
  for name in variables:
    assert f'\n{name}: /mine\n' in result.stdout


def test_quickstart_resumes_unless_fresh(checkout):
  workdir = checkout.root / 'runs/quickstart-seed-0'
  workdir.mkdir(parents=True)
  checkout_lib.assert_stops_with(
      checkout.run('quickstart.sh', '--fresh'), str(workdir), '--workdir')

  (workdir / 'config.json').write_text('earlier')
  assert 'resuming' in checkout.run('quickstart.sh').stdout
  assert 'afresh' in checkout.run('quickstart.sh', '--fresh').stdout
  assert not workdir.exists()
  kept = workdir.with_name('quickstart-seed-0.old-1')
  assert (kept / 'config.json').read_text() == 'earlier'


def test_paper_runs_the_jobs(checkout):
  args = '--seeds 2 --only main/*,roles/* --jobs 2'
  for more, end in (((), 'false'), (('--dry-run',), 'true')):
    result = checkout.run(
        'paper.sh', *args.split(), '--out', 'mine', '--sandbox', 'kernel',
        *more)
    assert result.returncode == 0, result.stderr
    call = checkout.calls()[-1]
    assert call.startswith('-m paper.run ') and f' {args} ' in call
    for words in (
        '--scale nano', f'--out {checkout.folder}/mine', '--sandbox kernel'):
      assert f' {words} ' in call
    assert call.endswith(f'--dry_run={end}')


@pytest.mark.parametrize('args, call', [
    ([], '-m mkdocs build'), (['--serve'], '-m mkdocs serve --no-strict')])
def test_docs_builds_or_serves_the_site(checkout, args, call):
  result = checkout.run('docs.sh', *args)
  assert result.returncode == 0, result.stderr
  *_, pip, last = checkout.calls()
  assert last == call
  assert pip.endswith(f'--editable {checkout.root}[docs]')


def test_gpu_runs_one_trainer(checkout):
  checkout.write_program('trainer', TRAINER)
  (checkout.folder / 'status-0').write_text('42')
  result = checkout.run(
      'gpu.sh', *RUN, '--mode=evaluate', '--', OVERRIDE, '--config.seed=1')
  assert result.returncode == 42, result.stderr
  assert checkout.calls()[1].endswith(f'--editable {checkout.root}[gpu]')
  assert 'platforms: cuda,cpu\n' in result.stdout
  assert (
      f'arguments:|--workdir|{checkout.folder}/w|--config|{CONFIG}'
      f'|--mode|evaluate|{OVERRIDE}|--config.seed=1\n' in result.stdout)


@pytest.mark.parametrize('nvidia_smi, words', [
    ('print("550.54.15")', ['550.54.15', '580', 'jax[cuda12]']),
    ('print("No devices\\nwere found"); raise SystemExit(6)',
     ['No devices were found'])])
def test_unusable_gpus_are_refused(checkout, nvidia_smi, words):
  checkout.write_program('nvidia-smi', nvidia_smi)
  checkout_lib.assert_stops_with(checkout.run('gpu.sh', *RUN), *words)


@pytest.mark.parametrize('script', ['gpu.sh', 'local_processes.sh'])
def test_a_dry_run_can_be_pasted(checkout, script):
  checkout.write_program('trainer', TRAINER)
  dry = checkout.run(script, *RUN, '--dry-run', '--', OVERRIDE)
  assert dry.returncode == 0, dry.stderr
  assert not any(checkout.calls())
  assert not (checkout.root / '.venv').exists()
  assert not list(checkout.folder.glob('w*'))

  def calls():
    return sorted(re.sub(r'1:\d+', 'PORT', c) for c in checkout.calls())

  pasted = checkout.paste(dry.stdout)
  assert pasted.returncode == 0, pasted.stderr
  assert OVERRIDE in pasted.stdout
  expected = calls()
  shutil.rmtree(checkout.root / '.venv')
  assert checkout.run(script, *RUN, '--', OVERRIDE).returncode == 0
  assert calls() == expected


# Several processes; tests/distributed/hosts_test.py has real trainers.


def test_local_processes_get_their_ids(checkout):
  checkout.write_program('trainer', TRAINER)
  result = checkout.run(
      'local_processes.sh', *RUN, '--processes', '3', '--', OVERRIDE)
  assert result.returncode == 0, result.stderr
  logs = {p.name: p.read_text() for p in checkout.folder.glob('w.logs/*')}
  assert sorted(logs) == ['process-1.log', 'process-2.log']
  outputs = [result.stdout, *(logs[name] for name in sorted(logs))]
  port = re.search(r'--coordinator_address=127.0.0.1:(\d+)', outputs[0])[1]
  for i, output in enumerate(outputs):
    assert (
        f'|{OVERRIDE}|--distributed|--coordinator_address=127.0.0.1:{port}'
        f'|--num_processes=3|--process_id={i}\n' in output)
    assert f'platforms: cpu\ngpu: {i}\n' in output


@pytest.mark.parametrize('statuses, expected', [
    ((42, 2), 2), ((3, 2), 2), ((134, 42), 42), ((3, 0), 3)])
def test_local_processes_exit_with_the_first_failure(
    checkout, statuses, expected):
  checkout.write_program('trainer', TRAINER)
  for i, status in enumerate(statuses):
    (checkout.folder / f'status-{i}').write_text(str(status))
  result = checkout.run(
      'local_processes.sh', *RUN, JAX_PLATFORMS='cuda,cpu')
  assert result.returncode == expected
  assert 'platforms: cuda,cpu\ngpu: 0\n' in result.stdout
  assert checkout.calls()[1].endswith(f'{checkout.root}[gpu]')


def test_a_process_that_hangs_after_a_failure_is_killed(checkout):
  script = checkout.root / 'launch/local_processes.sh'
  text = script.read_text()
  assert 'GRACE_PERIOD=10' in text
  script.write_text(text.replace('GRACE_PERIOD=10', 'GRACE_PERIOD=1'))
  checkout.write_program('trainer', r"""
import os, pathlib, signal, sys, time
started = pathlib.Path(os.environ['HOME'], 'started')
if sys.argv[-1] == '--process_id=0':
  started.write_text(str(os.getpid()))
  time.sleep(20)
while not started.exists():
  time.sleep(0.02)
print('out of memory')
sys.exit(4)
""")
  result = checkout.run('local_processes.sh', *RUN)
  assert result.returncode == 4
  assert 'process 1 failed with exit status 4' in result.stderr
  assert 'out of memory' in result.stderr
  with pytest.raises(ProcessLookupError):
    os.kill(int((checkout.folder / 'started').read_text()), 0)


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_a_signal_reaches_every_local_process_once(checkout, name):
  checkout.write_program('trainer', r"""
import os, pathlib, re, signal, sys, time
i = re.findall(r'--process_id=(\d+)', ' '.join(sys.argv))[0]
received = pathlib.Path(os.environ['HOME'], f'received-{i}')
def save(number, frame):
  with received.open('a') as f:
    f.write(signal.Signals(number).name + '\n')
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
received.touch()
while not received.read_text():
  time.sleep(0.02)
time.sleep(0.5)
sys.exit(42)
""")
  process = checkout.start('local_processes.sh', *RUN)
  received = [checkout.folder / f'received-{i}' for i in range(2)]
  checkout_lib.wait_until(lambda: all(path.exists() for path in received))
  if name == 'SIGINT':  # A terminal signals the whole process group.
    os.killpg(process.pid, signal.SIGINT)
  else:
    process.terminate()
  process.communicate(timeout=30)
  assert process.returncode == 42
  assert [path.read_text() for path in received] == [f'{name}\n'] * 2


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
