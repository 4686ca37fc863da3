"""Reads numbers and lists in the text of an answer, in LaTeX or plain.

An answer is one item, or several items in any order, separated by commas,
semicolons, `and` or `or`; `\\pm` stands for two items. Numbers are compared
here as exact fractions. `equivalence.py` compares everything else.
"""

from __future__ import annotations

import dataclasses
import fractions
import re
from typing import Any

# Tolerances for decimals; integers and fractions must be equal.
_RELATIVE_TOLERANCE = fractions.Fraction(1, 10**6)
_ROUNDING = fractions.Fraction(5, 10**6)  # To six significant digits.
_MAX_TOLERANCE = fractions.Fraction(1, 10**3)

_BRACED = r'\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}'


def _unwrap(match: re.Match) -> str:
  """Removes `\\text` around a formula."""
  is_formula = re.search(r'(?<!\^)\d|[=+\\]', match[1])
  return f' {match[1]} ' if is_formula else match[0]


_REWRITES = tuple((re.compile(pattern, re.DOTALL), new) for pattern, new in (
    (r'\\\(|\\\)|\\\[|\\\]|(?<!\\)\$|\\displaystyle|\\left(?![a-z])'
     r'|\\right(?![a-z])|\\[bB]igg?[lr]?(?![a-z])|\\!'
     r'|\\(?:text)?color\s*\{[^{}]*\}', ''),
    (r'\\[,;: ]|\\q?quad\b|~|\\thinspace', ' '),
    (r'\\(?:math(?:rm|bf|it|sf|tt)|text(?:bf|it|rm|sf|tt|normal)|mbox|pmb'
     r'|boldsymbol|bm|operatorname|boxed|fbox|underline)(?![a-z])', r'\\text'),
    (rf'\\text\s*{_BRACED}', _unwrap),
    (r'\\text\s*\{\s*\}', ' '),
    ('[\N{MINUS SIGN}\N{EN DASH}]', '-'),
    ('\N{SQUARE ROOT}\\s*(\\d+|[a-z])', r'\\sqrt{\1}'),
    ('\N{MULTIPLICATION SIGN}', r'\\times '),
    ('[\N{MIDDLE DOT}\N{DOT OPERATOR}]', r'\\cdot '),
    ('\N{INFINITY}', r'\\infty '),
    ('\N{LESS-THAN OR EQUAL TO}', r'\\le '),
    ('\N{GREATER-THAN OR EQUAL TO}', r'\\ge '),
    ('\N{SUPERSCRIPT TWO}', '^2'),
    (r'(?<![A-Za-z\\])pi(?![A-Za-z])', r'\\pi '),
    (r'\\varnothing|\\\{\s*\\\}|\N{EMPTY SET}', r'\\emptyset '),
    (r'\\[dtc]frac', r'\\frac'),
    (r'\\(frac|binom)\s*(\d)\s*(\d)', r'\\\1{\2}{\3}'),
    (r'\{,\}', ','),
    (r'\\%|\\text\s*\{\s*percent\s*\}|\bpercent\b', '%'),
    (r'\^\s*\{?\s*\\circ\s*\}?|\\degree\b|°', r'\\text{degrees}'),
    (r'\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b', ','),
    # Conditions on the letters of a formula are not graded.
    (r',?\s*\\text\s*\{\s*(?:where|for)\b.*|,?\s*\b(?:where|for all)\b.*', ''),
    (r'\\not\s*=', r'\\ne '),
    (r'\s+', ' '),
    # A list would not contain 000.
    (r'(?<![\d.,])\d{1,3}(?:(?: \d{3})+(?!\d)|(?:,\d{3})*,0\d\d(?:,\d{3})*'
     r'(?!,?\d))', lambda match: re.sub('[, ]', '', match[0])),
    (r'^ ?\{([^{}]*)\} ?$', r'\1'),
))

_DIGITS = r'(?:\d{1,3}(?:,\d{3})+|\d+)'
_NUMBER = re.compile(
    rf'(?P<sign>-?)\s*(?P<dollar>\\?\$)?\s*'
    rf'(?:(?:(?P<whole>\d+) +)?(?P<numerator>{_DIGITS})\s*/\s*'
    rf'(?P<denominator>{_DIGITS})|(?P<factor>\d*)\s*'
    r'\\frac\s*\{\s*(?P<top>-?\d+)\s*\}\s*\{\s*(?P<bottom>-?\d+)\s*\}'
    rf'|(?P<decimal>{_DIGITS}(?:\.\d*)?|\.\d+)'
    r'(?:[eE](?P<power>[-+]?\d{1,3}))?)'
    r'\s*(?P<percent>%?)(?P<unit>.*)', re.DOTALL)
_UNITS = {
    name: names.split()[0] for names in (
        'degree degrees deg', '$ dollar dollars usd', 'cent cents',
        'm meter meters metre metres', 'cm centimeter centimeters',
        'mm millimeter millimeters', 'km kilometer kilometers',
        'ft foot feet', 'in inch inches', 'mile miles', 'yard yards yd',
        's sec second seconds', 'min minute minutes mins',
        'h hour hours hr hrs', 'day days', 'week weeks', 'month months',
        'year years', 'kg kilogram kilograms', 'g gram grams', 'mg',
        'lb pound pounds lbs', 'oz ounce ounces', 'ton tons', 'ml',
        'gallon gallons', 'euro euros', 'liter liters litre litres l',
        'km/h kmph kph', 'mile/h mph', 'unit units', 'radian radians rad',
        'person persons people', 'child children', 'man men', 'woman women',
        'path paths', 'way ways')
    for name in names.split()}
_UNIT = re.compile(
    r'(?:\\text\s*\{(?P<text>[^{}]*)\}|(?P<word>[a-zA-Z][a-zA-Z/ ]*|\\?\$))'
    r'\s*(?P<power>\^\s*\{?[23]\}?)?')
_POWERS = {'square': '2', 'sq': '2', 'cubic': '3'}
# Counted things, without words that change the number.
_PLURAL = re.compile(
    r'(?!hundred|thousand|lakh|crore|dozen|score|pairs|tens|half|halve|third'
    r'|quarter|times|minus|[a-z]*illion)[a-z]{3,}(?<!th)(?<!s)s(?<!plus)')


@dataclasses.dataclass(frozen=True)
class Number:
  """A number as written: 50 % has the value 50 and `is_percent`.

  `is_exact` is True for integers and fractions. `unit` is the canonical name,
  or '' for none.
  """

  value: fractions.Fraction
  is_exact: bool
  is_percent: bool
  unit: str


def clean(text: str) -> str:
  """Rewrites an answer in fewer notations."""
  for pattern, new in _REWRITES:
    text = pattern.sub(new, text)
  return text.strip().rstrip('.,; ')


def same_text(a: str, b: str) -> bool:
  """True if clean texts differ only in blanks, `\\text` and single braces."""
  return _bare(a) == _bare(b)


def _bare(text: str) -> str:
  text = re.sub(r'\\text\s*\{([^{}]*)\}', r'\1', text)
  text = re.sub(r'(?<!\d)\s+|\s+(?![\d.])', '', text)  # `1 2` is not 12.
  return re.sub(r'\{(\w)\}', r'\1', text)


def split(text: str, separator: str) -> list[str]:
  """Splits a text at a pattern where no bracket is open."""
  parts, depth, start = [], 0, 0
  for match in re.finditer(rf'([(\[{{])|([)\]}}])|{separator}', text):
    if match[1]:
      depth += 1
    elif match[2]:
      depth -= 1
    elif depth <= 0:
      parts.append(text[start:match.start()].strip())
      start = match.end()
  return [*parts, text[start:].strip()]


def brackets(text: str) -> tuple[str, str]:
  """Returns the two brackets around all of a text, or empty strings."""
  match = re.fullmatch(r'(\\\{|[(\[])(.*?)(\\\}|[)\]])', text, re.DOTALL)
  if match is None:
    return '', ''
  depth = 0
  for bracket in re.finditer(r'[(\[{]|([)\]}])', match[2]):
    depth += -1 if bracket[1] else 1
    if depth < 0:
      return '', ''
  return match[1], match[3]


def items(text: str) -> list[str]:
  """Splits a list, or a set in braces, into its items."""
  text = text.strip()
  if brackets(text) == (r'\{', r'\}'):
    text = text[2:-2]
  parts = split(text, '[,;]')
  signed = [
      part.replace(r'\pm', sign, 1) for part in parts
      for sign in ('+-' if r'\pm' in part else '+')]
  return [item.strip().removeprefix('+') for item in signed if item.strip()]


def number_of(text: str) -> Number | None:
  """Reads a text that is a number, perhaps with a unit; None for others."""
  match = _NUMBER.fullmatch(text.strip())
  unit = None if match is None else _unit_of(match['unit'].strip())
  if unit is None:
    return None
  if match['dollar'] and not unit:
    unit = '$'
  is_exact = True
  if match['decimal'] is not None:
    digits = match['decimal'].replace(',', '')
    is_exact = '.' not in digits and match['power'] is None
    value = fractions.Fraction(digits) * fractions.Fraction(10) ** int(
        match['power'] or 0)
  else:
    numerator, denominator = (
        int(digits.replace(',', '')) for digits in (
            match['numerator'] or match['top'],
            match['denominator'] or match['bottom']))
    if not denominator or match['factor'] and min(numerator, denominator) < 0:
      return None
    value = fractions.Fraction(numerator, denominator) + int(
        match['whole'] or match['factor'] or 0)
  if match['sign']:
    value = -value
  return Number(value, is_exact, bool(match['percent']), unit)


def split_unit(text: str) -> tuple[str, str]:
  """Splits a formula and the unit in `\\text` after it, or ''.

  Degrees stay, because they change the value of an angle.
  """
  formula, command, unit = text.rpartition(r'\text')
  name = _unit_of(command + unit) if formula.strip() else ''
  return (formula, name) if name and name != 'degree' else (text, '')


def is_number(text: str) -> bool:
  """True for a number or several numbers, with or without brackets."""
  numbers = [
      number_of(item) for item in items(re.sub(r'[()\[\]]', '', clean(text)))]
  return bool(numbers) and all(numbers)


def same_number(answer: Number, gold: Number) -> bool:
  """Compares two numbers; a unit may be missing but not differ.

  50% equals 0.5. If the gold answer has a percent sign, 50 equals 50% as well.
  """
  if answer.unit and gold.unit and answer.unit != gold.unit:
    return False
  is_exact = answer.is_exact and gold.is_exact
  if _is_close(_ratio(answer), _ratio(gold), is_exact):
    return True
  return gold.is_percent and not answer.is_percent and _is_close(
      answer.value, gold.value, is_exact)


def _ratio(number: Number) -> fractions.Fraction:
  return number.value / 100 if number.is_percent else number.value


def _is_close(
    x: fractions.Fraction, gold: fractions.Fraction, is_exact: bool) -> bool:
  return abs(x - gold) <= (0 if is_exact else tolerance(abs(gold)))


def tolerance(size: Any) -> Any:
  """Returns how far a decimal may be from a number of this absolute value."""
  return min(
      size * _ROUNDING, max(size, 1) * _RELATIVE_TOLERANCE, _MAX_TOLERANCE)


def _unit_of(text: str) -> str | None:
  """Returns the canonical name of a unit, '' for none, None for other text.

  A single letter is a unit only in `\\text`; otherwise it may be a variable.
  """
  if not text:
    return ''
  match = _UNIT.fullmatch(text)
  if match is None:
    return None
  is_text = match['text'] is not None
  names = (match['text'] if is_text else match['word']).lower()
  names = names.strip().removeprefix('\\')
  names = re.split(r'/| per ', names)
  if len(names[0]) == 1 and not is_text and names != ['$']:
    return None
  canonical = []
  for name in names:
    prefix, _, last = name.strip().rpartition(' ')
    name = _UNITS.get(last) or (last if _PLURAL.fullmatch(last) else None)
    if name is None or prefix and prefix not in _POWERS:
      return None
    canonical.append(name + _POWERS.get(prefix, ''))
  return '/'.join(canonical) + re.sub(r'\D', '', match['power'] or '')
