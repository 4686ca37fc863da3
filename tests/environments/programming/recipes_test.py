"""Generated recipes, their programs and their tests."""

import collections
import io

import numpy as np

from environments import datasets
from environments.programming import problems
from environments.programming import recipes
from environments.programming import recipes_dataset_builder as builder
from models.reckoner import programs
from models.reckoner import recipe as reckoner


def run(program, text):
  """Returns what a program prints for an input."""
  printed = io.StringIO()
  exec(program, {
      'input': lambda: text, 'print': lambda x: printed.write(f'{x}\n')})
  return printed.getvalue()


def call(program, numbers):
  names = {}
  exec(program, names)
  return names[recipes.FUNCTION](list(numbers))


def test_random_programs_fail_and_one_draft_in_six_is_correct():
  rng, num_correct = np.random.default_rng(0), collections.Counter()
  for _ in range(200):
    recipe, _, tests = recipes.random_recipe(rng)
    for probability in (0.75, programs.WRONG):
      changed = recipes.change(rng, recipe, probability)
      num_correct[probability] += all(
          changed.solve(test) == recipe.solve(test) for test in tests)
  assert num_correct[0.75] <= 5
  assert 20 <= num_correct[programs.WRONG] <= 50


def test_warm_start_shows_at_most_five_percent_of_held_out_programs():
  """Draws a sixteenth of its recipes and allows a sixteenth of 5 %."""
  rng, shown = np.random.default_rng(3), set()
  for phase in reckoner.RECIPE.phases.values():
    num_recipes = phase.num_steps * sum(
        num for task in ('contests', 'functions')
        for role, (num, _) in phase.lessons.get(task, {}).items()
        if role != 'tester')
    for _ in range(num_recipes // 16):
      # Without the search for tests, which takes most of the time.
      recipe = recipes.draw_recipe(rng)
      shown.add(recipe.program)
      shown.update(
          recipes.change(rng, recipe, programs.WRONG).program
          for _ in range(phase.group_size))
  assert len(shown) > 2_500
  held_out = builder.make_splits('contests', {'test': 400})['test']
  assert sum(task['reference'] in shown for task in held_out) <= 1


def test_splits_are_reproducible_disjoint_and_solved_by_references():
  splits = builder.make_splits(
      'contests', {'test': 50, 'validation': 20, 'train': 100})
  assert datasets.split_hash(splits['test']) == 'c3243da0a39bc613'
  assert datasets.split_hash(splits['train']) == '74741da1839f8ca9'
  programs = [task['reference'] for tasks in splits.values() for task in tasks]
  assert len(set(programs)) == 170
  functions = builder.make_splits('functions', {'test': 5})['test']
  assert datasets.split_hash(functions) == '9c7d8203984739ff'
  for task, other in zip(splits['test'], functions):
    for case in problems.from_task(task).cases:
      numbers = map(int, case.input.split())
      assert run(task['reference'], case.input) == case.answers[0]
      assert f'{call(other["reference"], numbers)}\n' == case.answers[0]
