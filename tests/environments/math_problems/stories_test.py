"""Generated word problems and their solutions."""

import re

import numpy as np

from environments.math_problems import stories
from environments.math_problems import stories_dataset_builder
from models.reckoner import recipe as recipe_lib
from models.reckoner import stories as demonstrations


def test_random_solutions_are_correct():
  rng = np.random.default_rng(0)
  for _ in range(300):
    problem, solution = stories.random_story(rng)
    for chain in solution.chains:
      value = chain.start
      for operator, number in zip(chain.operators, chain.numbers):
        value = eval(f'{value}{operator}{number}')
      assert eval(chain.expression) == value
    assert 0 < solution.value <= stories.MAX_VALUE
    assert sorted(re.findall(r'\d+', problem)) == sorted(
        re.findall(r'\d+', solution.expression))


def test_warm_start_shows_at_most_one_percent_of_held_out_solutions():
  """Draws a quarter of its stories and allows a quarter of 1 %."""
  held_out = stories_dataset_builder.make_splits({'test': 1000})['test']
  rng, shown = np.random.default_rng(2), set()
  for phase in recipe_lib.RECIPE.phases.values():
    num_stories = phase.num_steps * sum(
        num for role, (num, _) in phase.lessons['stories'].items()
        if role in ('tool', 'solver'))
    for _ in range(num_stories // 4):
      _, solution = stories.random_story(rng)
      shown.add(solution.expression)
      shown.update(
          stories.change(rng, solution, demonstrations.WRONG).expression
          for _ in range(phase.group_size))
  assert len(shown) > 10_000
  assert sum(task['solution'] in shown for task in held_out) <= 2
