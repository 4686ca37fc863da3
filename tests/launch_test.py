"""The launch scripts of one machine must work, or say why they do not.

Those of clouds and clusters are in launch_cloud_test.py. No test here installs
anything from a package index: a stand-in for Python writes down what it is
asked to do and makes believe that pip succeeds.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests import checkout as checkout_lib

ROOT = checkout_lib.ROOT
SCRIPTS = ('quickstart.sh', 'test.sh')
PYTEST = '-m pytest -q -n auto --maxprocesses 8 --dist loadfile'


@pytest.fixture
def checkout(tmp_path):
  return checkout_lib.Checkout(tmp_path)


_assert_stops_with = checkout_lib.assert_stops_with


@pytest.mark.parametrize(
    'script', sorted(p.name for p in (ROOT / 'launch').glob('[a-z]*.sh')))
def test_help_from_another_directory(script, tmp_path):
  result = subprocess.run(
      ['bash', ROOT / 'launch' / script, '--help'],
      cwd=tmp_path,
      capture_output=True,
      text=True,
  )
  assert result.returncode == 0, result.stderr
  assert result.stdout.startswith(f'Usage: bash launch/{script}')


def test_test_script_installs_once_and_passes_arguments(checkout):
  result = checkout.run('test.sh', 'tests/some_test.py', '-k', 'a  or b')
  assert result.returncode == 0, result.stderr
  venv, pip, ruff, pytest_call = checkout.calls()
  assert venv == f'-m venv --clear {checkout.root}/.venv'
  assert pip.endswith(f'--editable {checkout.root}[test]')
  assert ruff == '-m ruff check'
  assert pytest_call == f'{PYTEST} tests/some_test.py -k a  or b'

  assert checkout.run('test.sh').returncode == 0
  assert checkout.calls() == ['-m ruff check', PYTEST]

  # The plain installation is part of the one with the extra.
  assert checkout.run('quickstart.sh').returncode == 0
  assert not any('pip install' in call for call in checkout.calls())


def test_extra_is_installed_after_the_plain_installation(checkout):
  assert checkout.run('quickstart.sh').returncode == 0
  assert 'pip install' in checkout.calls()[1]
  assert checkout.run('test.sh').returncode == 0
  assert checkout.calls()[0].endswith(f'--editable {checkout.root}[test]')


def test_changed_requirements_are_installed_again(checkout):
  checkout.run('test.sh')
  checkout.calls()
  with open(checkout.root / 'setup.py', 'a') as f:
    f.write('# One more requirement.\n')
  checkout.run('test.sh')
  pip, *_ = checkout.calls()
  assert 'pip install' in pip


def test_failing_ruff_stops_the_test_script(checkout):
  checkout.run('test.sh')
  checkout.calls()
  venv_python = checkout.root / '.venv/bin/python'
  venv_python.write_text(
      venv_python.read_text() + '[ "$2" != ruff ] || exit 3\n'
  )
  assert checkout.run('test.sh').returncode == 3
  assert checkout.calls() == ['-m ruff check']


def test_quickstart_runs_main(checkout):
  result = checkout.run(
      'quickstart.sh', '--seed', '7', '--', '--config.team=solo'
  )
  assert result.returncode == 0, result.stderr
  assert 'starting afresh' in result.stdout
  workdir = checkout.root / 'runs/quickstart-seed-7'
  assert checkout.calls()[-1] == (
      '-m atgrpo_jax.main --config configs/plan_path.py:size=nano'
      f' --workdir {workdir} --config.seed=7 --config.team=solo'
  )


def test_quickstart_workdir_is_relative_to_the_caller(checkout, tmp_path):
  result = checkout.run('quickstart.sh', '--workdir', 'mine/')
  assert result.returncode == 0, result.stderr
  assert f' --workdir {tmp_path}/mine ' in checkout.calls()[-1]


def test_paper_runs_the_cells(checkout, tmp_path):
  result = checkout.run(
      'paper.sh', '--seeds', '2', '--only', 'main/*,roles/*', '--jobs', '2',
      '--out', 'mine')
  assert result.returncode == 0, result.stderr
  *_, pip, call = checkout.calls()
  assert pip.endswith(f'--editable {checkout.root}[paper]')
  assert call == (
      '-m paper.run --scale nano --seeds 2 --only main/*,roles/* '
      f'--jobs 2 --out {tmp_path}/mine --dry_run=false')


def test_paper_that_only_prints(checkout):
  assert checkout.run('paper.sh', '--dry-run', '--scale', '8b').returncode == 0
  assert checkout.calls()[-1] == (
      '-m paper.run --scale 8b --seeds 3 --only * '
      f'--jobs 1 --out {checkout.root}/runs/paper --dry_run=true')


@pytest.mark.parametrize('args, word', [
    (('--scale', '70b'), "'70b'"), (('--seeds', '0'), "'0'"),
    (('--jobs', 'two'), "'two'"),
    (('--cells', 'x'), '--cells'), (('--out',), '--out needs a value'),
    (('--out', '--dry-run'), '--out needs a value'),
    (('--out', ''), '--out needs a value')])
def test_paper_refuses_bad_options(checkout, args, word):
  _assert_stops_with(checkout.run('paper.sh', *args), word)


def test_caches_stay_in_the_checkout_unless_set(checkout):
  checkout.write_python(
      checkout.python.read_text()
      + 'echo "caches: $TFDS_DATA_DIR, $JAX_COMPILATION_CACHE_DIR"\n'
  )
  result = checkout.run('quickstart.sh')
  cache = checkout.root / '.cache'
  assert f'caches: {cache}/datasets, {cache}/jax\n' in result.stdout
  result = checkout.run(
      'test.sh',
      env={'TFDS_DATA_DIR': '/mine', 'JAX_COMPILATION_CACHE_DIR': '/too'},
  )
  assert 'caches: /mine, /too\n' in result.stdout


@pytest.mark.parametrize('name, start', [
    ('GLIBC_TUNABLES', 'glibc.malloc.mmap_threshold=8589934592:'),
    ('JAX_NUM_CPU_DEVICES', '2\n')])
def test_quickstart_suits_a_cpu_unless_told_otherwise(checkout, name, start):
  checkout.write_python(
      checkout.python.read_text() + f'echo "{name}: ${name}"\n')
  result = checkout.run('quickstart.sh')
  assert f'{name}: {start}' in result.stdout
  result = checkout.run('quickstart.sh', env={name: 'mine'})
  assert f'{name}: mine\n' in result.stdout


def test_quickstart_resumes_unless_told_otherwise(checkout):
  workdir = checkout.root / 'runs/quickstart-seed-0'
  workdir.mkdir(parents=True)
  (workdir / 'config.json').write_text('earlier')
  result = checkout.run('quickstart.sh')
  assert f'resuming the run in {workdir}' in result.stdout

  result = checkout.run('quickstart.sh', '--fresh')
  assert f'starting afresh in {workdir}' in result.stdout
  assert not workdir.exists()
  kept = workdir.with_name('quickstart-seed-0.old-1')
  assert str(kept) in result.stdout
  assert (kept / 'config.json').read_text() == 'earlier'


def test_fresh_leaves_other_folders_alone(checkout, tmp_path):
  mine = tmp_path / 'thesis'
  mine.mkdir()
  result = checkout.run('quickstart.sh', '--fresh', '--workdir', str(mine))
  _assert_stops_with(result, str(mine), 'no earlier run', '--workdir')
  assert mine.exists()


@pytest.mark.parametrize(
    'args, word',
    [
        (('--sed', '1'), '--sed'),
        (('--seed',), '--seed needs a value'),
        (('--seed', '--fresh'), '--seed needs a value'),
        (('--seed', 'one'), "'one'"),
    ],
)
def test_quickstart_refuses_bad_options(checkout, args, word):
  _assert_stops_with(checkout.run('quickstart.sh', *args), word)


@pytest.mark.parametrize('script', SCRIPTS)
def test_old_python_is_named(checkout, script):
  old = checkout.write_python('#!/bin/sh\necho 3.9\n')
  result = checkout.run(script, python=old)
  _assert_stops_with(result, f'{old} is Python 3.9', '3.11', 'PYTHON')
  assert not (checkout.root / '.venv').exists()


def test_newest_python_that_runs_is_found(checkout, tmp_path):
  for name, script in [
      ('python3.13', '#!/bin/sh\nexit 127\n'),
      ('python3.12', checkout.python.read_text()),
      ('python3.11', '#!/bin/sh\necho 3.11\n'),
  ]:
    path = tmp_path / 'bin' / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
  search = os.pathsep.join([str(tmp_path / 'bin'), os.environ['PATH']])
  result = checkout.run('test.sh', env={'PYTHON': '', 'PATH': search})
  assert result.returncode == 0, result.stderr
  assert 'making' in result.stdout and 'with python3.12' in result.stdout
  # From now on the Python of .venv is used, whatever the PATH offers.
  (tmp_path / 'bin/python3.13').write_text('#!/bin/sh\necho 3.13\n')
  result = checkout.run('test.sh', env={'PYTHON': '', 'PATH': search})
  assert 'which is up to date' in result.stdout


def test_python_that_does_not_run_is_named(checkout):
  result = checkout.run('test.sh', python=pathlib.Path('/no/such/python'))
  _assert_stops_with(result, '/no/such/python does not run', 'PYTHON')


def test_python_without_venv_is_named(checkout):
  bare = checkout.write_python(
      '#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\necho 3.12\n'
  )
  result = checkout.run('test.sh', python=bare)
  _assert_stops_with(result, str(bare), 'venv', 'python3.12-venv')


def test_unreachable_index_is_named(checkout):
  # Bound and not listening: connections to this port are refused.
  with socket.socket() as closed:
    closed.bind(('127.0.0.1', 0))
    result = checkout.run(
        'quickstart.sh',
        python=pathlib.Path(sys.executable),
        env={
            'PIP_CONFIG_FILE': os.devnull,
            'PIP_INDEX_URL': f'http://127.0.0.1:{closed.getsockname()[1]}/',
            'PIP_RETRIES': '1',
        },
    )
  _assert_stops_with(result, 'package index cannot be reached')
  log = checkout.root / '.cache/install.log'
  assert str(log) in result.stderr
  assert 'refused' in log.read_text()
  # A failure must not count as an installation the next time.
  assert not list((checkout.root / '.venv').glob('installed-*'))


def test_other_pip_failures_point_to_the_log(checkout):
  script = checkout.python.read_text()
  checkout.write_python(
      script + '[ "$2" != pip ] || { echo "no space left"; exit 1; }\n'
  )
  result = checkout.run('test.sh')
  log = checkout.root / '.cache/install.log'
  _assert_stops_with(result, 'could not install', str(log))
  assert 'no space left' in log.read_text()


RUN = ('--config', 'configs/plan_path.py:size=nano,debug', '--workdir', 'w')
# An override that a careless shell script would take apart.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""

# Prints its arguments and the platform; exits as the file `status-I` says.
TRAINER = r"""
import os, pathlib, re, sys
print('arguments:', *sys.argv[1:], sep='|')
print('platforms:', os.environ['JAX_PLATFORMS'])
i = re.findall(r'--process_id=(\d+)', ' '.join(sys.argv))
path = pathlib.Path(os.environ['HOME'], f'status-{i[0] if i else 0}')
sys.exit(int(path.read_text()) if path.exists() else 0)
"""

# Saves when told to, once; writes down how often it was told, and by what.
SAVING_TRAINER = r"""
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
"""


@pytest.mark.parametrize(
    'script', ['gpu.sh', 'local_processes.sh', 'slurm.sh'])
@pytest.mark.parametrize(
    'args, words',
    [
        (('--conf', 'x'), ['unknown option --conf', '--help']),
        (('--workdir', 'w'), ['--config is missing', 'configs/']),
        (('--config',), ['--config needs a value']),
        (('--config', '--dry-run'), ['--config needs a value']),
        (('--config', 'configs/no.py:a', '--workdir', 'w'),
         ["no file 'configs/no.py'"]),
        (RUN[:2], ['--workdir is missing']),
        ((*RUN[:3], 'gs://b/x'), ["'gs://b/x'", 'gcsfuse']),
        ((*RUN, '--mode', 'pretrain'), ["'pretrain'", 'evaluate']),
    ],
)
def test_bad_options_are_refused(checkout, script, args, words):
  _assert_stops_with(checkout.run(script, *args), *words)


@pytest.fixture
def gpu_checkout(checkout):
  checkout.write_program('nvidia-smi', 'print("580.65.06\\n580.65.06")')
  checkout.write_program('trainer', TRAINER)
  return checkout


def test_gpu_script_passes_all_on(gpu_checkout):
  result = gpu_checkout.run(
      'gpu.sh', *RUN, '--mode=evaluate', '--', OVERRIDE, '--config.seed=1')
  assert result.returncode == 0, result.stderr
  assert gpu_checkout.calls()[1].endswith(
      f'--editable {gpu_checkout.root}[gpu]')
  assert 'platforms: cuda,cpu\n' in result.stdout
  assert (
      f'arguments:|--workdir|{gpu_checkout.folder}/w|--config|{RUN[1]}'
      f'|--mode|evaluate|{OVERRIDE}|--config.seed=1\n' in result.stdout)


def test_gpu_script_exits_as_the_trainer_does(gpu_checkout):
  (gpu_checkout.folder / 'status-0').write_text('42')
  assert gpu_checkout.run('gpu.sh', *RUN).returncode == 42


def test_old_driver_is_named(gpu_checkout):
  gpu_checkout.write_program('nvidia-smi', 'print("550.54.15")')
  result = gpu_checkout.run('gpu.sh', *RUN)
  _assert_stops_with(result, '550.54.15', '580', 'jax[cuda12]')


def test_missing_card_is_named(gpu_checkout):
  gpu_checkout.write_program(
      'nvidia-smi', 'print("No devices\\nwere found"); raise SystemExit(6)')
  result = gpu_checkout.run('gpu.sh', *RUN)
  _assert_stops_with(result, 'No devices were found')


@pytest.mark.parametrize('script', ['gpu.sh', 'local_processes.sh'])
def test_dry_run_can_be_pasted(gpu_checkout, script):
  args = (script, *RUN, '--', OVERRIDE)
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
  assert gpu_checkout.run(*args).returncode == 0
  assert calls() == in_shell


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
    assert 'platforms: cpu\n' in output


def test_local_processes_take_one_card_each(checkout):
  checkout.write_program('trainer', TRAINER.replace(
      'i =', 'print("card", os.environ["JAX_LOCAL_DEVICE_IDS"])\ni =', 1))
  result = checkout.run(
      'local_processes.sh', *RUN, env={'JAX_PLATFORMS': 'cuda,cpu'})
  assert 'card 0\n' in result.stdout
  assert 'platforms: cuda,cpu\n' in result.stdout
  log = (checkout.folder / 'w.logs/process-1.log').read_text()
  assert 'card 1\n' in log
  assert checkout.calls()[1].endswith(f'{checkout.root}[gpu]')


def test_local_processes_end_when_one_fails(checkout):
  script = checkout.root / 'launch/local_processes.sh'
  text = script.read_text()
  assert 'GRACE=10' in text
  script.write_text(text.replace('GRACE=10', 'GRACE=1'))
  # Process 0 waits for the other and heeds no SIGTERM.
  checkout.write_program('trainer', r"""
import os, pathlib, signal, sys, time
started = pathlib.Path(os.environ['HOME'], 'started')
if sys.argv[-1] == '--process_id=0':
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  started.write_text(str(os.getpid()))
  time.sleep(20)
  started.with_name('lived on').touch()
while not started.exists():
  time.sleep(0.02)
print('out of memory')
sys.exit(3)
""")
  result = checkout.run('local_processes.sh', *RUN)
  assert result.returncode == 3
  assert 'process 1 failed with exit status 3' in result.stderr
  assert 'out of memory' in result.stderr
  assert not (checkout.folder / 'lived on').exists()
  pid = int((checkout.folder / 'started').read_text())
  with pytest.raises(ProcessLookupError):
    os.kill(pid, 0)


def test_failure_outranks_a_stop(checkout):
  checkout.write_program('trainer', TRAINER)
  (checkout.folder / 'status-0').write_text('42')
  assert checkout.run('local_processes.sh', *RUN).returncode == 42
  (checkout.folder / 'status-1').write_text('2')
  assert checkout.run('local_processes.sh', *RUN).returncode == 2


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_local_processes_are_told_once(checkout, name):
  checkout.write_program('trainer', SAVING_TRAINER)
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


def test_local_processes_play_together(checkout, echo_folder):
  shutil.rmtree(checkout.root / 'configs')
  for name in ('atgrpo_jax', 'configs', 'environments', 'tests'):
    (checkout.root / name).symlink_to(ROOT / name)
  checkout.write_program('trainer', f"""
import os, sys
python = {sys.executable!r}
os.execv(python, [python, '-m', 'atgrpo_jax.main', *sys.argv[1:]])
""")
  process = checkout.start(
      'local_processes.sh', '--config', 'tests/echo.py', '--workdir', 'w',
      '--mode', 'evaluate', '--', f'--config.model.folder={echo_folder}')
  try:
    output, errors = process.communicate(timeout=600)
  finally:
    process.terminate()
  log = (checkout.folder / 'w.logs/process-1.log').read_text()
  assert process.returncode == 0, errors + log
  # Only the first speaks.
  assert 'written to' in output
  assert 'written to' not in log
  assert (checkout.folder / 'w/evals/evaluation.json').exists()


def test_shellcheck():
  shellcheck = shutil.which(
      'shellcheck',
      path=os.pathsep.join(
          [os.path.dirname(sys.executable), os.environ['PATH']]
      ),
  )
  if shellcheck is None:
    pytest.skip('shellcheck is not installed; the test extra has it')
  scripts = sorted((ROOT / 'launch').glob('*.sh')) + [ROOT / '.ci/run']
  result = subprocess.run(
      [shellcheck, '--external-sources', '--source-path=SCRIPTDIR', *scripts],
      capture_output=True,
      text=True,
  )
  assert result.returncode == 0, result.stdout


def test_ci_runs_the_test_script(checkout):
  (checkout.root / '.ci').mkdir()
  shutil.copy(ROOT / '.ci/run', checkout.root / '.ci')
  result = checkout.run('../.ci/run')
  assert result.returncode == 0, result.stderr
  assert checkout.calls()[-1] == PYTEST
