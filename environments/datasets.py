"""Loads the tasks of an environment from a function or a data set builder.

The simplest source is a function `tasks(split)` in a module. It returns the
tasks of a split as dicts, or a file with them, and is called at every start.

A builder of tensorflow-datasets is a module `<name>_dataset_builder.py` with a
class `Builder`. Its rows are written once as array_record and read as plain
Python values. TensorFlow is needed only for a feature with two axes of unknown
length (a list of lists). Use a list of dicts, which is read as a dict of lists,
or fix one length. Builders of generated tasks inherit from `TaskBuilder` and
call `make_splits`.

The name of a data set on disk ends with a digest of the files of the builder's
module and of the modules that it refers to, and of the state of its manual
files. After a change of any, the data set is made again.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import pathlib
import re
import sys
import sysconfig
import textwrap
import types
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import row_files
from environments.env_api import Task

# Splits are drawn in this order. Each skips the tasks of earlier splits, so the
# test tasks do not depend on the sizes of other splits.
SPLIT_SIZES = {'test': 1_000, 'validation': 200, 'train': 10_000}

_MODULE_HINT = (
    'expected a module with a function tasks(split), or with a class Builder, '
    "such as 'environments.boards.plan_path.plan_path_dataset_builder'")


def load(
    module_name: str,
    split: str,
    data_dir: str | None = None,
    builder_config: str | None = None,
) -> list[dict[str, Any]]:
  """Returns the tasks of a split in their fixed order.

  Args:
    module_name: dotted path of a module with a class `Builder`, such as
      'environments.boards.plan_path.plan_path_dataset_builder', or with a
      function `tasks`. `Builder` takes precedence, and writes its data set on
      first use.
    split: a name, a slice or a sum in the syntax of tensorflow-datasets:
      'train', 'test[:200]', 'train[:10%]+validation'. `tasks` is called with
      the name alone.
    data_dir: local folder of all data sets of builders; by default
      $TFDS_DATA_DIR or ~/tensorflow_datasets.
    builder_config: a config of the builder; by default its
      DEFAULT_BUILDER_CONFIG_NAME, or else its first.

  Raises:
    ValueError: the split, the module or its files cannot be used.
  """
  key = f'dataset.builder={module_name!r}'
  with _errors_as_value_error(f'{key} cannot be imported', _MODULE_HINT):
    module = importlib.import_module(module_name)
  if isinstance(getattr(module, 'Builder', None), type):
    name, tasks = _read_builder(module, split, data_dir, builder_config)
  elif not hasattr(module, 'tasks'):
    raise ValueError(
        f'{key} has no class Builder and no function tasks; {_MODULE_HINT}.')
  elif builder_config is not None:
    raise ValueError(
        f'dataset.config={builder_config!r}, but {module_name}.tasks has no '
        'configs; leave it empty.')
  else:
    name, tasks = module_name, _call_tasks(module, split)
  seen = set()
  for number, task in enumerate(tasks):
    task_id = task.get('task_id')
    if not isinstance(task_id, str) or not task_id or task_id in seen:
      raise ValueError(
          f'split {split!r} of {name}, row {number}: '
          f'task_id={task_id!r}; expected a unique text that is not empty.')
    seen.add(task_id)
  return tasks


def make_splits(
    name: str,
    sizes: Mapping[str, int],
    seed: int,
    random_task: Callable[[np.random.Generator, str], dict[str, Any]],
    key: Callable[[dict[str, Any]], str],
) -> dict[str, list[dict[str, Any]]]:
  """Draws distinct tasks for each split.

  The random generator of a split depends only on `seed` and its name.

  Args:
    name: name of the data set; a task_id is 'name/split/number'.
    sizes: split name -> number of tasks, in the order of drawing.
    seed: shared by all splits.
    random_task: draws a task for the named split.
    key: identifies a task; later tasks with an equal key are dropped.
  """
  splits, seen = {}, set()
  for split, size in sizes.items():
    rng = np.random.default_rng(
        np.random.SeedSequence([seed, *split.encode()]))
    tasks = splits[split] = []
    while len(tasks) < size:
      task = random_task(rng, split)
      content = key(task)
      if content not in seen:
        seen.add(content)
        tasks.append(task | {'task_id': f'{name}/{split}/{len(tasks)}'})
  return splits


class TaskBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes generated tasks. Its docstring becomes the description."""

  # Field -> tensorflow-datasets feature, without 'task_id'.
  FEATURES: Mapping[str, Any]

  @abc.abstractmethod
  def splits(self) -> dict[str, list[Any]]:
    """Generates the tasks of each split, with their task_ids."""

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=self, description=self.__doc__, disable_shuffling=True,
        metadata=tfds.core.MetadataDict(),
        features=tfds.features.FeaturesDict(
            {'task_id': tfds.features.Text(), **self.FEATURES}))

  def _split_generators(
      self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    del dl_manager  # Unused.
    return {
        split: self._generate_examples(split, tasks)
        for split, tasks in self.splits().items()}

  def _generate_examples(
      self, split: str, tasks: Sequence[Any]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    del split  # Unused.
    yield from enumerate(tasks)


def manual_folder(data_dir: str | os.PathLike, name: str) -> pathlib.Path:
  """Folder for the files of a data set that users copy there."""
  return pathlib.Path(data_dir, 'downloads', 'manual', name)


def split_hash(tasks: Sequence[Task]) -> str:
  """First 16 hex digits of the SHA-256 of the tasks as JSON, in order."""
  digest = hashlib.sha256(b'[')
  for number, task in enumerate(tasks):  # Large tasks fit into memory once.
    digest.update(b',' * bool(number) + _as_json(task).encode())
  digest.update(b']')
  return digest.hexdigest()[:16]


def num_common(tasks: Sequence[Task], others: Sequence[Task]) -> int:
  """Number of `tasks` that equal one of `others`, except for the task_id."""
  known = {_content_hash(task) for task in others}
  return sum(_content_hash(task) in known for task in tasks)


def _content_hash(task: Task) -> str:
  return split_hash([{**task, 'task_id': ''}])


def _as_json(task: Task) -> str:
  return json.dumps(task, sort_keys=True, separators=(',', ':'))


# ---- Functions ---------------------------------------------------------------


def _call_tasks(
    module: types.ModuleType, split: str) -> list[dict[str, Any]]:
  """Returns the tasks of a split, a slice or a sum from `module.tasks`."""
  names = re.findall(r'(?:^|\+)\s*([\w-]+)', split)
  rows = {name: _rows_of(module, name) for name in names}
  sizes = {
      name: types.SimpleNamespace(num_examples=len(rows[name]))
      for name in rows}
  return [
      task for part in _parts(module.__name__, split, sizes)
      for task in rows[part.splitname][part.from_:part.to]]


def _parts(name: str, split: str, sizes: Mapping[str, Any]) -> list[Any]:
  """Returns the ranges of rows in a split, a slice or a sum."""
  listed = ', '.join(
      f'{name} ({info.num_examples} tasks)' for name, info in sizes.items())
  no_tasks = ValueError(
      f'split {split!r} of {name} has no tasks; choose from {listed}, or a '
      "slice such as 'test[:200]'.")
  try:
    parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(sizes)
  except (AttributeError, ValueError, RuntimeError) as error:
    raise no_tasks from error
  if not any(
      range(sizes[part.splitname].num_examples)[part.from_:part.to]
      for part in parts):
    raise no_tasks
  return parts


def _rows_of(module: types.ModuleType, name: str) -> list[dict[str, Any]]:
  """Returns all tasks of a split with their task_ids."""
  call = f'{module.__name__}.tasks({name!r})'

  def rows_of_call() -> Any:
    with _errors_as_value_error(
        f'{call} failed', 'fix the function, or choose another split'):
      rows = module.tasks(name)
      if hasattr(rows, '__iter__') and not isinstance(rows, (str, Mapping)):
        rows = list(rows)
      return rows

  def to_tasks(rows: list[Any]) -> list[dict[str, Any]]:
    return [_to_task(f'{call}, row {i}', f'{name}/{i}', row)
            for i, row in enumerate(rows)]

  rows = rows_of_call()
  if isinstance(rows, (str, os.PathLike)):
    path = pathlib.Path(module.__file__).parent / rows
    return to_tasks([row for _, row in row_files.read_rows(path)])
  if not isinstance(rows, list):
    raise ValueError(
        f'{call} returned {type(rows).__name__} {rows!r:.100}; expected a list '
        'of dicts, a Hugging Face data set, or the path of a .jsonl, .jsonl.gz '
        'or .parquet file.')
  tasks = to_tasks(rows)
  if split_hash(tasks) != split_hash(to_tasks(rows_of_call())):
    raise ValueError(
        f'{call} returned other tasks when it was called again, so a resumed '
        'run would not find its tasks; draw them with a fixed seed.')
  return tasks


def _to_task(where: str, task_id: str, row: Any) -> dict[str, Any]:
  """Returns a row as a task of plain values, with `task_id` if it has none."""
  if not isinstance(row, Mapping):
    raise ValueError(f'{where} is {row!r:.100}, which is not a dict.')
  try:
    task = {'task_id': task_id} | _to_plain(dict(row))
    _as_json(task)
  except (TypeError, ValueError, RecursionError) as error:
    raise ValueError(
        f'{where} has a value that JSON cannot hold ({error}); use texts, '
        'numbers, lists and dicts with texts as keys.') from error
  return task


# ---- Builders ----------------------------------------------------------------


def _read_builder(
    module: types.ModuleType, split: str, data_dir: str | None,
    builder_config: str | None) -> tuple[str, list[dict[str, Any]]]:
  """Returns the name of the data set and the tasks of a split."""
  data_dir = data_dir and os.path.expanduser(data_dir)
  if data_dir and '://' in data_dir:
    raise ValueError(
        f'dataset.data_dir={data_dir!r} is remote, but array_record needs a '
        'local folder; each host can make its copy.')
  tfds.disable_progress_bar()
  builder = _prepared_builder(module, data_dir, builder_config)
  _parts(builder.name, split, builder.info.splits)
  with _errors_as_value_error(
      f'the split {split!r} of {builder.data_dir} cannot be read',
      'delete the folder to make it again'):
    source = builder.as_data_source(split)
    # One call for all rows takes half the time of a loop over `source`.
    return builder.name, [
        _to_plain(row) for row in source.__getitems__(range(len(source)))]


def _prepared_builder(
    module: types.ModuleType, data_dir: str | None, builder_config: str | None
) -> tfds.core.DatasetBuilder:
  """Opens the builder and writes its data set on first use."""
  if builder_config not in (None, *module.Builder.builder_configs):
    raise ValueError(
        f'dataset.config={builder_config!r} is not a config of '
        f'{module.__name__}; it has {list(module.Builder.builder_configs)}.')
  root = os.path.expanduser(
      data_dir or os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets'))
  name = module.Builder.name
  digest = hashlib.sha256()
  for source, path in sorted(_source_files(module.__name__).items()):
    digest.update(source.encode() + path.read_bytes())
  config = module.Builder.builder_configs.get(builder_config)
  for folder in sorted({
      name, getattr(config, 'folder', '') or builder_config or name,
      *getattr(module.Builder, 'MANUAL_FOLDERS', ())}):
    for path in sorted(manual_folder(root, folder).rglob('*')):
      status = path.stat()
      digest.update(
          f'{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}'
          .encode())

  def open_builder():
    with _errors_as_value_error(
        f'the data set {name} in {root}: its dataset_info.json, or the '
        'builder, cannot be used',
        'delete the folder of the data set to make it again'):
      builder = module.Builder.__new__(module.Builder)
      builder.name = f'{name}_{digest.hexdigest()[:8]}'  # Names the folder.
      builder.__init__(
          data_dir=data_dir, config=builder_config, file_format='array_record')
      return builder

  builder = open_builder()
  if builder.info.splits:
    return builder
  with _errors_as_value_error(
      f'the data set {name} of dataset.builder={module.__name__!r} cannot be '
      f'made in {root}',
      'fix the builder or its input files, or choose another dataset.data_dir',
      ValueError):  # The builder's own name their file.
    os.makedirs(builder.data_dir_root, exist_ok=True)
    lock_path = os.path.join(builder.data_dir_root, f'{name}.lock')
    with open(lock_path, 'w') as lock:
      # tensorflow-datasets renames a temporary folder. If two processes wrote
      # the data set, the second rename would fail.
      fcntl.flock(lock, fcntl.LOCK_EX)
      # They speak of a download of unknown size, where nothing is downloaded.
      builder._log_download_bytes = builder._log_download_done = lambda: None
      print(f'making the data set {name} in {builder.data_dir}', flush=True)
      builder.download_and_prepare()
  # Another process may have written the data during the wait for the lock.
  return open_builder()


def _source_files(builder_module: str) -> dict[str, pathlib.Path]:
  """Module -> file, for the builder's module and those that it refers to.

  A module refers to the modules among its global names, and to those that
  define its global functions, classes and objects. Installed packages are left
  out, except `environments` and that of the builder. Not seen are imports
  inside functions, `import package.module`, a package's imports of its own
  modules, and modules of which only a text or a number is imported.
  """
  packages = {name.partition('.')[0] for name in (__name__, builder_module)}
  installed = tuple(f'{x}{os.sep}' for x in sysconfig.get_paths().values())
  modules, files = [builder_module], {}
  for module in modules:  # Grows during the iteration.
    loaded = sys.modules.get(module)
    path = getattr(loaded, '__file__', None)  # None for modules in C.
    if path is None or (
        path.startswith(installed)
        and module.partition('.')[0] not in packages):
      continue
    files[module] = pathlib.Path(path)
    for name, value in vars(loaded).items():
      is_module = isinstance(value, types.ModuleType)
      used = getattr(value, '__name__' if is_module else '__module__', None)
      # Any code that imports a module of a package adds its name there.
      if used and used not in modules and used != f'{module}.{name}':
        modules.append(used)
  return files


@contextlib.contextmanager
def _errors_as_value_error(
    problem: str, fix: str,
    unchanged: tuple[()] | type[Exception] = ()) -> Iterator[None]:
  """Raises errors of a builder or of its files as ValueError."""
  try:
    yield
  except unchanged:
    raise
  except Exception as error:
    reason = textwrap.shorten(str(error), 300, placeholder=' …')
    raise ValueError(
        f'{problem} ({type(error).__name__}: {reason}); {fix}.') from error


def _to_plain(value: Any) -> Any:
  """Converts numpy values to Python's, and bytes to str."""
  if isinstance(value, (np.ndarray, np.generic)):
    value = value.tolist()
  if isinstance(value, bytes):
    return value.decode()
  if isinstance(value, dict):
    return {key: _to_plain(item) for key, item in value.items()}
  if isinstance(value, list):
    return [_to_plain(item) for item in value]
  return value
