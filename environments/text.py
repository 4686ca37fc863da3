"""Strict parsing of the texts of agents and of the output of their programs.

Four grammars, parsed by `json` and plain string search, never `eval`:

  program  The last fenced block of the reply: a line "```python", lines that
           do not start with "```", and a line "```". An unclosed block is not a
           program. `blocks_of` reads blocks with any name.
  answer   The last line of the reply that starts with "####", followed by one
           JSON value other than null. Headings such as "#### Step 1" are
           skipped, and text after the answer is allowed.
  box      The content of the last closed "\\boxed{...}" of the reply. Braces
           nest; "\\{" and "\\}" are not braces.
  calls    Every "<tool_call>" of the reply, up to "</tool_call>", is a JSON
           object with a name and an object of arguments, as Qwen writes them.

The reply is the text after the last `</think>`, or the whole text without that
tag. An unclosed `<think>` leaves no reply. Thinking does not nest, and tags are
found everywhere, even in a string literal of a program: `</think>` there cuts
the program in two. If the prompt opens the thinking, the text begins with
`<think>`, too.

Lines end with LF or CRLF, and blanks after a fence are allowed. Parsers return
None for a text that does not follow the grammar.
"""

import json
import math
import re
from typing import Any

ANSWER_MARKER = '####'
MAX_DIGITS = 4300  # Python's default, which the sandbox raises.
MAX_DEPTH = 100
THINK_START, THINK_END = '<think>', '</think>'
CALL_START, CALL_END = '<tool_call>', '</tool_call>'
_BOX_OR_BRACE = re.compile(r'\\boxed\s*\{|\\.|[{}]', re.DOTALL)
_BLOCK = re.compile(
    r'^```(\w+)[ \t\r]*\n((?:(?!```).*\n)*)```[ \t\r]*$', re.MULTILINE)


def reply(text: str) -> str:
  """Returns the text after the thinking; '' if the thinking is not closed."""
  after = text.rpartition(THINK_END)[2]
  return '' if THINK_START in after else after


def last_program(text: str) -> str | None:
  """Returns the source of the last closed python block."""
  blocks = [source for name, source in blocks_of(text) if name == 'python']
  return blocks[-1] if blocks else None


def blocks_of(text: str) -> list[tuple[str, str]]:
  """Returns (name, lines) of every closed block whose fence has a name."""
  return _BLOCK.findall(reply(text))


def last_answer(text: str) -> Any | None:
  """Returns the JSON value of the last answer line."""
  # splitlines() would also split at characters that JSON text may hold.
  for line in reversed(reply(text).split('\n')):
    if line.startswith(ANSWER_MARKER):
      value = parse_json(line.removeprefix(ANSWER_MARKER))
      if value is not None:
        return value
  return None


def last_boxed(text: str) -> str | None:
  r"""Returns the content of the closed \boxed{...} that starts last."""
  text = reply(text)
  open_braces, last_start, last = [], -1, None
  for match in _BOX_OR_BRACE.finditer(text):
    if match[0] == '}':
      start = open_braces.pop() if open_braces else None
      if start is not None and start > last_start:
        last_start, last = start, text[start:match.start()]
    elif match[0].startswith(r'\boxed'):
      open_braces.append(match.end())
    elif match[0] == '{':
      open_braces.append(None)
  return last


def tool_calls(text: str) -> list[dict[str, Any]] | None:
  """Returns all calls as `tool_calls` of a message; None if one is malformed.

  Without any call the result is None, too.
  """
  found = []
  for part in reply(text).split(CALL_START)[1:]:
    body, end, _ = part.partition(CALL_END)
    call = parse_json(body) if end else None
    if not isinstance(call, dict) or {
        name: type(value) for name, value in call.items()} != {
            'name': str, 'arguments': dict}:
      return None
    found.append({'type': 'function', 'function': call})
  return found or None


def last_json_line(text: str) -> Any | None:
  """Returns the JSON value on the last line that is not blank."""
  lines = text.rstrip().rsplit('\n', 1)
  return parse_json(lines[-1])


def parse_json(text: str) -> Any | None:
  """Returns one JSON value; None for anything else.

  Numbers must be finite, integers have at most `MAX_DIGITS` digits, and values
  are nested at most `MAX_DEPTH` deep, so that any part of Python can copy them.
  """
  try:
    value = json.loads(
        text, parse_constant=_finite_float, parse_float=_finite_float,
        parse_int=_short_int)
  except (ValueError, RecursionError):
    return None
  level = [value]
  for _ in range(MAX_DEPTH):
    level = [
        item for x in level if isinstance(x, (dict, list))
        for item in (x.values() if isinstance(x, dict) else x)]
  return None if level else value


def shorten(text: str, limit: int) -> str:
  """Cuts the middle out of a text that is longer than `limit` UTF-8 bytes.

  The limit is in bytes, because a character may take several tokens, but a byte
  hardly ever takes more than one.
  """
  encoded = text.encode(errors='replace')
  if len(encoded) <= limit:
    return text
  half = limit // 2
  head = encoded[:half].decode(errors='ignore')
  tail = encoded[-half:].decode(errors='ignore')
  cut = len(text) - len(head) - len(tail)
  return f'{head} [... {cut} characters cut ...] {tail}'


def _short_int(digits: str) -> int:
  if len(digits) > MAX_DIGITS:
    raise ValueError(f'an integer of {len(digits)} digits is too large')
  return int(digits)


def _finite_float(digits: str) -> float:
  value = float(digits)
  if not math.isfinite(value):
    raise ValueError(f'{digits} is not finite')
  return value
