"""Word problems and their solutions."""

import ast
import collections
import re

import numpy as np

from environments import sandbox
from environments.math_problems import env as maths
from environments.math_problems.stories import stories_dataset_builder
from environments.math_problems.stories import story
from models.reckoner import recipe as recipe_lib
from models.reckoner import stories
from tests.environments import echo_sandbox


def evaluate(text):
  """A second reading of an expression, by its syntax tree."""
  def value(node):
    if isinstance(node, ast.Constant):
      return node.value
    left, right = value(node.left), value(node.right)
    return {
        ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right,
        ast.FloorDiv: left // right if right else 0}[type(node.op)]

  return value(ast.parse(text, mode='eval').body)


def test_an_expression_has_the_brackets_that_it_needs():
  chain = story.Chain(47, ('+', '*', '-', '//'), (3, 6, 30, 9))
  assert chain.expression == '((47+3)*6-30)//9'
  assert chain.value == (47 + 3) * 6 // 9 - 30 // 9 - 1 + 1 == 30
  other = story.Chain(5, ('*', '*'), (2, 3))
  assert other.expression == '5*2*3'
  both = story.Solution((chain, other), '-', True)
  assert both.expression == '(5*2*3)-(((47+3)*6-30)//9)'
  assert both.value == 0


def test_solutions_are_right():
  rng = np.random.default_rng(0)
  for _ in range(500):
    problem, solution = story.random_story(rng)
    assert evaluate(solution.expression) == solution.value
    assert 0 < solution.value <= story.MAX_VALUE
    assert sorted(re.findall(r'\d+', problem)) == sorted(
        re.findall(r'\d+', solution.expression))
    changed = story.change(rng, solution, 0.5)
    assert evaluate(changed.expression) == changed.value


def test_a_solution_is_composed_of_many_choices():
  """A random program is right in one of hundreds; a draft in one of six."""
  rng = np.random.default_rng(1)
  right = collections.Counter()
  for _ in range(2000):
    _, solution = story.random_story(rng)
    for name, probability in (
        ('random', .75), ('draft', stories.WRONG), ('same', 0.0)):
      changed = story.change(rng, solution, probability)
      right[name] += changed.value == solution.value
  assert right['random'] < 60
  assert 200 < right['draft'] < 500
  assert right['same'] == 2000


def test_held_out_solutions_never_occur_in_the_warm_start():
  """In as many answers as it is shown of stories, right or wrong."""
  tests = stories_dataset_builder.make_splits({'test': 1000})['test']
  rng, shown, num_answers = np.random.default_rng(2), set(), 0
  for phase in recipe_lib.RECIPE.phases.values():
    num_stories = phase.num_steps * sum(
        lesson.num_groups for role, lesson in phase.lessons['stories'].items()
        if role in ('tool', 'solver'))
    num_answers += num_stories * phase.group_size
    for _ in range(num_stories):
      _, solution = story.random_story(rng)
      shown.add(solution.expression)
      for _ in range(phase.group_size):
        shown.add(story.change(
            rng, solution, stories.WRONG).expression)
  unseen = [task for task in tests if task['solution'] not in shown]
  assert num_answers > 20_000
  assert len(unseen) >= 990


def test_splits_have_no_task_in_common():
  splits = stories_dataset_builder.make_splits(
      {'test': 200, 'validation': 50, 'train': 400})
  solutions = [task['solution'] for tasks in splits.values() for task in tasks]
  assert len(set(solutions)) == 650
  assert splits['test'][0]['task_id'] == 'stories/test/0'
  again = stories_dataset_builder.make_splits({'test': 200, 'train': 3})
  assert again['test'] == splits['test']
  assert stories_dataset_builder.Builder.VERSION is not None


def test_the_right_program_solves_a_task():
  for task in stories_dataset_builder.make_splits({'test': 30})['test']:
    printed = echo_sandbox.Constant(
        sandbox.Status.OK, f'{evaluate(task["solution"])}\n')
    environment = maths.Mathematics(
        maths.TEAMS['pair'],
        {'tool': {'output_right': 1.}, 'reasoner': {}}, printed, 2)
    step = environment.step(environment.reset(task), {
        'tool': f'```python\nprint({task["solution"]})\n```'})
    assert step.local_rewards == {'tool': 1.}
    last = environment.step(
        step.state, {'reasoner': f'\\boxed{{{task["answer"]}}}'})
    assert last.done and last.success
