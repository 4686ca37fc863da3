"""Exports equal the trained policies, and training can start from them."""

import jax
import numpy as np

from atgrpo_jax import export
from atgrpo_jax import train
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from tests import echo

QUICK = {
    'rollout.num_tasks': 4, 'train.num_steps': 1, 'export.dtype': 'float32'}


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


def test_training_starts_from_an_exported_adapter(echo_folder, tmp_path):
  experiment = echo.experiment(
      echo_folder, **QUICK, policies='lora_per_role', **{'lora.rank': 4})
  assert train.train(experiment, tmp_path)
  export.export_run(experiment, tmp_path)
  params, _ = experiment.trained_params(tmp_path)
  # The rank of the folder overrides the config.
  policy = echo.experiment(
      echo_folder, policies='lora_per_role',
      per_policy=(
          ('second', 'lora.folder', str(tmp_path / 'export' / 'second')),
          ('second', 'lora.rank', 7))).policies['second']
  assert policy.lora.rank == 4
  started = policy.initial_params()
  jax.tree.map(np.testing.assert_array_equal, started, params['second'])
  assert np.any(started['down']['b'])
