"""Exports equal the trained policies, and training can start from them."""

import shutil

import jax
import numpy as np
import pytest

from atgrpo_jax import export
from atgrpo_jax import train
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from tests import echo

QUICK = {
    'rollout.num_tasks': 4, 'train.num_steps': 1, 'export.dtype': 'float32'}
ADAPTERS = QUICK | {'policies': 'lora_per_role', 'lora.rank': 4}


@pytest.fixture(scope='module')
def adapters(echo_folder, tmp_path_factory):
  """An exported run with an adapter per role; tests must not change it."""
  workdir = tmp_path_factory.mktemp('adapters')
  experiment = echo.experiment(echo_folder, **ADAPTERS)
  assert train.train(experiment, workdir)
  export.export_run(experiment, workdir)
  return workdir


def test_export_of_a_model(echo_folder, tmp_path, capsys):
  experiment = echo.experiment(echo_folder, **QUICK)
  assert train.train(experiment, tmp_path)
  export.export_run(experiment, tmp_path)
  folder = tmp_path / 'export' / 'shared'
  assert f"policy 'shared' after step 1 is in {folder}" in (
      capsys.readouterr().out)
  config = hub.load_config(folder)
  assert config == experiment.policies['shared'].config
  jax.tree.map(
      np.testing.assert_array_equal, safetensors_lib.load_params(
          folder, config), experiment.trained_params(tmp_path)[0]['shared'])
  chat = [{'role': 'user', 'content': 'first a'}]
  np.testing.assert_array_equal(
      tokenizer_lib.Tokenizer(folder).encode_prompt(chat),
      tokenizer_lib.Tokenizer(echo_folder).encode_prompt(chat))


def test_training_starts_from_an_exported_adapter(adapters, echo_folder):
  params, _ = echo.experiment(echo_folder, **ADAPTERS).trained_params(adapters)
  # The rank of the folder overrides the config.
  policy = echo.experiment(
      echo_folder, policies='lora_per_role',
      per_policy=(
          ('second', 'lora.folder', str(adapters / 'export' / 'second')),
          ('second', 'lora.rank', 7))).policies['second']
  assert policy.lora.rank == 4
  started = policy.initial_params()
  jax.tree.map(np.testing.assert_array_equal, started, params['second'])
  assert np.any(started['down']['b'])


def test_export_replaces_an_earlier_one_atomically(
    adapters, echo_folder, tmp_path, monkeypatch):
  workdir = shutil.copytree(adapters, tmp_path / 'run')
  experiment = echo.experiment(echo_folder, **ADAPTERS)
  before = _files(workdir / 'export')
  assert 'second/adapter_config.json' in before
  (workdir / 'export' / 'first' / 'stale').write_text('')

  def killed(*args):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(tokenizer_lib.Tokenizer, 'save', killed)
    with pytest.raises(KeyboardInterrupt):
      export.export_run(experiment, workdir)
  assert _files(workdir / 'export').items() >= before.items()
  export.export_run(experiment, workdir)
  assert _files(workdir / 'export') == before


def _files(folder):
  """Relative name -> content."""
  return {
      path.relative_to(folder).as_posix(): path.read_bytes()
      for path in folder.rglob('*') if path.is_file()}
