"""Programs that differ from a correct one in one token."""

import ast
import io
import random
import tokenize

_SWAPS = {
    '+': '-', '-': '+', '*': '+', '/': '*', '//': '*', '%': '//', '<': '<=',
    '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '==', '+=': '-=',
    '-=': '+=', 'and': 'or', 'or': 'and', 'True': 'False', 'False': 'True',
    'not': '', 'min': 'max', 'max': 'min', 'any': 'all', 'all': 'any',
    'append': 'extend', 'break': 'continue', 'sorted': 'list'}


def mutate(program: str, first_line: int, rng: random.Random) -> str:
  """Changes one token in or after a line, counted from 1."""
  tokens = [
      token for token in tokenize.generate_tokens(io.StringIO(program).readline)
      if token.start[0] >= first_line]
  names = sorted({
      token.string for token in tokens
      if token.type == tokenize.NAME and token.string not in _SWAPS
      and not token.string.startswith('__')})
  rng.shuffle(tokens)
  for token in tokens:
    other = _other(token, names, rng)
    if other is not None:
      mutant = _replace(program, token, other)
      try:
        ast.parse(mutant)
      except SyntaxError:
        continue
      return mutant
  raise ValueError(f'no token of {program!r} can be changed')


def _other(token, names, rng):
  if token.string in _SWAPS:
    return _SWAPS[token.string]
  if token.type == tokenize.NUMBER and token.string.isdigit():
    return str(int(token.string) + 1)
  if token.type == tokenize.NAME and token.string in names:
    return rng.choice(names)
  return None


def _replace(program, token, other):
  lines = program.split('\n')
  number, start = token.start[0] - 1, token.start[1]
  line = lines[number]
  lines[number] = line[:start] + other + line[token.end[1]:]
  return '\n'.join(lines)
