"""Launching on SLURM, on a TPU pod and with SkyPilot, against small stand-ins.

SkyPilot's parser needs an environment with skypilot and pytest but without our
dependencies; run it there with `pytest --noconftest -m long`.
"""

import os
import signal

import pytest

from tests import checkout as checkout_lib

RUN = ('--config', 'configs/plan_path.py:size=nano,debug', '--workdir',
       'gs://bucket/runs/x', '--', checkout_lib.OVERRIDE)

# Prints its arguments, waits for SIGTERM, and saves. JOB_SIGNAL is the signal
# that Slurm sends to the job in the meantime.
TRAINER = """
import os, pathlib, signal, sys, time
def save(*_):
  print('saved', flush=True)
  sys.exit(int(os.environ.get('TRAINER_STATUS', 42)))
signal.signal(signal.SIGTERM, save)
pathlib.Path.home().joinpath('pid').write_text(str(os.getpid()))
print('arguments:', *sys.argv[1:], sep='|', flush=True)
if 'JOB_SIGNAL' in os.environ:
  os.kill(os.getppid(), int(os.environ['JOB_SIGNAL']))
  if int(os.environ['JOB_SIGNAL']) == signal.SIGTERM:
    save()  # Slurm sends SIGTERM to the processes as well.
time.sleep(60)
"""
SLURM = {
    'sbatch': """
import subprocess, sys
start = [x.endswith('_slurm_job.sh') for x in sys.argv].index(True)
given = dict(x.partition('=')[::2] for x in sys.argv[1:start])
with open(given['--output'], 'w') as log:
  print(*sys.argv[1:start], file=log, flush=True)
  status = subprocess.run(['bash', *sys.argv[start:]], cwd=given['--chdir'],
                          stdout=log, stderr=log).returncode
  print('exit status', status, file=log)
print('123;cluster')
""",
    'srun': "import os, sys; os.execvp('env', sys.argv[6:])",
    'scancel': """
import os, pathlib
os.kill(int(pathlib.Path.home().joinpath('pid').read_text()), 15)
""",
    'scontrol': "import sys; print('scontrol', *sys.argv[1:])",
    'squeue': "import os; print(os.environ['JOB_STATE'])"}
# Runs a command on two workers, each with a home folder.
GCLOUD = """
import os, pathlib, shutil, subprocess, sys
assert {'--worker=all', '--zone=us-west4-a'} <= set(sys.argv)
for name in ('worker-0', 'worker-1'):
  home = pathlib.Path(os.environ['HOME'], name)
  home.mkdir(exist_ok=True)
  if sys.argv[4] == 'scp':
    shutil.copy(sys.argv[5], home)
  else:
    command = sys.argv[-1].removeprefix('--command=')
    subprocess.run(['bash', '-c', command], cwd=home, check=True,
                   env=os.environ | {'HOME': str(home)})
"""
# Stands in for uv, and for the Python that uv installs into .venv.
UV = """
import pathlib, shutil, sys
if 'venv' in sys.argv:
  folder = pathlib.Path(sys.argv[-1], 'bin')
  folder.mkdir(parents=True, exist_ok=True)
  shutil.copy(sys.argv[0], folder / 'python')
if '--distributed' not in sys.argv:
  sys.exit()
""" + TRAINER


@pytest.mark.parametrize('number, status, state, is_queued', [
    (signal.SIGUSR1, 134, 'RUNNING', True),  # Out of time during the start.
    (signal.SIGTERM, 42, 'RUNNING', True),  # Preempted.
    (signal.SIGTERM, 42, 'COMPLETING', False)])  # Cancelled.
def test_slurm_job_saves_and_is_queued_again(
    tmp_path, number, status, state, is_queued):
  checkout = checkout_lib.Checkout(tmp_path)
  for name, script in {**SLURM, 'trainer': TRAINER}.items():
    checkout.write_program(name, script)
  result = checkout.run(
      'slurm.sh', '--nodes', '2', '--gpus-per-node=4', *RUN,
      JOB_SIGNAL=str(int(number)), JOB_STATE=state, TRAINER_STATUS=str(status),
      SLURM_JOB_ID='123', SLURM_CPUS_PER_TASK='8')
  assert result.returncode == 0, result.stderr
  log, = checkout.root.glob('runs/x.logs/slurm-*.log')
  options, *lines = log.read_text().splitlines()
  assert {'--ntasks=8', '--requeue'} <= set(options.split())
  assert lines[0].endswith(f'|{checkout_lib.OVERRIDE}|--distributed')
  assert 'saved' in lines
  assert ('scontrol requeue 123' in lines) == is_queued
  assert lines[-1] == f'exit status {42 if is_queued else status}'


def test_tpu_pod_trains_on_all_workers(tmp_path):
  checkout = checkout_lib.Checkout(tmp_path)
  checkout.write_program('gcloud', GCLOUD)
  checkout.write_program('python3', UV)
  pod = 'tpu_pod.sh', '--name', 'pod', '--zone', 'us-west4-a'
  run = checkout.start(*pod, *RUN)
  logs = [tmp_path / f'worker-{i}/atgrpo_jax.log' for i in range(2)]
  checkout_lib.wait_until(
      lambda: all(log.exists() and log.read_text() for log in logs))
  for log in logs:
    assert log.read_text().endswith(f'|{checkout_lib.OVERRIDE}\n')
  assert checkout.run(*pod, '--stop').returncode == 0
  assert run.communicate(timeout=30)[0].count('saved') == 2


@pytest.mark.long
@pytest.mark.parametrize('name', ['tpu', 'gpu'])
def test_skypilot_accepts_the_jobs(name):
  sky = pytest.importorskip('sky', reason='SkyPilot is not installed')
  resources, = sky.Task.from_yaml(
      os.fspath(checkout_lib.ROOT / f'launch/sky_{name}.yaml')).resources
  assert resources.use_spot
