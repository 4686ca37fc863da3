"""The posts data set, generated from fixed seeds."""

from collections.abc import Mapping
from typing import Any

import tensorflow_datasets as tfds

from environments import datasets
from environments.writing.posts import grammar

SEED = 2508_04652


def make_splits(sizes: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
  return datasets.make_splits(
      'posts', sizes, SEED,
      random_task=lambda rng, split: {'text': grammar.random_post(rng)},
      key=lambda task: task['text'])


class Builder(datasets.TaskBuilder):
  """Posts of 5 to 7 short sentences about people, places and events."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {'text': tfds.features.Text()}

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(datasets.SPLIT_SIZES)
