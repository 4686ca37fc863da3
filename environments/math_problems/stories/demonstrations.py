"""Demonstrations of mixed quality of word problems.

Kinds of tools: a `right` program prints the solution; a `draft` prints an
expression with the numbers of the story, in which each choice (an operator, the
order of two persons) is wrong with probability `WRONG`, so that all are seldom
right; a `broken` program lacks a bracket or prints a name. Kinds of all others:
`adopt` takes over the last output; `invent` answers with any number; `silent`
has no box.

The first words of an answer announce its kind, so that this choice is early,
and is not a spelling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import re

import numpy as np

from environments import demonstrations
from environments import text
from environments.math_problems import env
from environments.math_problems import prompts
from environments.math_problems import rewards
from environments.math_problems.stories import story

WRONG = 0.35
_MOST_NUMBERS = 5  # Of a drill.

_PROGRAM = '```python\nprint({})\n```'
_ADOPT, _INVENT = 'The output is \\boxed{{{}}}.', 'I guess \\boxed{{{}}}.'
_SILENT = 'I do not know.'
_EXPRESSION = re.compile(r'[\d+\-*/()]+')


class Repertoire:
  """What can be shown of stories; see `environments.demonstrations`."""

  def demonstrate(
      self, rng: np.random.Generator, role: str, kinds: Mapping[str, float],
      group_size: int,
      max_turns: Sequence[int]) -> demonstrations.Demonstration:
    """Draws a story and `group_size` answers of `role` to it.

    Any turn of an episode may be shown.

    Args:
      rng: of all that is drawn.
      role: 'tool', 'reasoner' or 'solo'. Or a drill: the 'copyist' is shown
        some numbers and writes them again, and the 'solver' is a tool without
        a system message.
      kinds: kind -> its probability.
      group_size: answers.
      max_turns: limits of an episode; one is drawn, and the turn below it.
    """
    if role == 'copyist':
      return _drill(rng, group_size)
    problem, solution = story.random_story(rng)
    limit = int(rng.choice(max_turns))
    roles = env.TEAMS['solo' if role == 'solo' else 'pair']
    shown_role = 'tool' if role == 'solver' else role
    turn = 0 if role == 'solver' else int(rng.integers(limit))
    attempts = []
    for _ in range(turn):
      attempts += _random_turn(rng, roles, solution)
    if shown_role == 'reasoner':
      attempts.append(_random_program(rng, solution))
    state = env.State(
        '', problem, solution.expression, turn, tuple(attempts))
    environment = env.Mathematics(
        roles, rewards.REWARDS['outcome'], None, limit)
    messages = environment.observe(state, shown_role)
    if role == 'solver':
      messages = [{'role': 'user', 'content': problem}]
    drawn = tuple(
        str(kind) for kind in rng.choice(
            list(kinds), size=group_size, p=list(kinds.values())))
    return demonstrations.Demonstration(
        role, state, messages, tuple(
            _completion(rng, kind, solution, attempts) for kind in drawn),
        drawn)

  def kind_of(
      self, demonstration: demonstrations.Demonstration,
      completion: str) -> str | None:
    """The kind of an answer to the same prompt, if it is spelled as it should.

    A draft must have the numbers of the story and can be compiled; a copy must
    be exact.
    """
    state = demonstration.state
    if demonstration.role == 'copyist':
      return 'adopt' if completion == state.problem else None
    if demonstration.role in ('tool', 'solver'):
      program = text.last_program(completion)
      if program is None or completion != f'```python\n{program}```':
        return None
      inside = program.removeprefix('print(').removesuffix(')\n')
      if not _EXPRESSION.fullmatch(inside) or not _compiles(program):
        return 'broken'
      same = sorted(re.findall(r'\d+', inside)) == sorted(
          re.findall(r'\d+', state.gold))
      if inside == state.gold:
        return 'right'
      return 'draft' if same else None
    if completion == _SILENT:
      return 'silent'
    answer = text.last_boxed(completion) or ''
    if completion == _ADOPT.format(answer):
      return 'adopt' if answer == _last_output(state.attempts) else None
    is_guess = completion == _INVENT.format(answer) and answer.isdigit()
    return 'invent' if is_guess else None


def _drill(
    rng: np.random.Generator,
    group_size: int) -> demonstrations.Demonstration:
  """A few numbers of one or two digits, to be copied.

  Of up to twelve with up to four digits a small model copied 1 % after 800
  steps, of these 96 % after 500.
  """
  size = rng.integers(1, _MOST_NUMBERS + 1)
  numbers = ' '.join(
      str(rng.integers(10 ** digits)) for digits in rng.integers(1, 3, size))
  return demonstrations.Demonstration(
      'copyist', env.State('', numbers, ''),
      [{'role': 'user', 'content': numbers}], (numbers,) * group_size,
      ('adopt',) * group_size)


def _completion(
    rng: np.random.Generator, kind: str, solution: story.Solution,
    attempts: Sequence[prompts.Attempt]) -> str:
  if kind in ('right', 'draft'):
    return _PROGRAM.format(story.change(
        rng, solution, WRONG if kind == 'draft' else 0.0).expression)
  if kind == 'broken':
    return _PROGRAM.format(_broken(rng, solution))
  if kind == 'adopt':
    return _ADOPT.format(_last_output(attempts))
  return _SILENT if kind == 'silent' else _INVENT.format(
      rng.integers(1, 1000))


def _last_output(attempts: Sequence[prompts.Attempt]) -> str:
  """What there is to take over; 0 where a program has failed, or none is."""
  outputs = [x.output.strip() for x in attempts if x.role == 'tool']
  return (outputs and outputs[-1]) or '0'


def _random_turn(
    rng: np.random.Generator, roles: Sequence[str],
    solution: story.Solution) -> list[prompts.Attempt]:
  """What may be left of a turn that does not end the episode."""
  answer = str(rng.integers(1, 1000))
  decided = (
      prompts.Attempt(roles[-1], None, text=_SILENT) if rng.random() < 0.3
      else prompts.Attempt(roles[-1], answer, text=_INVENT.format(answer)))
  if len(roles) == 1:
    return [decided]
  return [_random_program(rng, solution), decided]


def _random_program(
    rng: np.random.Generator, solution: story.Solution) -> prompts.Attempt:
  """What a tool may have written, without running it."""
  if rng.random() < 0.25:
    inside = _broken(rng, solution)
    error = (
        "NameError: name 'total' is not defined" if inside == 'total' else
        "SyntaxError: '(' was never closed")
    return prompts.Attempt(
        'tool', None, text=f'print({inside})\n', error=error)
  drawn = story.change(rng, solution, WRONG)
  output = str(drawn.value)
  return prompts.Attempt(
      'tool', output, text=f'print({drawn.expression})\n',
      output=f'{output}\n')


def _broken(rng: np.random.Generator, solution: story.Solution) -> str:
  """What is between the brackets of `print` in a program that fails."""
  if rng.random() < 0.5:
    return 'total'
  return '(' + story.change(rng, solution, WRONG).expression


def _compiles(program: str) -> bool:
  try:
    compile(program, '<program>', 'exec')
  except SyntaxError:
    return False
  return True


REPERTOIRE = Repertoire()
