"""Generated recipes for lists of numbers, as programming problems.

A recipe has three steps, each of which keeps some numbers, changes all numbers
or, at most once, cuts the list. Then it asks for one number. Its text describes
the steps in order, except that the first step may be described last. The
program has one line per step.

There are too many combinations of steps, numbers, order and question for a
model to memorise programs in its warm start.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np

from environments.programming import problems

MAX_NUMBER = 99  # Largest number of an input.
NUM_TESTS = 4
NUM_STEPS = 3
_NUM_TRIES = 160  # Lists drawn for tests before a recipe is discarded.

FUNCTION = 'solve'  # Its name in problems that ask for a function.
FIRST_LINE = 'a=[int(x)for x in input().split()]'
_TIME_LIMIT = 1.0
_LAST = 'Before all that: '  # Introduces a first step described last.


class _Kind(NamedTuple):
  """A kind of step."""

  family: str  # Mistakes replace a kind by another of its family.
  code: str  # The new list `a`, with {n} for the number.
  numbers: tuple[int, int]  # Range of the number, inclusive.
  sentences: tuple[str, ...]  # Descriptions of the step.


KINDS = {
    'above': _Kind('keep', '[x for x in a if x>{n}]', (10, 60), (
        'Keep the numbers above {n}.', 'Drop all that are at most {n}.',
        'Only numbers greater than {n} stay.')),
    'below': _Kind('keep', '[x for x in a if x<{n}]', (30, 80), (
        'Keep the numbers below {n}.', 'Drop all that are at least {n}.',
        'Only numbers less than {n} stay.')),
    'multiples': _Kind('keep', '[x for x in a if x%{n}==0]', (2, 9), (
        'Keep the multiples of {n}.', 'Drop all but the multiples of {n}.',
        'Only numbers that {n} divides stay.')),
    'others': _Kind('keep', '[x for x in a if x%{n}>0]', (2, 9), (
        'Drop the multiples of {n}.', 'Keep all but the multiples of {n}.',
        'Numbers that {n} divides must go.')),
    'add': _Kind('change', '[x+{n} for x in a]', (2, 30), (
        'Add {n} to each.', 'Make each larger by {n}.', 'Each grows by {n}.')),
    'subtract': _Kind('change', '[x-{n} for x in a]', (2, 30), (
        'Subtract {n} from each.', 'Make each smaller by {n}.',
        'Each shrinks by {n}.')),
    'multiply': _Kind('change', '[x*{n} for x in a]', (2, 9), (
        'Multiply each by {n}.', 'Make each {n} times as large.',
        'Each becomes {n} times itself.')),
    'divide': _Kind('change', '[x//{n} for x in a]', (2, 9), (
        'Divide each by {n}, without remainder.',
        'Count how often {n} goes into each.',
        'Split each into {n} parts, and keep a whole one.')),
    'skip': _Kind('cut', 'a[{n}:]', (1, 4), (
        'Leave out the first {n}.', 'Skip {n} at the start.',
        'The first {n} must go.')),
    'take': _Kind('cut', 'a[:{n}]', (2, 6), (
        'Take the first {n} alone.', 'Leave out all behind the first {n}.',
        'Go on with the first {n}.')),
}
# Name -> expression, and phrases for the question.
QUESTIONS = {
    'sum': ('sum(a)', ('the sum', 'the total', 'what they add up to')),
    'max': ('max(a,default=0)', (
        'the largest number', 'the maximum', 'the greatest of them')),
    'min': ('min(a,default=0)', (
        'the smallest number', 'the minimum', 'the least of them')),
    'len': ('len(a)', (
        'how many there are', 'their number', 'how many are left')),
}


@dataclasses.dataclass(frozen=True)
class Step:
  """A kind of `KINDS` and its number."""

  kind: str
  number: int

  @property
  def line(self) -> str:
    return 'a=' + KINDS[self.kind].code.format(n=self.number)


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
      a = _compile(KINDS[step.kind].code, step.number)(a)
    return _compile(self.result)(a)


def contest(
    recipe: Recipe, text: str,
    tests: Sequence[Sequence[int]]) -> problems.Problem:
  """Returns a problem of environments.programming.contests."""
  return problems.Problem(
      statement=text.format(verb='Print'), comparison='code_contests',
      tests=problems.pack_cases([make_case(recipe, test) for test in tests]),
      time_limit=_TIME_LIMIT, reference=recipe.program)


def make_case(recipe: Recipe, numbers: Iterable[int]) -> problems.Case:
  """Returns the test with a list as input and the recipe's answer."""
  numbers = list(numbers)
  given = ' '.join(map(str, numbers))
  return problems.Case(f'{given}\n', (f'{recipe.solve(numbers)}\n',))


def function(
    recipe: Recipe, text: str,
    tests: Sequence[Sequence[int]]) -> problems.Problem:
  """Returns a problem of environments.programming.functions."""
  asserts = [
      f'    assert solve({list(test)}) == {recipe.solve(test)}\n'
      for test in tests]
  stub = f'def {FUNCTION}(a):\n    """{text.format(verb="Return")}"""\n'
  return problems.Problem(
      statement=stub, starter_code=stub, comparison='check',
      tests=problems.pack(f'def check({FUNCTION}):\n{"".join(asserts)}'),
      time_limit=_TIME_LIMIT, entry_point=FUNCTION,
      reference='\n'.join((
          f'def {FUNCTION}(a):', *(f'    {line}' for line in recipe.lines),
          f'    return {recipe.result}', '')))


def random_recipe(
    rng: np.random.Generator,
) -> tuple[Recipe, str, list[list[int]]]:
  """Returns a recipe, its text, and the lists of its tests.

  At least one test fails for each recipe with another kind of step, with
  another question, or with the first step moved to the end, but not always for
  one with another number. Every test fails for recipes that lack one or all
  steps, and no test has the answer 0. The text ends with `{verb}` and the
  question.
  """
  while True:
    recipe = draw_recipe(rng)
    lists = (
        rng.integers(1, MAX_NUMBER + 1, rng.integers(6, 11)).tolist()
        for _ in range(_NUM_TRIES))
    needing = (x for x in lists if _needs_all_steps(recipe, x))
    tests = list(itertools.islice(needing, NUM_TESTS))
    if len(tests) == NUM_TESTS and _differs_from_all(recipe, tests):
      return recipe, _describe(rng, recipe), tests


def draw_recipe(rng: np.random.Generator) -> Recipe:
  """Returns a recipe that may have no tests."""
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


@functools.cache
def _compile(
    code: str, number: int = 0) -> Callable[[list[int]], list[int] | int]:
  """Returns the function of the list that a piece of program computes."""
  return eval('lambda a: ' + code.format(n=number))


def _needs_all_steps(recipe: Recipe, test: Sequence[int]) -> bool:
  """True if 0 and recipes that lack one or all steps fail the test."""
  steps = recipe.steps
  shorter = (), *itertools.combinations(steps, len(steps) - 1)
  answer = recipe.solve(test)
  return answer != 0 and all(
      Recipe(x, recipe.question).solve(test) != answer for x in shorter)


def _differs_from_all(recipe: Recipe, tests: Sequence[Sequence[int]]) -> bool:
  """True if recipes with another step kind, order or question fail a test."""
  steps, question = recipe.steps, recipe.question
  others = [
      Recipe((*steps[:i], Step(kind, step.number), *steps[i + 1:]), question)
      for i, step in enumerate(steps) for kind in _mistaken_for(step.kind)]
  others.append(Recipe((*steps[1:], steps[0]), question))
  others += [Recipe(steps, x) for x in QUESTIONS if x != question]
  results = [recipe.solve(test) for test in tests]
  return all(
      [other.solve(test) for test in tests] != results for other in others)


def _mistaken_for(name: str) -> list[str]:
  return [
      other for other, kind in KINDS.items()
      if other != name and kind.family == KINDS[name].family]


def _describe(rng: np.random.Generator, recipe: Recipe) -> str:
  sentences = [
      _choose(rng, KINDS[step.kind].sentences).format(n=step.number)
      for step in recipe.steps]
  question = _choose(rng, QUESTIONS[recipe.question][1])
  if rng.random() < 0.5:
    first, *rest = sentences
    sentences = [*rest, _LAST + first[0].lower() + first[1:]]
  return ' '.join(itertools.chain(sentences, ['{verb} ' + question + '.']))


def _choose(rng: np.random.Generator, choices: Sequence[str]) -> str:
  return choices[rng.integers(len(choices))]
