"""A small data set of letters, for the game of `tests.echo`."""

from __future__ import annotations

from typing import Any

import tensorflow_datasets as tfds

from environments import datasets
from tests import echo

SPLIT_SIZES = {'train': 40, 'validation': 8, 'test': 8}


class Builder(datasets.TaskBuilder):
  """See `environments.datasets.TaskBuilder`."""

  name = 'echo_letters'  # No other test has it.
  VERSION = tfds.core.Version('1.0.0')

  def _info(self) -> tfds.core.DatasetInfo:
    text = tfds.features.Text()
    return tfds.core.DatasetInfo(
        builder=self, disable_shuffling=True,
        features=tfds.features.FeaturesDict({'task_id': text, 'letter': text}))

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return {
        split: [
            {'task_id': f'letters/{split}/{i}',
             'letter': echo.LETTERS[i % len(echo.LETTERS)]}
            for i in range(size)]
        for split, size in SPLIT_SIZES.items()}
