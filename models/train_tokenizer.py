"""Trains the tokenizers of the small models."""

from __future__ import annotations

from collections.abc import Iterable
import pathlib

import tokenizers
import transformers

from atgrpo_jax import errors
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib

END_OF_TEXT = '<|endoftext|>'
TURN_START = '<|im_start|>'
TURN_END = '<|im_end|>'

# Qwen3's ChatML without tools. `enable_thinking=False` closes the thinking part
# before the completion starts.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content"
    " + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}")

# Longest text, in bytes, of a learned token.
_MAX_TOKEN_BYTES = 16


def train(
    texts: Iterable[str], vocab_size: int, pieces: str,
    folder: pathlib.Path) -> None:
  """Trains a byte-level BPE tokenizer and saves it.

  Args:
    texts: training texts.
    vocab_size: number of ids.
    pieces: regular expression; tokens stay within its matches.
    folder: output folder.
  """
  bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
  bpe.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
      tokenizers.pre_tokenizers.Split(
          tokenizers.Regex(pieces), behavior='isolated'),
      tokenizers.pre_tokenizers.ByteLevel(
          add_prefix_space=False, use_regex=False),
  ])
  bpe.decoder = tokenizers.decoders.ByteLevel()
  special = [END_OF_TEXT, TURN_START, TURN_END, '<think>', '</think>']
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  if vocab_size < len(special) + len(alphabet):
    raise errors.UserError(
        f'vocab_size={vocab_size} cannot encode every text; expected at '
        f'least {len(special) + len(alphabet)}: one id per byte and '
        f'{len(special)} control tokens.')
  trainer = tokenizers.trainers.BpeTrainer(
      vocab_size=vocab_size, special_tokens=special, show_progress=False,
      initial_alphabet=alphabet, max_token_length=_MAX_TOKEN_BYTES)
  bpe.train_from_iterator(texts, trainer)
  fast = transformers.PreTrainedTokenizerFast(
      tokenizer_object=bpe, eos_token=TURN_END, pad_token=END_OF_TEXT)
  fast.chat_template = CHAT_TEMPLATE
  fast.save_pretrained(folder)
  stop_ids = bpe.token_to_id(TURN_END), bpe.token_to_id(END_OF_TEXT)
  tokenizer_lib.write_generation_config(folder, stop_ids, stop_ids[1])
