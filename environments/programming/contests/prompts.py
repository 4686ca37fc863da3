"""Prompts of coders and testers, and the grammar of a tester's cases.

No prompt contains golden tests or the reference solution.

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

import dataclasses
import json
import re
from typing import Any

from environments import env_api
from environments import text as text_lib
from environments.programming import comparisons
from environments.programming import problems
from environments.sandbox import literals

MAX_CASES = 5  # Later cases are ignored.
# Maximum bytes of a program, and of each text of a mismatch, in a prompt.
SHOWN_PROGRAM = 6000
SHOWN_TEXT = 300


@dataclasses.dataclass(frozen=True)
class Mismatch:
  """A case on which coder and tester disagree, with shortened texts."""

  given: str  # The input.
  expected: str  # The output that the tester expects.
  got: str  # The output of the program, or its error.


@dataclasses.dataclass(frozen=True)
class Report:
  """The previous turn, as both roles see it."""

  program: str  # The coder's program, or ''.
  num_cases: int = 0  # Number of the tester's cases that the program ran on.
  mismatches: tuple[Mismatch, ...] = ()  # Cases on which they disagree.


def messages(
    role: str, problem: problems.Problem, turn: int, max_turns: int,
    report: Report | None) -> list[env_api.Message]:
  """Builds the prompt of a role; `report` describes the previous turn."""
  parts = [f'Problem:\n{problem.statement}']
  if problem.starter_code:
    parts.append(f'Starter code:\n```python\n{problem.starter_code}\n```')
  if max_turns > 1:
    parts.append(f'Turn {turn + 1} of {max_turns}.')
  if report is not None:
    parts.append(_describe(role, report))
  return [
      {'role': 'system', 'content': _system(role, problem)},
      {'role': 'user', 'content': '\n\n'.join(parts)}]


def _system(role: str, problem: problems.Problem) -> str:
  if problem.entry_point:
    task = f'It defines {problem.entry_point} as the starter code begins it.'
    form = (
        'An input has one JSON value in each line, which are the arguments in '
        'their order, and an output is one JSON value.')
  else:
    task = 'It reads from stdin and prints to stdout.'
    form = (
        'An input is what a program reads from stdin, an output what it '
        'prints.')
  program = (
      'Write one Python 3 program in a ```python block. '
      f'{task} Every reply holds the whole program.')
  team = 'of a team that solves a programming problem.'
  return {
      'solo': f'Solve a programming problem. {program}',
      'coder': (
          f'You are the coder {team} {program} The tester writes test cases '
          'for the same problem. You both see where your program and the cases '
          'do not agree: find out who is wrong, and mend your part.'),
      'tester': (
          f'You are the tester {team} Write 1 to {MAX_CASES} different '
          'test cases that a wrong program would fail. Write each as an '
          '```input block and an ```output block behind it. '
          f'{form} Work the outputs out from the problem. The coder writes a '
          'program for the same problem. You both see where the program and '
          'your cases do not agree: find out who is wrong, and mend your '
          'part.'),
  }[role]


def _describe(role: str, report: Report) -> str:
  whose = 'of the coder' if role == 'tester' else 'of yours'
  lines = [f'The last reply {whose} had no program.']
  if report.program:
    program = text_lib.shorten(report.program.rstrip('\n'), SHOWN_PROGRAM)
    lines = [f'The last program {whose}:\n```python\n{program}\n```']
  if role == 'solo':
    return lines[0]
  if report.num_cases:
    lines.append(
        f'It did not agree with {len(report.mismatches)} of '
        f'{report.num_cases} test cases of the last turn.')
  else:
    lines.append('The test cases of the last turn could not be used.')
  for mismatch in report.mismatches:
    lines += [
        f'{name}:\n{text.rstrip()}' for name, text in (
            ('Input', mismatch.given), ('Expected', mismatch.expected),
            ('Got', mismatch.got))]
  return '\n'.join(lines)


def parse_cases(
    text: str, problem: problems.Problem) -> list[problems.Case | None]:
  """Returns the cases of a reply in order, None for malformed ones."""
  cases, given = [], None
  for name, content in (*text_lib.blocks_of(text), ('input', None)):
    if name == 'input':
      if given is not None:
        cases.append(None)  # It has no output.
      given = content
    elif name == 'output' and given is not None:
      cases.append(_make_case(given, content, problem))
      given = None
  return cases[:MAX_CASES]


def _make_case(
    given: str, expected: str,
    problem: problems.Problem) -> problems.Case | None:
  if not problem.entry_point:
    return problems.Case(given, (expected,))
  lines = [line for line in given.split('\n') if line.strip()]
  # In brackets, because the parser returns None for null and for other text.
  values = [text_lib.parse_json(f'[{line}]') for line in (*lines, expected)]
  if any(value is None or len(value) != 1 for value in values):
    return None
  try:
    literals.encode(values)
  except ValueError:  # Nested too deep, or a lone surrogate.
    return None
  *arguments, answer = (value for value, in values)
  return problems.Case(tuple(arguments), (answer,))


def is_worthless(case: problems.Case, problem: problems.Problem) -> bool:
  """True if the empty program passes; it has no function to call."""
  if problem.entry_point:
    return False
  same = comparisons.COMPARISONS[problem.comparison]
  return any(same('', answer) for answer in case.answers)


def normalize_case(case: problems.Case, problem: problems.Problem) -> str:
  """Returns a text without differences in spacing and leading zeros."""
  if problem.entry_point:
    return repr(case)
  text = '\n->\n'.join((case.input, *case.answers))
  text = re.sub(r'(?<!\S)([+-]?)0+(?=\d)', r'\1', text)
  return repr([line.split() for line in text.splitlines() if line.strip()])


def make_mismatch(
    case: problems.Case, problem: problems.Problem, got: str) -> Mismatch:
  """Writes a case in its grammar; `got` is the output of the program."""
  if problem.entry_point:
    given = '\n'.join(map(to_json, case.input))
    expected = to_json(case.answers[0])
  else:
    given, (expected, *_) = case.input, case.answers
  return Mismatch(*(
      text_lib.shorten(text, SHOWN_TEXT) for text in (given, expected, got)))


def to_json(value: Any) -> str:
  """Writes JSON, or Python for values that JSON lacks."""
  try:
    return json.dumps(value)
  except (TypeError, ValueError):
    return repr(value)
