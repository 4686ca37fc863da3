"""Decides whether an answer equals the gold answer.

This module reads lists, tuples, intervals, sets and equations, whose members
`notation.py` compares as numbers with units, or `formulas.py` as formulas:

  lists and sets   in any order, with repetitions
  tuples           in order; brackets may be missing but not differ
  name = value     the name may be missing on one side but not differ; several
                   names give their values an order
  other equations  equal another equation, not their right side
  x < 1 or x > 2   equals the union of two intervals

`grader.py` limits time and memory.
"""

from collections.abc import Sequence
import itertools
import math
import re

from environments.math_problems import formulas
from environments.math_problems import notation

# A text, a word or a command, which are longer than one letter; or a variable.
_LETTER = re.compile(
    r'\\text\s*\{[^{}]*\}|(?<![A-Za-z])[a-z]{3,}(?![A-Za-z])|\\[A-Za-z]+'
    r'|[A-DF-Za-df-z]|(?<!\d)[Ee]|[Ee](?![-+]?\d)')  # 1e5 has no letter.
_GREEK = re.compile(
    r'\\(?:Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega)'
    r'(?![A-Za-z])')
_FREE_LETTERS = 'qkhwvuzjpgtsrlcbanmxy'  # None is a constant such as e or i.
_MEMBER = r'\\in(?![a-z])'
_EQUALS = rf'(?<![<>!\\]):?=|{_MEMBER}'
_SUBSCRIPT = r"(?:\s*_\s*(?:\w|\\[a-z]+|\{[^{}]*\}))?'*"
_POINTS = rf'(?:[A-Z]{_SUBSCRIPT}\s*)+'
_LETTERS = (
    rf'(?:{_POINTS}|(?:[a-z]|\\(?:text|mathbb)\s*\{{[^{{}}]*\}}'
    r'|\\(?i:(?:var)?(?:epsilon|phi|theta)|alpha|beta|gamma|delta|zeta|eta'
    r'|kappa|lambda|mu|nu|xi|rho|sigma|tau|chi|psi|omega)(?![a-z])|\\ell'
    r'|(?i:answer|area|distance|height|length|max|min|perimeter|probability'
    rf'|product|radius|ratio|sum|total|value|volume|width)){_SUBSCRIPT})')
# The left side of a definition: a letter, the points of a segment or angle, a
# word, a function of something, or a tuple of letters.
_NAME = re.compile(
    r'(?:\\(?:angle|triangle|arg|cos|cot|deg|det|dim|gcd|lcm|max|min|sin|tan)'
    rf'\s*)*(?:\\(?:overline|overrightarrow|vec|hat|bar)\s*\{{{_LETTERS}\}}'
    rf'|\|[A-Z]\s*[A-Z]\||\[{_POINTS}\]|\({_LETTERS}(?:,\s*{_LETTERS})+\)'
    rf'|{_LETTERS}(?:\s*:\s*{_LETTERS})+'
    rf'|{_LETTERS}(?:\^\s*\{{-1\}})?)'
    r'\s*(?:\((?:[^()]|\([^()]*\))*\)|\[[^][]*\])?')
# What a problem asks for beside a name, as in `m+n=33`.
_POWER = r'[a-z](?:\^\s*\{?\d\}?)?'
_ASKED = re.compile(
    rf'(?:{_POWER}(?:\s*\+\s*{_POWER})+|\|[A-Z]\||[A-Z]{{2}}\^\s*\{{?2\}}?)\s*=')
# Letters and digits in an order: points, the name of a figure, a hexadecimal.
_ORDERED = re.compile(
    r'(?:\\(?:triangle|angle)\s*)?[A-Z](?:\s*[A-Z])+'
    r'|[0-9A-F]*[A-F][0-9]+[A-F][0-9A-F]*')
_CLOCK = re.compile(r'\d{1,2}:[0-5]\d')  # A time of day, not a ratio.
# The name of a segment, angle or area at the start of a definition.
_FIGURE = re.compile(
    rf'(?:^|[,;])[^=,;]*?(?:[A-Z]{_SUBSCRIPT}\s*){{2,}}[^=,;]*=')
_LIST_IN_BRACKETS = re.compile(r'[(\[{][^][(){}]*,')
_FUNCTION = re.compile(r'[A-Za-z]\s*\(\s*([a-z])\s*\)')


def equivalent(answer: str, gold: str) -> bool:
  """Compares two answers in LaTeX, with or without dollar signs."""
  answer, gold = notation.clean(answer), notation.clean(gold)
  if not answer or not gold:
    return False
  choices = notation.choice_of(answer), notation.choice_of(gold)
  if all(choices):
    letters = {x.lower() for x in choices}
    return choices[0] == choices[1] or len(letters) == 1 and not (
        letters & {'e', 'i'})  # One of each is a constant.
  return notation.same_text(answer, gold) or _same_lists(
      *_rename_capitals(answer, gold))


def _rename_capitals(answer: str, gold: str) -> tuple[str, str]:
  """Renames capitals that math-verify would take for small letters.

  It reads `R` and `r`, or `\\Delta` and `\\delta`, as the same variable, and
  `E` and `I` as constants.
  """
  texts = [_FIGURE.sub('', text) for text in (answer, gold)]
  letters = [*map(_letters, texts)]
  capitals = sorted({
      x for text_letters in letters for x in text_letters
      if x.isupper() and x.lower() in text_letters})
  used = {x.lower() for text_letters in letters for x in text_letters}
  for text, other in (texts, texts[::-1]):
    for x in set('EI') - set(other):
      is_alone = re.search(rf'(?<![A-Za-z\\]){x}(?![A-Za-z])', text)
      if is_alone and (x.lower() in other or not _letters(other)):
        capitals.append(x)
  capitals += sorted({*_GREEK.findall(answer), *_GREEK.findall(gold)})
  names = dict(zip(capitals, (x for x in _FREE_LETTERS if x not in used)))

  def rename(match):
    return match[0] if '=' in match[0] else names.get(match[0], match[0])

  return tuple(
      re.sub(f'{_FIGURE.pattern}|{_LETTER.pattern}', rename, _GREEK.sub(
          lambda match: f' {names.get(match[0], match[0])} ', text))
      for text in (answer, gold))


def _same_lists(answer: str, gold: str) -> bool:
  """Compares two texts of one or several items."""
  numbers = notation.number_of(answer), notation.number_of(gold)
  answers, golds = _items(answer), _items(gold)
  if any(numbers) and not _LIST_IN_BRACKETS.search(answer + gold):
    # A number equals no list, so its commas are for thousands.
    joined = [
        _items(re.sub(r'(?<=\d),(?=\d{3}(?!\d))', '', x))
        for x in (answer, gold)]
    if {*map(len, joined)} == {1}:
      answers, golds = joined
  if len(answers) != len(golds):
    answers, golds = map(_expand_chain, (answers, golds))
  connectives = [formulas.connectives(x) for x in (answer, gold)]
  if any(connectives) and (
      len(answers) != len(golds)
      or all(connectives) and connectives[0] != connectives[1]):
    named = [(text, *_definition(text)) for text in (answer, gold)]
    return formulas.same_formula(*(
        values[-1] if name else text for text, name, values in named))
  if len(answers) == len(golds):
    return bool(golds) and _same_items(answers, golds)
  if any(numbers) or 1 not in (len(answers), len(golds)):
    return False
  order = 1 if len(answers) == 1 else -1  # Of pairs that begin with `single`.
  (single,), others = (answers, golds)[::order]
  _, other_text = (answer, gold)[::order]
  name, values = _definition(single)
  names = [_definition(x)[0] for x in others]
  if name and {*names} <= {'', name}:
    if re.search(_MEMBER, single) and (
        notation.brackets(values[-1])[0] in ('(', '[')):
      return False  # An interval is no list.
    return _same_lists(*(values[-1], other_text)[::order])
  if notation.brackets(single) != ('(', ')'):
    # A set in another form.
    listed = ', '.join(_definition(x)[1][-1] for x in others)
    return len({*names} - {''}) < 2 and formulas.same_formula(
        *(single, rf'\{{{listed}\}}')[::order])
  # A tuple without its brackets; a set has no order.
  members = notation.split(single[1:-1], '[,;]')
  is_set = notation.brackets(other_text)[0] == r'\{'
  if is_set or len(members) != len(others) or any(
      x and names.count(x) > 1 for x in names):
    return False
  return _same_items(members, golds) if len(answers) == 1 else (
      all(map(_same_item, answers, members)))


def _items(text: str) -> list[str]:
  """Splits a list, and `(a, b) = (1, 2)` into `a = 1` and `b = 2`."""
  items = notation.items(text)
  tuples = [
      notation.split(side[1:-1], '[,;]') for side in notation.split(text, '=')
      if notation.brackets(side) == ('(', ')')]
  if len(tuples) == 2 and len(tuples[0]) == len(tuples[1]) > len(items):
    return [f'{name}={value}' for name, value in zip(*tuples)]
  return items


def _expand_chain(items: Sequence[str]) -> Sequence[str]:
  """Splits `x = y = 5` into `x = 5` and `y = 5`."""
  *names, value = notation.split(items[0], _EQUALS) if len(items) == 1 else ['']
  if len(names) < 2 or not all(map(_NAME.fullmatch, names)):
    return items
  return [f'{name}={value}' for name in names]


def _same_items(answers: Sequence[str], golds: Sequence[str]) -> bool:
  """True if every gold item equals another answer.

  The order matters for answers without a name if the gold answer has several
  names.
  """
  names = {_definition(x)[0] for x in golds} - {''}
  unmatched = list(golds)
  for answer in sorted(answers, key=lambda x: not _definition(x)[0]):
    # Equal texts first, because formulas are slow to compare.
    candidates = sorted(
        unmatched, key=lambda x: not notation.same_text(answer, x))
    if len(names) > 1 and not _definition(answer)[0]:
      candidates = unmatched[:1]
    match = next((x for x in candidates if _same_item(answer, x)), None)
    if match is None:
      return False
    unmatched.remove(match)
  return not unmatched


def _same_item(answer: str, gold: str) -> bool:
  if notation.same_text(answer, gold):
    return True
  numbers = notation.number_of(answer), notation.number_of(gold)
  if all(numbers):
    return notation.same_number(*numbers)
  if numbers[1] and (asked := _ASKED.match(answer)):
    return _same_item(answer[asked.end():].strip(), gold)
  (name, values), (gold_name, gold_values) = (
      _definition(answer), _definition(gold))
  functions = _FUNCTION.fullmatch(name), _FUNCTION.fullmatch(gold_name)
  if all(functions):  # f(x) = x + 1 equals f(n) = n + 1.
    letter, gold_letter = functions[0][1], functions[1][1]
    if letter != gold_letter and gold_letter in _letters(' '.join(values)):
      return False
    values = [
        _LETTER.sub(lambda match: gold_letter if match[0] == letter
                    else match[0], x) for x in values]
    name = name[0] + gold_name[1:]
  if name and gold_name and notation.same_text(name, gold_name) or (
      name and not gold_name and len(gold_values) == 1):
    return _same_chain(values, gold_values[-1])
  if len(values) == 1 and not name:
    if gold_name:
      return _same_item(answer, gold_values[-1])
    return len(gold_values) == 1 and _same_form(answer, gold)
  if len(gold_values) == 1 and not gold_name:
    return all(_same_item(x, gold) for x in values)
  # Points commute in a formula: the angles ABC and CAB would be equal.
  if any(re.search('[A-Z].*[A-Z]|:', x) for x in (name, gold_name)):
    return False
  return formulas.same_formula(answer, gold)


def _definition(text: str) -> tuple[str, list[str]]:
  """Returns a name, or '', and all sides of an equation without the name."""
  sides = notation.split(text, _EQUALS)
  is_member = re.search(_MEMBER, text) is not None
  if len(sides) > 1 and all(sides):
    if _NAME.fullmatch(sides[0]):
      if not is_member or not notation.number_of(sides[1]):
        return sides[0], sides[1:]
    elif len(sides) == 2 and not is_member and _NAME.fullmatch(sides[1]):
      return sides[1], sides[:1]
  return '', sides


def _same_chain(sides: Sequence[str], gold: str) -> bool:
  """Compares `x = a + b = 5`; sides with other letters are not checked."""
  *sides, value = sides
  return _same_item(value, gold) and all(
      _same_item(x, gold) for x in sides if _letters(x) <= _letters(gold))


def _letters(text: str) -> set[str]:
  return {x for x in _LETTER.findall(text) if len(x) == 1}


def _same_form(answer: str, gold: str) -> bool:
  """Compares two tuples, intervals, sets, ratios or formulas."""
  if all(map(_ORDERED.fullmatch, (answer, gold))):
    return False  # Formulas would commute.
  if all(map(_CLOCK.fullmatch, (answer, gold))) and (
      math.gcd(*map(int, gold.split(':'))) > 1):  # A ratio would be reduced.
    return answer.lstrip('0') == gold.lstrip('0')
  ratio, gold_ratio = (notation.split(x, ':') for x in (answer, gold))
  if max(len(ratio), len(gold_ratio)) > 2:
    return len(ratio) == len(gold_ratio) and _is_proportional(
        ratio, gold_ratio)
  brackets = notation.brackets(answer), notation.brackets(gold)
  members = [
      notation.split(text[len(left):-len(right)], '[,;]') if left else [text]
      for text, (left, right) in zip((answer, gold), brackets)]
  if not all(x[0] for x in brackets) or max(map(len, members)) == 1:
    (answer, unit), (gold, gold_unit) = (
        notation.split_unit(answer), notation.split_unit(gold))
    return (not unit or gold_unit in ('', unit)) and (
        formulas.same_formula(answer, gold))
  if brackets[0] != brackets[1] or len(members[0]) != len(members[1]):
    return False
  if brackets[0][0] == r'\{':
    return _same_items(*members)
  return all(map(_same_item, *members))


def _is_proportional(ratio: Sequence[str], gold: Sequence[str]) -> bool:
  """Compares ratios such as 1:2:3, which are equal up to a factor."""
  return not all(formulas.same_formula(x, '0') for x in ratio) and all(
      formulas.same_formula(rf'({x})\cdot({gold_y})', rf'({y})\cdot({gold_x})')
      for (x, gold_x), (y, gold_y) in itertools.combinations(
          zip(ratio, gold), 2))
