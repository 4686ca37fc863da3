"""Demonstrations of a helper and its caller, of mixed quality.

The two can share a recipe in more than one way, and neither sees the function
of the other. Kinds of aux, which returns a list: `whole` takes all steps,
`first` the first one, and a `broken` one does nothing. Kinds of main: `asks`
answers the question about the list of aux, `rest` first takes all steps but the
first, `alone` takes all steps without aux, and a `broken` one does nothing. A
single agent is `alone` or `broken`.

Each choice of a recipe (the kind of a step, the order, the question) is wrong
with probability `WRONG`. No other completion ends as a broken one does: a model
that learns that broken ones do not pay would unlearn that ending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import re

import numpy as np

from environments.programming import problems
from environments.programming.functions import env
from environments.programming.functions import source
from environments.programming.recipes import problem as problem_lib
from environments.programming.recipes import recipe as recipe_lib
from models import pretrain

WRONG = 0.3
_NOTHING = 'pass'
_CALL = f'a={source.AUX}(a)'


class Functions:
  """Draws first-turn completions for recipes; see `pretrain.Task`."""

  def demonstrate(
      self, rng: np.random.Generator, role: str, kinds: Mapping[str, float],
      group_size: int) -> pretrain.Demonstration:
    recipe, text, tests = recipe_lib.random_recipe(rng)
    task = problem_lib.function(recipe, text, tests) | {'task_id': ''}
    state = env.State(problems.from_task(task))
    environment = env.make_environment(
        team='solo' if role == 'solo' else 'pair', max_turns=1,
        reward='outcome', sandbox=None)
    drawn = pretrain.draw_kinds(rng, kinds, group_size)
    return pretrain.Demonstration(
        role, state, environment.observe(state, role), tuple(
            write(kind, recipe_lib.change(rng, recipe, WRONG), role)
            for kind in drawn), drawn)

  def kind_of(
      self, demonstration: pretrain.Demonstration,
      completion: str) -> str | None:
    """A function must have the numbers of the steps that it takes."""
    role = demonstration.role
    head, *lines = completion.split('\n')
    if head != _head(role) or not all(x.startswith('    ') for x in lines):
      return None
    lines = [line.removeprefix('    ') for line in lines]
    recipe = _parse_function(demonstration.state.problem.reference)
    calls = role == 'main' and lines[:1] == [_CALL]
    found = _parse_lines(lines[calls:], role)
    if found is None:
      return 'broken' if lines == [_NOTHING] else None
    numbers = [step.number for step in recipe.steps]
    found_numbers = [step.number for step in found.steps]
    if sorted(found_numbers) == sorted(numbers):
      return 'whole' if role == 'aux' else 'alone' if not calls else None
    if role == 'aux':
      is_first = len(found_numbers) == 1 and found_numbers[0] in numbers
      return 'first' if is_first else None
    if not calls:
      return None
    if not found_numbers:
      return 'asks'
    is_rest = len(found_numbers) == len(numbers) - 1 and (
        set(found_numbers) <= set(numbers))
    return 'rest' if is_rest else None


def _head(role: str) -> str:
  return f'def {source.AUX if role == "aux" else problem_lib.FUNCTION}(a):'


def _return(role: str, result: str) -> str:
  return 'return a' if role == 'aux' else f'return {result}'


def write(kind: str, recipe: recipe_lib.Recipe, role: str) -> str:
  lines = {
      'broken': [_NOTHING], 'first': recipe.lines[:1], 'asks': [_CALL],
      'rest': [_CALL, *recipe.lines[1:]]}.get(kind, recipe.lines)
  if kind != 'broken':
    lines = [*lines, _return(role, recipe.result)]
  return '\n'.join((_head(role), *(f'    {line}' for line in lines)))


def _parse_lines(
    lines: Sequence[str], role: str) -> recipe_lib.Recipe | None:
  """The steps of a body. Aux returns its list and asks no question."""
  *steps, last = lines or ['']
  found = re.fullmatch(r'return (.*)', last)
  if not found or (role == 'aux') != (found[1] == 'a'):
    return None
  return recipe_lib.parse_lines(
      steps, 'sum(a)' if role == 'aux' else found[1])


def _parse_function(text: str) -> recipe_lib.Recipe:
  """The recipe of a reference solution."""
  _, *lines, _ = text.split('\n')
  return _parse_lines([line.strip() for line in lines], 'main')
