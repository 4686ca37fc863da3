"""Loads the tasks of any environment from its tensorflow-datasets builder.

A builder is a module with a class `Builder`, at
`environments/<name>/<name>_dataset_builder.py`. Its rows are written once as
array_record and read as plain Python values; TensorFlow is not needed, unless a
feature has two axes of unknown length (a list of lists): use a list of dicts,
which comes back as a dict of lists, or fix one length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import fcntl
import hashlib
import importlib
import json
import os
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments.base import Task


def load(
    builder_module: str, split: str, data_dir: str | None = None
) -> list[dict[str, Any]]:
  """Returns the tasks of a split in their fixed order, made on first use.

  Args:
    builder_module: dotted path of a builder's module, for example
      'environments.plan_path.plan_path_dataset_builder'.
    split: a name, a slice or a sum, as tensorflow-datasets writes them:
      'train', 'test[:200]', 'train[:10%]+validation'.
    data_dir: local folder of all data sets; by default $TFDS_DATA_DIR or
      ~/tensorflow_datasets.
  """
  if data_dir is not None:
    data_dir = os.path.expanduser(data_dir)
    if '://' in data_dir:
      raise ValueError(
          f'data_dir {data_dir!r} is remote, and array_record needs a local '
          'folder; name one (every host can make its own copy)'
      )
  tfds.disable_progress_bar()
  builder = _prepared_builder(builder_module, data_dir)
  sizes = ', '.join(
      f'{name} ({info.num_examples} tasks)'
      for name, info in builder.info.splits.items()
  )
  hint = f"; choose from {sizes}, or a slice such as 'test[:200]'"
  try:
    num_tasks = builder.info.splits[split].num_examples
  except (ValueError, NotImplementedError) as error:
    raise ValueError(f'{builder.name} has no split {split!r}{hint}') from error
  if not num_tasks:
    raise ValueError(f'split {split!r} of {builder.name} has no tasks{hint}')
  return [_plain(row) for row in builder.as_data_source(split)]


def split_hash(tasks: Sequence[Task]) -> str:
  """16 hex digits of the SHA-256 of the tasks, in their order, as JSON."""
  text = json.dumps(list(tasks), sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _prepared_builder(
    builder_module: str, data_dir: str | None
) -> tfds.core.DatasetBuilder:
  try:
    module = importlib.import_module(builder_module)
  except ModuleNotFoundError as error:
    if not f'{builder_module}.'.startswith(f'{error.name}.'):
      raise  # The module is there, but something it imports is not.
    raise ValueError(
        f'no builder module {builder_module!r}; expected a dotted path such as '
        "'environments.plan_path.plan_path_dataset_builder'"
    ) from error
  builder = module.Builder(data_dir=data_dir, file_format='array_record')
  if builder.info.splits:
    return builder
  with _lock(builder.data_dir_root, builder.name):
    builder.download_and_prepare()
  # Anew, for another process may have written the data while this one waited.
  builder = module.Builder(data_dir=data_dir, file_format='array_record')
  if not builder.info.splits:
    raise ValueError(
        f'{builder.data_dir} holds no complete data set; delete it, and the '
        'next start makes it anew'
    )
  return builder


@contextlib.contextmanager
def _lock(data_dir: os.PathLike, name: str) -> Iterator[None]:
  """Lets one process at a time write a data set; ends with the process.

  tensorflow-datasets writes to a temporary folder and renames it, so nobody
  reads half a data set; but the second of two renames raises.
  """
  os.makedirs(data_dir, exist_ok=True)
  with open(os.path.join(data_dir, f'{name}.lock'), 'w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _plain(value: Any) -> Any:
  """The same value without numpy, and with text for bytes."""
  if isinstance(value, (np.ndarray, np.generic)):
    value = value.tolist()
  if isinstance(value, bytes):
    return value.decode()
  if isinstance(value, dict):
    return {key: _plain(item) for key, item in value.items()}
  if isinstance(value, list):
    return [_plain(item) for item in value]
  return value
