"""Comparisons of outputs with expected outputs, one per benchmark.

  name           compares                              numbers
  apps           the words of each line, without       ints exactly, floats
                 empty lines                           within 1e-8 + 1e-5 x the
                                                       expected value
  code_contests  all words in lower case               ints exactly, floats
                                                       within 1e-5
  livecodebench  each line, stripped                   lines of numbers exactly,
                                                       as decimals

Values of functions are compared by `==`, tuples as lists, as in the graders of
APPS and LiveCodeBench. `Sandbox.call` returns types of Python and arrays, so no
method of a program takes part.

Deviations from the official graders, all stricter but the last:

1. The grader of APPS also accepts lines that are correct as sets of words, such
   as `1 1 2` for `2 1`. Here order and number must match.
2. It accepts 1000001 for 1000000, as close floats, and the grader of
   CodeContests accepts `10**17 + 1` for `10**17`. Here ints are exact, and a
   float may differ from an int by less than 1e-5.
3. `True` is not 1. In the graders of APPS and LiveCodeBench it is.
4. An instance of a program's class that defines `==` equals nothing.
5. An array that equals an answer in its first element fails. The grader of APPS
   accepts it. As in LiveCodeBench's, only an array of one element can be equal.
6. Tuples are lists at every depth. In the grader of LiveCodeBench only the
   value itself may be a tuple, and in that of APPS also its elements.
"""

import collections
from collections.abc import Callable, Sequence
import decimal
import fractions
import math
import re
from typing import Any

_INT = re.compile(r'[+-]?\d{1,4000}', re.ASCII)
_FLOAT = re.compile(
    r'[+-]?(\d{1,400}(\.\d{0,4000})?|\.\d{1,4000})([eE][+-]?\d{1,3})?',
    re.ASCII)


def same_lines(output: str, expected: str) -> bool:
  """The comparison of APPS."""
  lines, wanted = (
      [line.strip() for line in text.split('\n') if line.strip()]
      for text in (output, expected))
  if lines == wanted:
    return True
  return len(lines) == len(wanted) and all(
      line == want or _same_words(line.split(), want.split(), _is_close)
      for line, want in zip(lines, wanted))


def same_words(output: str, expected: str) -> bool:
  """The comparison of CodeContests."""
  return _same_words(
      output.lower().split(), expected.lower().split(), _is_near)


def same_decimals(output: str, expected: str) -> bool:
  """The comparison of LiveCodeBench."""
  lines, wanted = (
      [line.strip() for line in text.strip().split('\n')]
      for text in (output, expected))
  return len(lines) == len(wanted) and all(
      line == want or _decimals(line) == _decimals(want) is not None
      for line, want in zip(lines, wanted))


# Problem.comparison -> function of output and expected output.
COMPARISONS = {
    'apps': same_lines, 'code_contests': same_words,
    'livecodebench': same_decimals}


def same_value(value: Any, expected: Any) -> bool:
  """Compares a returned value with the expected one."""
  try:
    return bool(_plain(value) == _plain(expected))
  except (ArithmeticError, MemoryError, TypeError, ValueError):
    # A signalling NaN, or an array.
    return False


def _plain(value: Any) -> Any:
  """Replaces tuples by lists, and bools by values that equal no number."""
  if isinstance(value, (list, tuple)):
    return [_plain(item) for item in value]
  if isinstance(value, dict):
    return {_key(key): _plain(item) for key, item in value.items()}
  if isinstance(value, (set, frozenset, type({}.keys()))):
    return frozenset(map(_key, value))
  if isinstance(value, collections.deque):
    return 'deque', _plain([*value])
  # A comparison with a list would take the product of both sizes.
  if type(value).__name__ == 'ndarray' and value.size != 1:
    raise ValueError('an array equals no value')
  return _key(value)


def _key(value: Any) -> Any:
  return ('bool', value) if isinstance(value, bool) else value


def _decimals(line: str) -> list[decimal.Decimal] | None:
  """Returns the numbers of a line, or None if it has other words."""
  words = line.split()
  if not all(map(_FLOAT.fullmatch, words)):
    return None
  return list(map(decimal.Decimal, words))


def _same_words(
    words: Sequence[str], wanted: Sequence[str],
    same_float: Callable[[float, float], bool]) -> bool:
  """True if every word is equal, as text or as a number."""
  return len(words) == len(wanted) and all(
      word == want or _same_number(word, want, same_float)
      for word, want in zip(words, wanted))


def _same_number(
    word: str, want: str, same_float: Callable[[float, float], bool]) -> bool:
  if _INT.fullmatch(word) and _INT.fullmatch(want):
    return int(word) == int(want)
  if not (_FLOAT.fullmatch(word) and _FLOAT.fullmatch(want)):
    return False
  if _INT.fullmatch(want) and not _is_near(
      fractions.Fraction(word), int(want)):
    return False
  return same_float(float(word), float(want))


def _is_close(number: float, wanted: float) -> bool:
  return abs(number - wanted) <= 1e-8 + 1e-5 * abs(wanted) < math.inf


def _is_near(
    number: float | fractions.Fraction, wanted: float | int) -> bool:
  return abs(number - wanted) < 1e-5
