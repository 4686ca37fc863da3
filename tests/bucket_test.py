"""Runs in an emulated bucket: files, checkpoints, lease, kill and resume."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import pytest

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import files
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import report
from tests import echo
from tests import fault_injection
from tests import gcs_emulator


@pytest.fixture(scope='module')
def emulator():
  with pytest.MonkeyPatch.context() as patch:
    with gcs_emulator.Emulator() as server:
      for name, value in server.env.items():
        patch.setenv(name, value)
      yield server


@pytest.fixture(name='folder')
def make_folder(emulator, request):
  """An empty folder of the bucket for one test."""
  del emulator
  return files.as_path(f'gs://{gcs_emulator.BUCKET}/{request.node.name}/run')


@pytest.fixture(name='leases')
def make_leases(folder):
  """Makes leases on the folder with a given lifetime, and closes them."""
  with contextlib.ExitStack() as stack:
    yield lambda seconds=60.0: stack.enter_context(
        contextlib.closing(workdir_lib.Lease(folder, seconds)))


def _name(path):
  """The name of an object in the emulator."""
  return os.fspath(path).removeprefix(f'gs://{gcs_emulator.BUCKET}/')


@pytest.mark.parametrize('name', [
    's3://bucket/run', 'https://bucket/run', 'hf://bucket/run', 'gs://', 'gs:///'
])
def test_other_schemes_are_refused(name):
  with pytest.raises(errors.UserError, match=f'{name} .*gs://bucket/folder'):
    files.as_path(name)


def test_files_are_written_whole(folder):
  files.write_whole(folder / 'a.json', '{}')
  assert (folder / 'a.json').read_text() == '{}'
  with pytest.raises(KeyError):
    with files.whole_file(folder / 'a.json') as file:
      file.write(b'half')
      raise KeyError
  assert (folder / 'a.json').read_text() == '{}'


def test_lease_has_one_holder(folder, leases):
  first, second = leases(1.0), leases(1.0)
  assert not first.is_held()
  assert first.take()
  assert second.is_held()
  time.sleep(1.5)  # Longer than its lifetime: it is renewed.
  assert not second.take()
  first.check()
  first.close()
  assert not (folder / workdir_lib.LEASE).exists()
  assert second.take()
  second.check()


def test_lease_that_is_not_renewed_is_taken_over(folder, leases):
  first, second = leases(), leases(1.0)
  assert first.take()  # Renews after 15 s.
  start = time.monotonic()
  assert second.take()
  assert time.monotonic() - start > 1.0
  # The first holder does not delete the lease of the second.
  first.close()
  assert (folder / workdir_lib.LEASE).exists()


@pytest.mark.parametrize('is_down, words', [
    (False, 'taken over'), (True, 'could not be renewed')])
def test_holder_of_a_lost_lease_stops(
    is_down, words, folder, leases, emulator, monkeypatch):
  lease = leases(0.4)
  assert lease.take()
  if is_down:
    monkeypatch.setattr(emulator, 'is_down', True)
  else:
    (folder / workdir_lib.LEASE).write_text('')  # As another holder.
  deadline = time.monotonic() + 20
  with pytest.raises(errors.LostWorkdirError, match=words):
    while time.monotonic() < deadline:
      lease.check()
      time.sleep(0.05)


def test_unfinished_checkpoint_is_ignored(folder):
  state = {'w': jnp.arange(5.0)}
  checkpoints = checkpoints_lib.Checkpoints(folder)
  for step in (1, 2, 3):
    checkpoints.save(step, state, {'step': step})
  checkpoints.close()
  assert checkpoints.steps() == [2, 3]
  (folder / '3/commit_success.txt').unlink()  # As after a kill.
  reader = checkpoints_lib.Checkpoints(folder)
  assert reader.steps() == [2]
  assert reader.restore(state).meta == {'step': 2}


def test_unknown_bucket_is_named(emulator):
  folder = files.as_path('gs://another/run')
  for use in (workdir_lib.Lock, lambda x: (x / 'a').write_text('')):
    with pytest.raises(
        errors.UserError, match='--workdir=gs://another/run cannot be used'):
      with files.disk_errors_as_user_errors(folder):
        use(folder)


def test_killed_run_resumes_with_equal_results(
    folder, emulator, echo_folder, tmp_path, monkeypatch):
  config = echo.get_config()
  changes = {
      'model.folder': str(echo_folder), 'train.num_steps': 4,
      'train.checkpoint_every': 2, 'evaluation.validate_every': 2}
  config.update_from_flattened_dict(changes)
  with api.Run(config, tmp_path / 'run') as run:
    undisturbed = run.train()

  process = subprocess.Popen([
      sys.executable, '-m', 'atgrpo_jax.main', f'--workdir={folder}',
      '--config=tests/echo.py',
      *(f'--config.{name}={value}' for name, value in changes.items())])
  deadline = time.monotonic() + 300
  while _name(folder / 'checkpoints/2/commit_success.txt') not in (
      emulator.objects):
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert 'still running' in report.read_run(folder)['state']
  monkeypatch.setattr(workdir_lib, 'LEASE_SECONDS', 3.0)

  with api.Run(None, os.fspath(folder)) as run:
    assert run.train() == undisturbed
    assert run.evaluate() == undisturbed['after']
    assert run.export() == [folder / 'export/shared']
    with contextlib.closing(workdir_lib.Lock(folder)):
      with pytest.raises(errors.UserError, match='Another process trains in'):
        with pytest.MonkeyPatch.context() as patch:
          patch.setattr(workdir_lib.Lease, 'take', lambda self: False)
          run.train()
  assert fault_injection.steps(folder) == fault_injection.steps(
      tmp_path / 'run')
  assert evaluate.read(folder, 'before') == undisturbed['before']
  prefix = _name(folder) + '/'
  assert {
      name.removeprefix(prefix).split('/')[0]
      for name in emulator.objects if name.startswith(prefix)
  } == {'checkpoints', 'config.json', 'evals', 'export', 'groups',
        'metrics.jsonl', 'report.html', 'tensorboard'}
  exported = json.loads((folder / 'export/shared/config.json').read_text())
  assert exported['model_type'] == 'qwen3'
  assert report.read_run(folder)['state'] == 'finished after step 4'
