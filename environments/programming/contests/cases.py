"""The grammar of a tester's cases.

A case is a block named `input` followed by a block named `output`. For programs
that read stdin both hold text. For functions the input has one JSON value per
line, one for each argument, and the output is one JSON value.

    ```input
    3 4
    ```
    ```output
    7
    ```
"""

from __future__ import annotations

import json
import re
from typing import Any

from environments import text as text_lib
from environments.programming import comparisons
from environments.programming import problems

MAX_CASES = 5  # Later cases are ignored.
_NULL = 'null'


def parse(
    text: str, problem: problems.Problem
) -> list[problems.Case | None]:
  """Returns the cases of a reply in order, None for malformed ones."""
  cases, given = [], None
  for name, content in text_lib.blocks_of(text):
    if name == 'input':
      if given is not None:
        cases.append(None)  # It has no output.
      given = content
    elif name == 'output' and given is not None:
      cases.append(_make_case(given, content, problem))
      given = None
  if given is not None:
    cases.append(None)
  return cases[:MAX_CASES]


def is_worthless(case: problems.Case, problem: problems.Problem) -> bool:
  """True if the empty program passes."""
  if problem.entry_point:
    return False  # The empty program has no function.
  same = comparisons.COMPARISONS[problem.comparison]
  return any(same('', answer) for answer in case.answers)


def normalize(case: problems.Case, problem: problems.Problem) -> str:
  """Returns a text without differences in spacing and leading zeros."""
  if problem.entry_point:
    return repr(case)
  lines = [
      line.split() for text in (case.input, '->', *case.answers)
      for line in text.splitlines()]
  return '\n'.join(
      ' '.join(re.sub(r'^([+-]?)0+(?=\d)', r'\1', word) for word in line)
      for line in lines if line)


def show_input(problem: problems.Problem, value: Any) -> str:
  """Writes an input in the grammar of cases."""
  if problem.entry_point:
    return '\n'.join(map(_to_json, value))
  return value


def show_output(problem: problems.Problem, value: Any) -> str:
  """Writes an output or a returned value in the grammar of cases."""
  return _to_json(value) if problem.entry_point else value


def _to_json(value: Any) -> str:
  """Writes JSON, or Python for values that JSON lacks."""
  try:
    return json.dumps(value)
  except (TypeError, ValueError):
    return repr(value)


def _make_case(
    given: str, expected: str,
    problem: problems.Problem) -> problems.Case | None:
  if not problem.entry_point:
    return problems.Case(given, (expected,))
  lines = [line for line in given.split('\n') if line.strip()]
  values = [_parse_value(line) for line in (*lines, expected)]
  if None in values:
    return None
  *arguments, answer = (value for value, in values)
  return problems.Case(tuple(arguments), (answer,))


def _parse_value(text: str) -> tuple[Any] | None:
  """Returns a JSON value in a tuple, because it may be null."""
  if text.strip() == _NULL:
    return (None,)
  value = text_lib.parse_json(text)
  return None if value is None else (value,)
