"""Abstracts of papers: the data set OpenMLRL/arXiv_abstract of the hub."""

from __future__ import annotations

from typing import Any

import tensorflow_datasets as tfds

from environments import dataset_files


class Builder(dataset_files.FilesBuilder):
  """Joins an abstract that is a list of sentences, as its authors describe."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'The field abstract_text of each row.'}
  HUB_REPO = 'OpenMLRL/arXiv_abstract'
  SPLIT_FILES = {
      split: (f'data/{split}-*.parquet', f'*{split}*.parquet',
              f'*{split}*.jsonl')
      for split in ('train', 'val')
  }
  FIELDS = {'abstract_text': (str, list[str])}
  FEATURES = {'text': tfds.features.Text()}

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    abstract = row['abstract_text']
    return {
        'text': abstract if isinstance(abstract, str) else ' '.join(abstract)}
