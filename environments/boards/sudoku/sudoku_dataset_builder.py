"""The Sudoku data sets: boards of 4x4 cells ('4x4') or of 9x9 ('9x9').

Generated from fixed seeds, so that every machine gets the same rows.

Up to symmetry and the names of digits there are only 4004 kinds of 4x4 puzzles
with one solution and 6 to 12 blank cells. A hash assigns each kind to a split:
a quarter of the kinds to test, a quarter to validation, half to train. About
1050 kinds belong to test, and some are hardly ever drawn, so a split has
several boards of a kind, but no board twice. The 1000 test tasks have 509
kinds, and 52 tasks share a kind. Each row names its `kind`, so statistics can
count the tasks of a kind once. No two 9x9 puzzles differ only by the names of
digits.
"""

from collections.abc import Mapping
import hashlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.boards.sudoku import env

SEED = 2510_11062
SIZES = {'4x4': 4, '9x9': 9}  # Rows of each config.
SPLIT_SIZES = {
    '4x4': datasets.SPLIT_SIZES,
    '9x9': {'test': 200, 'validation': 100, 'train': 2_000},
}


def make_splits(
    config: str, sizes: Mapping[str, int]
) -> dict[str, list[dict[str, Any]]]:
  size = SIZES[config]

  def random_task(rng: np.random.Generator, split: str) -> dict[str, Any]:
    while True:
      task = env.random_task(rng, size)
      task['kind'] = env.canonical_form(task['board'])
      if size == 9 or split_of_4x4(task['kind']) == split:
        return task

  def key(task: dict[str, Any]) -> str:
    return task['kind'] if size == 9 else ''.join(task['board'])

  return datasets.make_splits(
      f'sudoku/{config}', sizes, SEED + size, random_task, key)


def split_of_4x4(kind: str) -> str:
  """The only split that may hold 4x4 puzzles of this kind."""
  digest = hashlib.sha256(kind.encode()).digest()
  return ('test', 'validation', 'train', 'train')[digest[0] % 4]


class Builder(datasets.TaskBuilder):
  """Boards with exactly one completion.

  `kind` is equal for boards that differ only by the names of digits, and for
  4x4 boards also by symmetry. It and `solution` are for reports. Agents never
  see them.
  """

  VERSION = tfds.core.Version('1.1.0')
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name='4x4', description='Boxes of 2x2 cells.'),
      tfds.core.BuilderConfig(name='9x9', description='Boxes of 3x3 cells.'),
  ]

  @property
  def FEATURES(self) -> dict[str, Any]:
    board = tfds.features.Sequence(
        tfds.features.Text(), length=SIZES[self.builder_config.name])
    return {
        'board': board,
        'solution': board,
        'num_clues': np.int32,
        'kind': tfds.features.Text(),
    }

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    config = self.builder_config.name
    return make_splits(config, SPLIT_SIZES[config])
