"""The tasks of Guess a number."""

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets

SIZES = {'test': 100, 'validation': 20, 'train': 200}


class Builder(datasets.TaskBuilder):
  """Numbers from 1 to 9."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    return tfds.core.DatasetInfo(
        builder=self, disable_shuffling=True,
        features=tfds.features.FeaturesDict({
            'task_id': tfds.features.Text(), 'number': np.int32}))

  def splits(self):
    return {
        split: [{'task_id': f'guess_number/{split}/{i}', 'number': i % 9 + 1}
                for i in range(size)] for split, size in SIZES.items()}
