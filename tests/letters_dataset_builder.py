"""A small data set of letters, for the game of `tests.echo`."""

from typing import Any

import tensorflow_datasets as tfds

from environments import datasets
from tests import echo

SPLIT_SIZES = {'train': 40, 'validation': 8, 'test': 8}


class Builder(datasets.TaskBuilder):
  """Letters."""

  name = 'echo_letters'  # Unique among the tests.
  VERSION = tfds.core.Version('1.0.0')

  FEATURES = {'letter': tfds.features.Text()}

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return {
        split: [
            {'task_id': f'letters/{split}/{i}',
             'letter': echo.LETTERS[i % len(echo.LETTERS)]}
            for i in range(size)]
        for split, size in SPLIT_SIZES.items()}
