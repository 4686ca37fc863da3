"""Demonstrations of programs that follow a recipe, of mixed quality.

Contests. Kinds of programs (`coder` and `solo`): `right` follows the recipe. In
a `draft` each choice (the kind of a step, the order, the question) is wrong
with probability `WRONG`. A `broken` program lacks its first line or a bracket.
Kinds of testers: a `case` is right, a `guess` has another output, and a
`broken` completion has no case. Testers choose short lists, so a model can work
out some outputs.

Functions. A helper `aux` and its caller `main` can divide a recipe in several
ways, and neither sees the function of the other. Kinds of aux, which returns a
list: `whole` takes all steps, `first` takes the first one, and `broken` does
nothing. Kinds of main: `asks` passes its list through aux and answers the
question about the result. `rest` also takes all steps but the first in between.
`alone` takes all steps without aux, and `broken` does nothing. A single agent
is `alone` or `broken`. Each choice of a recipe is wrong with probability
`WRONG`.

No other kind ends like a broken completion. Otherwise a model that learns to
avoid broken completions would also unlearn that ending.
"""

from collections.abc import Mapping

import numpy as np

from environments.programming import recipes
from environments.programming.contests import env as contests
from environments.programming.contests import prompts
from environments.programming.functions import env as functions
from environments.programming.functions import source
from models import pretrain

WRONG = 0.3
_MAX_TURNS = (1, 2)  # The turn limit is drawn from these.
_MAX_NUMBER, _MAX_LENGTH = 30, 3  # In a tester's list.
_NO_TEST = 'I have no test.'
_CALL = f'a={source.AUX}(a)'


def demonstrate_contest(
    rng: np.random.Generator, role: str, kinds: Mapping[str, float],
    group_size: int) -> pretrain.Demonstration:
  """Draws a recipe at any turn of an episode, and completions of `role`.

  The drill `writer` is a coder whose prompt is the recipe alone.
  """
  recipe, text, tests = recipes.random_recipe(rng)
  limit = int(rng.choice(_MAX_TURNS))
  turn = 0 if role == 'writer' else int(rng.integers(limit))
  state = contests.State(
      recipes.contest(recipe, text, tests), turn,
      report=_random_report(rng, recipe, role) if turn else None)
  if role == 'writer':
    messages = [{'role': 'user', 'content': state.problem.statement}]
  else:
    messages = contests.Contest(
        contests.TEAMS['solo' if role == 'solo' else 'pair'], {}, None, limit
    ).observe(state, role)
  write = _write_test if role == 'tester' else _write_program
  return pretrain.Demonstration(state, messages, tuple(
      write(rng, kind, recipe)
      for kind in pretrain.draw_kinds(rng, kinds, group_size)))


def demonstrate_function(
    rng: np.random.Generator, role: str, kinds: Mapping[str, float],
    group_size: int) -> pretrain.Demonstration:
  """Draws a recipe and completions of `role` in the first turn."""
  recipe, text, tests = recipes.random_recipe(rng)
  state = functions.State(recipes.function(recipe, text, tests))
  environment = functions.make_environment(
      team='solo' if role == 'solo' else 'pair', max_turns=1,
      reward='outcome', sandbox=None)
  return pretrain.Demonstration(state, environment.observe(state, role), tuple(
      _write_function(kind, recipes.change(rng, recipe, WRONG), role)
      for kind in pretrain.draw_kinds(rng, kinds, group_size)))


def _write_program(
    rng: np.random.Generator, kind: str, recipe: recipes.Recipe) -> str:
  if kind == 'right':
    return _block('python', recipe.program)
  program = recipes.change(rng, recipe, WRONG).program
  if kind == 'broken':
    program = (
        program.removeprefix(f'{recipes.FIRST_LINE}\n')
        if rng.random() < 0.5 else program.removesuffix(')\n') + '\n')
  return _block('python', program)


def _write_test(
    rng: np.random.Generator, kind: str, recipe: recipes.Recipe) -> str:
  if kind == 'broken':
    return _NO_TEST
  given, expected = _random_case(rng, recipe, kind == 'case')
  return f'{_block("input", given)}\n{_block("output", expected)}'


def _random_case(
    rng: np.random.Generator, recipe: recipes.Recipe,
    is_right: bool) -> tuple[str, str]:
  """Input and expected output."""
  numbers = rng.integers(
      1, _MAX_NUMBER + 1, rng.integers(1, _MAX_LENGTH + 1)).tolist()
  case = recipes.make_case(recipe, numbers)
  right, = case.answers
  while True:
    value = rng.integers(_MAX_NUMBER + 1)
    if is_right or f'{value}\n' != right:
      return case.input, right if is_right else f'{value}\n'


def _random_report(
    rng: np.random.Generator, recipe: recipes.Recipe,
    role: str) -> prompts.Report:
  """The report of a turn that does not end the episode."""
  draft = recipes.change(rng, recipe, WRONG)
  program, error = draft.program, ''
  if rng.random() < 0.25:
    program = program.removeprefix(f'{recipes.FIRST_LINE}\n')
    error = "NameError: name 'a' is not defined"
  # A tester may have no usable case.
  if role == 'solo' or rng.random() < 0.25:
    return prompts.Report(program)
  given, expected = _random_case(rng, recipe, rng.random() < 0.3)
  got = error or recipes.make_case(
      draft, map(int, given.split())).answers[0]
  is_same = got == expected
  return prompts.Report(
      program, 1, () if is_same else (prompts.Mismatch(given, expected, got),))


def _block(name: str, content: str) -> str:
  return f'```{name}\n{content}```'


def _write_function(kind: str, recipe: recipes.Recipe, role: str) -> str:
  lines = {
      'broken': ['pass'], 'first': recipe.lines[:1], 'asks': [_CALL],
      'rest': [_CALL, *recipe.lines[1:]]}.get(kind, recipe.lines)
  if kind != 'broken':
    lines = [*lines, f'return {"a" if role == "aux" else recipe.result}']
  name = source.AUX if role == 'aux' else recipes.FUNCTION
  return '\n'.join((f'def {name}(a):', *(f'    {line}' for line in lines)))
