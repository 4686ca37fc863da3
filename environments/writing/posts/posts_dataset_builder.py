"""The posts data set: short generated posts.

Made from fixed seeds: the same rows come out on every machine and in every
process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow_datasets as tfds

from environments import datasets
from environments.writing.posts import post

SEED = 2508_04652
# In this order a split skips the tasks of those before it, so the test tasks
# stay the same whatever happens to the other sizes.
SPLIT_SIZES = {'test': 1_000, 'validation': 200, 'train': 10_000}


def make_splits(sizes: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
  """The splits by name, with the given numbers of tasks, all different."""
  return datasets.make_splits(
      'posts', sizes, SEED,
      random_task=lambda rng, split: {'text': post.random_post(rng)},
      key=lambda task: task['text'])


class Builder(datasets.TaskBuilder):
  """Generated posts; see `environments.datasets.TaskBuilder`."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {
      '1.0.0': '10000 tasks to train, 200 to validate and 1000 to test.'
  }

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=self,
        description=(
            'Generated posts of 5 to 7 short sentences about people, places, '
            'things and events.'
        ),
        features=tfds.features.FeaturesDict({
            'task_id': tfds.features.Text(),
            'text': tfds.features.Text(),
        }),
        disable_shuffling=True,
    )

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(SPLIT_SIZES)
