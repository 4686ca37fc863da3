"""The Plan-Path data set: 10x10 mazes with a start and a goal.

Made here rather than downloaded, as in the paper (arXiv 2510.11062), but from
fixed seeds: the same rows come out on every machine and in every process.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.boards.plan_path import maze

SEED = 2510_11062
# In this order a split skips the tasks of those before it, so the test tasks
# stay the same whatever happens to the other sizes.
SPLIT_SIZES = {'test': 1_000, 'validation': 200, 'train': 10_000}


def make_splits(sizes: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
  """The splits by name, with the given numbers of tasks, all different."""
  return datasets.make_splits(
      'plan_path', sizes, SEED,
      random_task=lambda rng, split: maze.random_task(rng), key=json.dumps)


class Builder(datasets.TaskBuilder):
  """10x10 mazes; see `environments.datasets.TaskBuilder`."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {
      '1.0.0': '10000 tasks to train, 200 to validate and 1000 to test.'
  }

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=self,
        description=(
            f'Mazes of {maze.SIZE}x{maze.SIZE} cells, each cell a wall with '
            f'probability {maze.WALL_PROBABILITY}; the shortest path from '
            f'start to goal has at least {maze.MIN_SHORTEST_PATH} moves. '
            'shortest_path serves reports and is never shown to agents.'
        ),
        features=tfds.features.FeaturesDict({
            'task_id': tfds.features.Text(),
            'grid': tfds.features.Sequence(
                tfds.features.Text(), length=maze.SIZE
            ),
            'start': tfds.features.Tensor(shape=(2,), dtype=np.int32),
            'goal': tfds.features.Tensor(shape=(2,), dtype=np.int32),
            'shortest_path': np.int32,
        }),
        disable_shuffling=True,
    )

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(SPLIT_SIZES)
