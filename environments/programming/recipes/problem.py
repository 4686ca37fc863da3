"""Recipes as programming problems for contests and for functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from environments.programming import problems
from environments.programming import problems_dataset_builder as base
from environments.programming.recipes import recipe as recipe_lib

FUNCTION = 'solve'
_SECONDS = 1.0


def contest(
    recipe: recipe_lib.Recipe, text: str,
    tests: Sequence[Sequence[int]]) -> dict[str, Any]:
  """Returns a task of environments.programming.contests."""
  return base.make_task(
      statement=text.format(verb='Print'), comparison='code_contests',
      tests=problems.pack_tests([make_case(recipe, test) for test in tests]),
      time_limit=_SECONDS, reference=recipe.program)


def make_case(
    recipe: recipe_lib.Recipe, numbers: Iterable[int]) -> problems.Case:
  """Returns the test with a list as input and the recipe's answer."""
  numbers = list(numbers)
  given = ' '.join(map(str, numbers))
  return problems.Case(f'{given}\n', (f'{recipe.solve(numbers)}\n',))


def function(
    recipe: recipe_lib.Recipe, text: str,
    tests: Sequence[Sequence[int]]) -> dict[str, Any]:
  """Returns a task of environments.programming.functions."""
  asserts = [
      f'    assert solve({list(test)}) == {recipe.solve(test)}\n'
      for test in tests]
  stub = f'def {FUNCTION}(a):\n    """{text.format(verb="Return")}"""\n'
  return base.make_task(
      statement=stub, starter_code=stub, comparison='check',
      tests=problems.pack(f'def check({FUNCTION}):\n{"".join(asserts)}'),
      time_limit=_SECONDS, entry_point=FUNCTION,
      reference='\n'.join((
          f'def {FUNCTION}(a):', *(f'    {line}' for line in recipe.lines),
          f'    return {recipe.result}', '')))
