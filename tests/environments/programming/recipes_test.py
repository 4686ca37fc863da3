"""Recipes and their programs."""

import collections
import io
import itertools

import numpy as np

from environments.programming import problems
from environments.programming.recipes import problem
from environments.programming.recipes import recipe as recipe_lib
from environments.programming.recipes import recipes_dataset_builder as builder
from models.reckoner import contests
from models.reckoner import recipe as reckoner


def run(program, numbers):
  """What a program of ours prints of a list."""
  printed = io.StringIO()
  text = ' '.join(map(str, numbers))
  exec(program, {
      'input': lambda: text, 'print': lambda x: printed.write(f'{x}\n')})
  return printed.getvalue()


def call(program, numbers):
  names = {}
  exec(program, names)
  return names[problem.FUNCTION](list(numbers))


def test_a_recipe_worked_by_hand():
  recipe = recipe_lib.Recipe((
      recipe_lib.Step('above', 10), recipe_lib.Step('multiply', 3),
      recipe_lib.Step('skip', 1)), 'sum')
  assert recipe.program == (
      'a=[int(x)for x in input().split()]\na=[x for x in a if x>10]\n'
      'a=[x*3 for x in a]\na=a[1:]\nprint(sum(a))\n')
  assert recipe.solve([10, 11, 5, 20, 30]) == 3 * 20 + 3 * 30
  assert recipe.solve([]) == 0
  assert recipe_lib.parse(recipe.program) == recipe


def test_programs_do_what_recipes_do():
  rng = np.random.default_rng(0)
  for _ in range(200):
    recipe, text, tests = recipe_lib.random_recipe(rng)
    changed = recipe_lib.change(rng, recipe, 0.5)
    task = problem.function(changed, text, tests)
    for numbers in (*tests, [7], []):
      assert run(changed.program, numbers) == f'{changed.solve(numbers)}\n'
      assert call(task['reference'], numbers) == changed.solve(numbers)
    assert recipe_lib.parse(changed.program) == changed
    for step in recipe.steps:
      assert f' {step.number}' in text


def test_tests_tell_a_recipe_from_its_neighbours():
  rng = np.random.default_rng(1)
  for _ in range(50):
    recipe, _, tests = recipe_lib.random_recipe(rng)
    answers = [recipe.solve(test) for test in tests]
    for index, step in enumerate(recipe.steps):
      for kind in recipe_lib.KINDS:
        if kind != step.kind and (
            recipe_lib.KINDS[kind].family == recipe_lib.KINDS[step.kind].family
        ):
          steps = list(recipe.steps)
          steps[index] = recipe_lib.Step(kind, step.number)
          other = recipe_lib.Recipe(tuple(steps), recipe.question)
          assert [other.solve(test) for test in tests] != answers
    # No test pays for nothing, or for a step less.
    assert 0 not in answers
    for steps in ((), *itertools.combinations(recipe.steps, 2)):
      other = recipe_lib.Recipe(steps, recipe.question)
      assert all(
          answer != other.solve(test) for answer, test in zip(answers, tests))
    for question in recipe_lib.QUESTIONS:
      other = recipe_lib.Recipe(recipe.steps, question)
      same = [other.solve(test) for test in tests] == answers
      assert same == (question == recipe.question)


def test_what_the_tests_of_held_out_recipes_do_not_tell_apart():
  """The two counts of docs/environments.md."""
  with_another_number = with_one_step = 0
  for task in builder.make_splits('contests', {'test': 1000})['test']:
    recipe = recipe_lib.parse(task['reference'])
    tests = [
        (list(map(int, given.split())), int(answer))
        for given, (answer,) in problems.unpack(task['tests'])]

    def passes(*steps, recipe=recipe, tests=tests):
      other = recipe_lib.Recipe(steps, recipe.question)
      return [other.solve(given) == answer for given, answer in tests]

    assert all(passes(*recipe.steps))
    with_another_number += any(
        all(passes(*recipe.steps[:i], recipe_lib.Step(step.kind, number),
                   *recipe.steps[i + 1:]))
        for i, step in enumerate(recipe.steps)
        for number in range(
            recipe_lib.KINDS[step.kind].numbers[0],
            recipe_lib.KINDS[step.kind].numbers[1] + 1)
        if number != step.number)
    with_one_step += any(any(passes(step)) for step in recipe.steps)
  assert (with_another_number, with_one_step) == (616, 61)


def test_a_program_is_composed_of_many_choices():
  """A random program is right in one of hundreds; a draft in one of six."""
  rng = np.random.default_rng(2)
  right = collections.Counter()
  for _ in range(1000):
    recipe, _, tests = recipe_lib.random_recipe(rng)
    for name, probability in (
        ('random', .75), ('draft', contests.WRONG), ('same', 0.0)):
      changed = recipe_lib.change(rng, recipe, probability)
      right[name] += [changed.solve(test) for test in tests] == [
          recipe.solve(test) for test in tests]
  assert right['random'] < 20
  assert 100 < right['draft'] < 250
  assert right['same'] == 1000


def test_held_out_programs_seldom_occur_in_the_warm_start():
  """In as many answers as it is shown of recipes, right or wrong."""
  tests = builder.make_splits('contests', {'test': 1000})['test']
  rng, shown, num_answers = np.random.default_rng(3), set(), 0
  for phase in reckoner.RECIPE.phases.values():
    for task in ('contests', 'functions'):
      num_recipes = phase.num_steps * sum(
          lesson.num_groups
          for role, lesson in phase.lessons.get(task, {}).items()
          if role != 'tester')
      num_answers += num_recipes * phase.group_size
      for _ in range(num_recipes):
        # The search for tests, which takes most of the time, is left out.
        recipe = recipe_lib._random_recipe(rng)
        shown.add(recipe.program)
        for _ in range(phase.group_size):
          shown.add(recipe_lib.change(
              rng, recipe, contests.WRONG).program)
  unseen = [task for task in tests if task['reference'] not in shown]
  assert num_answers > 20_000
  assert len(unseen) >= 950


def test_splits_have_no_task_in_common_and_kinds_the_same_recipes():
  sizes = {'test': 100, 'validation': 20, 'train': 200}
  splits = builder.make_splits('contests', sizes)
  programs = [task['reference'] for tasks in splits.values() for task in tasks]
  assert len(set(programs)) == 320
  assert builder.make_splits('contests', {'test': 100})['test'] == (
      splits['test'])
  others = builder.make_splits('functions', {'test': 5})['test']
  for task, other in zip(splits['test'], others):
    recipe = recipe_lib.parse(task['reference'])
    for case in problems.from_task(task).tests:
      numbers = list(map(int, case.input.split()))
      assert call(other['reference'], numbers) == recipe.solve(numbers)
