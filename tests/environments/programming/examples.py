"""Programming problems for tests."""

from environments.programming import problems

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


def make(cases=(), **fields):
  """Returns a problem with (input, answers) pairs as tests."""
  tests = problems.pack_cases(
      [problems.Case(given, tuple(answers)) for given, answers in cases])
  return problems.Problem(**dict(
      task_id='example/test/0', statement='Add two numbers.', tests=tests,
      comparison='code_contests', time_limit=2.0) | fields)


def make_check(check=CHECK, **fields):
  """Returns a problem whose tests are code."""
  return make(**dict(
      tests=problems.pack(check), entry_point='add', comparison='check',
      statement=STUB, starter_code=STUB, preamble=STUB, reference=ADD) | fields)
