"""Values as JSON text, and back.

Arguments enter a program in this form, and its values leave in it. JSON lacks
tuples, sets, bytes, complex numbers and keys other than strings; such values
become objects with one key, which names the type:

  (1, 'a')   {"tuple": [1, "a"]}
  {1: b'x'}  {"dict": [[1, {"bytes": "x"}]]}

A value is encoded in the program's process and decoded outside. Decoding builds
values of the types in this module, whatever the text: no code of a program
runs, and `==`, `repr` and UTF-8 work on the result. A text can crash
`ast.literal_eval` together with its process, so it is not used.

`==` gives the same results for the decoded value, except for programs' classes:

- An instance of a subclass that inherits `==`, such as a namedtuple or a member
  of an IntEnum, becomes an instance of the base.
- Other instances, functions and classes become `Opaque`.

Mappings become dictionaries, and iterators become iterators over lists. Numbers
of sympy become Python's, and so do those of numpy that are no less precise.

Importing this module raises the number of digits that Python converts between
ints and text to MAX_DIGITS.
"""

from __future__ import annotations

import collections
import collections.abc
from collections.abc import Sequence
import itertools
import json
import re
import sys
import types
from typing import Any, NamedTuple

MAX_DEPTH = 100
MAX_REQUEST_DEPTH = 150  # A request may hold returned values.
MAX_ITERATED = 100_000  # Values of an iterator.
MAX_DIGITS = 50_000  # As in the grader of LiveCodeBench.
# A program can choose elements with equal hashes, and n of them take n**2
# comparisons. This is the maximum for all elements of a value.
MAX_COMPARISONS = 100_000
# Digits of decimal numbers, whose conversion takes quadratic time. Larger ints
# are hexadecimal.
_MAX_DECIMAL = 4300
_LARGE = 10 ** _MAX_DECIMAL
_MAX_BITS = 166_096  # Every int of this size has at most MAX_DIGITS digits.

sys.set_int_max_str_digits(MAX_DIGITS)


class Call(NamedTuple):
  """A call of a function."""

  arguments: tuple
  keywords: dict[str, Any]
  # Index of an earlier call whose value is called instead; or None.
  target: int | None = None


class Opaque:
  """A value of another type. It has a truth, and is equal only to itself."""

  def __init__(self, type_name: str, truth: bool, is_callable: bool):
    self.type_name = type_name
    self.truth = truth
    self.is_callable = is_callable

  def __bool__(self) -> bool:
    return self.truth

  def __repr__(self) -> str:
    return f'<{self.type_name} object>'


class Iterator:
  """An iterator over a list."""

  def __init__(self, values: Sequence):
    self.values = collections.deque(values)

  def __iter__(self) -> Iterator:
    return self

  def __next__(self) -> Any:
    if not self.values:
      raise StopIteration
    return self.values.popleft()

  def __repr__(self) -> str:
    return f'<iterator over {list(self.values)}>'


# `__eq__` of a type -> its name in a text, and a function from a value to the
# content, a text or values. Subclasses that inherit `__eq__` are included.
_CONTENTS = {
    complex.__eq__: ('complex', lambda x: (x.real, x.imag)),
    bytes.__eq__: ('bytes', lambda x: bytes.decode(x, 'latin-1')),
    bytearray.__eq__: ('bytearray', lambda x: bytearray.decode(x, 'latin-1')),
    tuple.__eq__: ('tuple', tuple.__iter__),
    set.__eq__: ('set', set.__iter__),
    frozenset.__eq__: ('frozenset', frozenset.__iter__),
    collections.deque.__eq__: ('deque', lambda x: (list(x), x.maxlen)),
    range.__eq__: ('range', lambda x: (x.start, x.stop, x.step)),
    dict.__eq__: ('dict', dict.items),
    collections.Counter.__eq__: ('Counter', dict.items),
    collections.OrderedDict.__eq__: (  # `dict.items` has another order.
        'OrderedDict', collections.OrderedDict.items),
    type({}.keys()).__eq__: ('keys', iter),
    type({}.items()).__eq__: ('items', iter)}
# `__eq__` of a type -> function from a value to an equal one of another type.
_SIMPLER = {
    memoryview.__eq__: bytes,
    types.MappingProxyType.__eq__: dict,
    collections.abc.Mapping.__eq__: dict,
    collections.abc.Set.__eq__: set,
    collections.UserList.__eq__: lambda x: x.data,
    collections.UserString.__eq__: lambda x: x.data}
# Name in a text -> function from the list of decoded values.
_FROM_VALUES = {
    'tuple': tuple, 'set': set, 'frozenset': frozenset,
    'deque': lambda values: collections.deque(
        _checked(values[0], list), *values[1:]), 'dict': dict,
    'Counter': lambda pairs: collections.Counter(dict(pairs)),
    'OrderedDict': collections.OrderedDict,
    'keys': lambda keys: dict.fromkeys(keys).keys(),
    'items': lambda pairs: dict(pairs).items(),
    'values': lambda values: dict(enumerate(values)).values(),
    'iterator': Iterator}
_SIMPLE = {type(None), bool, float}
_NUMBERS = {int, *_SIMPLE}
_HASHED = ('set', 'frozenset', 'keys')
_PAIRS = ('dict', 'Counter', 'OrderedDict', 'items')
_ROUNDED = {'float32': 'float64', 'complex64': 'complex128'}
_ARRAY = re.compile(
    r'bool|object|u?int\d{1,2}|float(32|64)|complex(64|128)')


def encode(value: Any, is_request: bool = False) -> str:
  """Text of a value.

  Raises ValueError for a value that is nested too deep or has a lone surrogate,
  and in a request for an object of a type that is not above.
  """
  return json.dumps(_to_json(
      value, MAX_REQUEST_DEPTH if is_request else MAX_DEPTH, is_request))


def decode(text: str | bytes, is_request: bool = False) -> Any:
  """Value of a text; ValueError if `encode` cannot have written it."""
  try:
    return _Decoder().decode(
        json.loads(text, parse_int=_parse_int),
        MAX_REQUEST_DEPTH if is_request else MAX_DEPTH)
  except (ArithmeticError, LookupError, RecursionError, TypeError) as error:
    raise ValueError(f'not a value: {error}') from error


def call(module: types.ModuleType, names: str, request: str) -> str:
  """Calls a function of a program, see `Sandbox.call`.

  Args:
    module: the program.
    names: alternative names of the function, separated by `|`.
    request: text of a list of `Call`s, which are made in order, and of whether
      the arguments are returned.

  Returns the text of the last value, or of a tuple of this value and the
  positional and keyword arguments after the call. Raises SystemExit if there is
  none.
  """
  calls, returns_arguments = decode(request, is_request=True)
  function = _find(module, names.split('|'))
  values = []
  for arguments, keywords, target in calls:
    called = function if target is None else values[target]
    values.append(called(*arguments, **keywords))
  value = values[-1]
  try:
    return encode((value, arguments, keywords) if returns_arguments else value)
  except ValueError as error:
    sys.exit(f'The value of {names} cannot be returned: {error}.')


def _find(module: types.ModuleType, names: Sequence[str]) -> Any:
  """The object with the first name that exists, or else with the first."""
  name = next((x for x in names if _exists(module, x)), names[0])
  found = module
  for part in name.split('.'):
    found = getattr(found, part.removesuffix('()'))
    if part.endswith('()'):
      found = found()
  return found


def _exists(found: Any, name: str) -> bool:
  """True if a name exists; calls nothing."""
  for part in name.replace('()', '').split('.'):
    if not hasattr(found, part):
      return False
    found = getattr(found, part)
  return True


def _to_json(value: Any, depth: int, is_request: bool) -> Any:
  if not depth:
    raise ValueError('it is nested too deep')
  kind = type(value)
  if kind in _SIMPLE:
    return value
  equality = kind.__eq__
  if equality is str.__eq__:
    value = str.__str__(value)
    value.encode()  # Raises ValueError for a lone surrogate.
    return value
  if equality is int.__eq__:
    value = int.__int__(value)
    return value if -_LARGE < value < _LARGE else {'int': hex(value)}
  if equality is float.__eq__:
    return float.__float__(value)
  if equality is list.__eq__:
    return [_to_json(x, depth - 1, is_request) for x in list.__iter__(value)]
  if equality in _SIMPLER:
    return _to_json(_SIMPLER[equality](value), depth - 1, is_request)
  if equality in _CONTENTS:
    name, content_of = _CONTENTS[equality]
    content = content_of(value)
  else:
    name, content = _describe(value, kind)
    if is_request and name == 'object' and kind is not Opaque:
      raise ValueError(f'it has a {kind.__name__!r}, which is not plain')
  if name == 'number':
    return _to_json(content, depth - 1, is_request)
  if name in _PAIRS:
    content = [
        [_to_json(x, depth - 1, is_request) for x in pair] for pair in content]
  elif type(content) is not str:
    content = [_to_json(x, depth - 1, is_request) for x in content]
  return {name: content}


def _describe(value: Any, kind: type) -> tuple[str, Any]:
  """Name and content of a type that is not in `_CONTENTS`."""
  if kind is Opaque:
    return 'object', (value.type_name, value.truth, value.is_callable)
  if kind is Iterator:
    return 'iterator', list(value.values)
  if isinstance(value, type({}.values())):
    return 'values', value
  # A program that never imported a module has no value of it.
  decimal, fractions, numpy, sympy = map(
      sys.modules.get, ('decimal', 'fractions', 'numpy', 'sympy'))
  # 0.1 equals float32(0.1), but not float(float32(0.1)).
  if numpy and isinstance(
      value, (numpy.ndarray, numpy.float32, numpy.complex64)):
    value = numpy.asarray(value)  # Without a mask, and not a matrix.
    name = value.dtype.name if value.dtype.kind in 'biufc' else 'object'
    if not _ARRAY.fullmatch(name):  # Half or long double.
      name = 'complex128' if value.dtype.kind == 'c' else 'float64'
    return 'numpy', (name, list(value.shape), value.ravel().tolist())
  if numpy and isinstance(value, numpy.floating):
    return 'number', float(value)
  if numpy and isinstance(value, numpy.complexfloating):
    return 'number', complex(value)
  if numpy and isinstance(value, numpy.generic):
    return 'number', value.item()
  if sympy and isinstance(value, (sympy.Integer, sympy.Float)):
    return 'number', (int if value.is_Integer else float)(value)
  if sympy and isinstance(value, sympy.logic.boolalg.BooleanAtom):
    return 'number', bool(value)
  if sympy and isinstance(value, sympy.Rational):
    return 'Fraction', (value.p, value.q)
  if fractions and kind.__eq__ is fractions.Fraction.__eq__:
    return 'Fraction', (value.numerator, value.denominator)
  if decimal and kind.__eq__ is decimal.Decimal.__eq__:
    return 'Decimal', decimal.Decimal.__str__(value)
  if hasattr(kind, '__next__') and kind.__eq__ is object.__eq__:
    values = list(itertools.islice(value, MAX_ITERATED + 1))
    if len(values) > MAX_ITERATED:
      raise ValueError(
          f'it has an iterator over more than {MAX_ITERATED} values')
    return 'iterator', values
  return 'object', (kind.__name__, bool(value), callable(value))


class _Decoder:
  """Decodes one value and counts the comparisons that it takes."""

  def __init__(self):
    self._num_comparisons = 0

  def decode(self, node: Any, depth: int) -> Any:
    if not depth:
      raise ValueError('it is nested too deep')
    if type(node) is list:
      return [
          x if type(x) in _NUMBERS else self.decode(x, depth - 1) for x in node]
    if type(node) is str:
      node.encode()  # Raises ValueError for a lone surrogate.
      return node
    if type(node) is not dict:
      return node
    (name, content), = node.items()
    if name in _PAIRS:
      pairs = [
          (self.decode(k, depth - 1), self.decode(v, depth - 1))
          for k, v in _checked(content, list)]
      self._check_hashes([key for key, _ in pairs])
      return _FROM_VALUES[name](pairs)
    if name in _FROM_VALUES:
      values = self.decode(_checked(content, list), depth)
      if name in _HASHED:
        self._check_hashes(values)
      return _FROM_VALUES[name](values)
    if name == 'numpy':
      name, shape, values = content
      return _array(name, shape, self.decode(_checked(values, list), depth))
    return _SCALARS[name](content)

  def _check_hashes(self, elements: Sequence) -> None:
    num_equal = len(elements) - len(set(map(hash, elements)))
    self._num_comparisons += num_equal ** 2
    if self._num_comparisons > MAX_COMPARISONS:
      raise ValueError('too many elements have equal hashes')


def _array(name: str, shape: Sequence[int], values: Sequence) -> Any:
  """An array or number of numpy, which is loaded only now."""
  import numpy as np
  if not _ARRAY.fullmatch(name):
    raise ValueError(f'not a value: unknown array of {name!r}')
  array = np.empty(len(values), name)
  for index, value in enumerate(values):
    array[index] = value
  # Comparing a float32 with a number of Python rounds the number. All numbers
  # above the largest float32 would equal infinity.
  if array.dtype.name in _ROUNDED and not np.isfinite(array).all():
    array = array.astype(_ROUNDED[array.dtype.name])
  return array.reshape(shape)[()]  # A number if there are no dimensions.


def _complex(content: Any) -> complex:
  real, imaginary = content
  return complex(_checked(real, float), _checked(imaginary, float))


def _large_int(content: Any) -> int:
  value = int(_checked(content, str), 16)
  if value.bit_length() > _MAX_BITS:
    raise ValueError(f'it has an int of more than {MAX_DIGITS} digits')
  return value


def _fraction(content: Any) -> Any:
  import fractions
  numerator, denominator = content
  return fractions.Fraction(
      _checked(numerator, int), _checked(denominator, int))


def _decimal(content: Any) -> Any:
  import decimal
  if len(_checked(content, str)) > _MAX_DECIMAL:
    raise ValueError(f'it has a Decimal of more than {_MAX_DECIMAL} digits')
  value = decimal.Decimal(content)
  # Conversions and comparisons write the exponent out.
  if value.is_finite() and abs(value.adjusted()) > _MAX_DECIMAL:
    raise ValueError(f'it has a Decimal of more than {_MAX_DECIMAL} digits')
  return value


def _opaque(content: Any) -> Opaque:
  name, truth, is_callable = content
  _checked(name, str).encode()
  return Opaque(name, _checked(truth, bool), _checked(is_callable, bool))


_SCALARS = {
    'bytes': lambda x: _checked(x, str).encode('latin-1'),
    'bytearray': lambda x: bytearray(_checked(x, str).encode('latin-1')),
    'complex': _complex,
    'int': _large_int,
    'range': lambda x: range(*(_checked(i, int) for i in _checked(x, list))),
    'Fraction': _fraction,
    'Decimal': _decimal,
    'object': _opaque}


def _parse_int(digits: str) -> int:
  if len(digits) > _MAX_DECIMAL + 1:  # With a sign.
    raise ValueError(f'not a value: an int has {len(digits)} digits')
  return int(digits)


def _checked(content: Any, kind: type) -> Any:
  if type(content) is not kind:
    raise ValueError(f'not a value: {kind.__name__} expected')
  return content
