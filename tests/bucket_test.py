"""Runs in a bucket, which is an emulated one."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import pytest

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import main
from atgrpo_jax.huggingface import hub
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import disk
from atgrpo_jax.io import files
from atgrpo_jax.io import lease as lease_lib
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import report
from tests import echo
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
  """A folder of the bucket for one test."""
  del emulator
  return files.as_path(f'gs://{gcs_emulator.BUCKET}/{request.node.name}/run')


@pytest.fixture(name='leases')
def make_leases(folder):
  """Makes leases on the folder that last for a moment, and ends them."""
  with contextlib.ExitStack() as stack:
    yield lambda seconds=60.0: stack.enter_context(
        contextlib.closing(lease_lib.Lease(folder, seconds)))


def _name(path):
  """Of an object, as the emulator knows it."""
  return os.fspath(path).removeprefix(f'gs://{gcs_emulator.BUCKET}/')


@pytest.mark.parametrize('name', [
    's3://bucket/run', 'https://bucket/run', 'hf://bucket/run', 'gs://', 'gs:///'
])
def test_other_schemes_are_refused_by_name(name):
  with pytest.raises(errors.UserError, match=f'--workdir={name}: give a'):
    files.as_path(name)
  with pytest.raises(errors.UserError, match='gs://bucket/folder'):
    main.parse_flags(['main', f'--workdir={name}'])


def test_what_is_missing_to_reach_a_bucket_is_named(monkeypatch):
  monkeypatch.setattr(files.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.UserError, match=r"pip install 'atgrpo_jax\[gcs\]"):
    files.as_path('gs://bucket/run')


def test_files(folder):
  files.write_whole(folder / 'a.json', '{}')
  assert (folder / 'a.json').read_text() == '{}'
  with pytest.raises(KeyError):
    with files.whole_file(folder / 'a.json') as file:
      file.write(b'half')
      raise KeyError
  assert (folder / 'a.json').read_text() == '{}'

  growing = files.GrowingFile(folder / 'lines', b'1\n')
  growing.append(b'2\n')
  assert (folder / 'lines').read_bytes() == b'1\n2\n'
  assert growing.sync() == 4
  growing.close()


def test_a_whole_folder_has_nothing_of_the_former_one(folder, emulator):
  for names in (('old.bin', 'sub/config.json'), ('config.json', 'z.bin')):
    with files.whole_folder(folder / 'export') as new:
      for name in names:
        (new / name).parent.mkdir(exist_ok=True)
        (new / name).write_text(name)
  found = [name for name in emulator.objects if _name(folder) in name]
  # The weights first: without config.json it is no model.
  assert found == [
      _name(folder / 'export' / name) for name in ('z.bin', 'config.json')]
  with pytest.raises(KeyError):
    with files.whole_folder(folder / 'export'):
      raise KeyError
  assert (folder / 'export/z.bin').read_text() == 'z.bin'


def test_one_holds_a_lease(folder, leases, capsys):
  first, second = leases(1.0), leases(1.0)
  assert not first.is_held()
  assert first.take()
  assert second.is_held()
  # It is renewed, for longer than it lasts.
  time.sleep(1.5)
  assert not second.take()
  assert re.search(
      rf':{os.getpid()}, last heard of \d s ago; without a sign of life it is '
      'taken over after 1 s', capsys.readouterr().out)
  first.check()
  first.close()
  assert not (folder / lease_lib.NAME).exists()
  assert second.take()
  second.check()


def test_a_lease_that_nobody_renews_is_taken_over(folder, emulator, leases):
  first, second = leases(), leases(3.0)
  assert first.take()
  emulator.age(_name(folder / lease_lib.NAME), 1)
  start = time.monotonic()
  assert second.take()
  assert time.monotonic() - start > 1.5  # It waited for the rest.
  # The former holder does not take away what is another one's.
  first.close()
  assert (folder / lease_lib.NAME).exists()


def test_clocks_that_differ_take_nothing_over(leases, monkeypatch):
  first, second = leases(2.0), leases(2.0)
  assert first.take()
  age = second._age
  monkeypatch.setattr(second, '_age', lambda: age() + 60)
  assert not second.is_held()
  assert not second.take()  # It is renewed.
  first.check()


def _wait_until_lost(lease):
  deadline = time.monotonic() + 20
  while time.monotonic() < deadline:
    lease.check()
    time.sleep(0.05)


def test_who_has_lost_its_lease_ends(folder, leases):
  lease = leases(0.4)
  assert lease.take()
  (folder / lease_lib.NAME).write_text('')  # Another one's.
  with pytest.raises(errors.LostWorkdirError, match='its lease was taken over'):
    _wait_until_lost(lease)


def test_who_cannot_renew_its_lease_ends(leases, emulator, monkeypatch):
  lease = leases(0.4)
  assert lease.take()
  monkeypatch.setattr(emulator, 'is_down', True)
  with pytest.raises(errors.LostWorkdirError, match='could not be renewed'):
    _wait_until_lost(lease)


def test_checkpoints(folder):
  state = {'w': jnp.arange(5.0)}
  checkpoints = checkpoints_lib.Checkpoints(folder)
  for step in (1, 2, 3):
    checkpoints.save(step, state, {'step': step})
  checkpoints.close()
  assert checkpoints.steps() == [2, 3]
  # What was not ended, since this was killed, is none.
  (folder / '3/commit_success.txt').unlink()
  reader = checkpoints_lib.Checkpoints(folder)
  assert reader.steps() == [2]
  assert reader.restore(state).meta == {'step': 2}


def test_a_bucket_that_cannot_be_used(emulator, monkeypatch):
  folder = files.as_path('gs://another/run')
  for use in (workdir_lib.Lock, lambda x: (x / 'a').write_text('')):
    with pytest.raises(
        errors.UserError, match='--workdir=gs://another/run cannot be used'):
      with disk.OneSentence(folder):
        use(folder)


def test_a_bucket_that_cannot_be_reached(monkeypatch):
  # As an error of aiohttp, which is not imported for its name.
  unreachable = type('DNSError', (OSError,), {'__module__': 'aiohttp.client'})

  def fail(self):
    raise unreachable('no host')

  folder = files.as_path('gs://another/run')
  monkeypatch.setattr(type(folder), 'exists', fail)
  with pytest.raises(
      errors.UserError, match=r'another/run cannot be used \(DNSError: no'):
    main.parse_flags(['main', f'--workdir={folder}'])
  with pytest.raises(ZeroDivisionError):
    with files.OfBucket(folder):
      raise ZeroDivisionError


def _steps(workdir):
  """The metrics, but for what is measured."""
  return [
      {name: value for name, value in step.items()
       if not name.startswith(('time/', 'compile/', 'memory/'))}
      for step in metrics_lib.read(workdir)]


def test_a_run_that_is_killed(
    folder, emulator, echo_folder, tmp_path, monkeypatch):
  config = echo.get_config()
  changes = {
      'model.folder': str(echo_folder), 'train.num_steps': 6,
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
  emulator.age(_name(folder / lease_lib.NAME), lease_lib.SECONDS)
  monkeypatch.setattr(lease_lib, 'SECONDS', 3.0)

  with api.Run(None, os.fspath(folder)) as run:
    assert run.train() == undisturbed
    assert run.evaluate() == undisturbed['after']
    assert run.export() == [folder / 'export/shared']
    with contextlib.closing(workdir_lib.Lock(folder)):
      with pytest.raises(errors.UserError, match='Another process trains in'):
        with pytest.MonkeyPatch.context() as patch:
          patch.setattr(lease_lib.Lease, 'take', lambda self: False)
          run.train()
  assert _steps(folder) == _steps(tmp_path / 'run')
  assert evaluate.read(folder, 'before') == undisturbed['before']
  written = {
      _name(path).removeprefix(_name(folder)).split('/')[1]
      for path in map(files.as_path, (
          f'gs://{gcs_emulator.BUCKET}/{name}' for name in emulator.objects))
      if _name(folder) in _name(path)}
  assert written == {
      'checkpoints', 'config.json', 'evals', 'export', 'groups',
      'metrics.jsonl', 'report.html', 'tensorboard'}
  exported = json.loads((folder / 'export/shared/config.json').read_text())
  assert exported['model_type'] == 'qwen3'
  assert report.read_run(folder)['state'] == 'finished after step 6'


def test_weights_are_downloaded_once(
    folder, emulator, echo_folder, tmp_path, monkeypatch):
  monkeypatch.setattr(hub.constants, 'HF_HOME', str(tmp_path))
  with pytest.raises(errors.UserError, match='holds no model files'):
    hub.resolve_folder(os.fspath(folder))
  with files.whole_folder(folder) as new:
    shutil.copytree(echo_folder, new, dirs_exist_ok=True)
  found = hub.resolve_folder(os.fspath(folder))
  assert found.parent == tmp_path / 'atgrpo_jax'
  weights = 'model.safetensors'
  assert (found / weights).read_bytes() == (echo_folder / weights).read_bytes()

  num_reads = emulator.requests['GET object']
  assert hub.resolve_folder(os.fspath(folder)) == found
  num_files = len(list(echo_folder.iterdir()))
  assert emulator.requests['GET object'] - num_reads <= 2 * num_files
  monkeypatch.setattr(files, 'download', lambda paths, folder: 1 / 0)
  hub.resolve_folder(os.fspath(folder))
  emulator.age(_name(folder / weights), 60)  # Another version.
  with pytest.raises(ZeroDivisionError):
    hub.resolve_folder(os.fspath(folder))
