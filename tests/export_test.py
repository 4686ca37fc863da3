"""Exported policies are the trained ones, and can be started from."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import export
from atgrpo_jax import model
from atgrpo_jax import train
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors_file
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from tests import echo

QUICK = {
    'train.num_steps': 2, 'train.checkpoint_every': 2,
    'evaluation.validate_every': 2, 'export.dtype': 'float32'}
TOKENS = np.arange(12, dtype=np.int32).reshape(2, 2, 3)


def _run(folder, workdir, **changes):
  experiment = echo.experiment(folder, **QUICK, **changes)
  assert train.train(experiment, workdir)
  export.export_run(experiment, workdir)
  params, _ = experiment.trained_params(workdir)
  return experiment, params


def _logits(params, config):
  hidden, _ = model.forward(params, config, TOKENS)
  return model.unembed(params, config, hidden)


def test_a_model_is_exported_whole(echo_folder, tmp_path, capsys):
  experiment, params = _run(echo_folder, tmp_path)
  folder = tmp_path / 'export' / 'shared'
  assert f"policy 'shared' after step 2 is in {folder}" in (
      capsys.readouterr().out)
  config = hub.load_config(folder)
  assert config == experiment.policies['shared'].config
  jax.tree.map(
      np.testing.assert_array_equal,
      safetensors_file.load_params(folder, config), params['shared'])
  chat = [{'role': 'user', 'content': 'first a'}]
  np.testing.assert_array_equal(
      tokenizer_lib.Tokenizer(folder).encode_prompt(chat),
      tokenizer_lib.Tokenizer(echo_folder).encode_prompt(chat))


def test_an_adapter_is_exported_and_started_from(echo_folder, tmp_path):
  changes = {'policies': 'lora_per_role', 'lora.rank': 4}
  experiment, params = _run(echo_folder, tmp_path / 'run', **changes)
  folder = tmp_path / 'run' / 'export' / 'second'
  # With another rank, to see that the folder's counts.
  again = echo.experiment(
      echo_folder, policies='lora_per_role',
      per_policy=f'second.lora.folder={folder};second.lora.rank=7')
  policy = again.policies['second']
  assert policy.lora.rank == 4
  assert policy.lora.alpha == experiment.policies['second'].lora.alpha
  started = policy.initial_params()
  jax.tree.map(np.testing.assert_array_equal, started, params['second'])
  assert np.any(started['down']['b'])


def test_an_adapter_is_merged(echo_folder, tmp_path):
  experiment, params = _run(
      echo_folder, tmp_path, policies='lora_per_role',
      **{'export.merged': True})
  policy = experiment.policies['first']
  merged = safetensors_file.load_params(
      tmp_path / 'export' / 'first', policy.config)
  adapted = model.with_adapters(
      experiment.frozen_params['first'], model.Adapters(
          params['first'], jnp.array([policy.lora.scale])))
  found = _logits(merged, policy.config)
  assert np.abs(
      found - _logits(
          experiment.frozen_params['first'], policy.config)).max() > 0.01
  np.testing.assert_allclose(
      found, _logits(adapted, policy.config), atol=1e-5)


def test_an_export_replaces_another_one_whole(
    echo_folder, tmp_path, monkeypatch):
  # Bite: an export that is written into the folder of the one before. PEFT
  # applies an adapter_config.json beside weights that have it already.
  changes = {'policies': 'lora_per_role', **QUICK}
  merged = echo.experiment(echo_folder, **changes | {'export.merged': True})
  experiment, _ = _run(echo_folder, tmp_path, policies='lora_per_role')
  before = _files(tmp_path / 'export')
  assert {
      path.parent.name for path in before
      if path.name == 'adapter_config.json'} == {'first', 'second'}

  def killed(*args):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(tokenizer_lib.Tokenizer, 'save', killed)
    with pytest.raises(KeyboardInterrupt):
      export.export_run(merged, tmp_path)
  assert {path: _files(tmp_path / 'export')[path] for path in before} == before

  export.export_run(merged, tmp_path)
  fresh = tmp_path / 'fresh'
  shutil.copytree(tmp_path, fresh, ignore=shutil.ignore_patterns('export'))
  export.export_run(merged, fresh)
  found = _files(tmp_path / 'export')
  assert found == {
      tmp_path / path.relative_to(fresh): content
      for path, content in _files(fresh / 'export').items()}
  assert not any('adapter' in path.name for path in found)
  # And back.
  export.export_run(experiment, tmp_path)
  assert _files(tmp_path / 'export') == before


def _files(folder):
  return {
      path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_nothing_to_export(echo_folder, tmp_path):
  with pytest.raises(errors.UserError, match='holds no run to export'):
    export.export_run(echo.experiment(echo_folder), tmp_path / 'none')
