"""The recipes data set: generated programming problems.

The seeds are fixed, so every machine generates the same rows. No two tasks have
the same program.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.programming import benchmarks_dataset_builder
from environments.programming import recipes

SEED = 2510_11062
_MAKERS = {'contests': recipes.contest, 'functions': recipes.function}


def make_splits(
    kind: str, sizes: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
  """Generates splits of distinct recipes, the same for both kinds."""
  def random_task(rng: np.random.Generator, split: str) -> dict[str, Any]:
    del split
    return vars(_MAKERS[kind](*recipes.random_recipe(rng)))

  return datasets.make_splits(
      'recipes', sizes, SEED, random_task, key=lambda task: task['reference'])


class Builder(datasets.TaskBuilder):
  """Programming problems of three steps over a list of numbers.

  `reference` is a correct program.
  """

  VERSION = tfds.core.Version('3.0.0')
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(
          name='contests', description='Programs that read stdin.'),
      tfds.core.BuilderConfig(
          name='functions', description='A function, and asserts.')]
  FEATURES = benchmarks_dataset_builder.FEATURES

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(self.builder_config.name, datasets.SPLIT_SIZES)
