"""Demonstrations of mixed quality of a helper and its caller; see `recipe`.

The two can share a recipe in more than one way, and neither sees what the other
does. Kinds of aux, of which each returns a list: `whole` takes all steps,
`first` the first one, and a `broken` one does nothing. Kinds of main: `asks`
answers the question about what aux returns, `rest` takes all steps but the
first before it does so, `alone` takes all of them and does not call aux, and a
`broken` one does nothing. Who works alone is `alone` or `broken`.

All choices of a recipe (the kind of a step, the order, the question) are wrong
with probability `WRONG`. No other answer ends where a broken one does: who
learns that it does not pay would unlearn to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import re

import numpy as np

from environments import demonstrations
from environments.programming import problems
from environments.programming.functions import env
from environments.programming.functions import source
from environments.programming.recipes import problem as problem_lib
from environments.programming.recipes import recipe as recipe_lib

WRONG = 0.3
_NOTHING = 'pass'
_CALL = f'a={source.AUX}(a)'


class Repertoire:
  """What can be shown of functions; see `environments.demonstrations`."""

  def demonstrate(
      self, rng: np.random.Generator, role: str, kinds: Mapping[str, float],
      group_size: int,
      max_turns: Sequence[int]) -> demonstrations.Demonstration:
    """Draws a recipe and `group_size` answers of `role` in a first turn.

    Args:
      rng: of all that is drawn.
      role: 'aux', 'main' or 'solo'.
      kinds: kind -> its probability.
      group_size: answers.
      max_turns: (1,), the limit of an episode.
    """
    if tuple(max_turns) != (1,):
      raise ValueError(f'max_turns={max_turns}, but one turn is shown: (1,)')
    recipe, text, tests = recipe_lib.random_recipe(rng)
    task = problem_lib.function(recipe, text, tests) | {'task_id': ''}
    state = env.State(problems.from_task(task))
    environment = env.make_environment(
        team='solo' if role == 'solo' else 'pair', max_turns=1,
        reward='outcome', sandbox=None)
    drawn = tuple(
        str(kind) for kind in rng.choice(
            list(kinds), size=group_size, p=list(kinds.values())))
    return demonstrations.Demonstration(
        role, state, environment.observe(state, role), tuple(
            _write(kind, recipe_lib.change(rng, recipe, WRONG), role)
            for kind in drawn), drawn)

  def kind_of(
      self, demonstration: demonstrations.Demonstration,
      completion: str) -> str | None:
    """The kind of an answer to the same prompt, if it is spelled as it should.

    It must have the numbers of the steps that it takes.
    """
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
    said = [step.number for step in found.steps]
    if sorted(said) == sorted(numbers):
      return 'whole' if role == 'aux' else 'alone' if not calls else None
    if role == 'aux':
      return 'first' if len(said) == 1 and said[0] in numbers else None
    if not calls:
      return None
    if not said:
      return 'asks'
    is_rest = len(said) == len(numbers) - 1 and set(said) <= set(numbers)
    return 'rest' if is_rest else None


def _head(role: str) -> str:
  return f'def {source.AUX if role == "aux" else problem_lib.FUNCTION}(a):'


def _return(role: str, result: str) -> str:
  return 'return a' if role == 'aux' else f'return {result}'


def _write(kind: str, recipe: recipe_lib.Recipe, role: str) -> str:
  lines = {
      'broken': [_NOTHING], 'first': recipe.lines[:1], 'asks': [_CALL],
      'rest': [_CALL, *recipe.lines[1:]]}.get(kind, recipe.lines)
  if kind != 'broken':
    lines = [*lines, _return(role, recipe.result)]
  return '\n'.join((_head(role), *(f'    {line}' for line in lines)))


def _parse_lines(
    lines: Sequence[str], role: str) -> recipe_lib.Recipe | None:
  """The steps of a body; of what aux returns nothing is asked."""
  *steps, last = lines or ['']
  found = re.fullmatch(r'return (.*)', last)
  if not found or (role == 'aux') != (found[1] == 'a'):
    return None
  return recipe_lib.parse_lines(
      steps, 'sum(a)' if role == 'aux' else found[1])


def _parse_function(text: str) -> recipe_lib.Recipe:
  """The recipe of a reference."""
  _, *lines, _ = text.split('\n')
  return _parse_lines([line.strip() for line in lines], 'main')


REPERTOIRE = Repertoire()
