"""Pairs of an output and an expected output, worked out by hand."""

import collections
import tracemalloc

import numpy as np
import pytest

from environments.programming import comparisons

BIG = 10**17

# Output, expected output, and whether apps, code_contests and livecodebench
# accept it.
TEXTS = [
    ('3\n', '3', 1, 1, 1),
    ('', '3', 0, 0, 0),
    ('3', '', 0, 0, 0),
    ('1  2', '1 2', 1, 1, 1),
    ('1 1 2', '2 1', 0, 0, 0),  # The same set of words.
    ('1\n2', '1 2', 0, 1, 0),  # CodeContests compares words only.
    ('1\n\n2', '1\n2', 1, 1, 0),  # LiveCodeBench compares empty lines.
    ('1 \n 2', '1\n2', 1, 1, 1),
    ('Yes', 'YES', 0, 1, 0),  # Only CodeContests ignores case.
    ('a  b', 'a b', 1, 1, 0),  # Not a line of numbers.
    ('x 1.0', 'x 1.00', 1, 1, 0),
    ('.5', '0.5', 1, 1, 1),
    ('1e3', '1000', 1, 1, 1),
    ('-0.0', '0.0', 1, 1, 1),
    ('007', '7', 1, 1, 1),
    ('0.333333', '0.3333331', 1, 1, 0),  # 1e-7 apart.
    ('0.33333', '0.333333333', 1, 1, 0),  # 3.3e-6 apart, 1e-5 x is 3.3e-6.
    ('0.3333', '0.333333333', 0, 0, 0),  # 3.3e-5 apart.
    ('1000.001', '1000.0', 1, 0, 0),  # 1e-3 apart; 1e-5 x is 1e-2.
    ('0.000009', '0.0', 0, 1, 0),  # 9e-6 apart.
    ('0.000000009', '0.0', 1, 1, 0),  # 9e-9 apart.
    ('1000001', '1000000', 0, 0, 0),  # Close as floats.
    (str(BIG + 1), str(BIG), 0, 0, 0),
    (f'{BIG}.0', str(BIG), 1, 1, 1),
    ('1000000.1', '1000000', 0, 0, 0),
    ('999999.999991', '1000000', 1, 1, 0),  # 9e-6 apart.
    ('1e17', str(BIG + 1), 0, 0, 0),  # Equal as floats.
    ('9' * 4001, '9' * 4000 + '8', 0, 0, 0),
    ('9' * 5000, '9' * 5000, 1, 1, 1),
    ('1e999', '1e998', 0, 0, 0),
    ('nan', 'nan', 1, 1, 1),
    ('1_000', '1000', 0, 0, 0),
    ('٣', '3', 0, 0, 0),  # Not an ASCII digit.
    ('0x10', '16', 0, 0, 0),
    ('True', '1', 0, 0, 0),
]


@pytest.mark.parametrize('number, name', list(enumerate((
    'apps', 'code_contests', 'livecodebench'), 2)))
@pytest.mark.parametrize('pair', TEXTS)
def test_outputs_are_compared_as_by_each_benchmark(pair, number, name):
  same = comparisons.COMPARISONS[name](*pair[:2])
  assert same is bool(pair[number])


@pytest.mark.parametrize('value, expected, same', [
    (3, 3.0, True),
    (0.1 + 0.2, 0.3, False),  # As in the official graders.
    (True, 1, False),
    ({True: 1}, {1: 1}, False),
    ({1: 2}, {1: 2.0}, True),
    ({1: [2, (3,)]}, {1: [2, [3]]}, True),
    (None, 0, False),
    ('a ', 'a', False),
    (b'a', 'a', False),
    ([1, 2], [2, 1], False),
    ({1, 2}, [1, 2], False),
    (frozenset({1}), {1}, True),
    ({1: [2]}.keys(), {1}, True),
    ({1: [2]}.items(), {(1, 2)}, False),
    (float('nan'), float('nan'), False),
    (float('inf'), float('inf'), True),
    # An array of one element equals it.
    (np.array([5]), 5, True),
    (np.array([5]), [5], True),
    (np.array([5]), [5, 5], False),
])
def test_values_are_compared_without_types_of_sequences(value, expected, same):
  assert comparisons.same_value(value, expected) is same


@pytest.mark.parametrize('make', [
    lambda n: np.arange(n).reshape(-1, 1),
    lambda n: [np.arange(n).reshape(-1, 1)],
    lambda n: {0: np.arange(n).reshape(n, 1, 1)},
    lambda n: collections.deque([np.arange(n).reshape(-1, 1)]),
    lambda n: np.zeros((0, n))])
def test_a_comparison_takes_little_memory(make):
  num = 100_000
  value, expected = make(num), list(range(num))
  tracemalloc.start()
  for answer in expected, {0: expected}, collections.deque([expected]):
    assert not comparisons.same_value(value, answer)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 50 << 20
