"""Text to ids and back; the only module that does either.

Ids that were sampled are trained as they are: a completion is decoded for the
environment and never encoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import json
import pathlib
import re

import jinja2
import numpy as np
import tokenizers
import transformers

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub

END_OF_TEXT = '<|endoftext|>'
TURN_START = '<|im_start|>'
TURN_END = '<|im_end|>'

# ChatML as in Qwen3 without tools: `enable_thinking=False` closes the thinking
# part before the answer begins.
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

_NUM_CHECKED = 64  # Tokens.
# Longest piece of text, in bytes, that one learned token may stand for.
_MAX_TOKEN_BYTES = 16


class Tokenizer:
  """A Hugging Face tokenizer with a chat template."""

  def __init__(self, folder: str | pathlib.Path, *, thinking: bool = False):
    self._folder = pathlib.Path(folder)
    self._thinking = thinking
    for name in ('tokenizer.json', 'tokenizer_config.json'):
      hub.read_json(self._folder / name)
    with _Reading(self._folder):
      self._hf = transformers.AutoTokenizer.from_pretrained(self._folder)
    if self._hf.chat_template is None:
      raise errors.UserError(
          f'{self._folder}: tokenizer_config.json has no chat_template; the '
          'agents are prompted through it, so add one.')
    self.stop_ids = self._find_stop_ids()
    # The first character of <|im_end|>, <think> and the like within a text.
    # Qwen3's files call some of them special, and make one id of each.
    self._control_start = re.compile('(?=%s).' % ('|'.join(
        re.escape(str(token)) for token in
        self._hf.added_tokens_decoder.values()) or '(?!)'), re.DOTALL)
    self._check()

  @property
  def vocab_size(self) -> int:
    """One more than the largest id."""
    return max(self._hf.get_vocab().values()) + 1

  def encode_prompt(self, messages: Sequence[dict[str, str]]) -> np.ndarray:
    """Ids [S] int32 of chat messages, up to where the answer begins.

    Only the chat template writes control tokens. A message that spells one,
    such as the output of a program that prints `<|im_end|>` or `</think>`,
    ends neither its turn nor a thought: a zero-width space behind the first
    character makes it ordinary text, for the template, too.

    UserError if the template cannot render the messages, or leaves one out that
    the model is to read.
    """
    messages = [
        {**message, 'content': self._defuse(message['content'])}
        for message in messages]
    try:
      text = self._hf.apply_chat_template(
          messages, tokenize=False, add_generation_prompt=True,
          enable_thinking=self._thinking)
    except (jinja2.TemplateError, *errors.USER_CODE_ERRORS) as error:
      raise errors.UserError(
          f'{self._folder}: the chat template cannot render the roles '
          f'{[message["role"] for message in messages]} '
          f'({errors.one_line(error)}); take that of Qwen3.') from error
    for message in messages:
      # Of an assistant's messages, templates drop thoughts.
      if (message['role'] != 'assistant'
          and message['content'].strip() not in text):
        raise errors.UserError(
            f'{self._folder}: the chat template leaves out or changes a '
            f'message of the role {message["role"]!r}; take that of Qwen3.')
    ids = self._encode(text)
    if not ids.size:
      raise errors.UserError(
          f'{self._folder}: the chat template renders no token; take that of '
          'Qwen3.')
    return ids

  def encode_completion(self, text: str) -> np.ndarray:
    """Ids [T] int32 of an answer that we wrote, stop token included.

    Control tokens in it, such as `<think>`, are meant.
    """
    return np.append(self._encode(text), self.stop_ids[0]).astype(np.int32)

  def decode(self, ids: Sequence[int]) -> str:
    """The text of a completion, without its stop token."""
    ids = [int(i) for i in ids]
    if ids and ids[-1] in self.stop_ids:
      ids = ids[:-1]
    return self._hf.decode(ids, clean_up_tokenization_spaces=False)

  def save(self, folder: str | pathlib.Path) -> None:
    """Writes the tokenizer's files into a model folder."""
    self._hf.save_pretrained(folder)
    write_generation_config(
        pathlib.Path(folder), self.stop_ids, self._hf.pad_token_id)

  def _check(self) -> None:
    """Raises UserError where text would not come back as it was."""
    vocab = self._hf.get_vocab()
    if len(set(vocab.values())) < len(vocab):
      raise errors.UserError(
          f'{self._folder}/tokenizer.json gives one id to several tokens; copy '
          'or download it again.')
    if getattr(self._hf.backend_tokenizer.model, 'dropout', None):
      raise errors.UserError(
          f'{self._folder}/tokenizer.json has a dropout, with which a text has '
          'other ids each time; set it to null.')
    words = sorted(vocab.values())
    text = self._hf.decode(words[::len(words) // _NUM_CHECKED + 1])
    with _Reading(self._folder):
      once = self._hf.decode(self._encode(text))  # Normalised.
      again = self._hf.decode(self._encode(once))
    if again != once:
      raise errors.UserError(
          f'{self._folder}/tokenizer.json does not give a text back: its '
          'decoder does not fit the rest; copy or download it again.')
    message = [{'role': 'user', 'content': once}]
    if (self.encode_prompt(message).tolist()
        != self.encode_prompt(message).tolist()):
      raise errors.UserError(
          f'{self._folder}: the chat template renders the same message in '
          'several ways; take that of Qwen3.')

  def _defuse(self, text: str) -> str:
    return self._control_start.sub('\\g<0>\u200b', text)

  def _encode(self, text: str) -> np.ndarray:
    ids = self._hf.encode(text, add_special_tokens=False)
    return np.asarray(ids, np.int32)

  def _find_stop_ids(self) -> tuple[int, ...]:
    """The ids that end an answer, the end of a turn first."""
    ids = []
    path = self._folder / 'generation_config.json'
    if path.exists():  # It need not name any.
      found = hub.read_json(path).get('eos_token_id')
      ids = found if isinstance(found, list) else [found]
      ids = [] if ids == [None] else ids
      for stop_id in ids:
        if type(stop_id) is not int or not 0 <= stop_id < self.vocab_size:
          raise errors.UserError(
              f'{path}: eos_token_id={found!r} must be ids of the tokenizer, '
              f'from 0 to {self.vocab_size - 1}.')
    if not ids and self._hf.eos_token_id is not None:
      ids = [self._hf.eos_token_id]
    if not ids:
      raise errors.UserError(
          f'{self._folder}: neither generation_config.json nor the tokenizer '
          'names an eos token; without one no answer ends.')
    return tuple(ids)


class _Reading:
  """Says UserError for what transformers raises on files that are damaged."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind, error, traceback) -> None:
    # Of a tokenizer.json that says nothing to it, tokenizers raises a bare
    # Exception, which no `except` can name without catching everything.
    if kind is Exception or isinstance(error, errors.USER_CODE_ERRORS):
      raise errors.UserError(
          f'{self._folder}: tokenizer.json, tokenizer_config.json or '
          f'chat_template.jinja cannot be used ({errors.one_line(error)}); '
          'copy or download them again.') from error


def train(
    texts: Iterable[str], vocab_size: int, pieces: str,
    folder: pathlib.Path) -> None:
  """Trains a byte-level BPE tokenizer and saves it.

  Args:
    texts: to learn from.
    vocab_size: ids.
    pieces: a regular expression; no token crosses the ends of what it matches.
    folder: where the files go.
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
        f'a tokenizer with vocab_size={vocab_size} cannot spell every text; '
        f'expected at least {len(special) + len(alphabet)} ids: one for each '
        f'byte and {len(special)} special ones.')
  trainer = tokenizers.trainers.BpeTrainer(
      vocab_size=vocab_size, special_tokens=special, show_progress=False,
      initial_alphabet=alphabet,
      max_token_length=_MAX_TOKEN_BYTES)
  bpe.train_from_iterator(texts, trainer)
  fast = transformers.PreTrainedTokenizerFast(
      tokenizer_object=bpe, eos_token=TURN_END, pad_token=END_OF_TEXT)
  fast.chat_template = CHAT_TEMPLATE
  fast.save_pretrained(folder)
  stop_ids = bpe.token_to_id(TURN_END), bpe.token_to_id(END_OF_TEXT)
  write_generation_config(folder, stop_ids, bpe.token_to_id(END_OF_TEXT))


def write_generation_config(
    folder: pathlib.Path, stop_ids: Sequence[int], pad_id: int | None) -> None:
  """Tells the users of a model folder where an answer ends."""
  fields = {
      'eos_token_id': list(stop_ids), 'pad_token_id': pad_id,
      'do_sample': True, 'temperature': 1.0}
  (folder / 'generation_config.json').write_text(
      json.dumps(fields, indent=2) + '\n')
