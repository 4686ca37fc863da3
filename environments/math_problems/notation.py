"""Reads numbers and lists in the text of an answer, in LaTeX or plain.

An answer is one item, or several items in any order, separated by commas,
semicolons, `and` or `or`; `\\pm` stands for two items. Numbers are compared
here as exact fractions. `equivalence.py` compares everything else.
"""

from __future__ import annotations

import dataclasses
import fractions
import re

# Tolerance for decimals; integers and fractions must be equal.
RELATIVE_TOLERANCE, MAX_TOLERANCE = 1e-6, 1e-3

_REWRITES = tuple((re.compile(pattern, re.DOTALL), new) for pattern, new in (
    (r'\\\(|\\\)|\\\[|\\\]|(?<!\\)\$|\\displaystyle|\\left(?![a-z])'
     r'|\\right(?![a-z])|\\[bB]igg?[lr]?(?![a-z])|\\!', ''),
    (r'\\[,;: ]|\\q?quad\b|~|\\thinspace', ' '),
    (r'\\(?:mathrm|mathbf|textbf|textit|textrm|mbox|mathit|operatorname)'
     r'(?![a-z])', r'\\text'),
    ('[\N{MINUS SIGN}\N{EN DASH}]', '-'),
    (r'\\[dtc]frac', r'\\frac'),
    (r'\{,\}', ','),
    (r'\\%|\\text\s*\{\s*percent\s*\}|\bpercent\b', '%'),
    (r'\^\s*\{?\s*\\circ\s*\}?|\\degree\b|°', r'\\text{degrees}'),
    (r'\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b', ','),
    # Conditions on the letters of a formula are not graded.
    (r',?\s*\\text\s*\{\s*(?:where|for)\b.*|,?\s*\b(?:where|for all)\b.*', ''),
    (r'\s+', ' '),
))

_DIGITS = r'(?:\d{1,3}(?:[, ]\d{3})+|\d+)'
_NUMBER = re.compile(
    rf'(?P<sign>-?)\s*(?P<dollar>\\?\$)?\s*'
    rf'(?:(?P<numerator>{_DIGITS})\s*/\s*(?P<denominator>{_DIGITS})'
    r'|\\frac\s*\{\s*(?P<top>-?\d+)\s*\}\s*\{\s*(?P<bottom>-?\d+)\s*\}'
    rf'|(?P<decimal>{_DIGITS}(?:\.\d*)?|\.\d+)'
    r'(?:[eE](?P<power>[-+]?\d{1,3}))?)'
    r'\s*(?P<percent>%?)(?P<unit>.*)', re.DOTALL)
_UNITS = {
    name: names.split()[0] for names in (
        'degree degrees deg', '$ dollar dollars usd', 'cent cents',
        'm meter meters metre metres', 'cm centimeter centimeters',
        'mm millimeter millimeters', 'km kilometer kilometers',
        'ft foot feet', 'in inch inches', 'mile miles', 'yard yards',
        's sec second seconds', 'min minute minutes mins', 'h hour hours hr',
        'day days', 'week weeks', 'month months', 'year years',
        'kg kilogram kilograms', 'g gram grams', 'lb pound pounds',
        'liter liters litre litres', 'km/h kmph kph', 'mph', 'unit units')
    for name in names.split()}
_UNIT = re.compile(
    r'(?:\\text\s*\{(?P<text>[^{}]*)\}|(?P<word>[a-zA-Z][a-zA-Z/]*|\\?\$))'
    r'(?P<power>\s*\^\s*\{?[23]\}?)?')


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
  return re.sub(r'\{(\w)\}', r'\1', re.sub(r'\s+', '', text))


def items(text: str) -> list[str]:
  """Splits a list, or a set in braces, into its items."""
  text = text.strip()
  if text.startswith(r'\{') and text.find(r'\}') == len(text) - 2:
    text = text[2:-2]
  parts, depth, start = [], 0, 0
  for i, letter in enumerate(text + ','):
    if letter in '([{':
      depth += 1
    elif letter in ')]}':
      depth -= 1
    elif letter in ',;' and (depth <= 0 or i == len(text)):
      parts.append(text[start:i])
      start = i + 1
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
    digits = re.sub('[, ]', '', match['decimal'])
    is_exact = '.' not in digits and match['power'] is None
    value = fractions.Fraction(digits) * fractions.Fraction(10) ** int(
        match['power'] or 0)
  else:
    numerator, denominator = (
        int(re.sub('[, ]', '', digits)) for digits in (
            match['numerator'] or match['top'],
            match['denominator'] or match['bottom']))
    if not denominator:
      return None
    value = fractions.Fraction(numerator, denominator)
  if match['sign']:
    value = -value
  return Number(value, is_exact, bool(match['percent']), unit)


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
  tolerance = 0 if is_exact else min(
      RELATIVE_TOLERANCE * max(1, abs(gold)), MAX_TOLERANCE)
  return abs(x - gold) <= tolerance


def _unit_of(text: str) -> str | None:
  """Returns the canonical name of a unit, '' for none, None for other text.

  A single letter is a unit only in `\\text`; otherwise it may be a variable.
  """
  if not text:
    return ''
  match = _UNIT.fullmatch(text)
  if match is None:
    return None
  name = ' '.join((match['text'] or match['word']).split()).lower()
  name = name.removeprefix('\\')
  if match['word'] and name != '$' and (len(name) == 1 or name not in _UNITS):
    return None
  power = re.sub(r'\D', '', match['power'] or '')
  return _UNITS.get(name, name) + power
