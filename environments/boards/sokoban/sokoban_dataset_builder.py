"""The Sokoban data sets: 6x6 rooms with one box ('1box') or two ('2boxes').

Generated from fixed seeds, so that every machine gets the same rows. No room is
a turned or mirrored copy of another.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.boards.sokoban import env

SEED = 2510_11062
NUM_BOXES = {'1box': 1, '2boxes': 2}  # Of each config.


def make_splits(
    config: str, sizes: Mapping[str, int]
) -> dict[str, list[dict[str, Any]]]:
  num_boxes = NUM_BOXES[config]
  return datasets.make_splits(
      f'sokoban/{config}', sizes, SEED + num_boxes,
      random_task=lambda rng, split: env.random_task(rng, num_boxes),
      key=env.canonical_form)


class Builder(datasets.TaskBuilder):
  """Rooms that need more pushes than they have boxes.

  `pushes` and `moves` are the minimum numbers, for reports. Agents never see
  them.
  """

  VERSION = tfds.core.Version('1.0.0')
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name='1box', description='One box.'),
      tfds.core.BuilderConfig(
          name='2boxes', description='Two boxes.', version='2.0.0'),
  ]

  @property
  def FEATURES(self) -> dict[str, Any]:
    cells = tfds.features.Tensor(
        shape=(NUM_BOXES[self.builder_config.name], 2), dtype=np.int32)
    return {
        'grid': tfds.features.Sequence(tfds.features.Text(), length=env.SIZE),
        'player': tfds.features.Tensor(shape=(2,), dtype=np.int32),
        'boxes': cells,
        'goals': cells,
        'pushes': np.int32,
        'moves': np.int32,
    }

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(self.builder_config.name, datasets.SPLIT_SIZES)
