"""Generated recipes for lists of numbers and the programs that follow them.

A recipe has three steps, each of which keeps some numbers, changes all numbers
or, at most once, cuts the list. Then it asks for one number. Its text describes
the steps in order, except that the first step may be described last. The
program has one line per step.

There are too many combinations of steps, numbers, order and question for a
model to memorise programs in its warm start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools
import re

import numpy as np

MAX_NUMBER = 99  # Largest number of an input.
NUM_TESTS = 4
NUM_STEPS = 3
_NUM_TRIES = 160  # Lists drawn for tests before a recipe is given up.


@dataclasses.dataclass(frozen=True)
class _Kind:
  """A kind of step.

  Attributes:
    family: mistakes replace a kind by another of its family.
    code: a line of a program, with {n} for the number.
    run: applies the step to a list.
    numbers: range of the number, inclusive.
    sentences: descriptions of the step.
  """

  family: str
  code: str
  run: Callable[[list[int], int], list[int]]
  numbers: tuple[int, int]
  sentences: tuple[str, ...]


KINDS = {
    'above': _Kind(
        'keep', 'a=[x for x in a if x>{n}]',
        lambda a, n: [x for x in a if x > n], (10, 60),
        ('Keep the numbers above {n}.', 'Drop all that are at most {n}.',
         'Only numbers greater than {n} stay.')),
    'below': _Kind(
        'keep', 'a=[x for x in a if x<{n}]',
        lambda a, n: [x for x in a if x < n], (30, 80),
        ('Keep the numbers below {n}.', 'Drop all that are at least {n}.',
         'Only numbers less than {n} stay.')),
    'multiples': _Kind(
        'keep', 'a=[x for x in a if x%{n}==0]',
        lambda a, n: [x for x in a if x % n == 0], (2, 9),
        ('Keep the multiples of {n}.', 'Drop all but the multiples of {n}.',
         'Only numbers that {n} divides stay.')),
    'others': _Kind(
        'keep', 'a=[x for x in a if x%{n}>0]',
        lambda a, n: [x for x in a if x % n > 0], (2, 9),
        ('Drop the multiples of {n}.', 'Keep all but the multiples of {n}.',
         'Numbers that {n} divides must go.')),
    'add': _Kind(
        'change', 'a=[x+{n} for x in a]', lambda a, n: [x + n for x in a],
        (2, 30),
        ('Add {n} to each.', 'Make each larger by {n}.', 'Each grows by {n}.')),
    'subtract': _Kind(
        'change', 'a=[x-{n} for x in a]', lambda a, n: [x - n for x in a],
        (2, 30),
        ('Subtract {n} from each.', 'Make each smaller by {n}.',
         'Each shrinks by {n}.')),
    'multiply': _Kind(
        'change', 'a=[x*{n} for x in a]', lambda a, n: [x * n for x in a],
        (2, 9),
        ('Multiply each by {n}.', 'Make each {n} times as large.',
         'Each becomes {n} times itself.')),
    'divide': _Kind(
        'change', 'a=[x//{n} for x in a]', lambda a, n: [x // n for x in a],
        (2, 9),
        ('Divide each by {n}, without remainder.',
         'Count how often {n} goes into each.',
         'Split each into {n} parts, and keep a whole one.')),
    'skip': _Kind(
        'cut', 'a=a[{n}:]', lambda a, n: a[n:], (1, 4),
        ('Leave out the first {n}.', 'Skip {n} at the start.',
         'The first {n} must go.')),
    'take': _Kind(
        'cut', 'a=a[:{n}]', lambda a, n: a[:n], (2, 6),
        ('Take the first {n} alone.', 'Leave out all behind the first {n}.',
         'Go on with the first {n}.')),
}
# Name -> expression, function, and phrases for the question.
QUESTIONS = {
    'sum': ('sum(a)', sum, ('the sum', 'the total', 'what they add up to')),
    'max': ('max(a,default=0)', lambda a: max(a, default=0),
            ('the largest number', 'the maximum', 'the greatest of them')),
    'min': ('min(a,default=0)', lambda a: min(a, default=0),
            ('the smallest number', 'the minimum', 'the least of them')),
    'len': ('len(a)', len,
            ('how many there are', 'their number', 'how many are left')),
}
FIRST_LINE = 'a=[int(x)for x in input().split()]'
_LAST = 'Before all that: '  # Introduces a first step described last.


@dataclasses.dataclass(frozen=True)
class Step:
  """A kind of `KINDS` and its number."""

  kind: str
  number: int

  @property
  def line(self) -> str:
    return KINDS[self.kind].code.format(n=self.number)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Steps in order of execution, and a name of `QUESTIONS`."""

  steps: tuple[Step, ...]
  question: str

  @property
  def lines(self) -> list[str]:
    return [step.line for step in self.steps]

  @property
  def result(self) -> str:
    """The expression after the steps."""
    return QUESTIONS[self.question][0]

  @property
  def program(self) -> str:
    """Reads a list from a line of stdin and prints the answer."""
    return '\n'.join((FIRST_LINE, *self.lines, f'print({self.result})', ''))

  def solve(self, numbers: Sequence[int]) -> int:
    """Returns the answer for a list."""
    a = list(numbers)
    for step in self.steps:
      a = KINDS[step.kind].run(a, step.number)
    return QUESTIONS[self.question][1](a)


def random_recipe(
    rng: np.random.Generator,
) -> tuple[Recipe, str, list[list[int]]]:
  """Returns a recipe, its text, and the lists of its tests.

  At least one test tells the recipe from each recipe with another kind of step,
  with another question, or with the first step moved to the end, but not always
  from one with another number. Every test tells it from recipes that lack one
  or all steps, and no test has the answer 0. The text ends with `{verb}` and
  the question.
  """
  while True:
    recipe = _random_recipe(rng)
    lists = (random_list(rng) for _ in range(_NUM_TRIES))
    needing = (x for x in lists if _needs_all_steps(recipe, x))
    tests = list(itertools.islice(needing, NUM_TESTS))
    if len(tests) == NUM_TESTS and _differs_from_all(recipe, tests):
      return recipe, _say(rng, recipe), tests


def random_list(rng: np.random.Generator) -> list[int]:
  return rng.integers(1, MAX_NUMBER + 1, rng.integers(6, 11)).tolist()


def change(
    rng: np.random.Generator, recipe: Recipe, probability: float) -> Recipe:
  """Replaces each choice of a recipe by another with this probability."""
  steps = [
      dataclasses.replace(step, kind=_choose(rng, _mistaken_for(step.kind)))
      if rng.random() < probability else step for step in recipe.steps]
  if rng.random() < probability:
    steps.append(steps.pop(0))
  question = recipe.question
  if rng.random() < probability:
    question = _choose(rng, [x for x in QUESTIONS if x != question])
  return Recipe(tuple(steps), question)


def parse(program: str) -> Recipe | None:
  """Inverts `Recipe.program`; None for other programs."""
  first, *lines = program.split('\n')
  if first != FIRST_LINE or len(lines) < 2 or lines.pop():
    return None
  found = re.fullmatch(r'print\((.*)\)', lines.pop())
  return parse_lines(lines, found[1]) if found else None


def parse_lines(lines: Sequence[str], result: str) -> Recipe | None:
  """Returns the recipe with these lines and this result, or None."""
  steps = tuple(map(parse_step, lines))
  question = next(
      (name for name, (code, _, _) in QUESTIONS.items() if code == result),
      None)
  if None in steps or question is None:
    return None
  return Recipe(steps, question)


def parse_step(line: str) -> Step | None:
  """Returns the step of a program line, or None."""
  for name, kind in KINDS.items():
    before, after = kind.code.split('{n}')
    found = re.fullmatch(
        rf'{re.escape(before)}([1-9]\d?){re.escape(after)}', line)
    if found:
      return Step(name, int(found[1]))
  return None


def _needs_all_steps(recipe: Recipe, test: Sequence[int]) -> bool:
  """True if 0 and recipes that lack one or all steps fail the test."""
  steps = recipe.steps
  shorter = (), *itertools.combinations(steps, len(steps) - 1)
  return recipe.solve(test) not in (
      0, *(Recipe(x, recipe.question).solve(test) for x in shorter))


def _differs_from_all(recipe: Recipe, tests: Sequence[Sequence[int]]) -> bool:
  """True if every neighbour fails a test."""
  results = [recipe.solve(test) for test in tests]
  return all(
      [other.solve(test) for test in tests] != results
      for other in _neighbours(recipe))


def _neighbours(recipe: Recipe) -> Iterator[Recipe]:
  """Yields recipes with another step kind, another order or question."""
  steps = recipe.steps
  for index, step in enumerate(steps):
    before, after = steps[:index], steps[index + 1:]
    for kind in _mistaken_for(step.kind):
      yield Recipe((*before, Step(kind, step.number), *after), recipe.question)
  yield Recipe((*steps[1:], steps[0]), recipe.question)
  for question in QUESTIONS:
    if question != recipe.question:
      yield Recipe(steps, question)


def _mistaken_for(name: str) -> list[str]:
  return [
      other for other, kind in KINDS.items()
      if other != name and kind.family == KINDS[name].family]


def _random_recipe(rng: np.random.Generator) -> Recipe:
  families = ['keep', 'change', 'cut']
  steps = []
  for _ in range(NUM_STEPS):
    family = _choose(rng, families)
    if family == 'cut':
      families.remove(family)
    name = _choose(rng, [x for x, k in KINDS.items() if k.family == family])
    low, high = KINDS[name].numbers
    steps.append(Step(name, int(rng.integers(low, high + 1))))
  return Recipe(tuple(steps), _choose(rng, list(QUESTIONS)))


def _say(rng: np.random.Generator, recipe: Recipe) -> str:
  sentences = [
      _choose(rng, KINDS[step.kind].sentences).format(n=step.number)
      for step in recipe.steps]
  question = _choose(rng, QUESTIONS[recipe.question][2])
  if rng.random() < 0.5:
    first, *rest = sentences
    sentences = [*rest, _LAST + first[0].lower() + first[1:]]
  return ' '.join(itertools.chain(sentences, ['{verb} ' + question + '.']))


def _choose(rng: np.random.Generator, choices: Sequence[str]) -> str:
  return choices[rng.integers(len(choices))]
