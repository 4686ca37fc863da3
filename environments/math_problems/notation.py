"""Reads numbers and lists in the text of an answer, in LaTeX or plain.

An answer is one item, or several items in any order, separated by commas,
semicolons, `and` or `or`; `\\pm` stands for two items. Numbers are compared
here as exact fractions. `equivalence.py` compares everything else.
"""

import dataclasses
import fractions
import re
from typing import Any
import unicodedata

# Tolerances for decimals; integers and fractions must be equal.
_RELATIVE_TOLERANCE = fractions.Fraction(1, 10**6)
_ROUNDING = fractions.Fraction(5, 10**6)  # To six significant digits.
_NOISE = fractions.Fraction(1, 10**12)  # Of computations whose result is 0.
_MAX_TOLERANCE = fractions.Fraction(1, 10**3)

# `clean` writes `and` and `or` as these; they separate the items of a list.
CONNECTIVE = r'\\l(?:or|and)(?![a-z])'
_SCALES = {
    'hundred': 100, 'thousand': 10**3, 'million': 10**6, 'billion': 10**9,
    'trillion': 10**12}
_SCALE = rf'(?P<scale>{"|".join(_SCALES)})s?\b'
_BRACED = r'\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}'

_SYMBOL = (  # A command without arguments.
    r'\\(?!sqrt|text|frac|binom|bar|hat|vec|overline|math)[a-z]+(?![a-z])')


def _repeat(match: re.Match) -> str:
  """Writes a decimal with repeated digits as a fraction."""
  whole, fixed, *repeated = (x or '' for x in match.groups())
  repeated = re.sub(r'\D', '', ''.join(repeated))
  top = int(whole + fixed + repeated) - int(f'0{whole}{fixed}')
  return rf'\frac{{{top}}}{{{"9" * len(repeated)}{"0" * len(fixed)}}}'


def _drop_conditions(match: re.Match) -> str:
  """Drops conditions on the letters of a formula, which are not graded.

  Keeps other answers, as in `f(x)=0 for all x, or f(x)=x`, and other cases.
  """
  name = re.match(r'\s*([A-Za-z])\s*(?:\([^()]*\))?\s*=', match[1])
  kept = [
      part for part in split(match[2], rf'[,;]|{CONNECTIVE}')[1:]
      if re.search(r'\b(?:otherwise|for(?! all)|if|when)\b', part)
      or name and re.match(rf'{name[1]}\s*(?:\([^()]*\))?\s*=', part)]
  return ', '.join([match[1], *kept])


_REWRITES = tuple((re.compile(pattern, re.DOTALL), new) for pattern, new in (
    (r'\\\(|\\\)|\\\[|\\\]|(?<!\\)\$|\\displaystyle'
     r'|\\(?:left|right)(?![a-z])(?:\s*\.)?|\\[bB]igg?[lr]?(?![a-z])|\\!'
     r'|\\(?:text)?color\s*\{[^{}]*\}', ''),
    (r'(?<!\\)\\[,;: ]|\\q?quad\b|~|\\thinspace', ' '),
    (r'\\begin\s*\{(?:align\*?|aligned|gathered)\}(.*?)'
     r'\\end\s*\{(?:align\*?|aligned|gathered)\}',
     lambda match: match[1].replace(r'\\', ',').replace('&', '')),
    (r'\\begin\s*\{cases\}([^&]*?)\\end\s*\{cases\}',
     lambda match: match[1].replace(r'\\', ',')),
    # A quotient by an integer in brackets is a floor.
    (r'(?<!sqrt)\[(?=[^][(),;]*(?<![\\a-zA-Z])[a-z](?![a-z]))'
     r'([^][(),;+-]*/\s*\d+|\s*\\[dt]?frac\s*'
     r'(?:\{(?:[^{}()]|\{[^{}()]*\})*\}|\w)\s*(?:\{\d+\}|\d)\s*)\](?!\s*\^)',
     r'\\lfloor \1 \\rfloor '),
    (r'\\lbrace(?![a-z])', r'\\{'),
    (r'\\rbrace(?![a-z])', r'\\}'),
    # A set of real numbers with a property; conditions on a letter.
    (r'^\s*\\\{\s*([a-z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?)?\s*'
     r'(?:\\(?:middle\s*)?\||\\mid(?![a-z])|[|:])(.*\1.*)\\\}\s*$', r'\2'),
    (r'\(\s*([a-z]\s*\\in\s*\\mathbb[^()]*)\)\s*$', r', \1'),
    (r'\\(?:math(?:rm|bf|it|sf|tt)|text(?:bf|it|rm|sf|tt|normal)|mbox|pmb'
     r'|boldsymbol|bm|operatorname|boxed|fbox|underline)(?![a-z])', r'\\text'),
    (r'\\(text|vec|hat|bar|overline|mathbb)(?:\s+([a-zA-Z\d])|(\d))(?![a-zA-Z])',
     r'\\\1{\2\3}'),
    # Removes \text around a formula.
    (rf'\\text\s*{_BRACED}', lambda match: f' {match[1]} ' if re.search(
        r'(?<!\^)(?<!\^\{)\d|[=+\\]', match[1]) else match[0]),
    (r'(\\text\s*\{[^{}^]*)\^\{?([23])\}?\s*\}', r'\1}^\2'),  # cm^2
    (r'\\text\s*\{\s*\}', ' '),
    ('[\N{MINUS SIGN}\N{EN DASH}]', '-'),
    ('\N{SQUARE ROOT}\\s*(?:(\\d+|[a-z])|\\(([^()]*)\\))', r'\\sqrt{\1\2}'),
    ('[\N{VULGAR FRACTION ONE QUARTER}-\N{VULGAR FRACTION THREE QUARTERS}'
     '\N{VULGAR FRACTION ONE THIRD}-\N{VULGAR FRACTION SEVEN EIGHTHS}]',
     lambda match: r'\frac{{{}}}{{{}}}'.format(
         *unicodedata.normalize('NFKC', match[0])[::2])),
    (r'(?<![\d.,])(\d*)\.(\d*)\s*(?:\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))'
     r'|(\\dot\s*(?:\{\d\}|\d)(?:\d*\\dot\s*(?:\{\d\}|\d))?))', _repeat),
    ('\N{MULTIPLICATION SIGN}', r'\\times '),
    ('[\N{MIDDLE DOT}\N{DOT OPERATOR}]', r'\\cdot '),
    ('\N{INFINITY}', r'\\infty '),
    ('\N{LESS-THAN OR EQUAL TO}', r'\\le '),
    ('\N{GREATER-THAN OR EQUAL TO}', r'\\ge '),
    ('\N{SUPERSCRIPT TWO}', '^2'),
    (r'(?<![A-Za-z\\])(pi|sin|cos|tan|ln|log)(?![A-Za-z])', r'\\\1 '),
    (r'(?<![A-Za-z\\])sqrt\s+(\d+)', r'\\sqrt{\1}'),
    # The inner root of `sqrt(2 + sqrt(3))`, then the outer one.
    *[(r'(?<![A-Za-z\\])\\?sqrt\s*\(([^()]*)\)', r'\\sqrt{\1}')] * 2,
    (r'\\varnothing|\\\{\s*\\\}|\N{EMPTY SET}', r'\\emptyset '),
    (r'\\[dtc](frac|binom)', r'\\\1'),
    (r'\{([^{}]*)\\choose(?![a-z])([^{}]*)\}', r'\\binom{\1}{\2}'),
    (rf'\\(frac|binom)\s*(\d|(?<=\s)[a-zA-Z]|{_SYMBOL})', r'\\\1{\2}'),
    (rf'(\\(?:frac|binom)\s*{_BRACED})\s*([\da-zA-Z]|{_SYMBOL})', r'\1{\3}'),
    (rf'(\\binom\s*{_BRACED}\s*{_BRACED})\s*(?=\\binom|\\frac|[\w(])',
     r'\1 \\cdot '),
    (r'(?<=[\d)])(?<!\^.)\s*(?=\\binom)', r' \\cdot '),
    (r'\\lg(?![a-z])', r'\\log_{10}'),
    (r'\\log\s*_\s*(?:e(?![a-z])|\{\s*e\s*\})', r'\\ln '),
    (r'(?<=[\w)}])\s*\*\*\s*(?=[\w({\\-])', '^'),
    (r'((?<!\d)\d+|[a-zA-Z])!\s*\^', r'(\1!)^'),
    (r'\\equiv(?!.*mod)', '='),
    (r'^\s*\\approx(?![a-z])', ''),
    (r'^\s*(?:negative|minus)\s+(?=[\d\\])', '-'),
    (rf'\\text\s*\{{\s*({_SCALE}[^{{}}]*)\}}', r' \1 '),
    (r'(?<=\d)\{,\}(?=\d{3}(?!\d))', ''),  # Never between members of a list.
    (r'\{,\}', ','),
    (r'\\%|\\text\s*\{\s*per ?cents?\s*\}|\bper ?cents?\b', '%'),
    (r'\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-z]))|\\degree\b|°',
     r'\\text{degrees}'),
    (r'\\text\{degrees\}\s*(?:\\text\s*\{\s*([CF])\s*\}|([CF])\b)',
     r'\\text{degrees \1\2}'),
    (r'\^\s*(\{\s*(?:\\prime\s*)+\}|\\prime(?![a-z]))',
     lambda match: "'" * match[1].count('p')),
    # In formulas of logic these are no lists.
    (r'\\(?:lor|vee)(?![a-z])(?=.*(?:[=<>]|\\[lg]eq?))', ' or '),
    (r'\\(?:land|wedge)(?![a-z])(?=.*(?:[=<>]|\\[lg]eq?))', ' and '),
    (r'\\lor(?![a-z])', r'\\vee'),
    (r'\\land(?![a-z])', r'\\wedge'),
    (r'\\text\s*\{\s*,?\s*(and|or)\s*\}', r' \1 '),
    (r'\b(and|or)\b', r'\\l\1 '),
    (r'\\text\s*\{\s*,\s*\}', ','),
    (r',\s*(?:\.{3}|\\[lc]?dots(?![a-z]))', r',\\ldots '),
    (r'^(.*?),?\s*((?:\\text\s*\{\s*(?:where|for)\b|\b(?:where|for all)\b'
     r'|\\forall).*)', _drop_conditions),
    (r'\\not\s*=', r'\\ne '),
    (r'\s+', ' '),
    # A list would not contain 000.
    (r'(?<![\d.,])\d{1,3}(?:(?: \d{3})+(?!\d)|(?:,\d{3})*,0\d\d(?:,\d{3})*'
     r'(?!,?\d))', lambda match: re.sub('[, ]', '', match[0])),
    (r'^ ?\{([^{}]*)\} ?$', r'\1'),
))

_CURRENCIES = '\N{CENT SIGN}\N{EURO SIGN}\N{POUND SIGN}'
_DIGITS = r'(?:\d{1,3}(?:,\d{3})+|\d+)'
_NUMBER = re.compile(
    rf'(?P<sign>-?)\s*(?P<currency>\\?\$|[{_CURRENCIES}])?\s*'
    rf'(?:(?:(?P<whole>\d+) +)?(?P<numerator>{_DIGITS})\s*/\s*'
    rf'(?P<denominator>{_DIGITS})|(?P<factor>\d*)\s*'
    r'\\frac\s*\{\s*(?P<top>-?\d+)\s*\}\s*\{\s*(?P<bottom>-?\d+)\s*\}'
    rf'|(?P<decimal>(?:{_DIGITS}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{{1,3}})?))'
    rf'\s*(?:{_SCALE})?\s*(?P<percent>%?)(?P<unit>.*)', re.DOTALL)
# Names of a unit, the canonical one first.
_UNITS = {name: names.split()[0] for names in '''
    degree degrees deg, celsius C, fahrenheit F, $ dollar dollars usd,
    cent cents \N{CENT SIGN}, euro euros \N{EURO SIGN},
    m meter meters metre metres, cm centimeter centimeters,
    mm millimeter millimeters, km kilometer kilometers, ft foot feet,
    in inch inches, mile miles, yard yards yd, s sec secs second seconds,
    min minute minutes mins, h hour hours hr hrs, day days, week weeks,
    month months, year years yr yrs, kg kilogram kilograms, g gram grams, mg,
    lb pound pounds lbs \N{POUND SIGN}, oz ounce ounces, ton tons, ml, cup cups,
    pint pints, quart quarts, gallon gallons, liter liters litre litres l L,
    km/h kmph kph, mile/h mph, unit units, radian radians rad,
    person persons people, child children, man men, woman women, path paths,
    way ways, fish, sheep'''.split(',') for name in names.split()}
_UNIT = re.compile(
    r'(?:\\text\s*\{(?P<text>[^{}]*)\}'
    rf'|(?P<word>/?[a-zA-Z][a-zA-Z/ .]*|\\?\$|[{_CURRENCIES}]))'
    r'\s*(?P<power>\^\s*\{?[23]\}?)?')
_POWERS = {
    'square': '2', 'sq': '2', 'cubic': '3', 'degree': '', 'degrees': ''}
_ATTRIBUTE = re.compile(r'(?<=\w) (?:away|deep|high|left|long|old|tall|wide)$')
# Counted things, without words that change the number or count nothing.
_PLURAL = re.compile(
    r'(?!hundred|thousand|lakh|crore|dozen|half|halve|third|quarter|[a-z]*illion'
    r'|(?:scores|grosses|pairs|doubles|triples|times|minus|plus'
    r'|(?:one|two|three|four|five|sixe|seven|eight|nine|ten|eleven|twelve'
    r'|[a-z]*teen|(?:twen|thir|for|fif|six|seven|eigh|nine)tie)s'
    r'|(?:cosine|factorial|inverse|log|negative|reciprocal|sine|tangent)s'
    r'|alas|always|besides|does|equals|gives|has|implies|its|lies|means|perhaps'
    r'|sometimes|this|thus|versus|was|yes)\b)[a-z]{3,}(?<!th)(?<!s)s')


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


def choice_of(text: str) -> str:
  """The letter of `E`, `(E)` or `\\text{(E)}`; '' for other texts."""
  match = re.fullmatch(r'\(?([A-Za-z])\)?', _bare(text))
  return match[1] if match else ''


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
  parts = split(text, rf'[,;]|{CONNECTIVE}')
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
  if match['currency'] and (not unit or unit.startswith('/')):
    unit = _UNITS[match['currency'].removeprefix('\\')] + unit
  is_exact = True
  if match['decimal'] is not None:
    digits = match['decimal'].replace(',', '')
    is_exact = digits.isdigit()
    value = fractions.Fraction(digits)
  else:
    numerator, denominator = (
        int(digits.replace(',', '')) for digits in (
            match['numerator'] or match['top'],
            match['denominator'] or match['bottom']))
    if not denominator or match['factor'] and min(numerator, denominator) < 0:
      return None
    value = fractions.Fraction(numerator, denominator) + int(
        match['whole'] or match['factor'] or 0)
  value *= _SCALES.get(match['scale'], 1)
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

  50% equals 0.5. 50 equals 50% as well if the gold answer is 50% or 50.
  """
  if answer.unit and (gold.is_percent or gold.unit not in ('', answer.unit)):
    return False
  is_exact = answer.is_exact and gold.is_exact
  ratios = [x.value / (100 if x.is_percent else 1) for x in (answer, gold)]
  if _is_close(*ratios, is_exact):
    return True
  # Golds of problems that ask for a percentage may be bare.
  is_percentage = gold.is_percent or (
      gold.is_exact and gold.value.denominator == 1 and gold.value > 1
      and not gold.unit)
  return is_percentage and gold.is_percent != answer.is_percent and _is_close(
      answer.value, gold.value, is_exact)


def _is_close(
    x: fractions.Fraction, gold: fractions.Fraction, is_exact: bool) -> bool:
  return abs(x - gold) <= (0 if is_exact else tolerance(abs(gold)))


def tolerance(size: Any) -> Any:
  """Returns how far a decimal may be from a number of this absolute value."""
  return _NOISE if not size else min(
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
  names = (match['text'] if is_text else match['word']).replace('.', '')
  names = _ATTRIBUTE.sub('', names.strip().removeprefix('\\'))
  names = [name.strip() for name in re.split(r'/|\bper\b', names)]
  if len(names[0]) == 1 and not is_text and names[0].isalpha():
    return None
  canonical = [] if names[0] else ['']
  for name in names[len(canonical):]:
    prefix, _, last = name.rpartition(' ')
    if len(last) > 1:
      prefix, last = prefix.lower(), last.lower()  # M is not a metre.
    name = _UNITS.get(last) or (last if _PLURAL.fullmatch(last) else None)
    if name is None or prefix and prefix not in _POWERS:
      return None
    canonical.append(name + _POWERS.get(prefix, ''))
  return '/'.join(canonical) + re.sub(r'\D', '', match['power'] or '')
