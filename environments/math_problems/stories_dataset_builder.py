"""The stories data set: generated word problems.

Generated from fixed seeds, so that every machine gets the same rows. No two
tasks have the same solution.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.math_problems import stories

SEED = 2510_11062


def make_splits(sizes: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
  """Generates splits of distinct stories."""
  return datasets.make_splits(
      'stories', sizes, SEED, random_task=_random_task,
      key=lambda task: task['solution'])


def _random_task(rng: np.random.Generator, split: str) -> dict[str, str]:
  del split
  problem, solution = stories.random_story(rng)
  return {
      'problem': problem, 'answer': str(solution.value),
      'solution': solution.expression}


class Builder(datasets.TaskBuilder):
  """Word problems of three or four events.

  `solution` is an expression. It serves reports; agents never see it.
  """

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {
      'problem': tfds.features.Text(),
      'answer': tfds.features.Text(),
      'solution': tfds.features.Text(),
  }

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(datasets.SPLIT_SIZES)
