"""The Sudoku data sets: boards of 4x4 cells ('4x4') or of 9x9 ('9x9').

Made here rather than downloaded, from fixed seeds: the same rows come out on
every machine and in every process.

Up to names of digits and symmetry there are only 4004 kinds of 4x4 puzzles
with one solution and 6 to 12 blank cells, and 13 with 12, which the first split
would use up. So every kind belongs to one split, by its hash: a quarter of them
to test, a quarter to validation, half to train. About 1050 kinds fall to test,
too few for 1000 tasks of different kinds, since some are hardly ever drawn. So
a split holds copies of a kind, but no board twice: the 1000 test tasks are of
509 kinds, and one kind has 52 of them. Each row names its `kind`, so that
statistics can take tasks of one kind together. The 9x9 puzzles differ by more
than names of digits.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import hashlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.boards.sudoku import grid

SEED = 2510_11062
# In this order a split skips the tasks of those before it, so the test tasks
# stay the same whatever happens to the other sizes.
SPLIT_SIZES = {
    '4x4': {'test': 1_000, 'validation': 200, 'train': 10_000},
    '9x9': {'test': 200, 'validation': 100, 'train': 2_000},
}


def make_splits(
    config: str, sizes: Mapping[str, int]
) -> dict[str, list[dict[str, Any]]]:
  """The splits by name, with the given numbers of tasks, all different."""
  size = Builder.builder_configs[config].size

  def random_task(rng: np.random.Generator, split: str) -> dict[str, Any]:
    while True:
      task = grid.random_task(rng, size)
      task['kind'] = grid.canonical_form(task['board'])
      if size == 9 or split_of_4x4(task['kind']) == split:
        return task

  def key(task: dict[str, Any]) -> str:
    return task['kind'] if size == 9 else ''.join(task['board'])

  return datasets.make_splits(
      f'sudoku/{config}', sizes, SEED + size, random_task, key)


def split_of_4x4(kind: str) -> str:
  """The only split in which 4x4 puzzles of a kind may lie."""
  digest = hashlib.sha256(kind.encode()).digest()
  return ('test', 'validation', 'train', 'train')[digest[0] % 4]


@dataclasses.dataclass(eq=False)
class Config(tfds.core.BuilderConfig):
  """A number of rows."""

  size: int = 4


class Builder(datasets.TaskBuilder):
  """Boards with one completion; see `environments.datasets.TaskBuilder`."""

  VERSION = tfds.core.Version('1.1.0')
  RELEASE_NOTES = {
      '1.0.0': (
          'To train, validate and test: 10000, 200 and 1000 tasks of 4x4 '
          'cells; 2000, 100 and 200 of 9x9.'
      ),
      '1.1.0': 'The same boards; each row names its kind.',
  }
  BUILDER_CONFIGS = [
      Config(name='4x4', description='Boxes of 2x2 cells.', size=4),
      Config(name='9x9', description='Boxes of 3x3 cells.', size=9),
  ]
  DEFAULT_BUILDER_CONFIG_NAME = '4x4'

  def _info(self) -> tfds.core.DatasetInfo:
    size = self.builder_config.size
    least, most = grid.NUM_BLANKS[size]
    board = tfds.features.Sequence(tfds.features.Text(), length=size)
    return tfds.core.DatasetInfo(
        builder=self,
        description=(
            f'Boards of {size}x{size} cells with {least} to {most} blanks and '
            'exactly one completion. kind is the same for boards that differ '
            'by names of digits (of 4x4 cells, also by symmetry). It and '
            'solution serve reports and are never shown to agents.'
        ),
        features=tfds.features.FeaturesDict({
            'task_id': tfds.features.Text(),
            'board': board,
            'solution': board,
            'num_clues': np.int32,
            'kind': tfds.features.Text(),
        }),
        disable_shuffling=True,
    )

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    config = self.builder_config.name
    return make_splits(config, SPLIT_SIZES[config])
