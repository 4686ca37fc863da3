"""Launching on SLURM, on a TPU pod and with SkyPilot, against small stand-ins.

SkyPilot's parser runs where `sky` can be imported. Its dependencies conflict
with ours, so give it an environment:

  python -m venv sky && sky/bin/pip install skypilot pytest
  sky/bin/python -m pytest --noconftest tests/launch_cluster_test.py -m long
"""

import json
import os
import signal
import subprocess

import pytest
import yaml

from tests import checkout as checkout_lib

RUN = ('--config', 'configs/plan_path.py:size=nano,debug', '--workdir')
# An override that a careless shell script would split or expand.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""

# Records its arguments, one JSON list per line.
RECORD = r"""
import json, os, pathlib, sys
home = pathlib.Path(os.environ['HOME'])
with (home / 'records').open('a') as f:
  f.write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + '\n')
"""

# Prints its arguments, waits for SIGTERM, saves, and exits with a status.
TRAINER = r"""
import os, pathlib, signal, sys, time
print('arguments:', *sys.argv[1:], sep='|', flush=True)
def save(number, frame):
  print('saved', flush=True)
  sys.exit({status})
signal.signal(signal.SIGTERM, save)
pathlib.Path(os.environ['HOME'], 'started').write_text(str(os.getpid()))
time.sleep(60)
"""

# Runs a command on two workers, with a home folder each.
GCLOUD = RECORD + r"""
import shutil, subprocess
verb, rest = sys.argv[4], sys.argv[5:]
for i in range(2):
  worker = home / f'worker-{i}'
  worker.mkdir(exist_ok=True)
  if verb == 'scp':
    shutil.copy(rest[0], worker)
  elif i == 0 or '--pid=' not in rest[-1]:  # Follow one log only.
    command = rest[-1].removeprefix('--command=')
    subprocess.run(['bash', '-c', command], cwd=worker, check=True,
                   env=os.environ | {'HOME': str(worker)})
"""

# Stands in for uv, and for the Python that uv installs into .venv.
UV = r"""
import pathlib, shutil, sys
if 'venv' in sys.argv:
  folder = pathlib.Path(sys.argv[-1], 'bin')
  folder.mkdir(parents=True, exist_ok=True)
  shutil.copy(sys.argv[0], folder / 'python')
if '--distributed' not in sys.argv:
  sys.exit()
""" + TRAINER.format(status=42)


@pytest.fixture
def checkout(tmp_path):
  return checkout_lib.Checkout(tmp_path)


def _records(checkout):
  lines = (checkout.folder / 'records').read_text().splitlines()
  return [json.loads(line) for line in lines]


def test_slurm_submits_one_task_per_gpu(checkout):
  checkout.write_program('sbatch', RECORD + 'print("123;cluster")')
  args = ('slurm.sh', *RUN, 'w', '--nodes', '2', '--gpus-per-node', '4')
  dry = checkout.run(*args, '--dry-run', '--', OVERRIDE)
  assert dry.returncode == 0, dry.stderr
  assert not (checkout.folder / 'records').exists()
  assert checkout.paste(dry.stdout).returncode == 0
  result = checkout.run(*args, '--', OVERRIDE)
  assert result.returncode == 0, result.stderr
  assert 'scancel 123' in result.stdout and 'slurm-123.log' in result.stdout
  pasted, submitted = _records(checkout)
  assert pasted == submitted
  assert (checkout.folder / 'w.logs').is_dir()
  split = submitted.index(str(checkout.root / 'launch/_slurm_job.sh'))
  options, command = submitted[1:split], submitted[split + 1:]
  assert {
      '--nodes=2', '--ntasks=8', '--ntasks-per-node=4', '--gpus-per-node=4',
      '--requeue'} <= set(options)
  # With one GPU visible to each task, jax would look for GPU I and find none.
  assert not any('per-task' in o for o in options if 'gpu' in o)
  assert command[-2:] == [OVERRIDE, '--distributed']
  assert 'JAX_PLATFORMS=cuda,cpu' in command


@pytest.mark.parametrize('number, status, state, is_queued', [
    (signal.SIGUSR1, 42, 'RUNNING', True),
    (signal.SIGUSR1, 134, 'RUNNING', True),
    (signal.SIGTERM, 42, 'RUNNING', True),
    (signal.SIGTERM, 1, 'RUNNING', False),
    (signal.SIGTERM, 42, 'COMPLETING', False)], ids=[
        'out of time', 'out of time while it starts', 'preempted with grace',
        'preempted and failed', 'cancelled, or preempted without grace'])
def test_a_stopped_slurm_job_is_queued_again(
    checkout, number, status, state, is_queued):
  checkout.write_program('scontrol', RECORD)
  checkout.write_program('squeue', f'print({state!r})')
  checkout.write_program('srun', r"""
import itertools, subprocess, sys
command = itertools.dropwhile(lambda a: a.startswith('--'), sys.argv[1:])
sys.exit(subprocess.run(list(command)).returncode)
""")
  checkout.write_program('scancel', r"""
import os, pathlib, signal, sys
assert sys.argv[1] == '--signal=TERM'
pid = pathlib.Path(os.environ['HOME'], 'started').read_text()
os.kill(int(pid), signal.SIGTERM)
""")
  checkout.write_program('trainer', TRAINER.format(status=status))
  job = checkout.start(
      '_slurm_job.sh', checkout.folder / 'bin/trainer', SLURM_CPUS_PER_TASK='8',
      SLURM_JOB_ID='123')
  started = checkout.folder / 'started'
  checkout_lib.wait_until(lambda: started.exists() and started.read_text())
  job.send_signal(number)
  if number == signal.SIGTERM:  # Slurm signals the processes as well.
    os.kill(int(started.read_text()), signal.SIGTERM)
  output, _ = job.communicate(timeout=30)
  assert 'saved' in output
  assert job.returncode == (42 if is_queued else status)
  requeued = checkout.folder / 'records'
  assert requeued.exists() == is_queued
  if is_queued:
    assert _records(checkout) == [['scontrol', 'requeue', '123']]


def test_a_tpu_pod_runs_a_command_on_all_workers(checkout):
  checkout.write_program('gcloud', GCLOUD)
  checkout.write_program('python3', UV)
  where = ('--name', 'pod', '--zone', 'us-west4-a')
  run = checkout.start(
      'tpu_pod.sh', *where, *RUN, 'gs://bucket/runs/x', '--', OVERRIDE)
  logs = [checkout.folder / f'worker-{i}/atgrpo_jax.log' for i in range(2)]
  checkout_lib.wait_until(
      lambda: all(log.exists() and log.read_text() for log in logs))
  for log in logs:
    arguments = log.read_text()
    assert '|--distributed|--workdir|gs://bucket/runs/x|' in arguments
    assert arguments.endswith(f'|{OVERRIDE}\n')
    assert (log.parent / 'atgrpo_jax/launch').is_dir()
  follower = checkout.start('tpu_pod.sh', *where, '--follow')
  assert checkout.run('tpu_pod.sh', *where, '--stop').returncode == 0
  for process in (run, follower):
    stdout, stderr = process.communicate(timeout=30)
    assert 'saved' in stdout, stderr
  for name, *args in _records(checkout):
    assert name == 'gcloud' and {'--worker=all', '--zone=us-west4-a'} <= set(
        args)


@pytest.mark.parametrize('name, platform', [('tpu', 'tpu'), ('gpu', 'cuda')])
def test_sky_jobs_start_a_distributed_trainer(checkout, name, platform):
  job = yaml.safe_load((checkout.root / f'launch/sky_{name}.yaml').read_text())
  assert f"'.[{name}]'" in job['setup']
  python = checkout.root / '.venv/bin/python'
  python.parent.mkdir(parents=True)
  python.write_text('#!/bin/sh\necho "$JAX_PLATFORMS" "$@"\n')
  python.chmod(0o755)
  result = subprocess.run(
      ['bash', '-c', job['run']], cwd=checkout.root, capture_output=True,
      text=True, check=True, env=os.environ | job['envs'] | {
          'OVERRIDES': '--config.seed=1 --config.mesh.fsdp=4',
          'SKYPILOT_NODE_IPS': '10.0.0.2\n10.0.0.3', 'SKYPILOT_NUM_NODES': '2',
          'SKYPILOT_NODE_RANK': '1'})
  processes = ' --coordinator_address=10.0.0.2:8476 --num_processes=2 '
  assert result.stdout.split() == (
      f'{platform},cpu -m atgrpo_jax.main --distributed'
      + (f'{processes} --process_id=1' if name == 'gpu' else '')
      + f' --config {job["envs"]["CONFIG"]} --workdir {job["envs"]["WORKDIR"]}'
      ' --config.seed=1 --config.mesh.fsdp=4').split()


@pytest.mark.long
@pytest.mark.parametrize('name, accelerators', [
    ('tpu', {'tpu-v6e-16': 1}), ('gpu', {'H100': 8})])
def test_skypilot_accepts_the_jobs(name, accelerators):
  sky = pytest.importorskip('sky', reason='SkyPilot is not installed')
  task = sky.Task.from_yaml(
      str(checkout_lib.ROOT / f'launch/sky_{name}.yaml'))
  resources, = task.resources
  assert resources.accelerators == accelerators
  assert resources.use_spot
  assert resources.job_recovery['recover_on_exit_codes'] == [3, 42, 134]
  assert task.envs['WORKDIR'].startswith('gs://')
