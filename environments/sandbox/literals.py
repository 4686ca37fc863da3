"""Values as JSON text, and back.

Arguments enter a program in this form, and its values leave in it. JSON lacks
tuples, sets, bytes, complex numbers and keys other than strings; such values
become objects with one key, which names the type:

  (1, 'a')   {"tuple": [1, "a"]}
  {1: b'x'}  {"dict": [[1, {"bytes": ["x"]}]]}

A value is encoded in the program's process and decoded outside. Decoding builds
values of the types in this module, whatever the text: no code of a program
runs, and `==`, `repr` and UTF-8 work on the result. A text can crash
`ast.literal_eval` together with its process, so it is not used.

A decoded value is equal to no other value than the original was:

- An instance of a subclass that inherits `==`, such as a namedtuple or a member
  of an IntEnum, becomes an instance of the base, and a Counter a dictionary.
- Iterators and views of the values of dictionaries become iterators over lists.
- Numbers of numpy become Python's, and the dtypes of arrays those in `_ARRAYS`
  or `object`.
- Other instances, functions and classes become `Opaque`.

Importing this module raises the number of digits that Python converts between
ints and text to MAX_DIGITS.
"""

import collections
from collections.abc import Iterator, MappingView, Sequence
import copy
import copyreg
import itertools
import json
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


_SIMPLE = {type(None), bool, float}
_NUMBERS = {int, *_SIMPLE}
_LIST_ITERATOR = type(iter([]))
# `__eq__` of a type -> its name in a text, and a function from a value to its
# parts. Subclasses that inherit `__eq__` are included.
_PARTS = {
    complex.__eq__: ('complex', lambda x: (x.real, x.imag)),
    bytes.__eq__: ('bytes', lambda x: [bytes.decode(x, 'latin-1')]),
    tuple.__eq__: ('tuple', tuple.__iter__),
    set.__eq__: ('set', set.__iter__),
    frozenset.__eq__: ('frozenset', frozenset.__iter__),
    collections.deque.__eq__: ('deque', collections.deque.__iter__),
    range.__eq__: ('range', lambda x: (x.start, x.stop, x.step)),
    dict.__eq__: ('dict', dict.items),
    collections.Counter.__eq__: ('dict', dict.items),
    collections.OrderedDict.__eq__: (  # `dict.items` has another order.
        'OrderedDict', collections.OrderedDict.items),
    type({}.keys()).__eq__: ('keys', iter),
    type({}.items()).__eq__: ('items', iter)}
# Name in a text -> function from a list of pairs, or of values.
_FROM_PAIRS = {
    'dict': dict, 'OrderedDict': collections.OrderedDict,
    'items': lambda pairs: dict(pairs).items()}
_FROM_VALUES = {
    'tuple': tuple, 'set': set, 'frozenset': frozenset,
    'keys': lambda keys: dict.fromkeys(keys).keys(),
    'deque': collections.deque, 'iterator': iter}
# `copy.deepcopy` copies no views.
for _view, _make in (
    ({}.keys(), _FROM_VALUES['keys']), ({}.items(), _FROM_PAIRS['items'])):
  copyreg.pickle(type(_view), lambda x, make=_make: (make, ([*x],)))
_ARRAYS = {  # dtype.kind -> dtype.
    'b': 'bool', 'i': 'int64', 'u': 'uint64', 'f': 'float64', 'c': 'complex128'}


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
    return value if -_LARGE < value < _LARGE else {'int': [hex(value)]}
  if equality is float.__eq__:
    return float.__float__(value)

  def items(values):
    return [_to_json(x, depth - 1, is_request) for x in values]

  if equality is list.__eq__:
    return items(list.__iter__(value))
  if equality in _PARTS:
    name, parts_of = _PARTS[equality]
    parts = parts_of(value)
  else:
    name, parts = _describe(value, kind)
  if name == 'plain':
    return _to_json(parts, depth, is_request)
  if name == 'object' and is_request and kind is not Opaque:
    raise ValueError(f'it has a {kind.__name__!r}, which is not plain')
  return {name: [*map(items, parts)] if name in _FROM_PAIRS else items(parts)}


def _describe(value: Any, kind: type) -> tuple[str, Any]:
  """Name and parts of a type that is not in `_PARTS`."""
  if kind is Opaque:
    return 'object', (value.type_name, value.truth, value.is_callable)
  if isinstance(value, (Iterator, MappingView)):
    if kind is _LIST_ITERATOR:
      value = copy.copy(value)  # A decoded one may be encoded again.
    values = list(itertools.islice(value, MAX_ITERATED + 1))
    if len(values) > MAX_ITERATED:
      raise ValueError(
          f'it has an iterator over more than {MAX_ITERATED} values')
    return 'iterator', values
  # A program that never imported a module has no value of it.
  decimal, fractions, numpy = map(
      sys.modules.get, ('decimal', 'fractions', 'numpy'))
  if fractions and kind.__eq__ is fractions.Fraction.__eq__:
    return 'Fraction', (value.numerator, value.denominator)
  if decimal and kind.__eq__ is decimal.Decimal.__eq__:
    return 'Decimal', [decimal.Decimal.__str__(value)]
  if numpy and isinstance(value, numpy.ndarray):
    array = numpy.asarray(value)  # Without a mask, and not a matrix.
    name = _ARRAYS.get(array.dtype.kind)
    if not name or not numpy.can_cast(array.dtype, name):  # A long double.
      name = 'object'
    return 'numpy', (
        name, list(array.shape), array.astype(name).ravel().tolist())
  if numpy and isinstance(value, (numpy.number, numpy.bool_, numpy.str_)):
    plain = value.item()
    if type(plain) in (bool, int, float, complex, str):
      return 'plain', plain
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
    (name, parts), = node.items()
    if type(parts) is not list:
      raise ValueError('not a value: list expected')
    if name in _FROM_PAIRS:
      pairs = [
          (self.decode(k, depth - 1), self.decode(v, depth - 1))
          for k, v in parts]
      self._check_hashes([key for key, _ in pairs])
      return _FROM_PAIRS[name](pairs)
    values = self.decode(parts, depth)
    if name in ('set', 'frozenset', 'keys'):
      self._check_hashes(values)
    if name in _FROM_VALUES:
      return _FROM_VALUES[name](values)
    kinds, function = _FROM_PARTS[name]
    if [*map(type, parts)] != kinds:  # Large ints would make slow fractions.
      raise ValueError(f'not a value: {name!r} of other parts')
    return function(*values)

  def _check_hashes(self, elements: Sequence) -> None:
    num_equal = len(elements) - len(set(map(hash, elements)))
    self._num_comparisons += num_equal ** 2
    if self._num_comparisons > MAX_COMPARISONS:
      raise ValueError('too many elements have equal hashes')


def _array(name: str, shape: Sequence[int], values: Sequence) -> Any:
  """An array or number of numpy, which is loaded only now."""
  import numpy as np
  if name not in (*_ARRAYS.values(), 'object'):
    raise ValueError(f'not a value: unknown array of {name!r}')
  array = np.empty(len(values), name)
  for index, value in enumerate(values):
    array[index] = value
  return array.reshape(shape)[()]  # A number if there are no dimensions.


def _large_int(text: str) -> int:
  value = int(text, 16)
  if value.bit_length() > _MAX_BITS:
    raise ValueError(f'it has an int of more than {MAX_DIGITS} digits')
  return value


def _fraction(numerator: int, denominator: int) -> Any:
  import fractions  # Here: forks of a server without it are faster.
  return fractions.Fraction(numerator, denominator)


def _decimal(text: str) -> Any:
  import decimal
  if len(text) <= _MAX_DECIMAL:
    value = decimal.Decimal(text)
    # Conversions and comparisons write the exponent out.
    if not value.is_finite() or abs(value.adjusted()) <= _MAX_DECIMAL:
      return value
  raise ValueError(f'it has a Decimal of more than {_MAX_DECIMAL} digits')


# Name in a text -> types of the parts, and a function of them.
_FROM_PARTS = {
    'bytes': ([str], lambda text: text.encode('latin-1')),
    'complex': ([float, float], complex),
    'int': ([str], _large_int),
    'range': ([int, int, int], range),
    'Fraction': ([int, int], _fraction),
    'Decimal': ([str], _decimal),
    'numpy': ([str, list, list], _array),
    'object': ([str, bool, bool], Opaque)}


def _parse_int(digits: str) -> int:
  if len(digits) > _MAX_DECIMAL + 1:  # With a sign.
    raise ValueError(f'not a value: an int has {len(digits)} digits')
  return int(digits)
