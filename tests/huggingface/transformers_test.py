"""Exported models and adapters load in transformers and PEFT.

  pip install torch==2.13.0 peft==0.21.2
  python -m pytest -m long tests/huggingface/transformers_test.py
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers

from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.huggingface import safetensors as safetensors_lib

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'


@pytest.mark.long
@pytest.mark.parametrize(
    'name', ['qwen3_tied', 'qwen2_untied', 'llama_tied', 'mistral_untied'])
def test_exports_load_in_transformers_and_peft(name, tmp_path):
  peft_lib, torch = pytest.importorskip('peft'), pytest.importorskip('torch')
  config = hub.load_config(GOLDENS / name)
  params = safetensors_lib.load_params(GOLDENS / name, config)
  folder, adapter = tmp_path / 'model', tmp_path / 'adapter'
  safetensors_lib.save(folder, params, config, jnp.float32)
  # Adapters of all linear layers, with an effect.
  spec = model.LoraSpec(rank=4, alpha=6.0, targets=('.*kernel',))
  weights = jax.tree.map(
      lambda x: x + 0.1, model.init_lora(jax.random.key(0), config, spec))
  peft.save(
      adapter, weights, alpha=spec.alpha, base_folder=folder, dtype=jnp.float32)

  tokens = np.arange(1, 41).reshape(2, 20)
  adapted = model.with_adapters(params, model.stack([weights], [spec.scale]))
  theirs, problems = transformers.AutoModelForCausalLM.from_pretrained(
      folder, dtype=torch.float32, output_loading_info=True)
  assert not any(problems.values())
  expected = []
  for current in (params, adapted):
    hidden, _ = model.forward(current, config, tokens[:, None])
    logits = model.unembed(current, config, hidden)[:, 0]
    with torch.no_grad():
      np.testing.assert_allclose(
          logits, theirs(torch.tensor(tokens)).logits, atol=1e-4, rtol=0)
    expected.append(logits)
    theirs = peft_lib.PeftModel.from_pretrained(theirs, adapter)
  assert np.abs(expected[0] - expected[1]).max() > 0.1
