"""The launch scripts of clusters and clouds, against stand-ins for both.

The stand-in for gcloud runs what it is given on "workers" that are folders of
this machine, so that all of a script is run, on both sides of ssh. No test
reaches the real one.
"""

import json
import os
import shutil
import signal

import pytest

from tests import checkout as checkout_lib

RUN = ('--config', 'configs/plan_path.py:size=nano,debug', '--workdir')
# An override that a careless shell script would take apart.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""

# Prints its arguments, and waits for SIGTERM if the file `wait` is there;
# exits as `status` says, in the home of this worker.
TRAINER = r"""
import os, pathlib, signal, sys, time
home = pathlib.Path(os.environ['HOME'])
def save(number, frame):
  print('saved', flush=True)
  sys.exit(42)
signal.signal(signal.SIGTERM, save)
print('platforms:', os.environ['JAX_PLATFORMS'])
print('arguments:', *sys.argv[1:], sep='|', flush=True)
workdir = pathlib.Path(sys.argv[sys.argv.index('--workdir') + 1])
workdir.mkdir(parents=True, exist_ok=True)
(workdir / 'metrics.jsonl').write_text('{}')
(home / 'started').write_text(str(os.getpid()))
while (home / 'wait').exists():
  time.sleep(0.02)
status = home / 'status'
sys.exit(int(status.read_text()) if status.exists() else 0)
"""


# ---- SLURM ------------------------------------------------------------------

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
  checkout.write_program('trainer', TRAINER)
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


@pytest.mark.parametrize('number, saved, notes', [
    # Out of time; out of time, but it failed; cancelled.
    (signal.SIGUSR1, 42, ['srun', 'scancel', 'scontrol requeue 123']),
    (signal.SIGUSR1, 1, ['srun', 'scancel']),
    (signal.SIGTERM, 42, ['srun'])])
def test_job_that_runs_out_of_time_is_queued_again(
    slurm, number, saved, notes):
  slurm.write_program(
      'trainer', TRAINER.replace('exit(42)', f'exit({saved})'))
  (slurm.folder / 'wait').touch()
  job = slurm.start(
      '_slurm_job.sh', slurm.folder / 'bin/trainer', '--workdir', 'w',
      SLURM_CPUS_PER_TASK='8', SLURM_JOB_ID='123', JAX_PLATFORMS='cuda')
  checkout_lib.wait_until((slurm.folder / 'started').exists)
  job.send_signal(number)
  if number == signal.SIGTERM:  # scancel signals the processes as well.
    os.kill(int((slurm.folder / 'started').read_text()), signal.SIGTERM)
  output, _ = job.communicate(timeout=30)
  assert 'saved' in output
  assert job.returncode == saved
  for note, expected in zip(_notes(slurm), notes, strict=True):
    assert ' '.join(note).startswith(expected)


# ---- TPU --------------------------------------------------------------------

GCLOUD = NOTES + r"""
import shutil, subprocess
assert sys.argv[1:4] == ['compute', 'tpus', 'tpu-vm']
verb, *words = [a for a in sys.argv[4:] if not a.startswith('--')]
flags = dict(a[2:].partition('=')[::2] for a in sys.argv[4:] if a[:2] == '--')
assert flags['zone'] == 'z' and 'mine' in ' '.join(words)
fail = home / 'fail'
if fail.exists() and fail.read_text() in ' '.join(sys.argv):
  sys.exit('gcloud says no')
workers = sorted(home.glob('worker-*'))
if flags.get('worker') == '0':
  workers = workers[:1]
if verb == 'describe':
  if not workers:
    sys.exit('ERROR: (gcloud...) NOT_FOUND: Resource mine was not found')
  state = home / 'state'
  print(state.read_text() if state.exists() else 'READY', len(workers),
        sep='\t')
elif verb == 'create':
  for i in range(int(flags['accelerator-type'].rpartition('-')[2]) // 8):
    (home / f'worker-{i}').mkdir()
elif verb == 'delete':
  for worker in workers:
    shutil.rmtree(worker)
elif verb == 'ssh':
  codes = [
      subprocess.run(['bash', '-c', flags['command']], cwd=worker,
                     env=os.environ | {'HOME': str(worker)}).returncode
      for worker in workers]
  sys.exit(max(codes))
elif verb == 'scp':
  *sources, target = words
  if target.startswith('mine:'):
    for worker in workers:
      shutil.copy(sources[0], worker / target[5:])
  else:
    for source in sources:
      path = workers[0] / source[5:]
      copy = shutil.copytree if path.is_dir() else shutil.copy
      options = {'dirs_exist_ok': True} if path.is_dir() else {}
      copy(path, os.path.join(target, path.name), **options)
"""
TPU = ('--name', 'mine', '--zone', 'z', *RUN)
CREATE = ('--accelerator-type', 'v5litepod-8')


@pytest.fixture
def cloud(checkout):
  checkout.write_program('gcloud', GCLOUD)
  checkout.write_program('trainer', TRAINER)
  return checkout


def _verbs(cloud):
  """What was asked of gcloud: for ssh, the last word of WORKER's action."""
  verbs = []
  for note in _notes(cloud):
    command = note[-1].partition('_tpu_worker.sh ')[2]
    verbs.append(command.split(' ')[0] or note[4])
  return verbs


def test_tpu_vm_is_created_runs_and_goes(cloud):
  """And what --dry-run printed does the same."""
  args = (
      'tpu_vm.sh', *TPU, 'runs/x', *CREATE, '--setup', 'touch "set  up"; ls',
      '--delete')
  dry = cloud.run(*args, '--dry-run', '--', OVERRIDE)
  assert dry.returncode == 0, dry.stderr
  assert not (cloud.folder / 'notes').exists()
  assert not (cloud.root / '.cache').exists()
  pasted = cloud.paste(dry.stdout)
  assert pasted.returncode == 0, pasted.stderr
  assert f'|{OVERRIDE}\n' in pasted.stdout
  in_shell = _notes(cloud)
  (cloud.folder / 'notes').unlink()
  collected = cloud.root / 'runs/mine'
  shutil.rmtree(collected)

  result = cloud.run(*args, '--', OVERRIDE)
  assert result.returncode == 0, result.stderr
  ran = _notes(cloud)
  del ran[2:4]  # What became of the creation, and whether something runs.
  assert ran == in_shell
  assert '--version=v2-alpha-tpuv5-lite' in ran[1]
  home = cloud.folder / 'worker-0'
  assert f'--editable {home}/atgrpo_jax[tpu]' in '\n'.join(cloud.calls())
  # The log came through, and every argument was intact.
  assert 'set  up\n' in result.stdout and 'platforms: tpu' in result.stdout
  assert (
      f'arguments:|--workdir|{home}/runs/x|--config|{RUN[1]}|--mode|train'
      f'|{OVERRIDE}\n' in result.stdout)
  assert (collected / 'x/metrics.jsonl').exists()
  assert 'arguments' in (collected / 'log').read_text()
  assert not home.exists()


def test_tpu_vm_is_used_again_and_gets_the_newest_code(cloud):
  home = cloud.folder / 'worker-0'
  for name in ('old.py', '.venv/kept', 'models/Qwen3/kept'):
    path = home / 'atgrpo_jax' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  result = cloud.run('tpu_vm.sh', *TPU, 'runs/x')
  assert result.returncode == 0, result.stderr
  assert not (home / 'atgrpo_jax/old.py').exists()
  assert (home / 'atgrpo_jax/models/Qwen3/kept').exists()
  assert 'using the TPU VM mine, which is there' in result.stdout
  assert 'create' not in _verbs(cloud)
  assert 'delete it with: gcloud' in result.stdout and home.exists()


def test_old_python_of_the_tpu_vm_gets_a_new_one(cloud):
  home = cloud.folder / 'worker-0'
  (home / '.local/bin').mkdir(parents=True)
  # pip makes believe; this is the uv that it would have installed.
  uv = home / '.local/bin/uv'
  uv.write_text(f'#!/bin/sh\n[ "$2" = install ] || echo {cloud.python}\n')
  uv.chmod(0o755)
  for name in ('python3', 'python3.11', 'python3.12', 'python3.13'):
    cloud.write_program(name, r"""
import os, sys
if '-m' in sys.argv:
  sys.exit(0 if 'uv' in sys.argv else 1)
print('3.10')
""")
  result = cloud.run('tpu_vm.sh', *TPU, 'runs/x', env={'PYTHON': ''})
  assert result.returncode == 0, result.stderr
  assert 'getting Python 3.12' in result.stdout
  assert (home / 'atgrpo_jax/.venv/bin/python').exists()


@pytest.mark.parametrize('fail, doing', [
    ('mount', 'running --setup'), ('follow', 'watching the run'),
    ('recurse', 'collecting the workdir')])
def test_failing_step_leaves_the_tpu_vm(cloud, fail, doing):
  (cloud.folder / 'fail').write_text(fail)
  result = cloud.run(
      'tpu_vm.sh', *TPU, 'runs/x', *CREATE, '--setup', 'true mount',
      '--delete')
  assert result.returncode == 1
  *_, said, sentence = result.stderr.splitlines()
  assert said == 'gcloud says no'
  assert f'error: {doing} failed' in sentence
  assert 'gcloud compute tpus tpu-vm delete mine' in sentence
  assert 'delete' not in _verbs(cloud)


def test_tpu_vm_that_cannot_be_used_stops(cloud):
  (cloud.folder / 'fail').write_text('create')
  result = cloud.run('tpu_vm.sh', *TPU, 'runs/x', *CREATE)
  assert 'creating the TPU VM mine failed' in result.stderr
  (cloud.folder / 'fail').write_text('describe')
  result = cloud.run('tpu_vm.sh', *TPU, 'runs/x', *CREATE)
  checkout_lib.assert_stops_with(result, 'look up', 'gcloud says no')
  (cloud.folder / 'fail').unlink()
  result = cloud.run('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.assert_stops_with(result, 'no TPU VM mine', '--accelerator-type')
  (cloud.folder / 'worker-0').mkdir()
  (cloud.folder / 'state').write_text('PREEMPTED')
  result = cloud.run('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.assert_stops_with(result, 'PREEMPTED, not READY', 'delete mine')


def test_pod_runs_on_all_workers(cloud):
  shared = cloud.folder / 'shared'
  result = cloud.run(
      'tpu_pod.sh', *TPU, f'{shared}/x', '--accelerator-type', 'v5litepod-16',
      '--', OVERRIDE)
  assert result.returncode == 0, result.stderr
  assert result.stdout.count('exit status 0') == 2
  for i in range(2):
    log = (cloud.folder / f'worker-{i}/atgrpo_jax.run/log').read_text()
    assert f'|--workdir|{shared}/x|' in log
    assert f'|{OVERRIDE}|--distributed\n' in log
  # Worker 0 alone is watched.
  assert result.stdout.count('arguments:') == 1
  assert (cloud.root / 'runs/mine/x/metrics.jsonl').exists()

  result = cloud.run('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.assert_stops_with(result, '2 workers', 'tpu_pod.sh')


def test_status_of_a_pod_is_the_first_failure(cloud):
  for i, status in enumerate(['42', '3']):
    (cloud.folder / f'worker-{i}').mkdir()
    (cloud.folder / f'worker-{i}/status').write_text(status)
  result = cloud.run('tpu_pod.sh', *TPU, f'{cloud.folder}/x', '--delete')
  assert result.returncode == 3
  assert 'failed with exit status 3' in result.stderr
  assert 'delete' not in _verbs(cloud)


def test_ctrl_c_ends_the_watching_and_not_the_run(cloud):
  home = cloud.folder / 'worker-0'
  home.mkdir()
  (home / 'wait').touch()
  watcher = cloud.start('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.wait_until((home / 'started').exists)
  checkout_lib.wait_until(lambda: _verbs(cloud)[-1] == 'follow')
  os.killpg(watcher.pid, signal.SIGINT)
  _, errors = watcher.communicate(timeout=30)
  assert watcher.returncode == 130
  assert 'the run on mine goes on' in errors
  os.kill(int((home / 'started').read_text()), 0)

  # Another run must wait, the same one is watched, and --stop has it save.
  result = cloud.run('tpu_vm.sh', *TPU, 'runs/y')
  checkout_lib.assert_stops_with(result, 'another run is in progress on mine')
  (cloud.folder / 'notes').unlink()
  watcher = cloud.start('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.wait_until(
      lambda: (cloud.folder / 'notes').exists()
      and _verbs(cloud) == ['describe', 'state', 'follow'])
  result = cloud.run('tpu_vm.sh', *TPU, 'runs/x', '--stop')
  assert 'asked the trainer to save' in result.stdout
  output, _ = watcher.communicate(timeout=60)
  assert 'saved' in output
  assert watcher.returncode == 42
