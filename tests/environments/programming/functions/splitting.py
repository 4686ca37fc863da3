"""Splits a correct function into a helper and a main function.

The helper computes the value of the last return statement from the variables
that it reads.
"""

import ast


def split(program: str, name: str) -> tuple[str, str] | None:
  """Returns the sources of `aux` and the function, or None if impossible."""
  function = next(
      node for node in ast.parse(program).body
      if isinstance(node, ast.FunctionDef) and node.name == name)
  last = function.body[-1]
  if not isinstance(last, ast.Return) or last.value is None:
    return None
  nodes = list(ast.walk(last.value))
  stored = {
      node.id for node in nodes
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
  bound = {argument.arg for argument in function.args.args} | {
      node.id for node in ast.walk(function)
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
  defined = {  # Names that cannot be passed to the helper.
      node.name for node in ast.walk(function)
      if isinstance(node, (ast.FunctionDef, ast.alias))} - {name}
  names = {node.id for node in nodes if isinstance(node, ast.Name)} - stored
  if names & defined or any(isinstance(n, ast.Lambda) for n in nodes):
    return None
  parameters = ', '.join(sorted(names & bound))
  aux = f'def aux({parameters}):\n    return {ast.unparse(last.value)}'
  last.value = ast.parse(f'aux({parameters})', mode='eval').body
  function.returns = None
  return aux, ast.unparse(function)
