"""Generated word problems and the expressions that solve them.

A story is about one or two persons. Each starts with a number of things, and
events add to it, subtract from it, multiply it, or divide it into equal parts.
The question asks for one person's number, for the sum, or for how many more or
fewer the first person has. The solution is a Python expression with the numbers
of the story: one operator per event, the order of the persons, and the
necessary brackets. The values of the solution and of each step are from 1 to
9999.

There are too many combinations of numbers, operators, order and brackets for a
model to memorise solutions in its warm start.
"""

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

import numpy as np

MAX_VALUE = 9999

_NAMES = tuple("""Anna Ben Carl Dora Emil Fay Gus Hana Ivan Jane Kurt Lena Max
    Nina Otto Pia Ralf Sara Tom Uma Vera Walt Zoe Adam""".split())
_THINGS = tuple("""apples books coins cards shells stones stamps marbles beads
    pens keys nuts eggs cups bells ropes maps kites masks rings""".split())
# Operator -> sentences that describe an event.
_EVENTS = {
    '+': ('{name} finds {n} more.', '{name} buys {n} more.',
          '{name} gets {n} as a gift.', '{n} more come by mail.',
          '{name} wins {n}.'),
    '-': ('{name} loses {n}.', '{name} sells {n}.', '{name} gives away {n}.',
          '{n} are stolen.', '{name} breaks {n}.'),
    '*': ('Then {name} has {n} times as many.', 'They grow {n} times as many.',
          'The number is multiplied by {n}.', '{name} gets {n} times as many.'),
    '//': ('{name} keeps one of {n} equal parts.',
           'They are divided by {n}.', '{name} shares them among {n} equally.'),
}
OPERATORS = tuple(_EVENTS)
# (operator, whether the second person comes first) -> questions.
_QUESTIONS = {
    ('', False): ('How many {things} does {first} have?',
                  'How many are there?'),
    ('+', False): ('How many do both have together?', 'What is the sum?'),
    ('-', False): ('How many more does {first} have?',
                   'By how much does {first} have more?'),
    ('-', True): ('How many fewer does {first} have?',
                  'By how much does {first} have less?'),
}


@dataclasses.dataclass(frozen=True)
class Chain:
  """The events of one person: `start`, then an operator and a number each."""

  start: int
  operators: tuple[str, ...]
  numbers: tuple[int, ...]

  @property
  def expression(self) -> str:
    """Applies the events from left to right, with the necessary brackets."""
    text, is_sum = str(self.start), False
    for operator, number in zip(self.operators, self.numbers):
      if operator in '+-':
        is_sum = True
      elif is_sum:
        text, is_sum = f'({text})', False
      text += f'{operator}{number}'
    return text


@dataclasses.dataclass(frozen=True)
class Solution:
  """The answer to a question."""

  chains: tuple[Chain, ...]  # One per person, 1 or 2.
  operator: str = ''  # Between two persons, or ''.
  reversed: bool = False  # True if the second person comes first.

  @property
  def expression(self) -> str:
    texts = [chain.expression for chain in self.chains]
    if self.reversed:
      texts.reverse()
    return self.operator.join(
        f'({text})' if len(texts) > 1 else text for text in texts)

  @property
  def value(self) -> int:
    return eval(self.expression)


def random_story(rng: np.random.Generator) -> tuple[str, Solution]:
  """Returns a story and its solution."""
  while True:
    names = [str(name) for name in rng.choice(_NAMES, 2, replace=False)]
    things = _choose(rng, _THINGS)
    sizes = _choose(rng, ((3,), (4,), (1, 2), (2, 1), (2, 2)))
    chains = tuple(_random_chain(rng, size) for size in sizes)
    alone, *questions = _QUESTIONS
    question = _choose(rng, questions)
    if len(chains) == 1:
      question = alone
    solution = Solution(chains, *question)
    if 0 < solution.value <= MAX_VALUE:
      break
  sentences = []
  for name, chain in zip(names, chains):
    sentences.append(f'{name} has {chain.start} {things}.')
    sentences += [
        _choose(rng, _EVENTS[operator]).format(name=name, n=number)
        for operator, number in zip(chain.operators, chain.numbers)]
  sentences.append(_choose(rng, _QUESTIONS[question]).format(
      first=names[0], things=things))
  return ' '.join(sentences), solution


def change(
    rng: np.random.Generator, solution: Solution, probability: float
) -> Solution:
  """Replaces each choice of a solution by another with this probability."""
  chains = tuple(
      dataclasses.replace(chain, operators=tuple(
          _other(rng, operator) if rng.random() < probability else operator
          for operator in chain.operators))
      for chain in solution.chains)
  operator, is_reversed = solution.operator, solution.reversed
  if operator:
    if rng.random() < probability:
      operator = {'+': '-', '-': '+'}[operator]
    is_reversed ^= rng.random() < probability
  return Solution(chains, operator, bool(is_reversed))


def _random_chain(rng: np.random.Generator, num_events: int) -> Chain:
  """Draws events whose values stay whole and within bounds."""
  value = start = int(rng.integers(2, 100))
  operators, numbers = [], []
  for _ in range(num_events):
    divisors = [n for n in range(2, 10) if not value % n]
    is_possible = True, value > 2, value * 2 <= 999, bool(divisors)
    operator = _choose(rng, [*itertools.compress(OPERATORS, is_possible)])
    if operator == '//':
      number = _choose(rng, divisors)
      value //= number
    elif operator == '*':
      number = int(rng.integers(2, min(9, 999 // value) + 1))
      value *= number
    else:
      max_number = min(99, value - 1 if operator == '-' else 99)
      number = int(rng.integers(2, max(max_number, 2) + 1))
      value += number if operator == '+' else -number
    operators.append(operator)
    numbers.append(number)
  return Chain(start, tuple(operators), tuple(numbers))


def _other(rng: np.random.Generator, operator: str) -> str:
  return _choose(rng, [x for x in OPERATORS if x != operator])


def _choose(rng: np.random.Generator, choices: Sequence) -> Any:
  return choices[rng.integers(len(choices))]
