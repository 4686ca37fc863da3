"""tpu_vm.sh and tpu_pod.sh against a stand-in for gcloud, tests/gcloud.py.

All of a script is run, on both sides of ssh; the trainers are stand-ins, too.
No test reaches the real gcloud.
"""

import os
import shutil
import signal
import threading

import pytest

from tests import checkout as checkout_lib
from tests import tpu_checkout

CONFIG = 'configs/plan_path.py:size=nano,debug'
TPU = ('--name', 'mine', '--zone', 'z', '--config', CONFIG, '--workdir')
CREATE = ('--accelerator-type', 'v5litepod-8')
# An override that a careless shell script would take apart.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""
QUICK = ('--poll-seconds', '0.05')

# Counts to 6 in the workdir, and goes on counting there. Where `hold` says so
# it waits: for the number to change, or for a signal, at which it has saved.
# Workers but the first wait for it to be done.
COUNTER = r"""
import pathlib, os, signal, sys, time
def stop(number, frame):
  print(f'stopped by SIGTERM after step {step}; the same command resumes')
  sys.exit(42)
signal.signal(signal.SIGTERM, stop)
workdir = pathlib.Path(sys.argv[sys.argv.index('--workdir') + 1])
workdir.mkdir(parents=True, exist_ok=True)
done, counter, hold = (workdir / name for name in ('done', 'counter', 'hold'))
home = pathlib.Path(os.environ['HOME'])
is_first = home.name == 'worker-0' and home.parent.name in ('mine', 'mine-0')
step = int(counter.read_text()) if is_first and counter.exists() else 0
print('token:', bool(os.environ.get('HF_TOKEN')), os.environ.get('HF_HOME'))
print(f'resumes after step {step}' if step else 'starts afresh', flush=True)
while not is_first and not done.exists():
  time.sleep(0.02)
while is_first and step < 6:
  step += 1
  counter.write_text(str(step))
  print(f'step {step}/6  success: none', flush=True)
  while hold.exists() and hold.read_text() == str(step):
    time.sleep(0.02)
done.touch()
"""


@pytest.fixture
def checkout(tmp_path):
  return tpu_checkout.TpuCheckout(tmp_path)


def test_tpu_vm_is_created_runs_and_goes(checkout):
  """And what --dry-run printed does the same."""
  args = (
      'tpu_vm.sh', *TPU, 'runs/x', *CREATE, '--setup', 'touch "set  up"; ls',
      '--delete')
  dry = checkout.run(*args, '--dry-run', '--', OVERRIDE)
  assert dry.returncode == 0, dry.stderr
  assert not checkout.notes()
  assert not (checkout.root / '.cache').exists()
  pasted = checkout.paste(dry.stdout)
  assert pasted.returncode == 0, pasted.stderr
  assert f'|{OVERRIDE}\n' in pasted.stdout
  in_shell = checkout.notes()
  (checkout.folder / 'notes').unlink()
  collected = checkout.root / 'runs/mine'
  shutil.rmtree(collected)

  result = checkout.run(*args, '--', OVERRIDE)
  assert result.returncode == 0, result.stderr
  ran = checkout.notes()
  del ran[2]  # What became of the creation.
  assert ran == in_shell
  assert '--version=v2-alpha-tpuv5-lite' in ran[1]
  home = checkout.cloud.home('mine')
  assert f'--editable {home}/atgrpo_jax[tpu]' in '\n'.join(checkout.calls())
  # The log came through, and every argument was intact.
  assert 'set  up\n' in result.stdout and 'platforms: tpu' in result.stdout
  assert (
      f'arguments:|--workdir|{home}/runs/x|--config|{CONFIG}|--mode|train'
      f'|{OVERRIDE}\n' in result.stdout)
  assert (collected / 'x/metrics.jsonl').exists()
  log, = (collected / 'x.logs').glob('*-mine-worker-0.log')
  assert 'arguments' in log.read_text()
  assert log.read_text() == (collected / 'attempt-1.log').read_text()
  assert [row['outcome'] for row in checkout.attempts()] == ['done']
  assert not home.exists()


def test_tpu_vm_is_used_again_and_gets_the_newest_code(checkout):
  checkout.cloud.create('mine')
  home = checkout.cloud.home('mine')
  for name in ('old.py', '.venv/kept', 'models/Qwen3/kept'):
    path = home / 'atgrpo_jax' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  result = checkout.run('tpu_vm.sh', *TPU, 'runs/x')
  assert result.returncode == 0, result.stderr
  assert not (home / 'atgrpo_jax/old.py').exists()
  assert (home / 'atgrpo_jax/models/Qwen3/kept').exists()
  assert 'using the TPU VM mine, which is there' in result.stdout
  assert 'create' not in checkout.verbs()
  assert 'delete it with: gcloud' in result.stdout and home.exists()


def test_old_python_of_the_tpu_vm_gets_a_new_one(checkout):
  checkout.cloud.create('mine')
  home = checkout.cloud.home('mine')
  (home / '.local/bin').mkdir(parents=True)
  # pip makes believe; this is the uv that it would have installed.
  uv = home / '.local/bin/uv'
  uv.write_text(f'#!/bin/sh\n[ "$2" = install ] || echo {checkout.python}\n')
  uv.chmod(0o755)
  for name in ('python3', 'python3.11', 'python3.12', 'python3.13'):
    checkout.write_program(name, r"""
import os, sys
if '-m' in sys.argv:
  sys.exit(0 if 'uv' in sys.argv else 1)
print('3.10')
""", folder='remote-bin')
  result = checkout.run('tpu_vm.sh', *TPU, 'runs/x')
  assert result.returncode == 0, result.stderr
  assert 'getting Python 3.12' in result.stdout
  assert (home / 'atgrpo_jax/.venv/bin/python').exists()


@pytest.mark.parametrize('fail, doing', [
    ('mount', 'running --setup'), ('follow', 'watching the run'),
    ('recurse', 'collecting the workdir')])
def test_failing_step_leaves_the_tpu_vm(checkout, fail, doing):
  for _ in range(5):
    checkout.cloud.add_fault(fail, 'gcloud says no')
  result = checkout.run(
      'tpu_vm.sh', *TPU, 'runs/x', *CREATE, '--setup', 'true mount',
      '--delete', *QUICK)
  assert result.returncode == 1
  *_, said, sentence = result.stderr.splitlines()
  assert said.endswith(') gcloud says no')
  assert f'error: {doing} failed' in sentence
  assert 'gcloud compute tpus tpu-vm delete mine' in sentence
  assert 'delete' not in checkout.verbs()


def test_tpu_vm_that_cannot_be_used_stops(checkout):
  checkout.cloud.add_fault('create', 'gcloud says no')
  result = checkout.run('tpu_vm.sh', *TPU, 'runs/x', *CREATE)
  assert 'creating the TPU VM mine failed' in result.stderr
  checkout.cloud.add_fault('describe', 'gcloud says no')
  result = checkout.run('tpu_vm.sh', *TPU, 'runs/x', *CREATE)
  checkout_lib.assert_stops_with(result, 'look up', 'gcloud says no')
  result = checkout.run('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.assert_stops_with(result, 'no TPU VM mine', '--accelerator-type')
  checkout.cloud.add_fault('describe', 'Please run: $ gcloud auth login')
  result = checkout.run('tpu_vm.sh', *TPU, '/shared/x', '--retries', '9')
  checkout_lib.assert_stops_with(result, 'look up', 'gcloud auth login')
  checkout.cloud.create('mine')
  for state, args in (('PREEMPTED', ()), ('STOPPED', ('--retries', '9'))):
    checkout.cloud.set_state('mine', state)
    result = checkout.run('tpu_vm.sh', *TPU, '/shared/x', *args)
    checkout_lib.assert_stops_with(
        result, f'{state}, not READY', 'delete mine')


def test_pod_runs_on_all_workers(checkout):
  workdir = checkout.shared / 'x'
  result = checkout.run(
      'tpu_pod.sh', *TPU, workdir, '--accelerator-type', 'v5litepod-16', '--',
      OVERRIDE)
  assert result.returncode == 0, result.stderr
  assert result.stdout.count('exit status 0') == 2
  collected = checkout.root / 'runs/mine'
  for i in range(2):
    log, = (collected / 'x.logs').glob(f'*-mine-worker-{i}.log')
    assert f'|--workdir|{workdir}|' in log.read_text()
    assert f'|{OVERRIDE}|--distributed\n' in log.read_text()
  # Worker 0 alone is watched.
  assert result.stdout.count('arguments:') == 1
  assert (collected / 'x/metrics.jsonl').exists()

  result = checkout.run('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.assert_stops_with(result, '2 workers', 'tpu_pod.sh')


def test_pod_writes_into_a_bucket(checkout):
  result = checkout.run(
      'tpu_pod.sh', *TPU, 'gs://bucket/runs/x', '--accelerator-type',
      'v5litepod-16', '--retries', '2', *QUICK)
  assert result.returncode == 0, result.stderr
  assert 'arguments:|--workdir|gs://bucket/runs/x|' in result.stdout
  assert 'checking --workdir' not in result.stdout  # One bucket has all.
  # The logs come here, the run stays there.
  collected = checkout.root / 'runs/mine'
  assert list((collected / 'x.logs').glob('*-mine-worker-0.log'))
  assert not (collected / 'x').exists()
  for name in ('gs://', 's3://bucket/x'):
    checkout_lib.assert_stops_with(
        checkout.run('tpu_pod.sh', *TPU, name), name, 'gs://bucket/folder')


def test_workdir_that_will_not_do_is_found_on_the_workers(checkout):
  args = ('tpu_pod.sh', *TPU)
  pod = ('--accelerator-type', 'v5litepod-16', *QUICK)
  # Each worker has a folder of its own there.
  checkout.write_program('cat', r"""
import os, pathlib, sys
path = pathlib.Path(sys.argv[1])
if path.name == 'shared' and os.environ['HOME'].endswith('worker-1'):
  sys.exit(1)
print(path.read_text(), end='')
""")
  result = checkout.run(*args, checkout.shared / 'x', *pod)
  assert result.returncode == 1
  assert 'is not the same folder on all workers' in result.stderr
  checkout.write_program('cat', r"""
import pathlib, sys
print(pathlib.Path(sys.argv[1]).read_text(), end='')
""")
  result = checkout.run(*args, checkout.folder / 'x', *pod, '--retries', '3')
  assert result.returncode == 1
  assert "is on the TPU VM's own disk, which --retries loses" in result.stderr
  # A TPU VM that stays is not to blame.
  assert len(checkout.attempts()) == 2
  assert 'start' not in checkout.verbs()


def test_status_of_a_pod_is_the_first_failure(checkout):
  checkout.cloud.create('mine', 2)
  for i, status in enumerate(['42', '7']):
    (checkout.cloud.home('mine', i) / 'status').write_text(status)
  result = checkout.run(
      'tpu_pod.sh', *TPU, checkout.shared / 'x', '--delete', '--retries', '3',
      *QUICK)
  assert result.returncode == 7
  assert 'failed with exit status 7' in result.stderr
  assert 'delete' not in checkout.verbs()
  assert len(list((checkout.root / 'runs/mine/x.logs').glob('*.log'))) == 2
  assert [row['outcome'] for row in checkout.attempts()] == ['exit status 7']


def test_ctrl_c_ends_the_watching_and_not_the_run(checkout):
  checkout.cloud.create('mine')
  home = checkout.cloud.home('mine')
  (home / 'wait').touch()
  watcher = checkout.start('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.wait_until((home / 'started').exists)
  checkout_lib.wait_until(lambda: checkout.verbs()[-1] == 'follow')
  os.killpg(watcher.pid, signal.SIGINT)
  _, errors = watcher.communicate(timeout=30)
  assert watcher.returncode == 130
  assert 'the run on mine goes on' in errors
  os.kill(int((home / 'started').read_text()), 0)

  # Another run must wait, the same one is watched, and --stop has it save.
  result = checkout.run('tpu_vm.sh', *TPU, 'runs/y')
  checkout_lib.assert_stops_with(result, 'another run is in progress on mine')
  (checkout.folder / 'notes').unlink()
  # It was asked for, so it is not tried again.
  watcher = checkout.start('tpu_vm.sh', *TPU, 'runs/x')
  checkout_lib.wait_until(
      lambda: checkout.verbs() == ['describe', 'state', 'follow'])
  result = checkout.run('tpu_vm.sh', *TPU, 'runs/x', '--stop')
  assert 'asked the trainer to save' in result.stdout
  output, _ = watcher.communicate(timeout=60)
  assert 'saved' in output and 'exit status 42, as asked' in output
  assert watcher.returncode == 42
  assert [row['outcome'] for row in checkout.attempts()] == [
      'not watched any more', 'another run', 'stopped']


# TPU VMs that go away.


def _preempt(checkout, workdir, step, times, node):
  """Takes a TPU VM away, with a notice, while the run holds at a step.

  The step must have been shown so many times, by whoever watches.
  """
  def preempt():
    checkout_lib.wait_until(lambda: times == sum(
        path.read_text().count(f'step {step}/')
        for path in (checkout.root / 'runs/mine').glob('attempt-*.log')))
    checkout.cloud.preempt(node, notice=20.0)
    (workdir / 'hold').unlink()

  workdir.mkdir()
  (workdir / 'hold').write_text(str(step))
  thread = threading.Thread(target=preempt)
  thread.start()
  return thread


def test_run_outlives_its_tpu_vms(checkout):
  """None is there, twice; a connection breaks; it goes, also while it is set
  up."""
  checkout.write_program('trainer', COUNTER)
  workdir = checkout.shared / 'x'
  for _ in range(2):
    checkout.cloud.add_fault(
        'tpu-vm create', '{"code": 8, "message": "There is no more capacity in '
        'the zone \\"z\\""}')
  checkout.cloud.add_fault('follow', after=0.5)
  thread = _preempt(checkout, workdir, 2, 2, 'mine')
  # The second that is set up waits.
  setup = (
      f'cd {checkout.shared}; name="$(basename ~)"; mkdir "$name-1" || '
      '! mkdir "$name-2" || sleep 60')
  driver = checkout.start(
      'tpu_pod.sh', *TPU, workdir, '--accelerator-type', 'v5litepod-16',
      '--spot', '--retries', '4', '--delete', '--setup', setup, *QUICK)
  thread.join()
  checkout_lib.wait_until((checkout.shared / 'worker-1-2').exists)
  checkout.cloud.preempt('mine')
  output, errors = driver.communicate(timeout=120)
  assert driver.returncode == 0, errors
  assert output.count('the connection is broken; watching again') == 1
  rows = checkout.attempts()
  outcomes = [row['outcome'].partition(':')[0] for row in rows]
  # The connection may break before the cloud says why.
  assert outcomes.pop(3) in ('PREEMPTED', 'running --setup failed')
  assert outcomes == ['not created', 'not created', 'PREEMPTED', 'done']
  assert [row['steps'] for row in rows] == ['-', '-', '0-2', '-', '2-6']
  assert [
      sum(row[event] != '-' for event in ('asked', 'ready', 'started', 'ended'))
      for row in rows] == [2, 2, 4, 3, 4]
  # What is printed at the end.
  table = output[output.index('\nattempt  asked'):].split('\n')
  assert len(table) == 8 and table[-2].endswith('  2-6    done')
  assert 'trying again (4 of 4 times)' in output
  attempt = ['create', 'install', 'setup', 'mark', 'check', 'start', 'follow']
  assert checkout.verbs('describe', 'scp', 'result') == [
      'create', 'create', *attempt, 'follow', 'delete', *attempt[:3], 'delete',
      *attempt, 'delete']
  # The worker that is not watched had the time to keep its log.
  logs = [path.name for path in (checkout.root / 'runs/mine/x.logs').iterdir()]
  assert sum('worker-1' in name for name in logs) == 2


def test_slices_are_queued_for_and_go_together(checkout):
  checkout.write_program('trainer', COUNTER)
  workdir = checkout.shared / 'x'
  thread = _preempt(checkout, workdir, 3, 1, 'mine-1')
  result = checkout.run(
      'tpu_pod.sh', *TPU, workdir, '--accelerator-type', 'v5litepod-16',
      '--queued', '--num-slices', '2', '--valid-until', '6h', '--spot',
      '--retries', '1', *QUICK,
      env={'HF_TOKEN': 'secret', 'HF_HOME': str(checkout.shared)})
  thread.join()
  assert result.returncode == 0, result.stderr
  assert 'the TPU VM mine is WAITING_FOR_RESOURCES; waiting' in result.stdout
  creates = [note for note in checkout.notes() if 'create' in note]
  assert len(creates) == 2
  assert {
      '--node-count=2', '--node-prefix=mine', '--valid-until-duration=6h',
      '--spot', '--runtime-version=v2-alpha-tpuv5-lite'} < set(creates[0])
  rows = checkout.attempts()
  assert [row['steps'] for row in rows] == ['0-3', '3-6']
  assert [row['outcome'] for row in rows][1:] == ['done']
  # The slice that was left had no notice.
  logs = sorted((checkout.root / 'runs/mine/x.logs').glob('*.log'))
  assert len(logs) == 6 and {
      path.stem.partition('Z-')[2] for path in logs} == {
          f'mine-{i}-worker-{j}' for i in range(2) for j in range(2)}
  # The token reaches every trainer, and no log.
  assert all(
      f'token: True {checkout.shared}\n' in log.read_text() for log in logs)
  said = result.stdout + result.stderr + (checkout.folder / 'notes').read_text()
  assert 'secret' not in said + ''.join(log.read_text() for log in logs)
  assert not (checkout.root / '.cache/token').exists()
  token = checkout.cloud.home('mine-1', 1) / 'atgrpo_jax.token'
  assert token.read_text() == 'secret'
  assert token.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize('text, status, num_attempts', [
    ('PERMISSION_DENIED: Permission denied on resource', 1, 1),
    ('unrecognized arguments: --spot', 2, 1),
    ('{"code": 8, "message": "There is no more capacity"}', 1, 3)])
def test_what_gcloud_refuses_is_not_tried_again(
    checkout, text, status, num_attempts):
  for _ in range(3):
    checkout.cloud.add_fault('create', text, status)
  result = checkout.run(
      'tpu_vm.sh', *TPU, checkout.shared / 'x', *CREATE, '--spot', '--retries',
      '2', *QUICK)
  assert result.returncode == 1
  assert 'creating the TPU VM mine failed' in result.stderr
  assert len(checkout.attempts()) == num_attempts


def test_request_that_expires_is_made_again(checkout):
  args = (
      'tpu_vm.sh', *TPU, checkout.shared / 'x', *CREATE, '--queued',
      '--valid-until', '2030-01-31T18:00:00Z', *QUICK)
  checkout.cloud.set_waits('ACCEPTED', 'FAILED')
  result = checkout.run(*args)
  checkout_lib.assert_stops_with(result, 'mine is FAILED, not READY')
  result = checkout.run(*args, '--retries', '1')
  assert result.returncode == 1
  assert checkout.verbs('queue-describe') == [
      'queue-create', *['queue-delete', 'queue-create'] * 2]
  assert '--valid-until-time=2030-01-31T18:00:00Z' in checkout.notes()[1]
