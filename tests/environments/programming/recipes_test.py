"""Generated recipes, their programs and their tests."""

import io
import itertools

import numpy as np
import pytest

from environments import datasets
from environments.programming import problems
from environments.programming.recipes import problem
from environments.programming.recipes import recipe as recipe_lib
from environments.programming.recipes import recipes_dataset_builder as builder
from models.reckoner import contests
from models.reckoner import recipe as reckoner


@pytest.fixture(scope='module')
def held_out():
  return builder.make_splits('contests', {'test': 400})['test']


def run(program, numbers):
  """Returns what a program prints for a list."""
  printed = io.StringIO()
  text = ' '.join(map(str, numbers))
  exec(program, {
      'input': lambda: text, 'print': lambda x: printed.write(f'{x}\n')})
  return printed.getvalue()


def call(program, numbers):
  names = {}
  exec(program, names)
  return names[problem.FUNCTION](list(numbers))


def solve_all(recipe, tests):
  return [recipe.solve(test) for test in tests]


def test_recipe_worked_out_by_hand():
  recipe = recipe_lib.Recipe((
      recipe_lib.Step('above', 10), recipe_lib.Step('multiply', 3),
      recipe_lib.Step('skip', 1)), 'sum')
  assert recipe.program == (
      'a=[int(x)for x in input().split()]\na=[x for x in a if x>10]\n'
      'a=[x*3 for x in a]\na=a[1:]\nprint(sum(a))\n')
  assert recipe.solve([10, 11, 5, 20, 30]) == 3 * 20 + 3 * 30
  assert recipe.solve([]) == 0


def test_programs_compute_what_recipes_compute():
  rng = np.random.default_rng(0)
  for _ in range(100):
    recipe, text, tests = recipe_lib.random_recipe(rng)
    changed = recipe_lib.change(rng, recipe, 0.5)
    task = problem.function(changed, text, tests)
    for numbers in (*tests, [7], []):
      assert run(changed.program, numbers) == f'{changed.solve(numbers)}\n'
      assert call(task['reference'], numbers) == changed.solve(numbers)
    assert recipe_lib.parse(changed.program) == changed
    assert all(f' {step.number}' in text for step in recipe.steps)


def test_tests_tell_a_recipe_from_its_neighbours():
  rng = np.random.default_rng(1)
  for _ in range(50):
    recipe, _, tests = recipe_lib.random_recipe(rng)
    answers = solve_all(recipe, tests)
    for index, step in enumerate(recipe.steps):
      family = recipe_lib.KINDS[step.kind].family
      for kind, found in recipe_lib.KINDS.items():
        if kind != step.kind and found.family == family:
          steps = list(recipe.steps)
          steps[index] = recipe_lib.Step(kind, step.number)
          other = recipe_lib.Recipe(tuple(steps), recipe.question)
          assert solve_all(other, tests) != answers
    for question in recipe_lib.QUESTIONS:
      other = recipe_lib.Recipe(recipe.steps, question)
      assert (solve_all(other, tests) == answers) == (
          question == recipe.question)
    # No test accepts 0, or a recipe that lacks one or all steps.
    assert 0 not in answers
    for steps in ((), *itertools.combinations(recipe.steps, 2)):
      other = recipe_lib.Recipe(steps, recipe.question)
      assert not any(
          x == y for x, y in zip(answers, solve_all(other, tests)))


@pytest.mark.parametrize('probability, low, high', [
    (.75, 0, 10), (contests.WRONG, 40, 100), (0.0, 400, 400)])
def test_random_programs_fail_and_one_draft_in_six_is_correct(
    held_out, probability, low, high):
  rng = np.random.default_rng(2)
  num_correct = 0
  for task in held_out:
    recipe = recipe_lib.parse(task['reference'])
    tests = [
        list(map(int, case.input.split()))
        for case in problems.from_task(task).tests]
    changed = recipe_lib.change(rng, recipe, probability)
    num_correct += solve_all(changed, tests) == solve_all(recipe, tests)
  assert low <= num_correct <= high


def test_warm_start_shows_at_most_five_percent_of_held_out_programs(held_out):
  """Draws a quarter of its recipes and allows a quarter of 5 %."""
  rng, shown = np.random.default_rng(3), set()
  for phase in reckoner.RECIPE.phases.values():
    num_recipes = phase.num_steps * sum(
        lesson.num_groups for task in ('contests', 'functions')
        for role, lesson in phase.lessons.get(task, {}).items()
        if role != 'tester')
    for _ in range(num_recipes // 4):
      # Without the search for tests, which takes most of the time.
      recipe = recipe_lib._random_recipe(rng)
      shown.add(recipe.program)
      shown.update(
          recipe_lib.change(rng, recipe, contests.WRONG).program
          for _ in range(phase.group_size))
  assert len(shown) > 10_000
  assert sum(task['reference'] in shown for task in held_out) <= 5


def test_splits_are_reproducible_and_disjoint(held_out):
  splits = builder.make_splits(
      'contests', {'test': 50, 'validation': 20, 'train': 100})
  assert splits['test'] == held_out[:50]
  assert datasets.split_hash(splits['test']) == 'c3243da0a39bc613'
  assert datasets.split_hash(splits['train']) == '74741da1839f8ca9'
  programs = [task['reference'] for tasks in splits.values() for task in tasks]
  assert len(set(programs)) == 170
  functions = builder.make_splits('functions', {'test': 5})['test']
  assert datasets.split_hash(functions) == '9c7d8203984739ff'
  for task, other in zip(splits['test'], functions):
    recipe = recipe_lib.parse(task['reference'])
    for case in problems.from_task(task).tests:
      numbers = list(map(int, case.input.split()))
      assert call(other['reference'], numbers) == recipe.solve(numbers)
