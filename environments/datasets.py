"""Loads the tasks of any environment from its tensorflow-datasets builder.

A builder is a module with a class `Builder`, at
`environments/<name>/<name>_dataset_builder.py`. Its rows are written once as
array_record and read as plain Python values; TensorFlow is not needed, unless a
feature has two axes of unknown length (a list of lists): use a list of dicts,
which comes back as a dict of lists, or fix one length. A data set that is made
here rather than downloaded has a `TaskBuilder`, and `make_splits` draws it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import fcntl
import hashlib
import importlib
import json
import os
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments.env_api import Task

# What a builder and what it reads may raise.
_ERRORS_OF_CODE = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError,
    NameError, OSError, RuntimeError, SyntaxError, TypeError, ValueError)

_LONGEST_REASON = 300  # Letters of a foreign error within a sentence.


def load(
    builder_module: str,
    split: str,
    data_dir: str | None = None,
    builder_config: str | None = None,
) -> list[dict[str, Any]]:
  """Returns the tasks of a split in their fixed order, made on first use.

  Args:
    builder_module: dotted path of a builder's module, for example
      'environments.boards.plan_path.plan_path_dataset_builder'.
    split: a name, a slice or a sum, as tensorflow-datasets writes them:
      'train', 'test[:200]', 'train[:10%]+validation'.
    data_dir: local folder of all data sets; by default $TFDS_DATA_DIR or
      ~/tensorflow_datasets.
    builder_config: name of one of the builder's configs, if it has several; by
      default its DEFAULT_BUILDER_CONFIG_NAME.
  """
  if data_dir is not None:
    data_dir = os.path.expanduser(data_dir)
    if '://' in data_dir:
      raise ValueError(
          f'data_dir {data_dir!r} is remote, and array_record needs a local '
          'folder; name one (every host can make its own copy)'
      )
  tfds.disable_progress_bar()
  builder = _prepared_builder(builder_module, data_dir, builder_config)
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
  with _reading(builder, split):
    tasks = [_plain(row) for row in builder.as_data_source(split)]
  _check_tasks(tasks, f'split {split!r} of {builder.name}')
  return tasks


def make_splits(
    name: str,
    sizes: Mapping[str, int],
    seed: int,
    random_task: Callable[[np.random.Generator, str], dict[str, Any]],
    key: Callable[[dict[str, Any]], str],
) -> dict[str, list[dict[str, Any]]]:
  """Draws each split from its own seed; no two tasks have the same key.

  A split skips the keys of those before it, so the first stays the same
  whatever happens to the other sizes.

  Args:
    name: name of the data set; a task_id is 'name/split/number'.
    sizes: split name -> number of tasks, in the order of drawing.
    seed: common to all splits.
    random_task: draws a task for the split of that name.
    key: what is the same in two tasks that count as equal.
  """
  splits, seen = {}, set()
  for split, size in sizes.items():
    rng = np.random.default_rng(
        np.random.SeedSequence([seed, *split.encode()])
    )
    tasks = splits[split] = []
    while len(tasks) < size:
      task = random_task(rng, split)
      content = key(task)
      if content not in seen:
        seen.add(content)
        tasks.append({'task_id': f'{name}/{split}/{len(tasks)}'} | task)
  return splits


class TaskBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes the tasks of `splits`, in their order."""

  @abc.abstractmethod
  def splits(self) -> dict[str, list[dict[str, Any]]]:
    """The tasks of each split, made on this machine."""

  def _split_generators(
      self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    del dl_manager  # Nothing is downloaded.
    return {
        split: self._generate_examples(tasks)
        for split, tasks in self.splits().items()
    }

  def _generate_examples(
      self, tasks: list[dict[str, Any]]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from enumerate(tasks)


def split_hash(tasks: Sequence[Task]) -> str:
  """16 hex digits of the SHA-256 of the tasks, in their order, as JSON."""
  text = json.dumps(list(tasks), sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _prepared_builder(
    builder_module: str, data_dir: str | None, builder_config: str | None
) -> tfds.core.DatasetBuilder:
  expected = (
      '; expected a module with a class Builder, such as '
      "'environments.boards.plan_path.plan_path_dataset_builder'")
  try:
    module = importlib.import_module(builder_module)
  except _ERRORS_OF_CODE as error:
    if isinstance(error, ModuleNotFoundError) and (
        f'{builder_module}.'.startswith(f'{error.name}.')):
      raise ValueError(
          f'dataset.builder: no builder module {builder_module!r}{expected}'
      ) from error
    # The module is there, but something in it, or that it imports, is not.
    raise ValueError(
        f'dataset.builder={builder_module!r} cannot be imported '
        f'({_one_line(error)}){expected}') from error
  if not isinstance(getattr(module, 'Builder', None), type):
    raise ValueError(
        f'dataset.builder={builder_module!r} has no class Builder{expected}')
  options = {'data_dir': data_dir, 'file_format': 'array_record'}
  if builder_config is not None:
    if builder_config not in module.Builder.builder_configs:
      raise ValueError(
          f'{builder_module} has no config {builder_config!r}; it has '
          f'{list(module.Builder.builder_configs)}'
      )
    options['config'] = builder_config
  with _Opening(module.Builder.name, data_dir):
    builder = module.Builder(**options)
  if builder.info.splits:
    return builder
  try:
    with _lock(builder.data_dir_root, builder.name):
      builder.download_and_prepare()
  except ValueError:
    raise
  except OSError as error:
    raise ValueError(
        f'dataset.data_dir: {builder.data_dir} cannot be written ({error}); '
        'name another folder') from error
  except _ERRORS_OF_CODE as error:
    raise ValueError(
        f'the data set {builder.name} of dataset.builder={builder_module!r} '
        f'cannot be made ({_one_line(error)}); mend the builder, or the rows '
        'that it is given') from error
  # Anew, for another process may have written the data while this one waited.
  with _Opening(module.Builder.name, data_dir):
    builder = module.Builder(**options)
  if not builder.info.splits:
    raise ValueError(
        f'{builder.data_dir} holds no complete data set; delete it, and the '
        'next start makes it anew'
    )
  return builder


class _Opening:
  """Says ValueError for a dataset_info.json that cannot be read."""

  def __init__(self, name: str, data_dir: str | None):
    self._name = name
    self._root = data_dir or os.environ.get(
        'TFDS_DATA_DIR', '~/tensorflow_datasets')

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind, error, traceback) -> None:
    # protobuf has a class of its own for text that it cannot parse.
    if isinstance(error, _ERRORS_OF_CODE) or (
        kind is not None and kind.__module__ == 'google.protobuf.json_format'):
      raise ValueError(
          f'the data set {self._name} in {self._root}: its dataset_info.json, '
          f'or the builder, cannot be used ({_one_line(error)}); delete the '
          'folder of the data set, and the next start makes it anew'
      ) from error


@contextlib.contextmanager
def _reading(
    builder: tfds.core.DatasetBuilder, split: str) -> Iterator[None]:
  """Says ValueError for files of a split that are missing or damaged."""
  try:
    yield
  except _ERRORS_OF_CODE as error:
    raise ValueError(
        f'{builder.data_dir} is damaged: the split {split!r} cannot be read '
        f'({_one_line(error)}); delete the folder, and the next start makes it '
        'anew') from error


def _check_tasks(tasks: Sequence[Task], where: str) -> None:
  """Every task has a name of its own."""
  names = set()
  for number, task in enumerate(tasks):
    name = task.get('task_id')
    if not isinstance(name, str) or not name:
      raise ValueError(
          f'{where}, row {number}: task_id={name!r} must be a text of at least '
          'one letter; is a file damaged?')
    if name in names:
      raise ValueError(
          f'{where}, row {number}: task_id={name!r} is there twice; each task '
          'needs a name of its own')
    names.add(name)


def _one_line(error: BaseException) -> str:
  text = ' '.join(str(error).split())
  if len(text) > _LONGEST_REASON:
    text = text[:_LONGEST_REASON] + ' …'
  return f'{type(error).__name__}: {text}'


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
