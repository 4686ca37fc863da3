"""The recipes data set: generated programming problems.

Made from fixed seeds: the same rows come out on every machine and in every
process. No two tasks have the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.programming import problems_dataset_builder as base
from environments.programming.recipes import problem
from environments.programming.recipes import recipe as recipe_lib

SEED = 2510_11062
# In this order a split skips the tasks of those before it, so the test tasks
# stay the same whatever happens to the other sizes.
SPLIT_SIZES = {'test': 1_000, 'validation': 200, 'train': 10_000}
_MAKERS = {'contests': problem.contest, 'functions': problem.function}


def make_splits(
    kind: str, sizes: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
  """The splits by name, with the given numbers of tasks, all different.

  Args:
    kind: 'contests' or 'functions'; the recipes are the same.
    sizes: split -> tasks.
  """
  def random_task(rng: np.random.Generator, split: str) -> dict[str, Any]:
    del split
    return _MAKERS[kind](*recipe_lib.random_recipe(rng))

  return datasets.make_splits(
      'recipes', sizes, SEED, random_task, key=lambda task: task['reference'])


class Builder(datasets.TaskBuilder):
  """Generated recipes; see `environments.datasets.TaskBuilder`."""

  VERSION = tfds.core.Version('3.0.0')
  RELEASE_NOTES = {
      '1.0.0': '10000 tasks to train, 200 to validate and 1000 to test.',
      '2.0.0': 'No test is passed by an answer without steps, or by 0.',
      '3.0.0': 'No test is passed by an answer that lacks one step.',
  }
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(
          name='contests', description='Programs that read stdin.'),
      tfds.core.BuilderConfig(
          name='functions', description='A function, and asserts.')]

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=self,
        description=(
            'Generated programming problems of three steps over a list '
            'of numbers. reference is a program that is right.'
        ),
        features=tfds.features.FeaturesDict({
            'task_id': tfds.features.Text(), **base.ProblemsBuilder.FEATURES}),
        disable_shuffling=True,
    )

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(self.builder_config.name, SPLIT_SIZES)
