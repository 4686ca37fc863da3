"""Text to token ids and back; the only module that converts either way.

Sampled ids are trained as they are: a completion is decoded for the environment
and never encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
import pathlib
import re

import jinja2
import numpy as np
import transformers

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub

_PROBE = 'probe'
# Llama 3 writes the date into its prompts. Today's would change with each run.
_DATE = '26 Jul 2024'


class Tokenizer:
  """A Hugging Face tokenizer with a chat template.

  Raises UserError if the tokenizer or the template cannot be used.
  """

  def __init__(self, folder: str | pathlib.Path, *, thinking: bool = False):
    self._folder = pathlib.Path(folder)
    self._thinking = thinking
    for name in ('tokenizer.json', 'tokenizer_config.json'):
      hub.read_json(self._folder / name)
    with _UnreadableAsUserError(self._folder):
      self._hf = transformers.AutoTokenizer.from_pretrained(self._folder)
    if self._hf.chat_template is None:
      raise errors.UserError(
          f'{self._folder}: tokenizer_config.json has no chat_template, which '
          'writes the prompts; add one.')
    if thinking and 'enable_thinking' not in str(self._hf.chat_template):
      raise errors.UserError(
          f'{self._folder}: model.thinking=True has no effect, because the '
          'chat template does not read enable_thinking; set it to False.')
    self._has_system_role = self._find_system_role()
    self.stop_ids = self._find_stop_ids()
    # Matches the first character of a control token. All added tokens count,
    # because Qwen3 marks most of its control tokens as not special.
    self._control_start = re.compile('(?=%s).' % ('|'.join(
        re.escape(str(token)) for token in
        self._hf.added_tokens_decoder.values()) or '(?!)'), re.DOTALL)

  @property
  def vocab_size(self) -> int:
    """The largest id plus 1."""
    return max(self._hf.get_vocab().values()) + 1

  def encode_prompt(self, messages: Sequence[dict[str, str]]) -> np.ndarray:
    """Ids [S] int32 of chat messages, up to the start of the completion.

    Only the chat template writes control tokens. A message that spells one,
    such as a program that prints `<|im_end|>` or `</think>`, must not end its
    turn or a thought. A zero-width space after the first character turns it
    into ordinary text for the template and the tokenizer. If the template has
    no system role, a system message is put before the user's first.

    Raises UserError if the template cannot render the messages or drops one.
    """
    messages = [
        {**message, 'content': self._defuse(message['content'])}
        for message in messages]
    starts = [message['role'] for message in messages[:2]]
    if not self._has_system_role and starts == ['system', 'user']:
      system, user, *rest = messages
      content = f'{system["content"]}\n\n{user["content"]}'
      messages = [{**user, 'content': content}, *rest]
    text = self._render(messages)
    for message in messages:
      # Templates may drop the thoughts of assistant messages.
      if (message['role'] != 'assistant'
          and message['content'].strip() not in text):
        raise errors.UserError(
            f'{self._folder}: the chat template drops or changes a message of '
            f"the role {message['role']!r}; use the template of an instruct "
            'model of the same family.')
    return self._encode(text)

  def encode_completion(self, text: str) -> np.ndarray:
    """Ids [T] int32 of a demonstration, with a stop token.

    Control tokens in the text, such as `<think>`, are encoded as such.
    """
    return np.append(self._encode(text), self.stop_ids[0]).astype(np.int32)

  def decode(self, ids: Sequence[int]) -> str:
    """The text of a completion, without its stop token."""
    ids = [int(i) for i in ids]
    if ids and ids[-1] in self.stop_ids:
      ids = ids[:-1]
    return self._hf.decode(ids, clean_up_tokenization_spaces=False)

  def save(self, folder: str | pathlib.Path) -> None:
    """Writes the tokenizer into a model folder."""
    self._hf.save_pretrained(folder)
    write_generation_config(
        pathlib.Path(folder), self.stop_ids, self._hf.pad_token_id)

  def _defuse(self, text: str) -> str:
    return self._control_start.sub('\\g<0>\u200b', text)

  def _encode(self, text: str) -> np.ndarray:
    ids = self._hf.encode(text, add_special_tokens=False)
    return np.asarray(ids, np.int32)

  def _render(
      self, messages: Sequence[dict[str, str]], for_completion: bool = True,
  ) -> str:
    """The text of chat messages; UserError if the template refuses them."""
    roles = [message['role'] for message in messages]
    try:
      return self._hf.apply_chat_template(
          messages, tokenize=False, add_generation_prompt=for_completion,
          enable_thinking=self._thinking, date_string=_DATE)
    except (jinja2.TemplateError, *errors.USER_CODE_ERRORS) as error:
      raise errors.UserError(
          f'{self._folder}: the chat template cannot render the roles {roles} '
          f'({errors.one_line(error)}); use the template of an instruct model '
          'of the same family.') from error

  def _find_system_role(self) -> bool:
    """Whether the template shows system messages."""
    try:
      return _PROBE in self._render([
          {'role': 'system', 'content': _PROBE},
          {'role': 'user', 'content': ''}])
    except errors.UserError:
      return False

  def _find_stop_ids(self) -> tuple[int, ...]:
    """The ids that end a completion; the end of a turn comes first.

    Base models name only the end of a document, but their chat template may
    end turns with another token.
    """
    path = self._folder / 'generation_config.json'
    stated = hub.read_json(path).get('eos_token_id') if path.exists() else None
    if stated in (None, []):
      stated = self._hf.eos_token_id
    ids = stated if isinstance(stated, list) else [stated]
    if stated is None:
      ids = []
    if not all(type(i) is int and 0 <= i < self.vocab_size for i in ids):
      raise errors.UserError(
          f'{path}: eos_token_id={stated!r} must be ids of the tokenizer, from '
          f'0 to {self.vocab_size - 1}.')
    chat = self._render([
        {'role': 'user', 'content': ''},
        {'role': 'assistant', 'content': _PROBE}], for_completion=False)
    controls = self._hf.added_tokens_decoder
    turn_end = [
        i for i in self._encode(chat.rpartition(_PROBE)[2]).tolist()
        if i in controls][:1]
    stop_ids = tuple(dict.fromkeys(turn_end + ids))
    if not stop_ids:
      raise errors.UserError(
          f'{self._folder}: neither generation_config.json, the tokenizer nor '
          'the chat template names an eos token, so completions would never '
          'stop; add one.')
    return stop_ids


class _UnreadableAsUserError:
  """Converts the errors of transformers on damaged files into UserError."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind, error, traceback) -> None:
    # tokenizers raises a plain Exception for a damaged tokenizer.json, which
    # no `except` can name without catching everything.
    if kind is Exception or isinstance(error, errors.USER_CODE_ERRORS):
      raise errors.UserError(
          f'{self._folder}: tokenizer.json, tokenizer_config.json or '
          f'chat_template.jinja cannot be used ({errors.one_line(error)}); '
          'copy or download them again.') from error


def write_generation_config(
    folder: pathlib.Path, stop_ids: Sequence[int], pad_id: int | None) -> None:
  """Writes the stop ids for other users of a model folder."""
  fields = {
      'eos_token_id': list(stop_ids), 'pad_token_id': pad_id,
      'do_sample': True, 'temperature': 1.0}
  (folder / 'generation_config.json').write_text(
      json.dumps(fields, indent=2) + '\n')
