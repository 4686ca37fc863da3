"""Converted GGUF files have the weights and the tokenizer of their sources."""

import os

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy
import transformers

from atgrpo_jax import errors
from atgrpo_jax.huggingface import gguf
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from tests import gguf_files


@pytest.mark.parametrize('architecture, kind', [
    ('llama', 'F32'), ('llama', 'Q4_1'), ('qwen2', 'Q8_0')])
def test_weights_and_config_equal_the_source(architecture, kind, tmp_path):
  file = gguf_files.write(tmp_path / 'x.gguf', architecture, kind)
  gguf.convert(file, tmp_path / 'model', 'float32')
  expected = gguf_files.CONFIGS[architecture]
  assert hub.load_config(tmp_path / 'model') == expected
  actual = safetensors_numpy.load_file(tmp_path / 'model/model.safetensors')
  tensors = gguf_files.make_tensors(expected, kind)
  assert actual.keys() == tensors.keys()
  for name, tensor in tensors.items():
    np.testing.assert_array_equal(actual[name], tensor, name)


def test_bfloat16_weights_are_rounded(tmp_path):
  file = gguf_files.write(tmp_path / 'x.gguf')
  gguf.convert(file, tmp_path / 'model')
  config = gguf_files.CONFIGS['llama']
  params = safetensors_lib.load_params(tmp_path / 'model', config)
  expected = gguf_files.make_tensors(config)['model.embed_tokens.weight']
  np.testing.assert_allclose(params['embedding'], expected, rtol=2**-8)
  assert (params['embedding'] != expected).any()


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
  file = gguf_files.write(
      tmp_path / 'x.gguf', metadata={'tokenizer.ggml.eot_token_id': 0})
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


@pytest.mark.parametrize('metadata, tensors, words', [
    ({'general.architecture': 'gemma3'}, {},
     "general.architecture='gemma3' expected 'llama', 'qwen2'"),
    ({'tokenizer.ggml.pre': None}, {}, 'tokenizer.ggml.pre'),
    ({'llama.rope.scaling.type': 'yarn'}, {}, "llama.rope.scaling.type='yarn'"),
    ({'llama.block_count': None}, {}, 'lacks num_hidden_layers'),
    ({'llama.rope.dimension_count': 8}, {}, 'q_proj.weight shape expected'),
    ({'tokenizer.ggml.merges': ['z q', 'q z']}, {}, "'qz' is merged"),
    ({'tokenizer.ggml.tokens': 5}, {}, 'cannot be converted'),
    # Wrong values, which damaged files may have.
    ({'llama.attention.head_count': 0}, {}, 'num_attention_heads=0'),
    ({'tokenizer.ggml.brand_new': True}, {}, 'tokenizer.ggml.brand_new=True'),
    ({}, {'rope_freqs.weight': np.ones(8, np.float32)},
     'surplus rope_freqs.weight'),
    ({}, {'output_norm.weight': np.ones(64)}, 'F64'),
    ({}, {'blk.1.ffn_up.weight': None},
     'missing model.layers.1.mlp.up_proj.weight; download it again')])
def test_unsupported_file_is_refused(metadata, tensors, words, tmp_path):
  file = gguf_files.write(
      tmp_path / 'x.gguf', metadata=metadata, tensors=tensors)
  with pytest.raises(errors.UserError) as error:
    gguf.convert(file, tmp_path / 'model')
  for word in (str(file), *words.split()):
    assert word in str(error.value)
  assert not (tmp_path / 'model').exists()


def test_damaged_file_or_used_folder_is_refused(tmp_path):
  file = gguf_files.write(tmp_path / 'x.gguf')
  with pytest.raises(errors.UserError, match='not empty'):
    gguf.convert(file, tmp_path)
  os.truncate(file, file.stat().st_size // 2)
  with pytest.raises(errors.UserError, match='download it again'):
    gguf.convert(file, tmp_path / 'model')
  for path in tmp_path, tmp_path / 'no.gguf':
    with pytest.raises(errors.UserError, match=f'{path} is missing or'):
      gguf.convert(path, tmp_path / 'model')


@pytest.mark.long
@pytest.mark.parametrize('architecture', gguf_files.CONFIGS)
def test_transformers_reads_the_same_weights(architecture, tmp_path):
  pytest.importorskip('torch')
  file = gguf_files.write(tmp_path / 'x.gguf', architecture, 'Q8_0')
  gguf.convert(file, tmp_path / 'model', 'float32')
  load = transformers.AutoModelForCausalLM.from_pretrained
  expected = load(tmp_path, gguf_file='x.gguf').state_dict()
  actual = load(tmp_path / 'model').state_dict()
  assert actual.keys() == expected.keys()
  for name, tensor in expected.items():
    assert (actual[name] == tensor).all(), name
