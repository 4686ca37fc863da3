"""Plain values survive a round trip as text; all others are refused."""

import collections
import decimal
import enum
import fractions
import itertools
import json
import math
import re
import time

import numpy as np
import pytest
import sympy

from environments.sandbox import literals

NESTED = 0
for _ in range(literals.MAX_DEPTH):
  NESTED = [NESTED]
CYCLE = []
CYCLE.append(CYCLE)


def same(a, b):
  """Equal, and of the same types all the way down."""
  return a == b and repr(a) == repr(b) and type(a) is type(b)


@pytest.mark.parametrize('value', [
    None, True, False, 0, -7, 10**4000, 0.1, -0.0, math.inf, '', [], {},
    complex(-0.0, math.inf), 'ß→😀\0', b'\x00\xff"\n', [True, 1, 1.0],
    {'dict': 1}, {1: {2: {3}}, (1, 2): [], None: b'', 'tuple': ()},
    {(), (1,), frozenset({2})}, NESTED[0], range(1, 9, 2),
    collections.deque([1]), collections.OrderedDict(b=1, a=2),
    fractions.Fraction(1, 3), decimal.Decimal('0.50')])
def test_plain_value_comes_back(value):
  assert same(literals.decode(literals.encode(value)), value)


Point = collections.namedtuple('Point', 'x y')


def inherit(base, *args):
  """An instance of a subclass that inherits `==`."""
  return type('Sub', (base,), {})(*args)


class Number(enum.IntEnum):
  """Members equal ints."""

  ONE = 1


@pytest.mark.parametrize('value, plain', [
    (np.int64(3), 3), (np.float16(0.5), 0.5), (np.bool_(True), True),
    (np.str_('a'), 'a'), (np.complex64(1j), 1j), ([np.float64(2)], [2.0]),
    (collections.Counter('aab'), {'a': 2, 'b': 1}),
    (collections.defaultdict(list, {1: [2]}), {1: [2]}),
    (Point(1, [2]), (1, [2])), (Number.ONE, 1), ({Number.ONE: 2}, {1: 2}),
    (inherit(int, 7), 7), (inherit(float, 0.5), 0.5), (inherit(str, 'a'), 'a'),
    (inherit(list, [1]), [1]), (inherit(set, {1}), {1})])
def test_value_of_another_type_becomes_an_equal_one(value, plain):
  assert value == plain
  assert same(literals.decode(literals.encode(value)), plain)


@pytest.mark.parametrize('values, read', [
    (iter([1, 2]), [1, 2]), ((x for x in 'ab'), ['a', 'b']),
    (zip([1], [2]), [(1, 2)]), ({1: 2}.values(), [2])])
def test_iterators_and_views_of_values_come_back_as_iterators(values, read):
  text = literals.encode(values)
  value = literals.decode(text)
  assert value != read and literals.encode(value) == text
  assert list(value) == read


def test_views_of_keys_and_items_come_back():
  keys, items = map(
      literals.decode, map(literals.encode, ({1: 2}.keys(), {1: [2]}.items())))
  assert keys == {1} and items == {1: [2]}.items() != {1: [3]}.items()


@pytest.mark.parametrize('array', [
    np.array([[1.5, 2]]), np.array(5), np.zeros((0, 3)), np.array([True]),
    np.array([1j]), np.array([[1], 'a', {}], object)])
def test_arrays_come_back(array):
  value = literals.decode(literals.encode(array))
  assert same(value.tolist(), array.tolist())
  assert (value.dtype, value.shape) == (array.dtype, array.shape)


@pytest.mark.parametrize('name, number', [
    ('float16', 70_000), ('float32', 10**39), ('longdouble', 10**5000),
    ('complex64', 10**39)], ids=range(4))
@pytest.mark.filterwarnings('ignore:overflow')
def test_infinity_of_numpy_equals_no_large_number(name, number):
  infinite = np.array([np.inf], name)
  assert infinite == number  # Bite: numpy rounds the number to this type.
  for value in (infinite, infinite[0]):
    assert literals.decode(literals.encode(value)) != number


class Equal(int):
  """Equal to everything."""

  __hash__ = int.__hash__

  def __eq__(self, other):
    return True


@pytest.mark.parametrize('value, name, truth, is_callable', [
    (Equal(0), 'Equal', False, False),
    (re.match('a', 'a'), 'Match', True, False),
    (print, 'builtin_function_or_method', True, True),
    (np.longdouble(1), 'longdouble', True, False),
    (collections.UserDict(), 'UserDict', False, False),
    (sympy.Integer(0), 'Zero', False, False),
    (Equal, 'type', True, True),
    (type('dict', (dict,), {'__eq__': Equal.__eq__})(), 'dict', False, False)])
def test_other_values_equal_nothing(value, name, truth, is_callable):
  text = literals.encode([value])
  (decoded, other), = zip(literals.decode(text), literals.decode(text))
  assert type(decoded) is literals.Opaque and decoded != other
  assert decoded not in (0, {}, name, True, False, None)
  assert (bool(decoded), decoded.is_callable) == (truth, is_callable)
  assert repr(decoded) == f'<{name} object>'
  assert literals.encode([decoded], is_request=True) == text
  with pytest.raises(ValueError, match=f"a '{name}', which is not plain"):
    literals.encode([value], is_request=True)


@pytest.mark.parametrize('value, words', [
    (NESTED, 'nested too deep'), (CYCLE, 'nested too deep'),
    ('\ud800', 'surrogates'), ({'\ud800': 1}, 'surrogates'),
    (itertools.count(), 'an iterator over more than 100000')])
def test_values_without_a_text_are_refused(value, words):
  with pytest.raises(ValueError, match=words):
    literals.encode(value)


@pytest.mark.parametrize('text', [
    '', '[1', b'\xff', '[' * 100_000, '{"set":' * 100_000, '9' * 5000,
    '[' * 100_000 + ']' * 100_000, '"\\ud800"', '{}', '{"a": []}',
    '{"bytes": ["\\u0100"]}', '{"tuple": "a"}', '{"tuple": [], "set": []}',
    '{"set": [[1]]}', '{"dict": [[[1], 1]]}', '{"dict": [[1, 2, 3]]}',
    '{"complex": [1.0]}', '{"object": ["a", 1, true]}',
    '{"range": [0, 1, 0]}', '{"Fraction": [1, 0]}', '{"Decimal": ["x"]}',
    '{"Decimal": ["1E-100000000"]}', '{"Decimal": ["0E+100000000"]}',
    '{"int": ["0xg"]}', json.dumps({'int': ['f' * 50_000]}),
    *(f'{{"numpy": {x}}}' for x in (
        '["int64", [2], [1]]', '["int64", [1], ["a"]]',
        '["V9", [0], []]', '["object", "ab", [1]]',
        '["float64", [0, 99999999999999999999], []]',
        '["int64", [1], [{"Decimal": ["1E+300000"]}]]'))])
def test_forged_text_is_refused(text):
  with pytest.raises(ValueError):
    literals.decode(text)


PRIME = (1 << 61) - 1  # Multiples have the hash 0.


@pytest.mark.parametrize('text', [
    json.dumps([{'set': [i * PRIME for i in range(10_000)]}] * 5),
    json.dumps([{'frozenset': [i * PRIME for i in range(150)]}] * 200),
    json.dumps({'OrderedDict': [[i * PRIME, 0] for i in range(9000)]}),
    json.dumps({'dict': [[{'tuple': [i * PRIME, 'x' * 999]}, 1]
                         for i in range(5000)]}),
    '[' + ','.join(['9' * 50_000] * 100) + ']',
    json.dumps({'Fraction': [{'int': ['f' * 41_000]}] * 2}),
    json.dumps({'Decimal': ['9' * 1_000_000]})],
    ids=str.__len__)
def test_values_that_are_slow_to_decode_are_refused(text):
  begin = time.process_time()
  with pytest.raises(ValueError):
    literals.decode(text)
  assert time.process_time() - begin < 2.0


@pytest.mark.parametrize('value', [
    set(range(50_000)), dict.fromkeys(range(50_000)), [{-1, -2}] * 5000,
    {i * PRIME for i in range(300)}, 10**49_999, -10**49_999,
    [10**4299] * 10], ids=range(7))
def test_large_values_come_back(value):
  decoded = literals.decode(literals.encode(value))
  assert decoded == value
  repr(decoded).encode()
