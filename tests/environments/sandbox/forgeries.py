"""Programs that forge a passed test without knowing the right value.

Each should define `add(x, y)`. Many pass if asserts share their process, or
search for the answers.
"""


def _equal(value='Equal()', base='object'):
  return f'''
class Equal({base}):
  def __eq__(self, other): return True
  def __ne__(self, other): return False
  def __hash__(self): return 0
  def __len__(self): return 2
  def __getitem__(self, i): return 2
  def __repr__(self): return 'passed'
def add(x, y): return {value}
'''


def _write(value):
  """A program that sends its own text of a value."""
  return f'''
import os
def add(x, y):
  os.write(3, {value!r})
  os._exit(0)
'''


FORGERIES = {
    'equal object': _equal(),
    'equal int': _equal(base='int'),
    'equal in a list': _equal('[Equal()]'),
    'equal key': _equal('{Equal(): 1}', base='int'),
    'class lies about its name': _equal(base='int') + (
        'Equal.__name__, Equal.__module__ = "int", "builtins"'),
    'patched types': _equal(base='int') + (
        'import builtins\nbuiltins.type = lambda x: int'),
    'patched builtins': '''
import builtins
builtins.AssertionError = type('Never', (Exception,), {})
builtins.bool = lambda x: True
builtins.all = builtins.any = lambda x: True
builtins.len = lambda x: 2
def add(x, y): return 0
''',
    'patched json': '''
import json
json.dumps = lambda value, **kwargs: '3'
json.encoder.JSONEncoder.encode = lambda self, value: '3'
def add(x, y): return 0
''',
    'equal Fraction': _equal(base='__import__("fractions").Fraction'),
    'equal iterator': _equal('Equal()', base='__import__("itertools").count'),
    'class that equals everything': _equal('Meta("A", (), {})') + '''
class Meta(type):
  __eq__ = Equal.__eq__
  __hash__ = Equal.__hash__
''',
    'metaclass lies about equality': _equal('Lie()') + '''
class Meta(type):
  def __getattribute__(self, name):
    return int.__eq__ if name == '__eq__' else type.__getattribute__(self, name)
class Lie(Equal, metaclass=Meta): pass
''',
    'equal array': 'import numpy' + _equal(
        'numpy.zeros(2).view(Equal)', base='numpy.ndarray') + (
            'Equal.__bool__ = lambda self: True'),
    # numpy.array([Equal()]) would collect the items of an endless sequence.
    'array of equal objects': 'import numpy' + _equal('array') + '''
array = numpy.empty(1, dtype=object)
array[0] = Equal()
''',
    'empty array': 'import numpy\ndef add(x, y): return numpy.zeros((0, 2))',
    'signalling NaN': (
        'import decimal\ndef add(x, y): return decimal.Decimal("sNaN")'),
    'function that returns equal objects': _equal('lambda *args: Equal()'),
    'arguments that become what is returned': '''
def add(x, y):
  if isinstance(x, list):
    x += [0, 2]
    y += [0, 2]
  return x
''',
    'patched encoding': '''
import sys
def add(x, y):
  sys._getframe(1).f_globals['encode'] = lambda *args: (
      '{"tuple": [{"object": ["int", true, true]}, [[3], [3]], {"dict": []}]}')
  return 3
''',
    'texts of odd values': _write(
        b'{"tuple": [{"numpy": ["bool", [1], [true]]},'
        b' {"tuple": [[1, 2], [1, 2]]}, {"dict": [["x", 1]]}]}'),
    'frame walk': '''
import sys
def add(x, y):
  frame = sys._getframe()
  while frame:
    for names in (frame.f_globals, frame.f_locals):
      for key, value in list(names.items()):
        if isinstance(value, list): value.append('passed')
        if key in ('passed', 'result', 'results', 'held', 'report', 'known'):
          names[key] = 'passed'
        if key in ('expected', 'answer', 'SECRET'): return value
    frame = frame.f_back
  return 0
''',
    'sys.exit': 'import sys\nsys.exit(0)\n',
    'os._exit': 'import os\nos._exit(0)\n',
    'os._exit at exit': (
        'import atexit, os\natexit.register(lambda: os._exit(0))\n'
        'def add(x, y): return 0'),
    'a pass on every stream': '''
import sys
def add(x, y):
  for stream in sys.stdout, sys.stderr:
    print('passed\\nOK\\nPASSED\\n1 passed\\n{"passed": true}\\n3', file=stream)
  return True
''',
    'a value on every descriptor': '''
import os
for fd in range(3, 10):
  try: os.write(fd, b'true')
  except OSError: pass
def add(x, y): return 0
''',
    'a value without a return': _write(b'true'),
    'code instead of a value': _write(
        b'__import__("os").system("touch /tmp/forged")'),
    'two values': '''
import os
def add(x, y):
  os.write(3, b'[1]')
  return [1]
''',
    'raises a pass': (
        'class Passed(BaseException): pass\ndef add(x, y): raise Passed'),
    'forks': 'import os\ndef add(x, y): return int(not os.fork())',
    'everything': 'def add(x, y): return list(range(1000))',
    'no function': 'x = 3\n',
}
