"""Compares single formulas in LaTeX.

math-verify parses formulas and compares sets and words. It compares numbers
with absolute thresholds, so that 2^-98 equals 2^-99, and ignores the left sides
of equations. Numbers, equations, inequalities, intervals and matrices are
therefore compared here. Numbers without a decimal point are compared exactly,
others as `notation.tolerance` says.
"""

from collections.abc import Sequence
import logging
import re
from typing import Any

from latex2sympy2_extended import latex2sympy2
import math_verify
import numpy as np
import sympy
from sympy.concrete import expr_with_limits

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
# text as a factor. `5 h 30 min` and a sentence would be products in any order.
_MALFORMED = re.compile(
    r'(?<![\w^.])\d[\d.]*(?:\s+\.?\d|\s*_)|(?<![\w.])(?<![eE][-+])0\d'
    r'|(?<![\w.])0[.0]*\s*(?:\\text|[a-z]{3})'
    r'|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\d'
    r'|\\text\s*\{[^{}]*\}\s*\d'
    r'|(?:(?<![A-Za-z\\])[a-z]{3,}|\d\s*[A-Za-z]+)\s+\d(?!\d*\s*\^)'
    r'|(?<![A-Za-z\\{])[A-Za-z]{3,}\s+[A-Za-z]{3,}')
# Of `_agree_where_real`: points, those checked exactly, and operations.
_NUM_POINTS, _NUM_EXACT = 1000, 8
_SMOOTH = (
    sympy.Abs, sympy.Add, sympy.Mul, sympy.Pow, sympy.log, sympy.exp,
    sympy.Symbol, sympy.Number, sympy.NumberSymbol)
_RELATIONS = sympy.Rel, sympy.And, sympy.Or
_INEQUALITY = re.compile(r'[<>]|\\(?:[lg]e|[lg]eq|[lg]eqslant|[lg]t)(?![a-z])')
# math-verify ignores primes, transposition and the braces of a fractional part,
# and takes derivatives for 0.
_IGNORED = re.compile(
    r"[A-Za-z]'+|\^\s*(?:T|\{\s*T\s*\})"
    r'|(?!^\\\{[^{}]*\\\}$)\\\{[\w\s+*/^-]*[a-z][\w\s+*/^-]*\\\}'
    r'|\\frac\s*\{\s*d[^{}]*\}\s*\{\s*d\s*[a-z][^{}]*\}')
_TRIGONOMETRIC = re.compile(r'\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])')
# math-verify computes these of any letters, as if they were coprime.
_DIVISOR_OF_LETTERS = re.compile(
    r'\\(?:operatorname\{)?(gcd|lcm)\}?(?=(?:\\left)?\([^()]*[a-zA-Z])')
_DEGREES = re.compile(
    r'((?<=\^\d)\d+|(?<![\d^.])\d+(?:\.\d+)?|\b[A-Za-z]|\\[a-z]+)'
    r'\s*\\text\{degrees\}')
_POWER_OF_TEN = re.compile(r'(?<=\d)[eE](?=[-+]?\d)([-+]?\d+)')


def same_formula(answer: str, gold: str) -> bool:
  """Compares two clean texts, each with one value or relation."""
  if any(map(_MALFORMED.search, (answer, gold))) or (
      sorted(_IGNORED.findall(answer)) != sorted(_IGNORED.findall(gold))):
    return False
  parsed = [_parse(text) for text in (gold, answer)]
  return None not in parsed and _same(*parsed)


def connectives(text: str) -> set[str]:
  """The commands that join inequalities; empty for other texts."""
  return set(re.findall(notation.CONNECTIVE, text)) if (
      _INEQUALITY.search(text)) else set()


def _parse(text: str) -> Any:
  """A SymPy object, or a text that is no formula; None without content."""
  for command, join_fn in ((r'\lor', sympy.Or), (r'\land', sympy.And)):
    if command in connectives(text):
      parts = [_parse(x) for x in notation.split(
          text, re.escape(command) + '(?![a-z])')]
      if not all(isinstance(x, _RELATIONS) for x in parts):
        return None
      return join_fn(*parts)
  text = _POWER_OF_TEN.sub(r'\\cdot 10^{\1}', text)
  text = _DIVISOR_OF_LETTERS.sub(r'\\mathrm{\1}', text)
  if _TRIGONOMETRIC.search(text):
    text = _DEGREES.sub(r'(\1\\pi/180)', text)
  parsed = math_verify.parse(f'${text}$', _EXTRACTION, parsing_timeout=None)
  if not parsed or isinstance(parsed[0], str):
    return parsed[0] if parsed else None
  # Beside an i, math-verify reads other letters than without it.
  return parsed[0].xreplace({
      x: sympy.Symbol(x.name, real=True)
      for x in parsed[0].atoms(sympy.Symbol) if not x.is_real})


def _same(gold: Any, answer: Any) -> bool:
  """Compares SymPy objects, or texts that are no formula."""
  pair = gold, answer = [
      x.doit() if isinstance(x, (sympy.MatrixExpr, sympy.Set)) else x
      for x in (gold, answer)]
  if _are(pair, _RELATIONS) and any(
      isinstance(x, sympy.Or) or _is_absolute(x) for x in pair):
    sets = [_solutions(x) for x in pair]
    return gold.free_symbols == answer.free_symbols and (
        _are(sets, sympy.Set) and _same(*sets))
  if _are(pair, sympy.Rel):
    return _same_relation(gold, answer)
  if any(isinstance(x, sympy.Eq) for x in pair):
    return False  # math-verify would compare the right side.
  if any(isinstance(x, sympy.Set) for x in pair) and any(
      isinstance(x, _RELATIONS) for x in pair):
    return _same(*(
        _solutions(x) if isinstance(x, _RELATIONS) else x for x in pair))
  if _are(pair, sympy.And) or _are(pair, sympy.FiniteSet):
    return len(gold.args) == len(answer.args) and all(
        any(_same(x, y) for y in answer.args) for x in gold.args)
  if _are(pair, sympy.Interval):
    return (gold.left_open, gold.right_open) == (
        answer.left_open, answer.right_open) and all(
            map(_same, (gold.start, gold.end), (answer.start, answer.end)))
  if _are(pair, sympy.Set) and any(
      isinstance(x, sympy.FiniteSet) for x in pair):
    return False  # math-verify takes {2, 3} for the interval (2, 3).
  if any(isinstance(x, sympy.MatrixBase) for x in pair):
    return _are(pair, sympy.MatrixBase) and gold.shape == answer.shape and (
        all(map(_same, gold, answer)))
  if _are(pair, sympy.Expr):
    if _same_value(gold, answer):
      return True
    if not any(isinstance(x, sympy.Symbol) for x in pair):
      return False
  return math_verify.verify(gold, answer, timeout_seconds=None)


def _are(pair: Sequence[Any], kind: type | tuple[type, ...]) -> bool:
  return all(isinstance(x, kind) for x in pair)


def _is_absolute(relation: Any) -> bool:
  """True for an inequality such as |x| < 2."""
  return isinstance(relation, (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)) and any(
      isinstance(x, sympy.Abs) and x.args[0].is_Symbol for x in relation.args)


def _solutions(relation: Any) -> sympy.Set | str:
  """Returns the numbers that satisfy a relation."""
  try:
    return relation.as_set()
  except NotImplementedError:  # Several variables, or a periodic function.
    return ''


def _same_relation(gold: Any, answer: Any) -> bool:
  """True if the sides are the same, or one relation is a multiple."""
  gold, answer = (  # The larger side first.
      x.reversed if isinstance(x, (sympy.Lt, sympy.Le)) else x
      for x in (gold, answer))
  if gold.func is not answer.func:
    return False
  if all(map(_same, gold.args, answer.args)):
    return True
  if not _are((*gold.args, *answer.args), sympy.Expr):
    return False
  is_equation = isinstance(gold, (sympy.Eq, sympy.Ne))
  gold, answer = (_exact(x.lhs - x.rhs) for x in (gold, answer))
  if is_equation:
    gold, answer = (
        sympy.fraction(sympy.together(x))[0] for x in (gold, answer))
  if not gold.free_symbols or gold.free_symbols != answer.free_symbols:
    return False
  ratio = sympy.simplify(answer / gold)
  return ratio.is_number and bool(
      ratio.is_finite and ratio.is_nonzero if is_equation
      else ratio.is_positive)


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
    agree = _agree_where_real(gold, answer)
    return agree if agree is not None else (
        not _differs(difference) and difference.equals(0) is True)
  if is_exact or not gold.is_number:
    return not difference.is_Rational and _is_zero(difference)
  return bool(abs(difference.evalf()) <= notation.tolerance(abs(gold.evalf())))


def _differs(difference: sympy.Expr) -> bool:
  """True if a formula is not zero at some point.

  SymPy's `equals` takes a hundred times as long to find this out. Sums and
  integrals are left to it, because they may take forever to evaluate.
  """
  if difference.has(expr_with_limits.ExprWithLimits):
    return False
  letters = sorted(difference.free_symbols, key=str)
  point = {x: sympy.Rational(i + 8, 7) for i, x in enumerate(letters)}
  try:
    value = difference.evalf(subs=point, strict=True)
  except sympy.PrecisionExhausted:  # It is zero there.
    return False
  return bool(value.is_number and value.is_finite and value != 0)


def _agree_where_real(gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
  """Whether formulas of powers and logarithms agree where all parts are real.

  So ln(ab) equals ln a + ln b, which is not real for negative a and b; but the
  root of x^2 is not x. None for other formulas, and if no point is real.
  """
  nodes = {*sympy.preorder_traversal(gold), *sympy.preorder_traversal(answer)}
  letters = sorted(gold.free_symbols | answer.free_symbols, key=str)
  if not all(isinstance(x, _SMOOTH) for x in nodes):
    return None
  kinds = sympy.Pow, sympy.log
  parts = [gold, answer, *(x for x in nodes if isinstance(x, kinds))]
  # Points of both signs, from 1e-3 to 1e9, and most of them below 10.
  rng = np.random.default_rng(0)
  size = _NUM_POINTS, len(letters)
  points = rng.choice([1, 1, -1], size) * np.where(
      rng.random(size) < 0.8, rng.random(size) * rng.choice([1, 10], size),
      10**rng.uniform(-3, 9, size))
  with np.errstate(all='ignore'):
    values = np.array([
        np.broadcast_to(x, _NUM_POINTS) for x in sympy.lambdify(
            letters, parts, 'numpy')(*points.T.astype(complex))], complex)
    is_real = np.all(np.isfinite(values) & (values.imag == 0), axis=0)
    # The points that differ most, because rounding differs, too.
    order = np.argsort(-abs(values[0] - values[1]) / (
        abs(values[0]) + abs(values[1])))
  checked = [i for i in order if is_real[i]][:_NUM_EXACT]
  for i in checked:
    point = dict(zip(letters, map(sympy.Rational, points[i])))
    first, second = (x.evalf(50, subs=point) for x in (gold, answer))
    if abs(first - second) > abs(first) * 1e-30:
      return False
  return True if checked else None


def _is_zero(number: sympy.Expr) -> bool:
  """True if a number is zero, as far as `_MAX_DIGITS` digits tell."""
  try:
    # With few digits, SymPy evaluates log(1 + 1e-20) to 0.
    return not number.evalf(100, maxn=_MAX_DIGITS, strict=True)
  except sympy.PrecisionExhausted:  # The real or the imaginary part is zero.
    return bool(abs(number.evalf(2, maxn=_MAX_DIGITS)) < 10.0**-300)


def _exact(value: sympy.Expr) -> sympy.Expr:
  """Makes the decimals of an expression fractions, and evaluates it.

  The letter i is the imaginary unit, and odd roots of negative numbers are
  real.
  """
  value = value.xreplace({
      x: sympy.Rational(str(x)) for x in value.atoms(sympy.Float)}).doit()
  value = value.xreplace({
      x: sympy.I for x in value.free_symbols if x.name == 'i'})
  return value.replace(
      lambda x: (x.is_Pow and x.base.is_negative and x.exp.is_Rational
                 and not x.exp.is_Integer and x.exp.q % 2 == 1),
      lambda x: (-1)**x.exp.p * (-x.base)**x.exp)
