"""The Depot data set: sequences of orders, from fixed seeds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.depot import env

SEED = 2510_11062


def make_splits(sizes: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
  """Generates splits that differ in their first six orders of eight items."""
  environment = env.make_environment(
      team='pair', max_turns=6, reward='mixed', sandbox=None)
  return datasets.make_splits(
      'depot', sizes, SEED,
      random_task=lambda rng, split: {'orders': rng.integers(
          env.ORDER_RANGE, size=env.MAX_ORDERS).tolist()},
      key=lambda task: str(
          environment.reset(task | {'task_id': ''}).orders))


class Builder(datasets.TaskBuilder):
  """Orders as numbers from 0 to 9999.

  `environments.depot.env` divides this range among the items, so a task suits
  any number of items. An episode serves the first orders.
  """

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {
      'orders': tfds.features.Tensor(shape=(env.MAX_ORDERS,), dtype=np.int32)}

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits(datasets.SPLIT_SIZES)
