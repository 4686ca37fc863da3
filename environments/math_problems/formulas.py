"""Compares single formulas in LaTeX.

math-verify parses formulas and compares sets and words. It compares numbers
with absolute thresholds, so that 2^-98 equals 2^-99, and ignores the left sides
of equations. Numbers, equations, inequalities, intervals and matrices are
therefore compared here. Numbers without a decimal point are compared exactly,
others as `notation.tolerance` says.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from latex2sympy2_extended import latex2sympy2
import math_verify
import sympy

from environments.math_problems import notation

# math-verify warns that its own time limits are off.
logging.getLogger('math_verify').setLevel(logging.ERROR)

_EXTRACTION = (math_verify.LatexExtractionConfig(
    normalization_config=latex2sympy2.NormalizationConfig(
        basic_latex=True, malformed_operators=True, nits=True, boxed='none',
        equations=False,
        units=False)),)  # `notation` reads units; here `6m` is a product.
_MAX_DIGITS = 1000  # Irrational numbers that agree in so many are equal.
# math-verify reads `1 2` and `\frac{1}{1} 2` as 3, `1_2` as 1, and 0 before a
# text as a factor.
_MALFORMED = re.compile(
    r'(?<![\w^.])\d[\d.]*(?:\s+\.?\d|\s*_)'
    r'|(?<![\w.])0[.0]*\s*(?:\\text|[a-z]{3})'
    r'|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\d')
_RELATIONS = sympy.Rel, sympy.And
_POWER_OF_TEN = re.compile(r'(?<=\d)[eE](?=[-+]?\d)([-+]?\d+)')


def same_formula(answer: str, gold: str) -> bool:
  """Compares two clean texts, each with one value or relation."""
  if _MALFORMED.search(answer):
    return False
  parsed = [
      math_verify.parse(
          '$' + _POWER_OF_TEN.sub(r'\\cdot 10^{\1}', text) + '$', _EXTRACTION,
          parsing_timeout=None) for text in (gold, answer)]
  return all(parsed) and _same(*(x[0] for x in parsed))


def _same(gold: Any, answer: Any) -> bool:
  """Compares SymPy objects, or texts that are no formula."""
  if isinstance(gold, str) or isinstance(answer, str):
    return gold == answer
  pair = gold, answer
  if _are(pair, sympy.Rel):
    return _same_relation(gold, answer)
  if any(isinstance(x, sympy.Eq) for x in pair):
    return False  # math-verify would compare the right side.
  if isinstance(gold, sympy.Set) and isinstance(answer, _RELATIONS):
    return _same(gold, _solutions(answer))
  if isinstance(answer, sympy.Set) and isinstance(gold, _RELATIONS):
    return _same(_solutions(gold), answer)
  if _are(pair, sympy.And):
    return len(gold.args) == len(answer.args) and any(
        all(map(_same, gold._unsorted_args, args))
        for args in (answer._unsorted_args, answer._unsorted_args[::-1]))
  if _are(pair, sympy.Interval):
    return (gold.left_open, gold.right_open) == (
        answer.left_open, answer.right_open) and all(
            map(_same, (gold.start, gold.end), (answer.start, answer.end)))
  if _are(pair, sympy.FiniteSet):
    return len(gold) == len(answer) and all(
        any(_same(x, y) for y in answer) for x in gold)
  if _are(pair, sympy.MatrixBase):
    return gold.shape == answer.shape and all(map(_same, gold, answer))
  if _are(pair, sympy.Expr):
    if _same_value(gold, answer):
      return True
    if not any(isinstance(x, sympy.Symbol) for x in pair):
      return False
  return math_verify.verify(gold, answer, timeout_seconds=None)


def _are(pair: tuple[Any, Any], kind: type) -> bool:
  return all(isinstance(x, kind) for x in pair)


def _solutions(relation: Any) -> sympy.Set | str:
  """Returns the numbers that satisfy a relation."""
  try:
    return relation.as_set()
  except NotImplementedError:  # Several variables, or a periodic function.
    return ''


def _same_relation(gold: Any, answer: Any) -> bool:
  """True if the sides are the same, or one relation is a multiple."""
  (gold_kind, *golds), (kind, *answers) = map(_sides, (gold, answer))
  if kind != gold_kind:
    return False
  if all(map(_same, golds, answers)):
    return True
  if not all(isinstance(x, sympy.Expr) for x in (*golds, *answers)):
    return False
  gold, answer = (_exact(x - y) for x, y in (golds, answers))
  is_equation = not isinstance(kind, bool)
  if is_equation:
    gold, answer = (
        sympy.fraction(sympy.together(x))[0] for x in (gold, answer))
  if not gold.free_symbols or gold.free_symbols != answer.free_symbols:
    return False
  ratio = sympy.simplify(answer / gold)
  return ratio.is_number and bool(
      ratio.is_finite and ratio.is_nonzero if is_equation
      else ratio.is_positive)


def _sides(relation: Any) -> tuple[Any, Any, Any]:
  """Returns the kind of a relation and its sides, the larger one first."""
  if isinstance(relation, (sympy.Eq, sympy.Ne)):
    return relation.func, relation.lhs, relation.rhs
  is_strict = isinstance(
      relation, (sympy.StrictGreaterThan, sympy.StrictLessThan))
  return is_strict, relation.gts, relation.lts


def _same_value(gold: sympy.Expr, answer: sympy.Expr) -> bool:
  """Compares two expressions; decimals within a tolerance."""
  is_exact = not any(x.has(sympy.Float) for x in (gold, answer))
  gold, answer = _exact(gold), _exact(answer)
  if gold == answer:
    return gold is not sympy.nan
  difference = gold - answer
  if difference.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan):
    return False
  if not difference.is_number:
    return difference.equals(0) is True
  if is_exact or not gold.is_number:
    return not difference.is_Rational and _is_zero(difference)
  return bool(abs(difference.evalf()) <= notation.tolerance(abs(gold.evalf())))


def _is_zero(number: sympy.Expr) -> bool:
  """True if a number is zero, as far as `_MAX_DIGITS` digits tell."""
  try:
    # With few digits, SymPy evaluates log(1 + 1e-20) to 0.
    return not number.evalf(100, maxn=_MAX_DIGITS, strict=True)
  except sympy.PrecisionExhausted:  # The real or the imaginary part is zero.
    return bool(abs(number.evalf(2, maxn=_MAX_DIGITS)) < 10.0**-300)


def _exact(value: sympy.Expr) -> sympy.Expr:
  """Makes the decimals of an expression fractions, and evaluates it."""
  return value.xreplace({
      x: sympy.Rational(str(x)) for x in value.atoms(sympy.Float)}).doit()
