"""Prompts of coders and testers.

No prompt contains golden tests or the reference solution.
"""

from __future__ import annotations

import dataclasses

from environments import env_api
from environments import text as text_lib
from environments.programming import problems
from environments.programming.contests import cases

# Maximum bytes of a program, and of each text of a mismatch, in a prompt.
SHOWN_PROGRAM = 6000
SHOWN_TEXT = 300


@dataclasses.dataclass(frozen=True)
class Mismatch:
  """A case on which coder and tester disagree, with shortened texts.

  Attributes:
    given: the input.
    expected: the output that the tester expects.
    got: the output of the program, or its error.
  """

  given: str
  expected: str
  got: str


@dataclasses.dataclass(frozen=True)
class Report:
  """The previous turn, as both roles see it.

  Attributes:
    program: the coder's program, or ''.
    num_cases: number of the tester's cases that the program ran on.
    mismatches: cases on which they disagree.
  """

  program: str
  num_cases: int = 0
  mismatches: tuple[Mismatch, ...] = ()


def make_mismatch(
    problem: problems.Problem, case: problems.Case, got: str) -> Mismatch:
  return Mismatch(*(
      text_lib.shorten(text, SHOWN_TEXT) for text in (
          cases.show_input(problem, case.input),
          cases.show_output(problem, case.answers[0]), got)))


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
    form = 'An input is what a program reads from stdin, an output what it '
    form += 'prints.'
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
          f'You are the tester {team} Write 1 to {cases.MAX_CASES} different '
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
