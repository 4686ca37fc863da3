"""The Plan-Path data set: 10x10 mazes with a start and a goal.

Generated as in the paper (arXiv 2510.11062), but from fixed seeds, so every
machine gets the same rows.
"""

from collections.abc import Mapping
import json
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.boards.plan_path import env

SEED = 2510_11062


def make_splits(sizes: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
  return datasets.make_splits(
      'plan_path', sizes, SEED,
      random_task=lambda rng, split: env.random_task(rng), key=json.dumps)


class Builder(datasets.TaskBuilder):
  """Mazes whose shortest path from start to goal has at least 6 moves.

  `shortest_path` is for reports. Agents never see it.
  """

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {
      'grid': tfds.features.Sequence(tfds.features.Text(), length=env.SIZE),
      'start': tfds.features.Tensor(shape=(2,), dtype=np.int32),
      'goal': tfds.features.Tensor(shape=(2,), dtype=np.int32),
      'shortest_path': np.int32,
  }

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(datasets.SPLIT_SIZES)
