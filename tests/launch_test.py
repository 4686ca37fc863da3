"""The launch scripts of one machine must work, or say why they do not.

Others are in launch_slurm_test.py and launch_tpu_test.py. No test here installs
anything from a package index: a stand-in for Python writes down what it is
asked to do and makes believe that pip succeeds.
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
# An override that a careless shell script would take apart.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""


_assert_stops_with = checkout_lib.assert_stops_with


@pytest.fixture
def checkout(tmp_path):
  return checkout_lib.Checkout(tmp_path)


# What is refused.


@pytest.fixture(scope='module')
def untouched(tmp_path_factory):
  """In which nothing is ever run."""
  return checkout_lib.Checkout(tmp_path_factory.mktemp('untouched'))


_TPU = f'--name mine --zone z --config {CONFIG} --workdir'


@pytest.mark.parametrize('script, args, words', [
    ('quickstart.sh', '--sed 1', ['unknown option --sed', '--help']),
    ('quickstart.sh', '--seed --fresh', ['--seed needs a value']),
    ('quickstart.sh', '--seed one', ["'one'"]),
    ('paper.sh', '--cells x', ['--cells']),
    ('paper.sh', "--out ''", ['--out needs a value']),
    ('paper.sh', '--scale 70b', ["'70b'"]),
    ('paper.sh', '--seeds 0', ["'0'"]),
    ('paper.sh', '--sandbox none', ["'none'", 'bwrap']),
    ('docs.sh', '--server', ['unknown option --server', '--help']),
    ('gpu.sh', '--conf x', ['unknown option --conf', '--help']),
    ('slurm.sh', '--workdir w', ['--config is missing', 'configs/']),
    ('local_processes.sh', '--config configs/no.py:a --workdir w',
     ["no file 'configs/no.py'"]),
    ('local_processes.sh', f'--config {CONFIG}', ['--workdir is missing']),
    ('slurm.sh', f'--config {CONFIG} --workdir s3://b/x',
     ["'s3://b/x'", 'gs://bucket/folder']),
    ('slurm.sh', f'--config {CONFIG} --workdir gs://b',
     ["'gs://b'", 'gs://bucket/folder']),
    ('gpu.sh', f'--config {CONFIG} --workdir w --mode pretrain',
     ["'pretrain'", 'evaluate']),
    ('slurm.sh', f'--config {CONFIG} --workdir w --nodes 0',
     ["--nodes is '0'", 'above 0']),
    ('slurm.sh', f'--config {CONFIG} --workdir w --time 90',
     ["'90'", 'HOURS:MM:SS']),
    ('slurm.sh', f'--config {CONFIG} --workdir w --time 00:19:59',
     ['00:19:59', '600 seconds', '--grace']),
    ('tpu_vm.sh', f'--zone z --config {CONFIG} --workdir w',
     ['--name is missing']),
    ('tpu_vm.sh', f'--name mine --config {CONFIG} --workdir w',
     ['--zone is missing', 'us-']),
    ('tpu_vm.sh', f"{_TPU} 'a b'", ["'a b'", 'letters']),
    ('tpu_pod.sh', f'{_TPU} runs/x', ["'runs/x'", 'absolute', 'share']),
    ('tpu_pod.sh', f'{_TPU} /x --num-slices 2', ['is 2', 'add --queued']),
    ('tpu_pod.sh', f'{_TPU} /x --num-slices 0 --queued', ["is '0'", 'above 0']),
    ('tpu_vm.sh', f'{_TPU} /x --valid-until 6h', ['--queued']),
    ('tpu_vm.sh', f'{_TPU} /x --retries many', ["'many'", 'whole number']),
    ('tpu_vm.sh', f'{_TPU} /x --poll-seconds 1m', ["'1m'", 'number']),
    ('tpu_vm.sh', f'{_TPU} /x --queued --valid-until yesterday',
     ["'yesterday'", '6h']),
    ('tpu_vm.sh', f'{_TPU} /x --name My_vm', ["'My_vm'", 'small letters']),
    ('tpu_vm.sh', f'{_TPU} /x --accelerator-type v5',
     ["'v5'", 'v5litepod-8']),
    ('tpu_vm.sh', f'{_TPU} /x --accelerator-type v5litepod-16',
     ['several workers', 'launch/tpu_pod.sh']),
    ('tpu_vm.sh', f'{_TPU} runs/x --retries 2',
     ["'runs/x'", 'disk of a TPU VM', '--setup mounts']),
])
def test_bad_options_are_refused(untouched, script, args, words):
  _assert_stops_with(untouched.run(script, *shlex.split(args)), *words)
  assert not (untouched.root / '.venv').exists()


@pytest.mark.parametrize(
    'script', sorted(p.name for p in (ROOT / 'launch').glob('[a-z]*.sh')))
def test_help_from_another_directory(untouched, script):
  result = untouched.run(script, '--help')
  assert result.returncode == 0, result.stderr
  assert result.stdout.startswith(f'Usage: bash launch/{script}')


# The installation.


def test_what_is_installed_stays_installed(checkout):
  result = checkout.run('test.sh', 'tests/some_test.py', '-k', 'a  or b')
  assert result.returncode == 0, result.stderr
  venv, pip, ruff, pytest_call = checkout.calls()
  assert venv == f'-m venv --clear {checkout.root}/.venv'
  assert pip.endswith(f'--editable {checkout.root}[test]')
  assert ruff == '-m ruff check'
  assert pytest_call.startswith('-m pytest ')
  assert pytest_call.endswith(' tests/some_test.py -k a  or b')

  # Continuous integration runs the same script.
  (checkout.root / '.ci').mkdir()
  shutil.copy(ROOT / '.ci/run', checkout.root / '.ci')
  assert checkout.run('../.ci/run').returncode == 0
  ruff, pytest_call = checkout.calls()
  assert ruff == '-m ruff check' and pytest_call.startswith('-m pytest ')

  # The plain installation is part of the one with the extra.
  assert checkout.run('quickstart.sh').returncode == 0
  assert not any('pip install' in call for call in checkout.calls())

  with open(checkout.root / 'setup.py', 'a') as f:
    f.write('# One more requirement.\n')
  assert checkout.run('quickstart.sh').returncode == 0
  pip, _ = checkout.calls()
  assert pip.endswith(f'--editable {checkout.root}')
  # The extra is not part of the plain installation.
  assert checkout.run('test.sh').returncode == 0
  assert checkout.calls()[0].endswith(f'--editable {checkout.root}[test]')

  python = checkout.root / '.venv/bin/python'
  python.write_text(python.read_text() + '[ "$2" != ruff ] || exit 3\n')
  assert checkout.run('test.sh').returncode == 3
  assert checkout.calls() == ['-m ruff check']


@pytest.mark.parametrize('script, words', [
    ('echo 3.9', ['python-to-use is Python 3.9', '3.11', 'PYTHON']),
    ('exit 127', ['python-to-use does not run', 'PYTHON']),
    ('case "$2" in *venv*) exit 1;; esac; echo 3.12',
     ['python-to-use', 'venv', 'python3.12-venv'])])
def test_python_that_will_not_do_is_named(checkout, script, words):
  checkout.write_python(f'#!/bin/sh\n{script}\n')
  _assert_stops_with(checkout.run('quickstart.sh'), *words)
  assert not (checkout.root / '.venv').exists()


def test_newest_python_that_runs_is_found(checkout):
  checkout.write_program('python3.13', 'raise SystemExit(127)')
  shutil.copy(checkout.python, checkout.folder / 'bin/python3.12')
  checkout.write_program('python3.11', 'print("3.11")')
  result = checkout.run('test.sh', env={'PYTHON': ''})
  assert result.returncode == 0, result.stderr
  assert 'making' in result.stdout and 'with python3.12' in result.stdout
  # From now on the Python of .venv is used, whatever the PATH offers.
  checkout.write_program('python3.13', 'print("3.13")')
  result = checkout.run('test.sh', env={'PYTHON': ''})
  assert 'which is up to date' in result.stdout


def test_failing_pip_is_named(checkout):
  log = checkout.root / '.cache/install.log'
  script = checkout.python.read_text()
  checkout.write_python(
      f'{script}[ "$2" != pip ] || {{ echo "no space left"; exit 1; }}\n')
  _assert_stops_with(checkout.run('test.sh'), 'could not install', str(log))
  assert 'no space left' in log.read_text()

  # Bound and not listening: connections to this port are refused.
  checkout.write_python(
      f'{script}[ "$2" != pip ] || exec {sys.executable} "$@"\n')
  shutil.rmtree(checkout.root / '.venv')
  with socket.socket() as closed:
    closed.bind(('127.0.0.1', 0))
    result = checkout.run('quickstart.sh', env={
        'PIP_CONFIG_FILE': os.devnull, 'PIP_DRY_RUN': '1', 'PIP_RETRIES': '1',
        'PIP_INDEX_URL': f'http://127.0.0.1:{closed.getsockname()[1]}/'})
  _assert_stops_with(result, 'package index cannot be reached', str(log))
  assert 'refused' in log.read_text()
  # A failure must not count as an installation the next time.
  assert not list((checkout.root / '.venv').glob('installed-*'))


# The quickstart, the tables and the site.


def test_quickstart_runs_main(checkout):
  variables = (
      'TFDS_DATA_DIR', 'JAX_COMPILATION_CACHE_DIR', 'GLIBC_TUNABLES',
      'JAX_NUM_CPU_DEVICES')
  checkout.write_python(checkout.python.read_text() + ''.join(
      f'echo "{name}: ${name}"\n' for name in variables))
  result = checkout.run(
      'quickstart.sh', '--seed', '7', '--', '--config.team=solo')
  assert result.returncode == 0, result.stderr
  assert 'starting afresh' in result.stdout
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
      'quickstart.sh', '--workdir', 'mine/',
      env=dict.fromkeys(variables, '/mine'))
  # A folder is the caller's.
  assert f' --workdir {checkout.folder}/mine ' in checkout.calls()[-1]
  for name in variables:
    assert f'\n{name}: /mine\n' in result.stdout


def test_quickstart_resumes_unless_told_otherwise(checkout):
  workdir = checkout.root / 'runs/quickstart-seed-0'
  workdir.mkdir(parents=True)
  result = checkout.run('quickstart.sh', '--fresh')
  _assert_stops_with(result, str(workdir), 'no earlier run', '--workdir')

  (workdir / 'config.json').write_text('earlier')
  result = checkout.run('quickstart.sh')
  assert f'resuming the run in {workdir}' in result.stdout
  result = checkout.run('quickstart.sh', '--fresh')
  assert f'starting afresh in {workdir}' in result.stdout
  assert not workdir.exists()
  kept = workdir.with_name('quickstart-seed-0.old-1')
  assert str(kept) in result.stdout
  assert (kept / 'config.json').read_text() == 'earlier'


def test_paper_runs_the_cells(checkout):
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


def test_docs_builds_the_site_or_shows_it(checkout):
  for args, last in (
      ([], '-m mkdocs build'), (['--serve'], '-m mkdocs serve --no-strict')):
    result = checkout.run('docs.sh', *args)
    assert result.returncode == 0, result.stderr
    *_, pip, call = ['', *checkout.calls()]
    assert call == last
    assert bool(args) or pip.endswith(f'--editable {checkout.root}[docs]')


# One process.

# Prints its arguments and where it runs; exits as the file `status-I` says.
TRAINER = r"""
import os, pathlib, re, sys
print('arguments:', *sys.argv[1:], sep='|')
print('platforms:', os.environ['JAX_PLATFORMS'])
print('card:', os.environ.get('JAX_LOCAL_DEVICE_IDS'))
i = re.findall(r'--process_id=(\d+)', ' '.join(sys.argv))
path = pathlib.Path(os.environ['HOME'], f'status-{i[0] if i else 0}')
sys.exit(int(path.read_text()) if path.exists() else 0)
"""


@pytest.fixture
def gpu_checkout(checkout):
  checkout.write_program('nvidia-smi', 'print("580.65.06\\n580.65.06")')
  checkout.write_program('trainer', TRAINER)
  return checkout


def test_gpu_script_is_its_trainer(gpu_checkout):
  (gpu_checkout.folder / 'status-0').write_text('42')
  result = gpu_checkout.run(
      'gpu.sh', *RUN, '--mode=evaluate', '--', OVERRIDE, '--config.seed=1')
  assert result.returncode == 42, result.stderr
  assert gpu_checkout.calls()[1].endswith(
      f'--editable {gpu_checkout.root}[gpu]')
  assert 'platforms: cuda,cpu\n' in result.stdout
  assert (
      f'arguments:|--workdir|{gpu_checkout.folder}/w|--config|{CONFIG}'
      f'|--mode|evaluate|{OVERRIDE}|--config.seed=1\n' in result.stdout)


@pytest.mark.parametrize('nvidia_smi, words', [
    ('print("550.54.15")', ['550.54.15', '580', 'jax[cuda12]']),
    ('print("No devices\\nwere found"); raise SystemExit(6)',
     ['No devices were found'])])
def test_cards_that_will_not_do_are_named(gpu_checkout, nvidia_smi, words):
  gpu_checkout.write_program('nvidia-smi', nvidia_smi)
  _assert_stops_with(gpu_checkout.run('gpu.sh', *RUN), *words)


@pytest.mark.parametrize('script', ['gpu.sh', 'local_processes.sh'])
def test_dry_run_can_be_pasted(gpu_checkout, script):
  dry = gpu_checkout.run(script, *RUN, '--dry-run', '--', OVERRIDE)
  assert dry.returncode == 0, dry.stderr
  assert not any(gpu_checkout.calls()), 'a dry run runs nothing'
  assert not (gpu_checkout.root / '.venv').exists()
  assert not list(gpu_checkout.folder.glob('w*'))

  def calls():  # Every run has a port of its own.
    return sorted(re.sub(r'1:\d+', 'PORT', c) for c in gpu_checkout.calls())

  pasted = gpu_checkout.paste(dry.stdout)
  assert pasted.returncode == 0, pasted.stderr
  assert OVERRIDE in pasted.stdout
  in_shell = calls()
  shutil.rmtree(gpu_checkout.root / '.venv')
  assert gpu_checkout.run(script, *RUN, '--', OVERRIDE).returncode == 0
  assert calls() == in_shell


# Several processes.


def test_local_processes_get_their_numbers(checkout):
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
    assert f'platforms: cpu\ncard: {i}\n' in output

  # With one card each. A failure outranks a stop.
  (checkout.folder / 'status-0').write_text('42')
  (checkout.folder / 'status-1').write_text('2')
  checkout.calls()
  result = checkout.run(
      'local_processes.sh', *RUN, env={'JAX_PLATFORMS': 'cuda,cpu'})
  assert result.returncode == 2
  assert 'platforms: cuda,cpu\ncard: 0\n' in result.stdout
  # So does what made the other end.
  (checkout.folder / 'status-0').write_text('3')
  assert checkout.run('local_processes.sh', *RUN).returncode == 2
  assert checkout.calls()[0].endswith(f'{checkout.root}[gpu]')


def test_local_processes_end_when_one_fails(checkout):
  script = checkout.root / 'launch/local_processes.sh'
  text = script.read_text()
  assert 'GRACE=10' in text
  script.write_text(text.replace('GRACE=10', 'GRACE=1'))
  # Process 0 waits for the other.
  checkout.write_program('trainer', r"""
import os, pathlib, signal, sys, time
started = pathlib.Path(os.environ['HOME'], 'started')
if sys.argv[-1] == '--process_id=0':
  started.write_text(str(os.getpid()))
  time.sleep(20)
  started.with_name('lived on').touch()
while not started.exists():
  time.sleep(0.02)
print('out of memory')
sys.exit(4)
""")
  result = checkout.run('local_processes.sh', *RUN)
  assert result.returncode == 4
  assert 'process 1 failed with exit status 4' in result.stderr
  assert 'out of memory' in result.stderr
  assert not (checkout.folder / 'lived on').exists()
  pid = int((checkout.folder / 'started').read_text())
  with pytest.raises(ProcessLookupError):
    os.kill(pid, 0)


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_local_processes_are_told_once(checkout, name):
  # Saves when told to, once; writes down how often it was told, and by what.
  checkout.write_program('trainer', r"""
import os, pathlib, re, signal, sys, time
i = re.findall(r'--process_id=(\d+)', ' '.join(sys.argv))[0]
told = pathlib.Path(os.environ['HOME'], f'told-{i}')
def save(number, frame):
  with told.open('a') as f:
    f.write(signal.Signals(number).name + '\n')
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
told.touch()
while not told.read_text():
  time.sleep(0.02)
time.sleep(1)
sys.exit(42)
""")
  process = checkout.start('local_processes.sh', *RUN)
  told = [checkout.folder / f'told-{i}' for i in range(2)]
  checkout_lib.wait_until(lambda: all(path.exists() for path in told))
  if name == 'SIGINT':  # A terminal signals all processes of the group.
    os.killpg(process.pid, signal.SIGINT)
  else:
    process.terminate()
  process.communicate(timeout=30)
  assert process.returncode == 42
  assert [path.read_text() for path in told] == [f'{name}\n'] * 2


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
