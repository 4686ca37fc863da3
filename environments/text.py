"""Strict parsing of what agents and their programs write.

Three grammars, parsed by `json` and plain string search, never `eval`:

  program  The last fenced block of the reply: a line "```python", lines that
           do not start with "```", and a line "```". An unclosed block is no
           program. Blocks with other names than python are read by
           `blocks_of`.
  answer   The last line of the reply that starts with "####" and whose rest
           is one JSON value other than null. Headings such as "#### Step 1"
           are passed over; text after the answer is allowed.
  box      What the last closed "\\boxed{...}" of the reply holds. Braces nest;
           "\\{" and "\\}" are no braces.

The reply is what stands after the last `</think>`; its first line begins there.
A text without that tag is a reply as a whole. If a `<think>` is not closed,
there is no reply: neither what stands before it nor what stands after it
counts. Blocks do not nest: one `</think>` closes all that is open, also what
the prompt opened. A tag is a tag wherever it stands. In a string literal of a
program, `</think>` cuts the program in two, so it is lost, and `<think>` leaves
no reply. When the prompt opens the thinking and the text ends before it is
closed, the text has no tag and is taken for a reply.

Lines end with LF or CRLF; blanks after a fence are allowed. A parser returns
None when the text does not follow the grammar; what that costs is the
environment's business.
"""

import json
import math
import re
from typing import Any

ANSWER_MARKER = '####'
THINK_START, THINK_END = '<think>', '</think>'
_BOX_OR_BRACE = re.compile(r'\\boxed\{|\\.|[{}]', re.DOTALL)
_BLOCK = re.compile(
    r'^```(\w+)[ \t\r]*\n((?:(?!```).*\n)*)```[ \t\r]*$', re.MULTILINE)


def reply(text: str) -> str:
  """What stands behind the thinking; nothing where that is not closed."""
  behind = text.rpartition(THINK_END)[2]
  return '' if THINK_START in behind else behind


def last_program(text: str) -> str | None:
  """The source of the last closed python block."""
  blocks = [source for name, source in blocks_of(text) if name == 'python']
  return blocks[-1] if blocks else None


def blocks_of(text: str) -> list[tuple[str, str]]:
  """Name and lines of every closed block whose fence has a name."""
  return _BLOCK.findall(reply(text))


def last_answer(text: str) -> Any | None:
  """The JSON value of the last answer line."""
  # Not splitlines(), which also cuts at characters that JSON text may hold.
  for line in reversed(reply(text).split('\n')):
    if line.startswith(ANSWER_MARKER):
      value = parse_json(line.removeprefix(ANSWER_MARKER))
      if value is not None:
        return value
  return None


def last_boxed(text: str) -> str | None:
  r"""What the closed \boxed{...} holds that begins last."""
  text = reply(text)
  open_braces, last_start, last = [], -1, None
  for match in _BOX_OR_BRACE.finditer(text):
    if match[0] == '}':
      start = open_braces.pop() if open_braces else None
      if start is not None and start > last_start:
        last_start, last = start, text[start:match.start()]
    elif match[0] == r'\boxed{':
      open_braces.append(match.end())
    elif match[0] == '{':
      open_braces.append(None)
  return last


def last_json_line(text: str) -> Any | None:
  """The JSON value on the last line that is not blank."""
  lines = text.rstrip().rsplit('\n', 1)
  return parse_json(lines[-1])


def parse_json(text: str) -> Any | None:
  """One JSON value, or None; numbers that are not finite are refused."""
  try:
    return json.loads(
        text, parse_constant=_refuse_constant, parse_float=_finite_float)
  except (ValueError, RecursionError):
    return None


def shorten(text: str, limit: int) -> str:
  """`text`, its middle cut out where it is longer than `limit` bytes in UTF-8.

  In bytes, since one character may take several tokens, and hardly any byte
  takes more than one.
  """
  encoded = text.encode(errors='replace')
  if len(encoded) <= limit:
    return text
  half = limit // 2
  head = encoded[:half].decode(errors='ignore')
  tail = encoded[-half:].decode(errors='ignore')
  cut = len(text) - len(head) - len(tail)
  return f'{head} [... {cut} characters cut ...] {tail}'


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is not JSON')


def _finite_float(digits: str) -> float:
  value = float(digits)
  if math.isinf(value):
    raise ValueError(f'{digits} is too large')
  return value
