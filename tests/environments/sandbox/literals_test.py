"""Plain values survive a round trip as text; all others are refused."""

import collections
import json
import math

import numpy as np
import pytest

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
    None, True, False, 0, -7, 10**4000, 0.1, -0.0, math.inf, 1 + 2j, 1e-320,
    complex(-0.0, math.inf), '', 'ß→😀\0', b'', b'\x00\xff"\n', [], (), {},
    set(), frozenset(), [[], [()]], (1, 'a', [b'x', (None,)]), [True, 1, 1.0],
    {'dict': 1}, {1: {2: {3}}, (1, 2): [], None: b'', 'tuple': ()},
    {(), (1,), frozenset({2})}, {1.5: [{'set': [1]}]},
    list(range(20_000)), NESTED[0]])
def test_plain_value_comes_back(value):
  assert same(literals.decode(literals.encode(value)), value)


@pytest.mark.parametrize('value, plain', [
    (np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True),
    (np.str_('a'), 'a'), (np.complex128(1j), 1j), ([np.float64(2)], [2.0]),
    (collections.Counter('aab'), {'a': 2, 'b': 1}),
    (collections.OrderedDict(b=1, a=2), {'b': 1, 'a': 2}),
    (collections.defaultdict(list, {1: [2]}), {1: [2]})])
def test_numpy_and_collections_become_plain(value, plain):
  assert same(literals.decode(literals.encode(value)), plain)


class Equal(int):
  """Equal to everything."""

  __hash__ = int.__hash__

  def __eq__(self, other):
    return True


@pytest.mark.parametrize('value, words', [
    (Equal(3), "a 'Equal', which is not a plain"),
    ([{'a': (Equal(3),)}], "a 'Equal', which is not a plain"),
    ({Equal(3): 1}, "a 'Equal', which is not a plain"),
    (type('dict', (dict,), {})(), "a 'dict', which is not a plain"),
    (type('Counter', (collections.Counter,), {})(), "a 'Counter', which"),
    (collections.namedtuple('Point', 'x')(1), "a 'Point', which"),
    (np.zeros(3), "a 'ndarray', which"), (range(3), "a 'range', which"),
    (bytearray(b'x'), "a 'bytearray', which"), (print, 'not a plain type'),
    (NESTED, 'nested deeper'), (CYCLE, 'nested deeper'),
    pytest.param(10**4300, '4300 digits', id='digits'),
    ('\ud800', 'surrogates'), ({'\ud800': 1}, 'surrogates'),
    (set(range(10_001)), 'more than 10000 elements'),
    (dict.fromkeys(range(10_001)), 'more than 10000 elements')])
def test_other_values_are_refused(value, words):
  with pytest.raises(ValueError, match=words):
    literals.encode(value)


@pytest.mark.parametrize('text', [
    '', ' ', 'x', '1 2', '[1', '[1][1]', b'\xff', '(1)', "'a'", '1_0',
    '[' * 100_000, '[' * 100_000 + ']' * 100_000, '{"set":' * 100_000,
    '9' * 5000, '"\\ud800"', '{"bytes": "\\u0100"}', '{"bytes": 1}',
    '{}', '{"a": 1}', '{"list": []}', '{"Equal": [1]}', '{"tuple": 1}',
    '{"tuple": [], "set": []}', '{"tuple": "ab"}', '{"set": "ab"}',
    '{"set": [[1]]}', '{"dict": [[[1], 1]]}', '{"dict": [1]}',
    '{"dict": [[1, 2, 3]]}', '{"dict": {"1": 2}}', '{"complex": [1.0]}',
    '{"complex": ["1", 2.0]}', '{"complex": "12"}',
    '{"frozenset": [{"dict": []}]}', '__import__("os")',
    json.dumps({'set': list(range(10_001))})])
def test_forged_text_is_refused(text):
  with pytest.raises(ValueError):
    literals.decode(text)


def test_elements_with_equal_hashes_are_decoded_quickly():
  prime = (1 << 61) - 1
  text = json.dumps({'set': [i * prime for i in range(2000)]})
  value = literals.decode(text)
  assert len(value) == 2000 and {hash(x) for x in value} == {0}
  repr(literals.decode('9' * 4300)).encode()
