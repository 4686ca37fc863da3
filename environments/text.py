"""Strict parsing of what agents and their programs write.

Two grammars, both parsed by `json` and plain string search, never `eval`:

  program  The last fenced block of the text: a line "```python", lines that
           do not start with "```", and a line "```". An unclosed block is no
           program.
  answer   The last line of the text that starts with "####" and whose rest
           is one JSON value other than null. Headings such as "#### Step 1"
           are passed over; text after the answer is allowed.

Lines end with LF or CRLF; blanks after a fence are allowed. A parser returns
None when the text does not follow the grammar; what that costs is the
environment's business.
"""

import json
import math
import re
from typing import Any

ANSWER_MARKER = '####'
_PROGRAM = re.compile(
    r'^```python[ \t\r]*\n((?:(?!```).*\n)*)```[ \t\r]*$', re.MULTILINE)


def last_program(text: str) -> str | None:
  """The source of the last closed python block."""
  blocks = _PROGRAM.findall(text)
  return blocks[-1] if blocks else None


def last_answer(text: str) -> Any | None:
  """The JSON value of the last answer line."""
  # Not splitlines(), which also cuts at characters that JSON text may hold.
  for line in reversed(text.split('\n')):
    if line.startswith(ANSWER_MARKER):
      value = parse_json(line.removeprefix(ANSWER_MARKER))
      if value is not None:
        return value
  return None


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
