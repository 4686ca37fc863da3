"""Prompts of the writers of a helper and of the main function, and feedback.

An agent sees its own replies with the feedback on them. The feedback modes are

  level_feedback  per level: definitions, the line of a syntax error, and the
                  asserts that fail with their errors; for main also how it uses
                  aux
  level_passed    per level: passed or not
  passed          whether all levels passed
  plain           only the request to revise
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from environments import env_api
from environments import text as text_lib
from environments.programming import checks
from environments.programming import problems
from environments.programming.functions import rewards
from environments.programming.functions import source

FEEDBACK_MODES = ('level_feedback', 'level_passed', 'passed', 'plain')
# Maximum bytes of a reply, and of an assert or its error, in a prompt.
SHOWN_REPLY, SHOWN_TEST = 3000, 300
SHOWN_TESTS = 10


@dataclasses.dataclass(frozen=True)
class Exchange:
  """A finished turn of a role: its shortened reply without thinking."""

  role: str
  reply: str
  feedback: str


def messages(
    role: str, team: str, problem: problems.Problem,
    exchanges: Sequence[Exchange], aux: str | None) -> list[env_api.Message]:
  """Builds the prompt of a role; `aux` is shown to main in a pipeline."""
  found = [
      {'role': 'system', 'content': _system(role, team, problem.entry_point)},
      {'role': 'user', 'content': f'Problem:\n{problem.statement}'}]
  for exchange in exchanges:
    if exchange.role == role:
      found += [
          {'role': 'assistant', 'content': exchange.reply},
          {'role': 'user', 'content': exchange.feedback}]
  if aux is not None:
    found[-1]['content'] += '\n\nThe function aux:\n' + (
        text_lib.shorten(aux, SHOWN_REPLY) or '(none)')
  return found


def _system(role: str, team: str, name: str) -> str:
  code = (
      'Answer with the code of the function alone: no explanation, no tests, '
      'no markdown.')
  if role == 'aux':
    return (
        'Two programmers solve a problem. Another one writes the function '
        f'{name}. Write a function named aux that helps to solve the problem '
        f'and returns a value that {name} can use. {code}')
  if role == 'main':
    signature = (
        'You are shown it.' if team == 'pipeline'
        else 'You do not know its parameters for sure.')
    return (
        'Two programmers solve a problem. Another one writes a helper, the '
        f'function aux(...). {signature} Write the function {name}. It may '
        'call aux and bind its value to a variable; do not define aux again. '
        f'{code}')
  return f'Solve a problem: write the function {name}. {code}'


def feedback(
    mode: str, num_tests: int, role: str, name: str, aux: str, main: str,
    program: str, scores: rewards.Scores,
    verdict: checks.Verdict | None) -> str:
  """Writes the feedback on a turn.

  Args:
    mode: one of `FEEDBACK_MODES`.
    num_tests: number of asserts to report, the first ones or, if negative, the
      last ones; 0 reports all.
    role: 'aux', 'main' or 'solo'.
    name: name of the main function.
    aux: source of the function `aux`, or ''.
    main: source of the main function, or ''.
    program: both, after the imports.
    scores: their points.
    verdict: test results, if the tests ran.
  """
  tests = _shown_tests(verdict, num_tests)
  held = [not error for _, error in tests]
  levels = {
      'definitions': scores.stopped != 'structure',
      'syntax': scores.stopped == '',
      'tests': bool(held) and all(held)}
  if role == 'main':
    levels['use of aux'] = scores.cooperation == 1.5
  lines = []
  if mode == 'level_feedback':
    if role != 'solo':
      lines.append(_definition(source.AUX, aux))
    lines.append(_definition(name, main))
    error = source.syntax_error(program)
    lines.append(f'Syntax: {error or "right"}.')
    if tests:
      lines.append(f'Tests: {sum(held)} of {len(held)} hold.')
    wrong = [test for test in tests if test[1]]
    lines += [
        f'  {text_lib.shorten(test, SHOWN_TEST)}: '
        f'{text_lib.shorten(error, SHOWN_TEST)}'
        for test, error in wrong[:SHOWN_TESTS]]
    if role == 'main' and main:
      lines.append(_use_of_aux(main))
  elif mode == 'level_passed':
    lines += [
        f'{level.capitalize()}: {"passed" if ok else "not passed"}.'
        for level, ok in levels.items()]
  elif mode == 'passed':
    lines.append(
        'All levels are passed.' if all(levels.values())
        else 'Not all levels are passed.')
  function = source.AUX if role == 'aux' else name
  lines.append(
      f'Revise your function {function}. Answer with its code alone.')
  return '\n'.join(lines)


def _shown_tests(
    verdict: checks.Verdict | None,
    num_tests: int) -> Sequence[tuple[str, str]]:
  """Returns (assert, error) pairs."""
  if verdict is None:
    return []
  tests = list(zip(verdict.asserts, verdict.errors))
  if not num_tests:
    return tests
  return tests[:num_tests] if num_tests > 0 else tests[num_tests:]


def _definition(name: str, function: str) -> str:
  if not function:
    return f'{name}: not found.'
  if not source.has_return(function):
    return f'{name}: found, without a return statement.'
  return f'{name}: found.'


def _use_of_aux(main: str) -> str:
  if not source.calls_aux(main):
    return 'aux is not called.'
  if source.ignores_aux(main):
    return 'aux is called, but its value is ignored.'
  if source.is_wrapper(main):
    return 'aux is called, but nothing else is done.'
  return 'aux is called and used.'
