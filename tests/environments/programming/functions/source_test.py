"""Functions found in replies, and how they use `aux`."""

import pytest

from environments.programming.functions import source

PLAIN = 'def f(x):\n    return x'


@pytest.mark.parametrize('reply, function', [
    (PLAIN, PLAIN),
    (f'import os\n\n{PLAIN}\n\ndef g(x):\n    return 2', PLAIN),
    ('    def f(x):\n        return x\n    more', PLAIN),
    (f'<think>{PLAIN}</think>\ndef f(y):\n\treturn y', 'def f(y):\n\treturn y'),
    ('def f(x):\r\n    return x\r\nno', PLAIN),
    ('def f(\n    x,\n) -> int:\n    """\nText.\n"""\n    return x\nno',
     'def f(\n    x,\n) -> int:\n    """\nText.\n"""\n    return x'),
    ('def f(x):\n    a = [\n1,\n]\n\n    return a\nno',
     'def f(x):\n    a = [\n1,\n]\n\n    return a'),
    # Comments and continued lines in column 0, and decorators.
    (f'{PLAIN[:9]}\n# No.\n    y = 1\n#    z = 2\n    return y\n# End.\nno',
     f'{PLAIN[:9]}\n# No.\n    y = 1\n#    z = 2\n    return y'),
    ('def f(x):\n    return x + \\\n1\nno', 'def f(x):\n    return x + \\\n1'),
    (f'import functools\n@functools.cache\n@g(\'@\')\n{PLAIN}\nno no',
     f'import functools\n@functools.cache\n{PLAIN}'),
    (f'from functools import lru_cache as c, wraps\n\n@c(\n  maxsize=None)\n'
     f'# Fast.\n{PLAIN}\n\nOLD = \'\'\'\ndef f(x):\n    return 0\n\'\'\'\n',
     f'from functools import lru_cache as c, wraps\n@c(\n  maxsize=None)\n'
     f'{PLAIN}'),
    (f'def g(h):\n    return h\n\n@g\n{PLAIN}', PLAIN),
    # Imports keep their order.
    (f'import a\nimport b\nimport c\nimport d\n@d.x(c, b.y(a))\n{PLAIN}',
     f'import a\nimport b\nimport c\nimport d\n@d.x(c, b.y(a))\n{PLAIN}'),
    ('class A:\n    @staticmethod\n    def f(x):\n        return x\nno',
     '@staticmethod\ndef f(x):\n    return x'),
    (f'async {PLAIN}\nno', f'async {PLAIN}'),
    # A fence ends a function, and so does a line with all of it.
    (f'```python\n{PLAIN}\n```\n    - Time: O(n)\n', PLAIN),
    ('def f(x): return x\n  no', 'def f(x): return x'),
    (f'{PLAIN[:9]}\n    """\n```\nx\n```\n    """\n    return x\nno',
     f'{PLAIN[:9]}\n    """\n\nx\n\n    """\n    return x'),
    # The least indented definition counts,
    (f'{PLAIN}\nclass A:\n    def f(self, x):\n        return 1', PLAIN),
    # The last definition counts, if Python can read it.
    (f'def f(x):\n    return 1\n\nBetter:\n{PLAIN}', PLAIN),
    (f'{PLAIN}\n\nThe line\ndef f(x):\nis the name.', PLAIN),
    (f'"""\ndef f(x):\n"""\n{PLAIN}', PLAIN),
    (f'{PLAIN[:9]}\n    """\ndef f(x): pass\n    """\n    return x\nno',
     f'{PLAIN[:9]}\n    """\ndef f(x): pass\n    """\n    return x'),
    (f'{PLAIN[:9]}\n    def f(y):\n        return y\n    return f(x)\n  no',
     f'{PLAIN[:9]}\n    def f(y):\n        return y\n    return f(x)'),
    ("def f(x):\n    return x\nThat's it.", PLAIN),
    ('def ff(x):\n    return x', ''),
    ('', ''),
])
def test_find_function(reply, function):
  assert source.find_function(reply, 'f') == function


@pytest.mark.parametrize('begin', ['def f(', 'def f():\n  """'])
def test_an_unclosed_function_ends_soon(begin):
  assert source.find_function(begin + '\nx,' * 10_000, 'f') == begin


def test_find_imports():
  assert source.find_imports(
      'from typing import List, Dict\nimport math\n\ndef f():\n'
      '    """\n    import this with care\n    """\n    import math\n'
      'from x\nimport a.b, c\n') == (
          'from typing import List, Dict\nimport math\n'
          'import this with care\nimport a.b, c')


@pytest.mark.parametrize('function, has', [
    (PLAIN, True), ('def f():\n  """return"""\n  x = "return"', False),
    ('def f(:\n  return 1', True), ('def f(:\n  returns', False)])
def test_has_return(function, has):
  assert source.has_return(function) is has


# Body of main, and whether it calls aux, only wraps it, ignores its value.
@pytest.mark.parametrize('body, calls, wraps, ignores', [
    ('return aux(x)', 1, 1, 0),
    ('return 1 + len(\n      aux(x))', 1, 1, 0),
    ('y = aux(x)\n  return y', 1, 1, 0),
    ('y = 1 + aux(x)\n  return y', 1, 0, 0),
    ('y = aux(x)\n  return y + 1', 1, 0, 0),
    ('if x: return 0\n  return aux(x)', 1, 0, 0),
    ('aux(x)\n  return x', 1, 0, 1),
    ('y = aux(x)\n  return x', 1, 0, 1),
    ('y = aux(x)\n  aux(y)\n  return y', 1, 0, 1),
    ('return x', 0, 0, 0),
    # The function defines another aux.
    ('def aux(y): return y\n  return 1 + aux(x)', 0, 0, 0),
    ('aux = lambda y: y\n  return 1 + aux(x)', 0, 0, 0),
    ('from os import getenv as aux\n  return 1 + aux(x)', 0, 0, 0),
    ('for aux in (len,): return 1 + aux(x)', 0, 0, 0),
    ('return "aux(x)"', 0, 0, 0),
    ('pass', 0, 1, 0),
    ('y = aux(x), 1\n  return y', 1, 0, 0),
    ('y, z = aux(x)\n  return (y, z)', 1, 1, 0),
    ('y, z = aux(x)\n  return z, y', 1, 0, 0),
    ('y[0] = aux(x)\n  return y[1]', 1, 0, 0),
    # Too deep for `ast.unparse`, and an int of too many digits.
    (f'y = aux(x){" + 1" * 1000}\n  return y', 1, 1, 0),
    (f'y = aux(x)\n  return y{".a" * 900}', 1, 0, 0),
    (f'y = aux(0x{"f" * 60_000})\n  return y', 1, 1, 0),
])
def test_use_of_aux(body, calls, wraps, ignores):
  main = f'def f(x):\n  {body}'
  assert source.calls_aux(main) is bool(calls)
  assert source.is_wrapper(main) is bool(wraps)
  assert source.ignores_aux(main) is bool(ignores)


@pytest.mark.parametrize('program, error', [
    (PLAIN, ''), ('"\\d"', ''), ('x = 1\ny = (', "line 2: '(' was never"),
    ('\0', 'null'), ('(' * 9999, 'line 1: ')])
def test_syntax_error(program, error):
  assert error in source.syntax_error(program)
  assert bool(source.syntax_error(program)) is bool(error)
