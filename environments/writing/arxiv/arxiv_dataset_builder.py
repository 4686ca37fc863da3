"""Abstracts of papers: the data set OpenMLRL/arXiv_abstract of the hub."""

import tensorflow_datasets as tfds

from environments import dataset_files


def _parse(row: dataset_files.Row) -> dict[str, str]:
  """Joins an abstract that is a list of sentences, as its authors describe."""
  abstract = row['abstract_text']
  return {'text': abstract if isinstance(abstract, str) else ' '.join(abstract)}


class Builder(dataset_files.FilesBuilder):
  """The field `abstract_text` of each row."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {'text': tfds.features.Text()}
  BUILDER_CONFIGS = [dataset_files.Files(
      name='arxiv', hub_repo='OpenMLRL/arXiv_abstract', parse=_parse,
      fields={'abstract_text': str | list},
      split_files={
          split: (f'data/{split}-*.parquet', f'*{split}*.parquet',
                  f'*{split}*.jsonl')
          for split in ('train', 'val')})]
