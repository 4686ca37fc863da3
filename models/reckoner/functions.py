"""Demonstrations of a helper and its caller, of mixed quality.

The two can divide a recipe in several ways, and neither sees the function of
the other. Kinds of aux, which returns a list: `whole` takes all steps, `first`
the first one, and `broken` does nothing. Kinds of main: `asks` answers the
question about the list of aux, `rest` first takes all steps but the first,
`alone` takes all steps without aux, and `broken` does nothing. A single agent
is `alone` or `broken`.

Each choice of a recipe (the kind of a step, the order, the question) is wrong
with probability `WRONG`. Only broken completions end as they do; see
`models.reckoner.contests`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from environments.programming import recipes
from environments.programming.functions import env
from environments.programming.functions import source
from models import pretrain

WRONG = 0.3
_CALL = f'a={source.AUX}(a)'


def demonstrate(
    rng: np.random.Generator, role: str, kinds: Mapping[str, float],
    group_size: int) -> pretrain.Demonstration:
  """Draws a recipe and completions of `role` in the first turn."""
  recipe, text, tests = recipes.random_recipe(rng)
  state = env.State(recipes.function(recipe, text, tests))
  environment = env.make_environment(
      team='solo' if role == 'solo' else 'pair', max_turns=1,
      reward='outcome', sandbox=None)
  return pretrain.Demonstration(state, environment.observe(state, role), tuple(
      _write(kind, recipes.change(rng, recipe, WRONG), role)
      for kind in pretrain.draw_kinds(rng, kinds, group_size)))


def _write(kind: str, recipe: recipes.Recipe, role: str) -> str:
  lines = {
      'broken': ['pass'], 'first': recipe.lines[:1], 'asks': [_CALL],
      'rest': [_CALL, *recipe.lines[1:]]}.get(kind, recipe.lines)
  if kind != 'broken':
    lines = [*lines, f'return {"a" if role == "aux" else recipe.result}']
  name = source.AUX if role == 'aux' else recipes.FUNCTION
  return '\n'.join((f'def {name}(a):', *(f'    {line}' for line in lines)))
