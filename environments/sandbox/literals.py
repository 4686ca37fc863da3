"""Values of plain types as JSON text, and back.

Arguments enter a program in this form, and its values leave in it. JSON lacks
tuples, sets, bytes, complex numbers and keys other than strings; such values
become objects with one key, which names the type:

  (1, 'a')   {"tuple": [1, "a"]}
  {1: b'x'}  {"dict": [[1, {"bytes": "x"}]]}

Decoding builds values of exactly the built-in types, whatever the text: no code
of a program runs, and `==`, `repr` and UTF-8 work on the result. A text can
crash `ast.literal_eval` together with its process, so it is not used.

Encoding also takes numpy scalars, and the Counter, defaultdict and OrderedDict
of `collections`, which programs often return. They are decoded as Python's
numbers and dictionaries.
"""

from __future__ import annotations

import collections
from collections.abc import Sized
import json
import sys
import types
from typing import Any

MAX_DEPTH = 100
# Elements of one set or dictionary: a program can choose elements with equal
# hashes, and decoding n of them takes n**2 comparisons.
MAX_HASHED = 10_000
# Python converts no ints of over 4300 digits to text.
_SIMPLE = (type(None), bool, int, float)
_CONTAINERS = {'tuple': tuple, 'set': set, 'frozenset': frozenset}
_DICTS = (
    dict, collections.Counter, collections.defaultdict, collections.OrderedDict)


def encode(value: Any) -> str:
  """Text of a value; ValueError if it is not plain or nested too deep."""
  return json.dumps(_to_json(value, MAX_DEPTH))


def decode(text: str | bytes) -> Any:
  """Value of a text; ValueError if `encode` cannot have written it."""
  try:
    return _from_json(json.loads(text), MAX_DEPTH)
  except (TypeError, RecursionError) as error:
    raise ValueError(f'not a value: {error}') from error


def call(module: types.ModuleType, function: str, arguments: str) -> str:
  """Calls a function of a program, see `Sandbox.call`.

  Args:
    module: the program.
    function: a name, or names joined by dots.
    arguments: text of a tuple.

  Returns the text of its value. Raises SystemExit if there is none.
  """
  target = module
  for name in function.split('.'):
    target = getattr(target, name.removesuffix('()'))
    if name.endswith('()'):
      target = target()
  value = target(*decode(arguments))
  try:
    return encode(value)
  except ValueError as error:
    sys.exit(f'The value of {function} cannot be returned: {error}.')


def _to_json(value: Any, depth: int) -> Any:
  if not depth:
    raise ValueError(f'it is nested deeper than {MAX_DEPTH} levels')
  kind = type(value)
  if kind in _SIMPLE:
    return value
  if kind is str:
    value.encode()  # Raises ValueError for a lone surrogate.
    return value
  if kind is complex:
    return {'complex': [value.real, value.imag]}
  if kind is bytes:
    return {'bytes': value.decode('latin-1')}
  if kind is list:
    return [_to_json(x, depth - 1) for x in value]
  if kind in _CONTAINERS.values():
    if kind is not tuple:
      _check_hashed(value)
    return {kind.__name__: [_to_json(x, depth - 1) for x in value]}
  if kind in _DICTS:
    _check_hashed(value)
    return {'dict': [
        [_to_json(k, depth - 1), _to_json(v, depth - 1)]
        for k, v in value.items()]}
  if 'numpy' in sys.modules and isinstance(value, sys.modules['numpy'].generic):
    return _to_json(value.item(), depth - 1)
  raise ValueError(f'it has a {kind.__name__!r}, which is not a plain type')


def _from_json(node: Any, depth: int) -> Any:
  if not depth:
    raise ValueError(f'it is nested deeper than {MAX_DEPTH} levels')
  if type(node) is list:
    return [_from_json(x, depth - 1) for x in node]
  if type(node) is str:
    node.encode()  # Raises ValueError for a lone surrogate.
    return node
  if type(node) is not dict:
    return node
  (kind, content), = node.items()
  if kind == 'bytes':
    return _checked(content, str).encode('latin-1')
  _checked(content, list)
  if kind == 'complex':
    real, imaginary = content
    return complex(_checked(real, float), _checked(imaginary, float))
  if kind != 'tuple':
    _check_hashed(content)
  if kind == 'dict':
    return {
        _from_json(k, depth - 1): _from_json(v, depth - 1) for k, v in content}
  if kind not in _CONTAINERS:
    raise ValueError(f'not a value: unknown type {kind!r}')
  return _CONTAINERS[kind](_from_json(x, depth - 1) for x in content)


def _checked(content: Any, kind: type) -> Any:
  if type(content) is not kind:
    raise ValueError(f'not a value: {kind.__name__} expected')
  return content


def _check_hashed(elements: Sized) -> None:
  if len(elements) > MAX_HASHED:
    raise ValueError(
        f'it has a set or dict of more than {MAX_HASHED} elements')
