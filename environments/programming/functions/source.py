"""Finds functions in replies as text and analyses them as syntax trees.

A function may be surrounded by fences and prose. Python's parser finds it in a
reply, or between two fences, that is valid. Otherwise it ends before the first
line that is less indented and lets Python read it, or else before the first
such line.
"""

import ast
import builtins
import re
import textwrap
from typing import Any
import warnings

from environments import text as text_lib

AUX = 'aux'
_CALL = re.compile(rf'{AUX}\s*\(')
_MAX_DEFINITIONS = 20  # Each is read.
_MAX_ENDS = 20  # Of a definition; each is tried.
_FENCE = re.compile(r'^[ \t]*```.*$', re.MULTILINE)
_IMPORT = re.compile(
    r'(from\s+[\w.]+\s+import\s+\S.*|import\s[\w.,\s]+)', re.ASCII)


def find_function(reply: str, name: str) -> str:
  """Returns the source of a function in a reply, dedented, or ''.

  It is the last of the least indented definitions that are valid Python, or
  else of all. Imports that its decorators need come before it. Decorators that
  need other parts of the reply are left out.
  """
  text = text_lib.reply(reply).replace('\r\n', '\n').removeprefix('\ufeff')
  function = _find_parsed(text, name)
  return _with_imports(
      _find_defined(text, name) if function is None else function, text)


def _find_parsed(text: str, name: str) -> str | None:
  """The function in the last part between fences that holds its name.

  None if that part is no valid Python.
  """
  for part in reversed(_FENCE.split(text)):
    if not re.search(rf'\bdef\s+{re.escape(name)}\s*\(', part):
      continue
    part = textwrap.dedent(part)
    tree = _parse(part)
    if tree is None:
      return None
    found = [
        node for node in ast.walk(tree)
        if _is_function(node) and node.name == name]
    if found:
      node = min(found, key=lambda x: (x.col_offset, -x.lineno))
      first = min(x.lineno for x in (node, *node.decorator_list))
      lines = part.split('\n')[first - 1:node.end_lineno]
      indent = lines[0][:node.col_offset]
      return '\n'.join(x.removeprefix(indent) for x in lines)
  return None


def _with_imports(function: str, text: str) -> str:
  """Adds the imports of a text that decorators need, and drops the others."""
  tree = _parse(function)
  node = tree.body[0] if tree and tree.body else None
  if not _is_function(node) or not node.decorator_list:
    return function
  imported = {}  # Name -> the statement that binds it.
  for line in find_imports(text).split('\n'):
    for alias in ast.walk(_parse(line) or ast.Module([], [])):
      if isinstance(alias, ast.alias):
        imported[(alias.asname or alias.name).partition('.')[0]] = line
  lines, kept, used = function.split('\n'), [], set()
  for decorator in node.decorator_list:
    names = {x.id for x in ast.walk(decorator) if isinstance(x, ast.Name)}
    if names <= imported.keys() | vars(builtins).keys():
      kept += lines[decorator.lineno - 1:decorator.end_lineno]
      used |= names
  # A set has no fixed order, and the text may be shown in a prompt.
  statements = dict.fromkeys(imported[x] for x in imported if x in used)
  return '\n'.join([*statements, *kept, *lines[node.lineno - 1:]])


def _find_defined(text: str, name: str) -> str:
  """The function in a text that is no valid Python."""
  lines = _FENCE.sub('', text).split('\n')
  closed = _FENCE.sub('pass', text).split('\n')  # A fence ends a function.
  define = re.compile(
      rf'([ \t]*)(?:async[ \t]+)?def[ \t]+{re.escape(name)}[ \t]*\(')
  found, end = [], 0
  starts = [i for i, line in enumerate(lines) if define.match(line)]
  for start in starts[-_MAX_DEFINITIONS:]:
    if start < end:  # Inside of the one before, perhaps in a text.
      continue
    indent = define.match(lines[start])[1]
    first = start
    while first > end and lines[first - 1].startswith(f'{indent}@'):
      first -= 1
    end = first + _size(
        [line.removeprefix(indent) for line in closed[first:]], start - first)
    found.append((len(indent), '\n'.join(
        line.removeprefix(indent) for line in lines[first:end]).strip()))
  valid = [x for x in found if not syntax_error(x[1])] or found
  outermost = min((depth for depth, _ in valid), default=0)
  return ['', *(x for depth, x in valid if depth == outermost)][-1]


def _size(lines: list[str], definition: int) -> int:
  """Number of the first lines that belong to a function.

  `definition` is the index of the line with its name, after the decorators. The
  function ends with this line, or before one that is less indented than the
  next.
  """
  indents = {
      i: len(line) - len(line.lstrip()) for i, line in enumerate(lines)
      if i > definition and line.strip() and line.lstrip()[0] != '#'}
  inner = max(1, next(iter(indents.values()), 1))
  ends = [definition + 1, *(
      i for i, indent in indents.items() if indent < inner), len(lines)]
  for end in ends[:_MAX_ENDS]:  # Before others a text or a bracket is open.
    if not syntax_error('\n'.join(lines[:end])):
      while lines[end - 1].strip()[:1] in ('', '#'):
        end -= 1
      return end
  return ends[1]


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
  match body:
    case [ast.Return() as last]:
      return any(map(_is_call_of_aux, ast.walk(last)))
    case [ast.Assign(targets=[target], value=value),
          ast.Return(value=ast.expr() as returned)]:
      return (
          not isinstance(value, ast.Tuple)
          and _CALL.match(ast.get_source_segment(main, value)) is not None
          and _shape(target) == _shape(returned))
  return not body


def ignores_aux(main: str) -> bool:
  """True if a call of `aux` is a statement or bound to an unread name."""
  tree = _parse(main)
  if tree is None:
    return False
  read = {
      node.id for node in ast.walk(tree)
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
  return any(
      isinstance(node, (ast.Expr, ast.Assign)) and _is_call_of_aux(node.value)
      and all(
          isinstance(target, ast.Name) and target.id not in read
          for target in getattr(node, 'targets', ()))
      for node in ast.walk(tree))


def _is_function(node: Any) -> bool:
  return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


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
  body = tree.body if tree else []
  return [
      node for function in filter(_is_function, body) for node in function.body
      if not isinstance(node, ast.Pass) and not (
          isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]


def _is_call_of_aux(node: ast.AST) -> bool:
  return (
      isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
      and node.func.id == AUX)

