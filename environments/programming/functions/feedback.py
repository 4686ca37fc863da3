"""What agents are told after a turn.

  level_feedback  of each level what was found: definitions, the line of an
                  error of syntax, and the asserts that do not hold, with why;
                  main is also told whether it uses aux
  level_passed    of each level whether it was passed
  passed          whether all were passed
  plain           nothing but to revise
  expert_edits    what a model outside of the team suggests (`expert.py`)

`num_tests` of the asserts are told of, and counted: the first ones, or if it is
negative the last ones; 0 stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from environments import text as text_lib
from environments.programming import checks
from environments.programming.functions import expert
from environments.programming.functions import rewards
from environments.programming.functions import source

EXPERT = 'expert_edits'
MODES = ('level_feedback', 'level_passed', 'passed', 'plain', EXPERT)
SHOWN_TEST = 300  # Bytes of an assert, and of why it does not hold.
SHOWN_TESTS = 10


def tell(
    mode: str, num_tests: int, role: str, name: str, aux: str, main: str,
    program: str, scores: rewards.Scores, verdict: checks.Verdict | None,
    edits: tuple[str, ...] = ()) -> str:
  """What a role is told.

  Args:
    mode: one of `MODES`.
    num_tests: see the module.
    role: 'aux', 'main' or 'solo'.
    name: of the main function.
    aux: the text of the function `aux`, or ''.
    main: that of the main function, or ''.
    program: both, behind the imports.
    scores: of them.
    verdict: of the tests, if they were run.
    edits: that the expert suggests to the role.
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
  elif mode == EXPERT:
    lines.append(expert.tell(edits))
  function = source.AUX if role == 'aux' else name
  lines.append(
      f'Revise your function {function}. Answer with its code alone.')
  return '\n'.join(lines)


def _shown_tests(
    verdict: checks.Verdict | None,
    num_tests: int) -> Sequence[tuple[str, str]]:
  """Asserts and their errors."""
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
