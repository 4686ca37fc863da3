"""Demonstrations of word problems, of mixed quality.

Kinds of tools: a `right` program prints the solution. A `draft` prints an
expression with the numbers of the story, in which each choice (an operator, the
order of two persons) is wrong with probability `WRONG`. A `broken` program
lacks a bracket or prints an undefined name. Kinds of all other roles: `adopt`
repeats the last output, or 0 without one, `invent` boxes a random number, and
`silent` has no box. The first words of a completion announce its kind.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from environments.math_problems import env
from environments.math_problems import stories as story
from models import pretrain

WRONG = 0.35
_MAX_TURNS = (1, 2)  # The turn limit is drawn from these.
# With these limits 96 % of the drills were copied after 500 steps. With up to
# twelve numbers of up to four digits it was 1 % after 800 steps.
_MAX_DRILL_NUMBERS, _MAX_DRILL_DIGITS = 5, 2

_PROGRAM = '```python\nprint({})\n```'
_ADOPT, _INVENT = 'The output is \\boxed{{{}}}.', 'I guess \\boxed{{{}}}.'
_SILENT = 'I do not know.'


def demonstrate(
    rng: np.random.Generator, role: str, kinds: Mapping[str, float],
    group_size: int) -> pretrain.Demonstration:
  """Draws a story at any turn of an episode, and completions of `role`.

  The drill `copyist` repeats the numbers of its prompt. The drill `solver` is a
  tool without a system message.
  """
  if role == 'copyist':
    return _drill(rng, group_size)
  problem, solution = story.random_story(rng)
  limit = int(rng.choice(_MAX_TURNS))
  roles = env.TEAMS['solo' if role == 'solo' else 'pair']
  shown_role = 'tool' if role == 'solver' else role
  turn = 0 if role == 'solver' else int(rng.integers(limit))
  attempts = []
  for _ in range(turn):
    attempts += _random_turn(rng, roles, solution)
  if shown_role == 'reasoner':
    attempts.append(_random_program(rng, solution))
  state = env.State('', problem, solution.expression, turn, tuple(attempts))
  messages = env.Mathematics(
      roles, env.REWARDS['outcome'], None, limit
  ).observe(state, shown_role)
  if role == 'solver':
    messages = [{'role': 'user', 'content': problem}]
  return pretrain.Demonstration(state, messages, tuple(
      _write(rng, kind, solution, attempts)
      for kind in pretrain.draw_kinds(rng, kinds, group_size)))


def _drill(
    rng: np.random.Generator, group_size: int) -> pretrain.Demonstration:
  size = rng.integers(1, _MAX_DRILL_NUMBERS + 1)
  numbers = ' '.join(
      str(rng.integers(10 ** digits))
      for digits in rng.integers(1, _MAX_DRILL_DIGITS + 1, size))
  return pretrain.Demonstration(
      env.State('', numbers, ''), [{'role': 'user', 'content': numbers}],
      (numbers,) * group_size)


def _write(
    rng: np.random.Generator, kind: str, solution: story.Solution,
    attempts: Sequence[env.Attempt]) -> str:
  if kind in ('right', 'draft'):
    return _PROGRAM.format(story.change(
        rng, solution, WRONG if kind == 'draft' else 0.0).expression)
  if kind == 'broken':
    return _PROGRAM.format(_broken(rng, solution))
  if kind == 'adopt':
    return _ADOPT.format(attempts[-1].output.strip() or '0')
  return _SILENT if kind == 'silent' else _INVENT.format(
      rng.integers(1, 1000))


def _random_turn(
    rng: np.random.Generator, roles: Sequence[str],
    solution: story.Solution) -> list[env.Attempt]:
  """The attempts of a turn that does not end the episode."""
  answer = str(rng.integers(1, 1000))
  decided = (
      env.Attempt(roles[-1], None, text=_SILENT) if rng.random() < 0.3
      else env.Attempt(roles[-1], answer, text=_INVENT.format(answer)))
  if len(roles) == 1:
    return [decided]
  return [_random_program(rng, solution), decided]


def _random_program(
    rng: np.random.Generator, solution: story.Solution) -> env.Attempt:
  """A program and its output, without running it."""
  if rng.random() < 0.25:
    inside = _broken(rng, solution)
    error = (
        "NameError: name 'total' is not defined" if inside == 'total' else
        "SyntaxError: '(' was never closed")
    return env.Attempt(
        'tool', None, text=f'print({inside})\n', error=error)
  drawn = story.change(rng, solution, WRONG)
  output = str(drawn.value)
  return env.Attempt(
      'tool', output, text=f'print({drawn.expression})\n',
      output=f'{output}\n')


def _broken(rng: np.random.Generator, solution: story.Solution) -> str:
  """The argument of `print` in a program that fails."""
  if rng.random() < 0.5:
    return 'total'
  return '(' + story.change(rng, solution, WRONG).expression
