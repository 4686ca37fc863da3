"""Finds functions in replies as text and analyses them as syntax trees.

A function may be surrounded by fences and prose. It begins at a line
`def NAME(` and continues while lines are empty, indented deeper than that line,
or among the first 100 others inside its brackets or a triple-quoted string.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings

from environments import text as text_lib

AUX = 'aux'
_CALL = re.compile(rf'{AUX}\s*\(')
_MAX_OPEN = 100  # Lines of a function that are not indented; each is parsed.
_FENCE = re.compile(r'^[ \t]*```.*$', re.MULTILINE)
_IMPORT = re.compile(
    r'(from\s+[\w.]+\s+import\s+\S.*|import\s+[\w.,\s]+)', re.ASCII)


def find_function(reply: str, name: str) -> str:
  """Returns the source of a function in a reply, dedented, or ''."""
  text = _FENCE.sub('', text_lib.reply(reply)).replace('\r\n', '\n')
  found = re.search(
      rf'^([ \t]*)def[ \t]+{re.escape(name)}[ \t]*\(', text, re.MULTILINE)
  if found is None:
    return ''
  indent = found[1]
  lines = text[found.start():].split('\n')
  size = 1
  num_open = 0
  while size < len(lines):
    if lines[size].strip() and not re.match(rf'{indent}[ \t]', lines[size]):
      num_open += 1
      if num_open > _MAX_OPEN or not _is_open('\n'.join(lines[:size])):
        break
    size += 1
  return textwrap.dedent('\n'.join(lines[:size])).strip()


def find_imports(prompt: str) -> str:
  """Returns the distinct import statements of a prompt, one per line."""
  lines = (line.strip() for line in prompt.split('\n'))
  return '\n'.join(dict.fromkeys(filter(_IMPORT.fullmatch, lines)))


def syntax_error(program: str) -> str:
  """Returns an error such as 'line 3: invalid syntax', or ''."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # About escapes in strings.
      ast.parse(program)
  except SyntaxError as error:
    return f'line {error.lineno}: {error.msg}'
  except (ValueError, RecursionError, MemoryError) as error:
    return f'line 1: {error}'  # A null byte, or too many brackets.
  return ''


def has_return(function: str) -> bool:
  """True if the source has a return statement."""
  tree = _parse(function)
  if tree is None:
    return re.search(r'\breturn\b', function) is not None
  return any(isinstance(node, ast.Return) for node in ast.walk(tree))


def calls_aux(main: str) -> bool:
  """True if a function calls `aux` and does not define it."""
  tree = _parse(main)
  return (
      tree is not None and any(map(_is_call_of_aux, ast.walk(tree)))
      and not any(map(_defines_aux, ast.walk(tree))))


def _defines_aux(node: ast.AST) -> bool:
  match node:
    case (ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name)
          | ast.ClassDef(name=name) | ast.arg(arg=name)
          | ast.Name(id=name, ctx=ast.Store())
          | ast.alias(asname=str(name)) | ast.alias(name=name, asname=None)):
      return name == AUX
  return False


def is_wrapper(main: str) -> bool:
  """True if a function only returns the value of `aux`.

  Its body is empty, one return statement that calls `aux`, or an assignment
  that begins with a call of `aux` and the return of that variable.
  """
  body = _body(main)
  if not body:
    return True
  last = body[-1]
  if not isinstance(last, ast.Return) or last.value is None:
    return False
  if len(body) == 1:
    return any(map(_is_call_of_aux, ast.walk(last)))
  first = body[0]
  return (
      len(body) == 2 and isinstance(first, ast.Assign)
      and len(first.targets) == 1
      and not isinstance(first.value, ast.Tuple)
      and _CALL.match(ast.get_source_segment(main, first.value)) is not None
      and _shape(first.targets[0]) == _shape(last.value))


def ignores_aux(main: str) -> bool:
  """True if a call of `aux` is a statement or bound to an unread name."""
  tree = _parse(main)
  if tree is None:
    return False
  read = {
      node.id for node in ast.walk(tree)
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
  for node in ast.walk(tree):
    if isinstance(node, ast.Expr) and _is_call_of_aux(node.value):
      return True
    if isinstance(node, ast.Assign) and _is_call_of_aux(node.value) and all(
        isinstance(target, ast.Name) and target.id not in read
        for target in node.targets):
      return True
  return False


def _parse(text: str) -> ast.Module | None:
  return None if syntax_error(text) else ast.parse(text)


def _shape(tree: ast.expr) -> list[tuple]:
  """Returns types and names of the nodes; without recursion, at any depth."""
  return [
      (type(node), *(
          value for _, value in ast.iter_fields(node)
          if not isinstance(value, (ast.AST, list))))
      for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]


def _body(function: str) -> list[ast.stmt]:
  """Returns the statements of a function without docstrings and `pass`."""
  tree = _parse(function)
  if tree is None or not tree.body:
    return []
  return [
      node for node in getattr(tree.body[0], 'body', [])
      if not isinstance(node, ast.Pass) and not (
          isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]


def _is_call_of_aux(node: ast.AST) -> bool:
  return (
      isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
      and node.func.id == AUX)


def _is_open(text: str) -> bool:
  """True if a text ends inside brackets or a triple-quoted string."""
  try:
    ast.parse(textwrap.dedent(text))
  except SyntaxError as error:
    return 'was never closed' in error.msg or 'unterminated triple' in error.msg
  except (ValueError, RecursionError, MemoryError):
    pass
  return False
