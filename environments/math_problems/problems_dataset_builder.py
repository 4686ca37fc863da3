"""Published mathematical problems, from the Hugging Face hub.

`dataset.config` names the data set:

  polaris        53,000 training problems
  aime24         30 problems of AIME 2024
  aime25         30 problems of AIME 2025
  olympiadbench  English, text-only, open-ended problems (arXiv 2402.14008)
  gsm8k          grade school problems, to train and to test (arXiv 2110.14168)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import tensorflow_datasets as tfds

from environments import dataset_files

FEATURES = {'problem': tfds.features.Text(), 'answer': tfds.features.Text()}


def _plain(row: dataset_files.Row) -> tuple[str, str]:
  problem = row['problem' if 'problem' in row else 'question']
  return problem, str(row['answer'])


def _gsm8k(row: dataset_files.Row) -> tuple[str, str]:
  _, marker, answer = row['answer'].rpartition('####')
  if not marker:
    raise ValueError("no #### in field 'answer'")
  return row['question'], answer


def _olympiadbench(row: dataset_files.Row) -> tuple[str, str]:
  problem = '\n'.join(filter(None, (row['context'], row['question'])))
  answer = ','.join(row['final_answer'])
  # A candidate may omit any unit except %: 4.2 % is not 4.2.
  if row['unit'] in ('%', r'\%') and '%' not in answer:
    answer += '%'
  return problem, answer


@dataclasses.dataclass(eq=False, kw_only=True)
class Problems(tfds.core.BuilderConfig):
  """The files of a data set.

  Attributes:
    hub_repo: see `dataset_files.FilesBuilder`, like the next two.
    split_files: split -> patterns of its files.
    fields: field of a row -> allowed types.
    parse: returns the problem and the answer of a row.
  """

  hub_repo: str
  split_files: Mapping[str, Sequence[str]]
  fields: Mapping[str, tuple[dataset_files.FieldType, ...]]
  parse: Callable[[dataset_files.Row], tuple[str, str]] = _plain


class Builder(dataset_files.FilesBuilder):
  """Mathematical problems with their answers."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = FEATURES
  BUILDER_CONFIGS = [
      Problems(
          name='polaris', hub_repo='POLARIS-Project/Polaris-Dataset-53K',
          split_files={
              'train': ('*.jsonl', 'data/train-*.parquet', '*.parquet')},
          fields={'problem': (str,), 'answer': (str,)}),
      Problems(
          name='aime24', hub_repo='HuggingFaceH4/aime_2024',
          split_files={'test': ('data/train-*.parquet',)},  # The only split.
          fields={'problem': (str,), 'answer': (str, int)}),
      Problems(
          name='aime25', hub_repo='opencompass/AIME2025',
          split_files={'test': ('aime2025-*.jsonl',)},
          fields={'question': (str,), 'answer': (str, int)}),
      Problems(
          name='olympiadbench', hub_repo='Hothan/OlympiadBench',
          split_files={'test': (
              '*/OE_TO_maths_en_COMP.parquet',
              'OE_TO_maths_en_COMP/*.parquet')},
          fields={
              'question': (str,), 'final_answer': (list[str],),
              'context': (str, type(None)), 'unit': (str, type(None))},
          parse=_olympiadbench),
      Problems(
          name='gsm8k', hub_repo='openai/gsm8k',
          split_files={
              x: (f'main/{x}-*.parquet',) for x in ('train', 'test')},
          fields={'question': (str,), 'answer': (str,)}, parse=_gsm8k),
  ]
  HUB_REPO = property(lambda self: self.builder_config.hub_repo)
  SPLIT_FILES = property(lambda self: self.builder_config.split_files)
  FIELDS = property(lambda self: self.builder_config.fields)

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    task = dict(zip(FEATURES, map(str.strip, self.builder_config.parse(row))))
    for name, text in task.items():
      if not text:
        raise ValueError(f'the {name} is empty')
    return task
