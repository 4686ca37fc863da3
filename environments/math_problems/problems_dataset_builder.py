"""Published mathematical problems, from the Hugging Face hub.

`dataset.config` names the data set:

  polaris        53,000 training problems
  aime24         30 problems of AIME 2024
  aime25         30 problems of AIME 2025
  olympiadbench  English, text-only, open-ended problems (arXiv 2402.14008)
  gsm8k          grade school problems, to train and to test (arXiv 2110.14168)
"""

import tensorflow_datasets as tfds

from environments import dataset_files

FEATURES = {'problem': tfds.features.Text(), 'answer': tfds.features.Text()}


def _plain(row: dataset_files.Row) -> dict[str, str]:
  problem = row['problem' if 'problem' in row else 'question']
  return _make_task(problem, str(row['answer']))


def _gsm8k(row: dataset_files.Row) -> dict[str, str]:
  _, marker, answer = row['answer'].rpartition('####')
  if not marker:
    raise ValueError("no #### in field 'answer'")
  return _make_task(row['question'], answer)


def _olympiadbench(row: dataset_files.Row) -> dict[str, str]:
  problem = '\n'.join(filter(None, (row['context'], row['question'])))
  answer = ','.join(row['final_answer'])
  # A candidate may omit any unit except %: 4.2 % is not 4.2.
  if row['unit'] in ('%', r'\%') and '%' not in answer:
    answer += '%'
  return _make_task(problem, answer)


def _make_task(problem: str, answer: str) -> dict[str, str]:
  task = {'problem': problem.strip(), 'answer': answer.strip()}
  for name, text in task.items():
    if not text:
      raise ValueError(f'the {name} is empty')
  return task


class Builder(dataset_files.FilesBuilder):
  """Mathematical problems with their answers."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = FEATURES
  BUILDER_CONFIGS = [
      dataset_files.Files(
          name='polaris', hub_repo='POLARIS-Project/Polaris-Dataset-53K',
          split_files={
              'train': ('*.jsonl', 'data/train-*.parquet', '*.parquet')},
          fields={'problem': str, 'answer': str}, parse=_plain),
      dataset_files.Files(
          name='aime24', hub_repo='HuggingFaceH4/aime_2024',
          split_files={'test': ('data/train-*.parquet',)},  # The only split.
          fields={'problem': str, 'answer': str | int}, parse=_plain),
      dataset_files.Files(
          name='aime25', hub_repo='opencompass/AIME2025',
          split_files={'test': ('aime2025-*.jsonl',)},
          fields={'question': str, 'answer': str | int}, parse=_plain),
      dataset_files.Files(
          name='olympiadbench', hub_repo='Hothan/OlympiadBench',
          split_files={'test': (
              '*/OE_TO_maths_en_COMP.parquet',
              'OE_TO_maths_en_COMP/*.parquet')},
          fields={
              'question': str, 'final_answer': list, 'context': str | None,
              'unit': str | None},
          parse=_olympiadbench),
      dataset_files.Files(
          name='gsm8k', hub_repo='openai/gsm8k',
          split_files={
              x: (f'main/{x}-*.parquet',) for x in ('train', 'test')},
          fields={'question': str, 'answer': str}, parse=_gsm8k),
  ]
