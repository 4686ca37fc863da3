"""Whether an answer is equal to the gold answer.

The outer form is read by `notation.py`; formulas are compared by math-verify,
gold answer first. Without a limit on time or memory: see `grader.py`.
"""

from __future__ import annotations

import logging
import re

from latex2sympy2_extended import latex2sympy2
import math_verify

from environments.math_problems import notation

# It warns that its own time limits are off.
logging.getLogger('math_verify').setLevel(logging.ERROR)

# Units are read by `notation`: here `6m` is a product.
_EXTRACTION = (math_verify.LatexExtractionConfig(
    normalization_config=latex2sympy2.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True,
        boxed='none', equations=False)),)
_WORD = re.compile(r'\\text\s*\{[^{}]*\}|[A-Za-z]{3,}')
# A variable; or a command, a text or a word, which are longer.
_LETTER = re.compile(rf'{_WORD.pattern}|\\[A-Za-z]+|[A-Za-z]')
_FREE_LETTERS = 'qkhwvuzjpgtsrlcbanmxy'  # None of which is a constant.
_FUNCTION = re.compile(r'[A-Za-z]\s*\(\s*([a-z])\s*\)')


def equivalent(answer: str, gold: str) -> bool:
  """Whether `answer`, the text of a box, is equal to `gold`.

  Both in LaTeX, with or without dollar signs.
  """
  answer, gold = notation.clean(answer), notation.clean(gold)
  if not answer or not gold:
    return False
  if notation.same_text(answer, gold):
    return True
  answer, gold = _rename_capitals(answer, gold)
  numbers = notation.number_of(answer), notation.number_of(gold)
  if all(numbers) and notation.same_number(*numbers):
    return True  # Also 1,000, which may be a list.
  answers, golds = notation.items(answer), notation.items(gold)
  if len(answers) == len(golds) == 1:
    return _same_item(answers[0], golds[0])
  if len(answers) == len(golds):
    return _same_items(answers, golds)
  # A tuple without its brackets, or a solution set in another form.
  return 1 in (len(answers), len(golds)) and not any(numbers) and (
      _same_formula(answer, gold))


def _rename_capitals(answer: str, gold: str) -> tuple[str, str]:
  """Both with other letters for capitals that stand beside their small ones.

  math-verify reads `R` and `r` as the same variable.
  """
  found = [
      {x for x in _LETTER.findall(text) if len(x) == 1}
      for text in (answer, gold)]
  capitals = sorted({
      x for letters in found for x in letters
      if x.isupper() and x.lower() in letters})
  used = {x.lower() for letters in found for x in letters}
  names = dict(zip(capitals, (x for x in _FREE_LETTERS if x not in used)))
  return tuple(
      _LETTER.sub(lambda match: names.get(match[0], match[0]), text)
      for text in (answer, gold))


def _same_items(answers: list[str], golds: list[str]) -> bool:
  """Whether there is an equal answer for each, in any order."""
  left = list(answers)
  for gold in golds:
    # The same text first: the others may take long.
    ordered = sorted(left, key=lambda x: not notation.same_text(x, gold))
    found = next((x for x in ordered if _same_item(x, gold)), None)
    if found is None:
      return False
    left.remove(found)
  return True


def _same_item(answer: str, gold: str) -> bool:
  if notation.same_text(answer, gold):
    return True
  numbers = notation.number_of(answer), notation.number_of(gold)
  if all(numbers):
    return notation.same_number(*numbers)
  tuples = notation.tuple_of(answer), notation.tuple_of(gold)
  if all(tuples):
    (brackets, parts), (gold_brackets, gold_parts) = tuples
    return brackets == gold_brackets and len(parts) == len(gold_parts) and all(
        map(_same_item, parts, gold_parts))
  unions = [re.split(r'\\cup(?![a-z])', text) for text in (answer, gold)]
  if max(map(len, unions)) > 1 and len(unions[0]) == len(unions[1]):
    return _same_items(*([x.strip() for x in union] for union in unions))
  if _WORD.fullmatch(answer) and _WORD.fullmatch(gold):
    return notation.same_text(answer.lower(), gold.lower())
  equations = notation.equation_of(answer), notation.equation_of(gold)
  if all(equations):
    (name, value), (gold_name, gold_value) = equations
    functions = _FUNCTION.fullmatch(name), _FUNCTION.fullmatch(gold_name)
    if all(functions):  # f(x) = x + 1 is f(n) = n + 1.
      value = re.sub(
          rf'(?<![A-Za-z\\]){functions[0][1]}(?![A-Za-z])', functions[1][1],
          value)
      name = name[0] + gold_name[1:]
    if notation.same_text(name, gold_name):
      return _same_item(value, gold_value)
  elif any(equations):
    return _same_item(*(
        text if equation is None else equation[1]
        for text, equation in zip((answer, gold), equations)))
  if notation.is_equation(gold) and not notation.is_equation(answer):
    return False  # Of x + y = 5, math-verify would take 5.
  return _same_formula(answer, gold)


def _same_formula(answer: str, gold: str) -> bool:
  parsed = [
      math_verify.parse(f'${text}$', _EXTRACTION, parsing_timeout=None)
      for text in (gold, answer)]
  return math_verify.verify(*parsed, timeout_seconds=None)
