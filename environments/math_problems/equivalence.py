"""Decides whether an answer equals the gold answer.

math-verify compares formulas, tuples, intervals, sets and words. This module
handles the notations for which math-verify accepts wrong answers or refuses
correct ones: numbers with units, percent signs and thousands separators
(`notation.py`), lists with repeated items, `R` and `r` as different variables,
and definitions such as f(x) = 2x.

`grader.py` limits time and memory.
"""

from __future__ import annotations

import logging
import re

from latex2sympy2_extended import latex2sympy2
import math_verify

from environments.math_problems import notation

# math-verify warns that its own time limits are off.
logging.getLogger('math_verify').setLevel(logging.ERROR)

_EXTRACTION = (math_verify.LatexExtractionConfig(
    normalization_config=latex2sympy2.NormalizationConfig(
        basic_latex=True, malformed_operators=True, nits=True, boxed='none',
        equations=False,
        units=False)),)  # `notation` reads units; here `6m` is a product.
# A text, a word or a command, which are longer than one letter; or a variable.
_LETTER = re.compile(
    r'\\text\s*\{[^{}]*\}|[A-Za-z]{3,}|\\[A-Za-z]+|[A-Za-z]')
_FREE_LETTERS = 'qkhwvuzjpgtsrlcbanmxy'  # None is a constant such as e or i.
_EQUALS = re.compile(r'(?<![<>!\\])=')
_NAME = re.compile(r'[^-+*/=<>]+')  # The left side of a definition.
_FUNCTION = re.compile(r'[A-Za-z]\s*\(\s*([a-z])\s*\)')


def equivalent(answer: str, gold: str) -> bool:
  """Compares two answers in LaTeX, with or without dollar signs."""
  answer, gold = notation.clean(answer), notation.clean(gold)
  if not answer or not gold:
    return False
  if notation.same_text(answer, gold):
    return True
  answer, gold = _rename_capitals(answer, gold)
  numbers = notation.number_of(answer), notation.number_of(gold)
  if all(numbers) and notation.same_number(*numbers):
    return True  # Before lists, because 1,000 may be read as one.
  answers, golds = notation.items(answer), notation.items(gold)
  if len(answers) == len(golds):
    return _same_items(answers, golds)
  # A tuple without its brackets, or a solution set in another form.
  return 1 in (len(answers), len(golds)) and not any(numbers) and (
      _same_formula(answer, gold))


def _rename_capitals(answer: str, gold: str) -> tuple[str, str]:
  """Renames capitals that occur beside their small letters.

  math-verify reads `R` and `r` as the same variable.
  """
  letters = [
      {x for x in _LETTER.findall(text) if len(x) == 1}
      for text in (answer, gold)]
  capitals = sorted({
      x for text_letters in letters for x in text_letters
      if x.isupper() and x.lower() in text_letters})
  used = {x.lower() for text_letters in letters for x in text_letters}
  names = dict(zip(capitals, (x for x in _FREE_LETTERS if x not in used)))
  return tuple(
      _LETTER.sub(lambda match: names.get(match[0], match[0]), text)
      for text in (answer, gold))


def _same_items(answers: list[str], golds: list[str]) -> bool:
  """True if every gold item equals another answer, in any order."""
  unmatched = list(answers)
  for gold in golds:
    # Equal texts first, because formulas are slow to compare.
    ordered = sorted(
        unmatched, key=lambda x: not notation.same_text(x, gold))
    match = next((x for x in ordered if _same_item(x, gold)), None)
    if match is None:
      return False
    unmatched.remove(match)
  return True


def _same_item(answer: str, gold: str) -> bool:
  if notation.same_text(answer, gold):
    return True
  numbers = notation.number_of(answer), notation.number_of(gold)
  if all(numbers):
    return notation.same_number(*numbers)
  definitions = _definition(answer), _definition(gold)
  if all(definitions):
    (name, value), (gold_name, gold_value) = definitions
    functions = _FUNCTION.fullmatch(name), _FUNCTION.fullmatch(gold_name)
    if all(functions):  # f(x) = x + 1 equals f(n) = n + 1.
      value = re.sub(
          rf'(?<![A-Za-z\\]){functions[0][1]}(?![A-Za-z])', functions[1][1],
          value)
      name = name[0] + gold_name[1:]
    if notation.same_text(name, gold_name):
      return _same_item(value, gold_value)
  elif any(definitions):  # The name may be missing on one side.
    return _same_item(*(
        text if definition is None else definition[1]
        for text, definition in zip((answer, gold), definitions)))
  if _EQUALS.search(gold) and not _EQUALS.search(answer):
    return False  # math-verify would accept 5 for x + y = 5.
  return _same_formula(answer, gold)


def _definition(text: str) -> tuple[str, str] | None:
  """Splits `name = value`; None for other texts."""
  sides = [side.strip() for side in _EQUALS.split(text)]
  if len(sides) != 2 or not sides[1] or not _NAME.fullmatch(sides[0]):
    return None
  return sides[0], sides[1]


def _same_formula(answer: str, gold: str) -> bool:
  """Returns math-verify's verdict. It depends on the order: gold first."""
  parsed = [
      math_verify.parse(f'${text}$', _EXTRACTION, parsing_timeout=None)
      for text in (gold, answer)]
  return math_verify.verify(*parsed, timeout_seconds=None)
