"""Runs in an emulated bucket: files, checkpoints, kill and resume."""

import json
import os
import subprocess

from huggingface_hub import constants
import jax.numpy as jnp
import pytest

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.huggingface import hub
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import files
from atgrpo_jax.io import provenance
from atgrpo_jax.viewer import report
from paper import records
from tests import checkout
from tests import commands
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
  return files.as_path(
      f'gs://{gcs_emulator.BUCKET}/{request.node.name}/main/a/b/seed-0')


@pytest.mark.parametrize('name', ['s3://bucket/run', 'gs:///'])
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
  with pytest.raises(
      errors.UserError, match='--workdir=gs://another/run cannot be used'):
    with files.disk_errors_as_user_errors(folder):
      (folder / 'a').write_text('')


def test_a_model_in_the_bucket_is_copied_once(
    folder, echo_folder, tmp_path, monkeypatch):
  monkeypatch.setattr(constants, 'HF_HOME', str(tmp_path))
  name = os.fspath(folder)
  with pytest.raises(errors.UserError, match=f'{name} cannot be copied .*no f'):
    hub.resolve_folder(name)
  for path in echo_folder.iterdir():
    (folder / path.name).write_bytes(path.read_bytes())
  (folder / 'model.bin').write_text('The same weights.')
  copy = hub.resolve_folder(name)
  assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
      path.name: path.read_bytes() for path in echo_folder.iterdir()}
  assert hub.base_name(copy) == name
  assert hub.resolve_folder(name) == copy
  (folder / 'config.json').write_text('{}')
  assert (hub.resolve_folder(name) / 'config.json').read_text() == '{}'


def _config(echo_folder, **changes):
  config = echo.get_config()
  config.update_from_flattened_dict({
      'model.folder': str(echo_folder), 'rollout.num_tasks': 4} | changes)
  return config


def test_a_run_in_the_bucket_is_read_by_all_modes(
    folder, emulator, echo_folder):
  config = _config(echo_folder, **{'train.num_steps': 2})
  with api.Run(config, os.fspath(folder)) as run:
    results = run.train()
    assert run.evaluate() == results['after']
    assert run.export() == [folder / 'export/shared']
  prefix = os.fspath(folder).removeprefix(f'gs://{gcs_emulator.BUCKET}/') + '/'
  assert {
      name.removeprefix(prefix).split('/')[0]
      for name in emulator.objects if name.startswith(prefix)
  } - {'changes'} == {  # There are changes in a checkout that was edited.
      'checkpoints', 'config.json', 'evals', 'export', 'groups',
      'metrics.jsonl', 'provenance.jsonl', 'report.html', 'tensorboard'}
  assert [event['event'] for event in provenance.read(folder)] == [
      'started', 'finished']
  exported = json.loads((folder / 'export/shared/config.json').read_text())
  assert exported['model_type'] == 'qwen3'
  assert report.read_run(folder)['state'] == 'finished'
  found = records.read_workdirs(folder.parents[3])
  assert {
      name: evaluation['mean_return']
      for (_, name), evaluation in found.evaluations.items()
  } == {name: results[name.replace('evaluation', 'after')]['mean_return']
        for name in ('before', 'after', 'evaluation')}
  assert list(found.steps['step']) == [1, 2]


@pytest.mark.long
def test_killed_run_resumes_with_equal_results(
    folder, emulator, echo_folder, tmp_path):
  changes = {
      'train.num_steps': 4, 'train.checkpoint_every': 2,
      'evaluation.validate_every': 2}
  config = _config(echo_folder, **changes)
  with api.Run(config, tmp_path / 'run') as run:
    undisturbed = run.train()

  process = subprocess.Popen(commands.train(
      'tests/echo.py', folder, changes | {
          'model.folder': echo_folder, 'rollout.num_tasks': 4}))
  saved = os.fspath(folder / 'checkpoints/2/commit_success.txt').removeprefix(
      f'gs://{gcs_emulator.BUCKET}/')
  checkout.wait_until(
      lambda: saved in emulator.objects or process.poll() is not None,
      seconds=300)
  assert process.poll() is None
  process.kill()
  process.wait()
  assert 'running or stopped' in report.read_run(folder)['state']

  with api.Run(None, os.fspath(folder)) as run:
    assert run.train() == undisturbed
  assert fault_injection.steps(folder) == fault_injection.steps(
      tmp_path / 'run')
  assert evaluate.read(folder, 'before') == undisturbed['before']
