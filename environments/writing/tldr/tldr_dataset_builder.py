"""Reddit posts to summarise: the data set trl-lib/tldr of the hub."""

from __future__ import annotations

from typing import Any

import tensorflow_datasets as tfds

from environments import dataset_files


class Builder(dataset_files.FilesBuilder):
  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'The field prompt of each row.'}
  HUB_REPO = 'trl-lib/tldr'
  SPLIT_FILES = {
      split: (f'data/{split}-*.parquet', f'*{split}*.parquet')
      for split in ('train', 'validation', 'test')
  }
  FIELDS = {'prompt': (str,)}
  FEATURES = {'text': tfds.features.Text()}

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    return {'text': row['prompt']}
