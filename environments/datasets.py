"""Loads the tasks of an environment from its tensorflow-datasets builder.

A builder is a module `<name>_dataset_builder.py` with a class `Builder`. Its
rows are written once as array_record and read as plain Python values.
TensorFlow is needed only for a feature with two axes of unknown length (a list
of lists). Use a list of dicts, which is read as a dict of lists, or fix one
length. Builders of generated tasks inherit from `TaskBuilder` and call
`make_splits`.

The name of a data set on disk ends with a digest of the code that makes its
rows and of the state of its manual files. After a change of either, the data
set is made again.
"""

from __future__ import annotations

import abc
import ast
import collections
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import pathlib
import sysconfig
import textwrap
from typing import Any

from google.protobuf import json_format
import numpy as np
import tensorflow_datasets as tfds

from environments.env_api import Task

# Splits are drawn in this order. Each skips the tasks of earlier splits, so the
# test tasks do not depend on the sizes of other splits.
SPLIT_SIZES = {'test': 1_000, 'validation': 200, 'train': 10_000}

# Errors of a builder or of the libraries that read its files.
_USER_CODE_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError,
    NameError, OSError, RuntimeError, SyntaxError, TypeError,
    json_format.Error)


def load(
    builder_module: str,
    split: str,
    data_dir: str | None = None,
    builder_config: str | None = None,
) -> list[dict[str, Any]]:
  """Returns the tasks of a split in their fixed order, made on first use.

  Args:
    builder_module: dotted path of the builder's module, such as
      'environments.boards.plan_path.plan_path_dataset_builder'.
    split: a name, a slice or a sum in the syntax of tensorflow-datasets:
      'train', 'test[:200]', 'train[:10%]+validation'.
    data_dir: local folder of all data sets; by default $TFDS_DATA_DIR or
      ~/tensorflow_datasets.
    builder_config: a config of the builder; by default its
      DEFAULT_BUILDER_CONFIG_NAME.

  Raises:
    ValueError: the split, the builder or its files cannot be used.
  """
  data_dir = data_dir and os.path.expanduser(data_dir)
  if data_dir and '://' in data_dir:
    raise ValueError(
        f'dataset.data_dir={data_dir!r} is remote, but array_record needs a '
        'local folder; each host can make its copy.')
  tfds.disable_progress_bar()
  builder = _prepared_builder(builder_module, data_dir, builder_config)
  sizes = ', '.join(
      f'{name} ({info.num_examples} tasks)'
      for name, info in builder.info.splits.items())
  hint = f"; choose from {sizes}, or a slice such as 'test[:200]'."
  try:
    num_tasks = builder.info.splits[split].num_examples
  except (ValueError, NotImplementedError) as error:
    raise ValueError(f'{builder.name} has no split {split!r}{hint}') from error
  if not num_tasks:
    raise ValueError(f'split {split!r} of {builder.name} has no tasks{hint}')
  with _errors_as_value_error(
      f'the split {split!r} of {builder.data_dir} cannot be read',
      'delete the folder to make it again'):
    tasks = [_to_plain(row) for row in builder.as_data_source(split)]
  seen = set()
  for number, task in enumerate(tasks):
    task_id = task.get('task_id')
    if not isinstance(task_id, str) or not task_id or task_id in seen:
      raise ValueError(
          f'split {split!r} of {builder.name}, row {number}: '
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
  text = json.dumps(list(tasks), sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _prepared_builder(
    builder_module: str, data_dir: str | None, builder_config: str | None
) -> tfds.core.DatasetBuilder:
  """Opens the builder and writes its data set on first use."""
  key = f'dataset.builder={builder_module!r}'
  hint = (
      'expected a module with a class Builder, such as '
      "'environments.boards.plan_path.plan_path_dataset_builder'")
  with _errors_as_value_error(f'{key} cannot be imported', hint):
    module = importlib.import_module(builder_module)
  if not isinstance(getattr(module, 'Builder', None), type):
    raise ValueError(f'{key} has no class Builder; {hint}.')
  options = {'data_dir': data_dir, 'file_format': 'array_record'}
  if builder_config is not None:
    if builder_config not in module.Builder.builder_configs:
      raise ValueError(
          f'dataset.config={builder_config!r} is not a config of '
          f'{builder_module}; it has {list(module.Builder.builder_configs)}.')
    options['config'] = builder_config
  root = os.path.expanduser(
      data_dir or os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets'))
  name = module.Builder.name
  digest = hashlib.sha256()
  for source in _sources(module.__name__):
    digest.update(source.encode())
  for folder in sorted({name, builder_config or name}):
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
      builder.__init__(**options)
      return builder

  builder = open_builder()
  if builder.info.splits:
    return builder
  with _errors_as_value_error(
      f'the data set {name} of {key} cannot be made in {root}',
      'fix the builder or its input files, or choose another dataset.data_dir',
      _USER_CODE_ERRORS):  # The builder's own ValueErrors name their file.
    os.makedirs(builder.data_dir_root, exist_ok=True)
    lock_path = os.path.join(builder.data_dir_root, f'{name}.lock')
    with open(lock_path, 'w') as lock:
      # tensorflow-datasets renames a temporary folder. If two processes wrote
      # the data set, the second rename would fail.
      fcntl.flock(lock, fcntl.LOCK_EX)
      builder.download_and_prepare()
  # Another process may have written the data during the wait for the lock.
  builder = open_builder()
  if not builder.info.splits:
    raise ValueError(
        f'{builder.data_dir} has no complete data set; delete the folder to '
        'make it again.')
  return builder


def _sources(builder_module: str) -> Iterator[str]:
  """Yields the statements that define the Builder and all that it refers to.

  Follows names and imports, also those in functions, into `environments`, the
  package of the builder and every module that is not installed. A name that is
  an attribute of an imported module is taken for a reference to it.
  """
  packages = {name.partition('.')[0] for name in (__name__, builder_module)}
  modules = {}

  def module_of(name: str) -> _Module:
    if name not in modules:
      modules[name] = _parse(name, packages)
    return modules[name]

  references = [(builder_module, 'Builder')]
  seen = {*references}
  for module, name in references:  # Grows during the iteration.
    for statement in module_of(module).definitions.get(name, ()):
      yield f'{module}.{name}: {ast.unparse(statement)}\n'
      nodes = [*ast.walk(statement)]
      names = sorted({x.id for x in nodes if isinstance(x, ast.Name)})
      attributes = sorted({
          x.attr for x in nodes if isinstance(x, ast.Attribute)})
      found = dict.fromkeys((module, x) for x in names)
      pending = [*found]
      for source, used in pending:  # Grows during the iteration.
        imports = module_of(source).imports
        targets = [
            (target, used if imported == '*' else imported)
            for target, imported in (
                *imports.get(used, ()), *imports.get('*', ()))]
        # A name in a module, or a module of a package.
        targets += [
            (f'{target}.{imported}'.rstrip('.'), x)
            for target, imported in imports.get(used, ()) for x in attributes]
        pending += [x for x in dict.fromkeys(targets) if x not in found]
        found |= dict.fromkeys(targets)
      references += [x for x in found if x not in seen]
      seen |= found.keys()


@dataclasses.dataclass(frozen=True)
class _Module:
  """What the names of a module stand for."""

  definitions: dict[str, list[ast.stmt]]
  # Name, or '*' -> (module, name in it; '' for the module itself).
  imports: dict[str, list[tuple[str, str]]]


def _parse(module: str, packages: Collection[str]) -> _Module:
  """Reads a module; one that is installed or not Python has no names."""
  parsed = _Module(collections.defaultdict(list), collections.defaultdict(list))
  path = _source_of(module, packages)
  if path is None:
    return parsed
  tree = ast.parse(path.read_text('utf-8'))
  for statement in tree.body:
    nodes = [*ast.walk(statement)]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
      names = set()
    elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
      names = {statement.name}
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
      names = {
          x.id for target in getattr(statement, 'targets', nodes[1:2])
          for x in ast.walk(target) if isinstance(x, ast.Name)}
    else:  # It may change any object that it names.
      names = {getattr(x, 'id', getattr(x, 'name', None)) for x in nodes}
    for name in names:
      parsed.definitions[name].append(statement)
  package = module if path.name == '__init__.py' else module.rpartition('.')[0]
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        parts = alias.name.split('.')
        for end in range(1, 1 + len(parts)):
          name = '.'.join(parts[:end])
          if not alias.asname or name == alias.name:
            parsed.imports[alias.asname or parts[0]].append((name, ''))
    elif isinstance(node, ast.ImportFrom):
      parents = package.split('.')[:len(package.split('.')) - node.level + 1]
      target = '.'.join(
          [*(parents if node.level else ()), *filter(None, [node.module])])
      for alias in node.names:
        parsed.imports[alias.asname or alias.name].append((target, alias.name))
  return parsed


def _source_of(module: str, packages: Collection[str]) -> pathlib.Path | None:
  """The file of a module; None if it is installed, or not written in Python."""
  top, *parts = module.split('.')
  spec = importlib.util.find_spec(top)
  if spec is None:
    return None
  folders = spec.submodule_search_locations
  path = pathlib.Path(folders[0] if folders else spec.origin)
  is_installed = any(
      path.is_relative_to(folder) for folder in sysconfig.get_paths().values())
  if is_installed and top not in packages:
    return None
  path = path.joinpath(*parts)
  files = path, path.with_suffix('.py'), path / '__init__.py'
  return next((file for file in files if file.is_file()), None)


@contextlib.contextmanager
def _errors_as_value_error(
    problem: str, fix: str, errors: tuple[type[Exception], ...] = (
        *_USER_CODE_ERRORS, ValueError)) -> Iterator[None]:
  """Raises errors of a builder or of its files as ValueError."""
  try:
    yield
  except errors as error:
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
