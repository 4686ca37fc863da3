"""Text to token ids and back; the only module that converts either way.

Sampled ids are trained as they are: a completion is decoded for the environment
and never encoded again.
"""

from collections.abc import Sequence
import functools
import json
import os
import pathlib
import re
from typing import Any

import numpy as np
import tokenizers

# Otherwise its import reports that PyTorch is not installed.
os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')
import transformers

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub
from atgrpo_jax.io import signals

# A private character, which no template writes and no message needs.
_MARK = '\ue000'
# Precedes a template, so that it does not write today's date into the prompts,
# which would change every day. The date is the default of Llama 3's template.
_FIXED_DATE = (
    "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}{{ '' }}")
_START_OF_THOUGHTS, _END_OF_THOUGHTS = '<think>', '</think>'
_CACHED_PROMPTS = 4096
_RENDER_SECONDS = 60.0
_ADVICE = 'use the template of an instruct model of the same family'


class Tokenizer:
  """A Hugging Face tokenizer with a chat template.

  Raises UserError if the tokenizer or the template cannot be used.
  """

  def __init__(self, folder: str | pathlib.Path, *, thinking: bool = False):
    self._folder = pathlib.Path(folder)
    self._thinking = thinking
    for name in ('tokenizer.json', 'tokenizer_config.json'):
      hub.read_json(self._folder / name)
    try:
      self._hf = transformers.AutoTokenizer.from_pretrained(self._folder)
    except Exception as error:  # tokenizers raises no narrower type.
      raise errors.UserError(
          f'{self._folder}: tokenizer.json, tokenizer_config.json or '
          f'chat_template.jinja cannot be used ({errors.one_line(error)}); '
          'copy or download them again.') from error
    if self._hf.chat_template is None:
      raise errors.UserError(
          f'{self._folder}: there is no chat template, which writes the '
          'prompts; add chat_template.jinja, or chat_template in '
          'tokenizer_config.json.')
    if thinking and 'enable_thinking' not in str(self._hf.chat_template):
      raise errors.UserError(
          f'{self._folder}: model.thinking=True has no effect, because the '
          'chat template does not read enable_thinking; set it to False.')
    self._checked_forms = set()  # Of chats that lose no message.
    # Independent episodes of a task often have equal prompts.
    self._encode_prompt = functools.lru_cache(_CACHED_PROMPTS)(
        self._encode_prompt)
    self._has_system_role = self._find_system_role()
    user = {'role': 'user', 'content': ''}
    prompt = self._render([user])
    start, _, end = self._render(
        [user, {'role': 'assistant', 'content': _MARK}],
        for_completion=False).partition(_MARK)
    # The template may always write the start of an assistant message, or have
    # none, as in `[INST] ... [/INST]`.
    if (prompt == self._render([user], for_completion=False)
        and not prompt.startswith(start.rstrip())):
      raise errors.UserError(
          f'{self._folder}: the chat template ignores add_generation_prompt, '
          f'so prompts would not start an assistant message; {_ADVICE}.')
    # What a prompt ends with if it opens a thought; else ''.
    self.opening = _START_OF_THOUGHTS * prompt.rstrip().endswith(
        _START_OF_THOUGHTS)
    self.stop_ids = self._find_stop_ids(end)
    # Matches the first character of a control token. Qwen3 marks most of its
    # control tokens as not special; words and blanks may be added tokens, too.
    self._control_start = re.compile('(?=%s).' % ('|'.join(
        re.escape(token.content) for token in
        self._hf.added_tokens_decoder.values()
        if token.special or re.fullmatch(r'[<\[].*[>\]]', token.content)
        ) or '(?!)'), re.DOTALL)

  @property
  def vocab_size(self) -> int:
    """The largest id plus 1."""
    return max(self._hf.get_vocab().values()) + 1

  def encode_prompt(self, messages: Sequence[dict[str, Any]]) -> np.ndarray:
    """Ids [S] int32 of chat messages, up to the start of the completion.

    Messages may have `tool_calls`, and may offer `tools`, both in the form of
    transformers. Drops the thoughts of assistant messages, up to the last
    `</think>`, as Qwen3's template does before the last user message, and from
    the start of a thought that was cut off. Dates are fixed. If the template
    has no system role, a system message is put before the user's first.

    Only the chat template writes control tokens. A message that spells one,
    such as a program that prints `<|im_end|>` or `</think>`, must not end its
    turn or a thought. A zero-width space after the first character turns it
    into ordinary text for the template and the tokenizer.

    Raises UserError if the template cannot render the messages, or drops a
    message, a tool call or a tool.
    """
    return self._encode_prompt(json.dumps([*map(dict, messages)]))

  def _encode_prompt(self, messages_json: str) -> np.ndarray:
    messages = [
        self._defuse({**message, 'content': _without_thoughts(message)})
        for message in json.loads(messages_json)]
    tools = [tool for x in messages for tool in x.pop('tools', ())]
    starts = [message['role'] for message in messages[:2]]
    if not self._has_system_role and starts == ['system', 'user']:
      system, user, *rest = messages
      content = f'{system["content"]}\n\n{user["content"]}'
      messages = [{**user, 'content': content}, *rest]
    form = len(tools), *(
        (x['role'], len(x.get('tool_calls', ()))) for x in messages)
    if form not in self._checked_forms:
      self._check_form(messages, tools)
      self._checked_forms.add(form)
    ids = self._encode(self._render(messages, tools=tools))
    ids.flags.writeable = False
    return ids

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
    _save(self._hf, folder, self.stop_ids)

  def _defuse(self, value: Any) -> Any:
    """Makes control tokens in the texts of a JSON value ordinary text."""
    if isinstance(value, list):
      return [*map(self._defuse, value)]
    if isinstance(value, dict):
      return {self._defuse(x): self._defuse(y) for x, y in value.items()}
    if not isinstance(value, str):
      return value
    # JSON may hold half of a surrogate pair, which has no UTF-8.
    text = value.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
    return self._control_start.sub('\\g<0>\u200b', text)

  def _encode(self, text: str) -> np.ndarray:
    ids = self._hf.encode(text, add_special_tokens=False)
    return np.asarray(ids, np.int32)

  def _render(
      self, messages: Sequence[dict[str, Any]], for_completion: bool = True,
      tools: Sequence[dict[str, Any]] = ()) -> str:
    """The text of chat messages; UserError if the template refuses them."""
    roles = [message['role'] for message in messages]
    try:
      with signals.time_limit(_RENDER_SECONDS):
        return self._hf.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=for_completion,
            enable_thinking=self._thinking, tools=[*tools] or None,
            chat_template=_FIXED_DATE + self._hf.get_chat_template(
                tools=[*tools] or None))
    except signals.TooSlowError as error:
      raise errors.UserError(
          f'{self._folder}: the chat template did not render within '
          f'{_RENDER_SECONDS:g} s; {_ADVICE}.') from error
    except Exception as error:  # A template may raise anything.
      raise errors.TemplateError(
          f'{self._folder}: the chat template cannot render the roles {roles} '
          f'({errors.one_line(error)}); {_ADVICE}.') from error

  def _check_form(
      self, messages: Sequence[dict[str, Any]],
      tools: Sequence[dict[str, Any]]) -> None:
    """Raises UserError if the template drops or changes a content or a name.

    All are replaced by marks that no template contains.
    """
    meanings = {}

    def mark(meaning):
      meanings[f'{_MARK}{len(meanings)} Aa{_MARK}'] = meaning
      return next(reversed(meanings))

    def mark_all(functions, meaning):
      return [
          {**x, 'function': {**x['function'], 'name': mark(meaning)}}
          for x in functions]

    marked = []
    for message in messages:
      of_role = f'of the role {message["role"]!r}'
      marked.append({**message, 'content': mark(f'a message {of_role}')})
      if 'tool_calls' in message:
        marked[-1]['tool_calls'] = mark_all(
            message['tool_calls'], f'a tool call {of_role}')
    text = self._render(marked, tools=mark_all(tools, 'a tool'))
    for part, meaning in meanings.items():
      if part not in text:
        raise errors.UserError(
            f'{self._folder}: the chat template drops or changes {meaning}; '
            f'{_ADVICE}.')

  def _find_system_role(self) -> bool:
    """Whether the template shows system messages."""
    try:
      return _MARK in self._render([
          {'role': 'system', 'content': _MARK},
          {'role': 'user', 'content': ''}])
    except errors.UserError:
      return False

  def _find_stop_ids(self, turn_end: str) -> tuple[int, ...]:
    """The ids that end a completion; the first one in `turn_end` comes first.

    Base models name only the end of a document, but their chat template may
    end turns with another token.
    """
    path = self._folder / 'generation_config.json'
    stated = hub.read_json(path).get('eos_token_id') if path.exists() else None
    if stated in (None, []):
      stated = self._hf.eos_token_id
    ids = stated if isinstance(stated, list) else [stated] * (
        stated is not None)
    if not all(type(i) is int and 0 <= i < self.vocab_size for i in ids):
      raise errors.UserError(
          f'{path}: eos_token_id={errors.as_json(stated)} must be ids of the '
          f'tokenizer, from 0 to {self.vocab_size - 1}.')
    controls = self._hf.added_tokens_decoder
    first = [i for i in self._encode(turn_end).tolist() if i in controls][:1]
    stop_ids = tuple(dict.fromkeys(first + ids))
    if not stop_ids:
      raise errors.UserError(
          f'{self._folder}: neither generation_config.json, the tokenizer nor '
          'the chat template names an eos token, so completions would never '
          'stop; add one.')
    return stop_ids


def _without_thoughts(message: dict[str, Any]) -> str:
  """The content of a message, without thoughts if it is an assistant's."""
  if message['role'] != 'assistant':
    return message['content']
  _, end, reply = message['content'].rpartition(_END_OF_THOUGHTS)
  reply = reply.partition(_START_OF_THOUGHTS)[0]  # It may be cut off.
  return reply.lstrip('\n') if end else reply


def write(
    folder: str | pathlib.Path, tokenizer: tokenizers.Tokenizer,
    chat_template: str | None, stop_ids: Sequence[int],
    **special_tokens: str) -> None:
  """Writes a new tokenizer with special tokens such as eos_token='</s>'."""
  fast = transformers.PreTrainedTokenizerFast(
      tokenizer_object=tokenizer, **special_tokens)
  fast.chat_template = chat_template
  _save(fast, folder, stop_ids)


def _save(
    tokenizer: transformers.PreTrainedTokenizerBase,
    folder: str | pathlib.Path, stop_ids: Sequence[int]) -> None:
  """Writes a tokenizer, and its stop ids for other users of the folder."""
  tokenizer.save_pretrained(folder)
  fields = {
      'eos_token_id': list(stop_ids), 'pad_token_id': tokenizer.pad_token_id,
      'do_sample': True, 'temperature': 1.0}
  pathlib.Path(folder, 'generation_config.json').write_text(
      json.dumps(fields, indent=2) + '\n')
