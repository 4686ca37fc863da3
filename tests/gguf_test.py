"""Converted GGUF files have the weights and the tokenizer of their sources."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy
import transformers

from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from models import gguf
from tests import gguf_files


@pytest.mark.parametrize('architecture, kind', [
    ('llama', 'F32'), ('llama', 'Q4_1'), ('qwen2', 'Q8_0')])
def test_weights_and_config_equal_the_source(architecture, kind, tmp_path):
  file = gguf_files.write(tmp_path / 'x.gguf', architecture, kind)
  gguf.convert(file, tmp_path / 'model')
  expected = gguf_files.CONFIGS[architecture]
  assert hub.load_config(tmp_path / 'model') == expected
  actual = safetensors_numpy.load_file(tmp_path / 'model/model.safetensors')
  tensors = gguf_files.make_tensors(expected, kind)
  assert actual.keys() == tensors.keys()
  for name, tensor in tensors.items():
    np.testing.assert_array_equal(
        actual[name], tensor.astype(jnp.bfloat16), name)


@pytest.mark.parametrize('pre, text, tokens', [
    ('smollm', 'hello 12', 'hello Ġ 1 2'),
    ('qwen2', 'hello 12', 'hello Ġ 1 2'),
    # All spaces before a digit are one piece; elsewhere the last is separate.
    ('smollm', 'h   1', 'h ĠĠĠ 1'),
    ('qwen2', 'h   1', 'h ĠĠ Ġ 1'),
    # Contractions are split off, in capitals only by the later families.
    ('smollm', "I'M", "I ' M"),
    ('qwen2', "I'M", "I 'M"),
    # Qwen composes characters.
    ('smollm', 'e\u0301', 'e Ì ģ'),
    ('qwen2', 'e\u0301', 'Ã©'),
    ('qwen2', 'zq', 'z q'),
    ('smollm', 'h<|im_end|><think>h', 'h <|im_end|> <think> h')])
def test_text_is_split_as_the_family_does(pre, text, tokens, tmp_path):
  file = gguf_files.write(tmp_path / 'x.gguf', pre=pre)
  gguf.convert(file, tmp_path / 'model')
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'model')
  ids = tokenizer.encode(text, add_special_tokens=False)
  assert tokenizer.convert_ids_to_tokens(ids) == tokens.split()


def test_tokenizer_has_the_ids_of_the_file(tmp_path):
  file = gguf_files.write(tmp_path / 'x.gguf')
  gguf.convert(file, tmp_path / 'model')
  hf = transformers.AutoTokenizer.from_pretrained(tmp_path / 'model')
  assert hf.get_vocab() == {
      token: i for i, token in enumerate(gguf_files.TOKENS)}
  assert [hf.bos_token, hf.eos_token, hf.pad_token, hf.unk_token] == [
      '<|im_start|>', '<|im_end|>', '<|endoftext|>', None]
  assert hf('hello').input_ids == [gguf_files.TOKENS.index('hello')]
  assert hf.decode(
      [1, gguf_files.TOKENS.index('<think>')],
      skip_special_tokens=True) == '<think>'
  tokenizer = tokenizer_lib.Tokenizer(tmp_path / 'model')
  assert tokenizer.stop_ids == (2, 0)
  assert tokenizer.vocab_size == len(gguf_files.TOKENS)
  prompt = tokenizer.encode_prompt([{'role': 'user', 'content': 'é 12\n'}])
  assert tokenizer.decode(prompt) == (
      '<|im_start|>user\né 12\n<|im_end|>\n<|im_start|>assistant\n')
