"""Reddit posts to summarise: the data set trl-lib/tldr of the hub."""

import tensorflow_datasets as tfds

from environments import dataset_files


class Builder(dataset_files.FilesBuilder):
  """The field `prompt` of each row."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {'text': tfds.features.Text()}
  BUILDER_CONFIGS = [dataset_files.Files(
      name='tldr', hub_repo='trl-lib/tldr', fields={'prompt': str},
      split_files={
          split: (f'data/{split}-*.parquet', f'*{split}*.parquet')
          for split in ('train', 'validation', 'test')},
      parse=lambda row: {'text': row['prompt']})]
