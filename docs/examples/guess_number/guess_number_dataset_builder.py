"""The tasks of Guess a number."""

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets


class Builder(datasets.TaskBuilder):
  """Numbers from 1 to 9."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {'number': np.int32}

  def splits(self):
    return {
        split: [{'task_id': f'guess_number/{split}/{i}', 'number': i % 9 + 1}
                for i in range(size)]
        for split, size in (('test', 100), ('validation', 20), ('train', 200))}
