"""Tiny GGUF files, written as llama.cpp's converter does."""

import pathlib

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from atgrpo_jax import model
from atgrpo_jax.huggingface import families

CONFIGS = {
    architecture: model.ModelConfig(
        model_type=architecture, vocab_size=288, hidden_size=64,
        intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16, rope_theta=5e5, norm_eps=1e-6, tied_head=tied_head,
        max_positions=512, init_std=0.02)
    for architecture, tied_head in (
        ('llama', True), ('qwen2', False))}

MERGES = [
    'h e', 'l l', 'he ll', 'hell o', 'Ġ Ġ', 'ĠĠ Ġ', '1 2', "' M", 'Ã ©']
CONTROL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
# `zq` is no product of merges.
TOKENS = [
    *CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(' ', '') for merge in MERGES), 'zq', '<think>']
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}')


def make_tensors(
    config: model.ModelConfig, kind: str = 'F32') -> dict[str, np.ndarray]:
  """Random weights of a folder that the type `kind` stores exactly."""
  rng = np.random.default_rng(0)
  return {
      name: gguf.dequantize(*_encode(
          rng.normal(size=shape).astype(np.float32), kind))
      for name, shape in families.tensor_shapes(config).items()}


def write(
    path: pathlib.Path, architecture: str = 'llama', kind: str = 'F32',
    pre: str = 'smollm') -> pathlib.Path:
  """Writes a GGUF file with matrices of a type such as Q4_1."""
  config = CONFIGS[architecture]
  num_unused = config.vocab_size - len(TOKENS)
  values = {
      f'{architecture}.block_count': config.num_layers,
      f'{architecture}.context_length': config.max_positions,
      f'{architecture}.embedding_length': config.hidden_size,
      f'{architecture}.feed_forward_length': config.intermediate_size,
      f'{architecture}.attention.head_count': config.num_heads,
      f'{architecture}.attention.head_count_kv': config.num_kv_heads,
      f'{architecture}.attention.layer_norm_rms_epsilon': config.norm_eps,
      f'{architecture}.rope.freq_base': config.rope_theta,
      f'{architecture}.rope.dimension_count': config.head_dim,
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': pre,
      'tokenizer.ggml.tokens': [
          *TOKENS, *(f'[PAD{i}]' for i in range(num_unused))],
      # Normal tokens are 1, control tokens 3, user-defined 4 and unused 5.
      'tokenizer.ggml.token_type': [
          *(3 if x in CONTROL else 4 if x == '<think>' else 1 for x in TOKENS),
          *[5] * num_unused],
      'tokenizer.ggml.merges': MERGES,
      'tokenizer.ggml.bos_token_id': 1,
      'tokenizer.ggml.eos_token_id': 2,
      'tokenizer.ggml.eot_token_id': 0,
      'tokenizer.ggml.padding_token_id': 0,
      'tokenizer.chat_template': CHAT_TEMPLATE}
  writer = gguf.GGUFWriter(path, architecture)
  for key, value in values.items():
    add = {
        int: writer.add_uint32, str: writer.add_string,
        float: writer.add_float32, list: writer.add_array}[type(value)]
    add(key, value)
  names = gguf.get_tensor_name_map(
      gguf.MODEL_ARCH[architecture.upper()], config.num_layers)
  for name, x in make_tensors(config, kind).items():
    data, raw_type = _encode(_permute(name, x, config), kind)
    writer.add_tensor(
        names.get_name(name, ('.weight', '.bias')), data, raw_dtype=raw_type)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def _encode(x, kind):
  """(data, type) of a tensor. Vectors stay as they are."""
  raw_type = gguf.GGMLQuantizationType['F32' if x.ndim == 1 else kind]
  return gguf.quantize(x, raw_type), raw_type


def _permute(name, x, config):
  """What llama.cpp does to the queries and keys of its architecture llama."""
  if config.model_type != 'llama' or not name.endswith(
      ('q_proj.weight', 'k_proj.weight')):
    return x
  return x.reshape(-1, 2, config.head_dim // 2, x.shape[-1]).swapaxes(
      1, 2).reshape(x.shape)
