"""launch/slurm.sh and its job, against stand-ins for the programs of SLURM."""

import json
import os
import signal

import pytest

from tests import checkout as checkout_lib

RUN = ('--config', 'configs/plan_path.py:size=nano,debug', '--workdir')
# An override that a careless shell script would take apart.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""

# Writes down its arguments, one JSON list per line.
NOTES = r"""
import json, os, pathlib, sys
home = pathlib.Path(os.environ['HOME'])
with (home / 'notes').open('a') as f:
  f.write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + '\n')
"""


def _notes(checkout):
  lines = (checkout.folder / 'notes').read_text().splitlines()
  return [json.loads(line) for line in lines]


@pytest.fixture
def slurm(checkout):
  checkout.write_program('sbatch', NOTES + 'print("123;cluster")')
  checkout.write_program('scontrol', NOTES)
  checkout.write_program('squeue', NOTES + 'print((home / "job").read_text())')
  # Runs one task; what precedes the command begins with --.
  checkout.write_program('srun', NOTES + r"""
import subprocess
command = [a for a in sys.argv[1:]]
while command[0].startswith('--'):
  del command[0]
sys.exit(subprocess.run(command).returncode)
""")
  checkout.write_program('scancel', NOTES + r"""
import signal
assert sys.argv[1] == '--signal=TERM'
os.kill(int((home / 'started').read_text()), signal.SIGTERM)
""")
  checkout.write_program('trainer', checkout_lib.TRAINER)
  return checkout


@pytest.fixture
def checkout(tmp_path):
  return checkout_lib.Checkout(tmp_path)


def test_slurm_submits_one_task_per_gpu(slurm):
  args = (
      'slurm.sh', *RUN, 'w', '--nodes', '2', '--gpus-per-node', '4', '--time',
      '1-00:00:00', '--partition', 'p', '--account', 'a')
  dry = slurm.run(*args, '--dry-run', '--', OVERRIDE)
  assert dry.returncode == 0, dry.stderr
  assert not (slurm.folder / 'notes').exists()
  assert slurm.paste(dry.stdout).returncode == 0
  result = slurm.run(*args, '--', OVERRIDE)
  assert result.returncode == 0, result.stderr
  assert 'scancel 123' in result.stdout and 'slurm-123.log' in result.stdout
  pasted, note = _notes(slurm)
  assert pasted == note
  workdir = slurm.folder / 'w'
  assert workdir.with_name('w.logs').is_dir()
  split = note.index(str(slurm.root / 'launch/_slurm_job.sh'))
  options, command = note[1:split], note[split + 1:]
  assert {
      '--nodes=2', '--ntasks=8', '--ntasks-per-node=4', '--gpus-per-node=4',
      '--time=1-00:00:00', '--partition=p', '--account=a', '--requeue',
      f'--output={workdir}.logs/slurm-%j.log'} <= set(options)
  # With a GPU for each task, jax would look for GPU I where there is one.
  assert not any('per-task' in o for o in options if 'gpu' in o)
  assert command[-2:] == [OVERRIDE, '--distributed']
  assert 'JAX_PLATFORMS=cuda,cpu' in command


def test_refused_job_stops(slurm):
  slurm.write_program('sbatch', 'raise SystemExit("no such partition")')
  result = slurm.run('slurm.sh', *RUN, 'w')
  assert result.returncode == 1
  assert 'no such partition\nslurm.sh: error: sbatch refused' in result.stderr


@pytest.mark.parametrize('number, saved, state, notes', [
    (signal.SIGUSR1, 42, 'RUNNING',
     ['srun', 'scancel', 'squeue', 'scontrol requeue 123']),
    (signal.SIGUSR1, 1, 'RUNNING', ['srun', 'scancel']),
    (signal.SIGTERM, 42, 'RUNNING', ['srun', 'squeue', 'scontrol requeue 123']),
    (signal.SIGTERM, 1, 'RUNNING', ['srun']),
    (signal.SIGTERM, 42, 'COMPLETING', ['srun', 'squeue'])], ids=[
        'out of time', 'out of time and failed', 'preempted with grace',
        'preempted and failed', 'cancelled, or preempted without grace'])
def test_job_that_is_stopped_is_queued_again(
    slurm, number, saved, state, notes):
  (slurm.folder / 'job').write_text(state)
  slurm.write_program(
      'trainer', checkout_lib.TRAINER.replace('exit(42)', f'exit({saved})'))
  (slurm.folder / 'wait').touch()
  job = slurm.start(
      '_slurm_job.sh', slurm.folder / 'bin/trainer', '--workdir', 'w',
      SLURM_CPUS_PER_TASK='8', SLURM_JOB_ID='123', JAX_PLATFORMS='cuda')
  checkout_lib.wait_until((slurm.folder / 'started').exists)
  job.send_signal(number)
  if number == signal.SIGTERM:  # Slurm signals the processes as well.
    os.kill(int((slurm.folder / 'started').read_text()), signal.SIGTERM)
  output, _ = job.communicate(timeout=30)
  assert 'saved' in output
  assert job.returncode == saved
  for note, expected in zip(_notes(slurm), notes, strict=True):
    assert ' '.join(note).startswith(expected)
