"""Programming problems for tests."""

from environments.programming import problems


def make(cases=(), check='', **fields):
  """Returns a problem with these cases, or with `check` as its test code."""
  values = dict(
      task_id='example/test/0', statement='Add two numbers.', starter_code='',
      entry_point='', preamble='', comparison='code_contests', reference='',
      time_limit=2.0) | fields
  packed = problems.pack(check) if check else problems.pack_tests(
      [problems.Case(given, tuple(answers)) for given, answers in cases])
  return problems.Problem(packed_tests=packed, **values)


CHECK = '''
def check(candidate):
    assert True, 'never fails'
    assert candidate(1, 2) == 3
    assert candidate(0.1, 0.2) == 0.1 + 0.2
    assert candidate('a', 'b') == 'ab', 'texts'
    for i in range(5):
        assert candidate(i, i) == 2 * i
    total = candidate([1], [2])
    assert len(total) == 2 and (
        total[1] == 2)
'''
STUB = 'def add(x, y):\n    """Adds."""\n'
ADD = 'def add(x, y):\n    return x + y\n'


def make_check(check=CHECK, **fields):
  return make(check=check, **dict(
      entry_point='add', comparison='check', statement=STUB, starter_code=STUB,
      preamble=STUB, reference=ADD) | fields)
