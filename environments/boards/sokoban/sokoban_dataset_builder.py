"""The Sokoban data sets: 6x6 rooms with one box ('1box') or two ('2boxes').

Made here rather than downloaded, from fixed seeds: the same rows come out on
every machine and in every process. No room is a turned or mirrored copy of
another.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.boards.sokoban import room

SEED = 2510_11062
# In this order a split skips the tasks of those before it, so the test tasks
# stay the same whatever happens to the other sizes.
SPLIT_SIZES = {'test': 1_000, 'validation': 200, 'train': 10_000}


def make_splits(
    config: str, sizes: Mapping[str, int]
) -> dict[str, list[dict[str, Any]]]:
  """The splits by name, with the given numbers of tasks, all different."""
  num_boxes = Builder.builder_configs[config].num_boxes
  return datasets.make_splits(
      f'sokoban/{config}', sizes, SEED + num_boxes,
      random_task=lambda rng, split: room.random_task(rng, num_boxes),
      key=room.canonical_form)


@dataclasses.dataclass(eq=False)
class Config(tfds.core.BuilderConfig):
  """A number of boxes."""

  num_boxes: int = 1


class Builder(datasets.TaskBuilder):
  """6x6 rooms; see `environments.datasets.TaskBuilder`."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {
      '1.0.0': '10000 tasks to train, 200 to validate and 1000 to test.'
  }
  BUILDER_CONFIGS = [
      Config(name='1box', description='One box.', num_boxes=1),
      # A version of its own: the rooms with one box did not change.
      Config(
          name='2boxes', description='Two boxes.', num_boxes=2,
          version='2.0.0', release_notes=RELEASE_NOTES | {
              '2.0.0': 'A solution has at least 3 pushes, not 2.'
          }),
  ]
  DEFAULT_BUILDER_CONFIG_NAME = '1box'

  def _info(self) -> tfds.core.DatasetInfo:
    cells = tfds.features.Tensor(
        shape=(self.builder_config.num_boxes, 2), dtype=np.int32
    )
    return tfds.core.DatasetInfo(
        builder=self,
        description=(
            f'Rooms of {room.SIZE}x{room.SIZE} cells, each cell a wall with '
            f'probability {room.WALL_PROBABILITY}; a solution has at least '
            f'{self.builder_config.num_boxes + 1} pushes. pushes and moves, '
            'the least numbers, serve reports and are never shown to agents.'
        ),
        features=tfds.features.FeaturesDict({
            'task_id': tfds.features.Text(),
            'grid': tfds.features.Sequence(
                tfds.features.Text(), length=room.SIZE
            ),
            'player': tfds.features.Tensor(shape=(2,), dtype=np.int32),
            'boxes': cells,
            'goals': cells,
            'pushes': np.int32,
            'moves': np.int32,
        }),
        disable_shuffling=True,
    )

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(self.builder_config.name, SPLIT_SIZES)
