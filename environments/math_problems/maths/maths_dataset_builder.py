"""Problems to train on, and the tests, without any that are in both.

The train split is Polaris or DAPO, by the builder's config. `validation` is
drawn from it by a hash of the problems. Each test is a split of its own:
AIME24, AIME25, OlympiadBench and GSM8K. Training problems that overlap with a
test, and then those that overlap with validation, are left out;
`contamination.py` says what that means. The names of all are printed when the
data set is made, and stand in its `metadata.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import hashlib
import logging
from typing import Any

import tensorflow_datasets as tfds

from environments import datasets
from environments import env_api
from environments.math_problems import contamination

TESTS = ('aime24', 'aime25', 'olympiadbench', 'gsm8k')
NUM_VALIDATION = 200


def module_of(name: str) -> str:
  """The builder of one of the data sets that this one is made of."""
  return f'environments.math_problems.{name}.{name}_dataset_builder'


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Mathematical problems."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'Polaris and DAPO without four tests.'}
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name='polaris', description='Train on Polaris.'),
      tfds.core.BuilderConfig(name='dapo', description='Train on DAPO.'),
  ]
  DEFAULT_BUILDER_CONFIG_NAME = 'polaris'

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=self,
        description='Mathematical problems to train on, and four tests.',
        features=tfds.features.FeaturesDict({
            'task_id': tfds.features.Text(),
            'problem': tfds.features.Text(),
            'answer': tfds.features.Text(),
        }),
        metadata=tfds.core.MetadataDict(),
        disable_shuffling=True,
    )

  def _split_generators(
      self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    del dl_manager  # Each of the data sets has its own.
    source = self.builder_config.name
    tests = {name: self._load(name, 'test') for name in TESTS}
    train, as_tests = _without_overlaps(
        self._load(source, 'train'),
        [task for tasks in tests.values() for task in tasks])
    train, validation = _hold_out(train)
    train, as_validation = _without_overlaps(train, validation)
    removed = as_tests + as_validation
    self.info.metadata['removed'] = removed
    logging.warning(
        '%d problems of %s overlap with tests or validation and are left out%s',
        len(removed), source, ''.join(
            f'\n  {each["task_id"]}: {each["overlaps"]}, share '
            f'{each["share"]:.2f}' for each in removed))
    splits = {'train': train, 'validation': validation, **tests}
    return {
        split: self._generate_examples(tasks)
        for split, tasks in splits.items()}

  def _generate_examples(
      self, tasks: Sequence[env_api.Task]
  ) -> Iterator[tuple[int, env_api.Task]]:
    yield from enumerate(tasks)

  def _load(self, name: str, split: str) -> list[dict[str, Any]]:
    return datasets.load(module_of(name), split, str(self.data_dir_root))


def _without_overlaps(
    tasks: Sequence[env_api.Task], tests: Sequence[env_api.Task]
) -> tuple[list[env_api.Task], list[dict[str, Any]]]:
  """The tasks that are left, and what was removed and why."""
  overlaps = {
      overlap.index: overlap for overlap in contamination.find(tasks, tests)}
  removed = [
      {'task_id': tasks[index]['task_id'], 'overlaps': overlap.task_id,
       'share': overlap.share} for index, overlap in overlaps.items()]
  left = [task for i, task in enumerate(tasks) if i not in overlaps]
  return left, removed


def _hold_out(
    tasks: Sequence[env_api.Task]
) -> tuple[list[env_api.Task], list[env_api.Task]]:
  """Train and validation, at most a tenth of all; both in their order."""
  size = min(NUM_VALIDATION, len(tasks) // 10)
  hashes = [
      hashlib.sha256(task['problem'].encode()).digest() for task in tasks]
  held_out = set(sorted(range(len(tasks)), key=lambda i: hashes[i])[:size])
  return ([task for i, task in enumerate(tasks) if i not in held_out],
          [task for i, task in enumerate(tasks) if i in held_out])
