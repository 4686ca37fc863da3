"""Converts GGUF files, the format of llama.cpp, into Hugging Face folders.

  from atgrpo_jax.huggingface import gguf
  gguf.convert('SmolLM2-135M-Instruct.Q4_1.gguf', 'runs/smollm2')

Supports what SmolLM2 (architecture `llama`) and Qwen2.5 (`qwen2`) need. A file
that cannot be converted exactly raises UserError. The package `gguf` parses
files and dequantises weights.
"""

from collections.abc import Mapping
import dataclasses
import importlib.util
import os
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from atgrpo_jax import errors
from atgrpo_jax.huggingface import families
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.io import files
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

# Key -> supported values.
_SUPPORTED = {
    'general.architecture': ('llama', 'qwen2'),
    'tokenizer.ggml.model': ('gpt2',),
    'tokenizer.ggml.pre': tuple(_SPLITS),
    'tokenizer.ggml.add_bos_token': (False,),
    'tokenizer.ggml.add_space_prefix': (False,),
}


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """A tensor as `safetensors_lib.compare` expects it."""

  source: Any  # A gguf.ReaderTensor.

  def get_shape(self) -> list[int]:
    return self.source.shape[::-1].tolist()

  def get_dtype(self) -> str:
    return 'F32'  # After dequantisation.


def convert(
    file: str | os.PathLike, folder: str | os.PathLike,
    dtype: str = 'bfloat16') -> None:
  """Writes a Hugging Face folder with the model and tokenizer of a GGUF file.

  Args:
    file: a GGUF file that holds a whole model.
    folder: a new or empty folder. It appears when it is complete.
    dtype: dtype of the stored weights. float32 stores the dequantised weights
      exactly, bfloat16 rounds them to 8 significant bits.

  Raises:
    UserError: the file is damaged or needs a feature that is not supported.
  """
  if importlib.util.find_spec('gguf') is None:
    raise errors.UserError(
        "Reading GGUF files needs gguf; run pip install -e '.[gguf]'.")
  import gguf

  file, folder = pathlib.Path(file), pathlib.Path(folder)
  if folder.exists() and any(folder.iterdir()):
    raise errors.UserError(
        f'{folder} is not empty; remove it or name another folder.')
  with files.read_errors_as_user_errors(file, 'copy or download it again'):
    reader = gguf.GGUFReader(file)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
  sources = {tensor.name: tensor for tensor in reader.tensors}
  try:
    _check(metadata)
    bpe, special_tokens = _tokenizer(metadata)
    config = _config(metadata, tied_head='output.weight' not in sources)
    for source in sources.values():
      gguf.dequantize(source.data[:1], source.tensor_type)
  except errors.UserError as error:
    raise errors.UserError(f'{file}: {error}') from error
  # The metadata of damaged files have missing keys, wrong types and values.
  except (LookupError, NotImplementedError, TypeError, ValueError) as error:
    raise errors.UserError(
        f'{file} cannot be converted ({errors.one_line(error)}); copy or '
        'download it again, or use another file of the model.') from error

  names = gguf.get_tensor_name_map(
      gguf.MODEL_ARCH[config.model_type.upper()], config.num_layers)
  shapes, tensors = families.tensor_shapes(config), {}
  for name in shapes:
    source = names.get_name(name, try_suffixes=('.weight', '.bias'))
    if source in sources:
      tensors[name] = _Tensor(sources.pop(source))
  safetensors_lib.compare(
      file, tensors | sources, shapes, fit='metadata',
      advice='copy or download it again, or use another file of the model')

  def read_tensor(name):
    source = tensors[name].source
    x = gguf.dequantize(source.data, source.tensor_type)
    if config.model_type == 'llama' and name.endswith(
        ('q_proj.weight', 'k_proj.weight')):
      # llama.cpp stores the two halves of a head interleaved.
      halves = x.reshape(-1, config.head_dim // 2, 2, x.shape[-1])
      x = halves.swapaxes(1, 2).reshape(x.shape)
    x = x.astype(jnp.dtype(dtype))
    safetensors_lib.check_finite(file, name, x)
    return x

  with files.whole_folder(folder) as new:
    safetensors_lib.write_model(new, config, jnp.dtype(dtype), read_tensor)
    # `eot`, the end of a turn, may differ from the end of a text.
    stop_ids = {
        metadata.get(f'tokenizer.ggml.{x}_token_id') for x in ('eos', 'eot')}
    tokenizer_lib.write(
        new, bpe, metadata.get('tokenizer.chat_template'),
        sorted(stop_ids - {None}), **special_tokens)


def _check(metadata: Mapping[str, Any]) -> None:
  """Raises UserError for unsupported values and keys."""
  for key, choices in _SUPPORTED.items():
    if key in metadata:
      errors.check_choice(key, metadata[key], choices)
  architecture = metadata['general.architecture']
  known = _SUPPORTED.keys() | {
      f'{architecture}.{key}' for key in (*_FIELDS, 'vocab_size')} | {
      f'tokenizer.ggml.{key}' for key in ('tokens', 'token_type', 'merges')}
  for key, value in sorted(metadata.items()):
    if (key not in known and not key.endswith('_token_id')
        and key.startswith((f'{architecture}.', 'tokenizer.ggml.'))):
      raise errors.UserError(
          f'{key}={value!r} is not supported; expected a model without this '
          'key.')


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
  for first, second in merges:
    if not {first, second, first + second} <= vocab.keys():
      raise ValueError(f'{first + second!r} is merged, but is no token')
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
