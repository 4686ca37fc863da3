"""Data sets whose rows come from files of a Hugging Face hub repository.

A builder inherits from `FilesBuilder`. Each of its configs names a repository
and files, which are read from the first source that exists:

1. `<data_dir>/downloads/manual/<name>/`, the manual directory of
   tensorflow-datasets: a copy of the repository, or one file `<split>.jsonl`,
   `<split>.jsonl.gz` or `<split>.parquet` per split.
2. The hub, through the cache of huggingface_hub.

`row_files` reads them. A row that cannot be used as a task is skipped, and the
log names it. A split without rows raises ValueError.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import fnmatch
import itertools
import logging
import pathlib
from typing import Any

import huggingface_hub
import tensorflow_datasets as tfds

from environments import datasets
from environments import row_files

Row = row_files.Row


class UnusableRowError(Exception):
  """The row is skipped for this reason."""


@dataclasses.dataclass(eq=False, kw_only=True)
class Files(tfds.core.BuilderConfig):
  """The files of a data set, and the tasks of their rows.

  Attributes:
    hub_repo: 'owner/name' on the hub.
    split_files: split -> patterns of its files in the repository. The first
      pattern with a match is used; '*' also matches '/'. Files are read in the
      order of their names.
    fields: field of a row -> its type. Other fields are not read.
    folder: name of its manual directory; '' is `name`.
    parse: converts a row to a task without task_id. It raises ValueError if the
      file is damaged, and UnusableRowError for a row to skip.
  """

  hub_repo: str
  split_files: Mapping[str, Sequence[str]]
  fields: Mapping[str, row_files.FieldType]
  parse: Callable[[Row], dict[str, Any]]
  folder: str = ''


class FilesBuilder(datasets.TaskBuilder, skip_registration=True):
  """Writes the rows of files as tasks, in the order of the files.

  `BUILDER_CONFIGS` are `Files`. A task_id is 'name of the config/split/row'.
  """

  def task(self, row: Row, task_id: str) -> dict[str, Any]:
    """Converts a row to a task; see `Files.parse`."""
    return self.builder_config.parse(row) | {'task_id': task_id}

  def splits(self) -> dict[str, list[pathlib.Path]]:
    """Returns the files of each split."""
    files = self.builder_config
    folder = datasets.manual_folder(
        self.data_dir_root, files.folder or files.name)
    is_manual = folder.is_dir()
    if not is_manual:
      folder = self._download(folder)
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob('*') if path.is_file())
    found = {}
    for split, patterns in files.split_files.items():
      if is_manual:
        patterns = (
            f'{split}.jsonl', f'{split}.jsonl.gz', f'{split}.parquet',
            *patterns)
      matches = (fnmatch.filter(names, pattern) for pattern in patterns)
      found[split] = [folder / name for name in next(filter(None, matches), ())]
      if not found[split]:
        raise ValueError(
            f'{folder} has no files of the split {split!r}; expected '
            f'{" or ".join(patterns)}, but it has {", ".join(names[:10])}')
    return found

  def _generate_examples(
      self, split: str, paths: Sequence[pathlib.Path]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    index, files = -1, self.builder_config
    rows = (
        row for path in paths
        for row in row_files.read_rows(path, files.fields))
    for index, (location, row) in enumerate(rows):
      task_id = f'{files.name}/{split}/{index}'
      try:
        task = self.task(row, task_id)
      except UnusableRowError as error:
        logging.warning('%s is skipped: %s', task_id, error)
        continue
      except ValueError as error:
        raise ValueError(f'{location}: {error}') from error
      yield index, task
    if index < 0:
      raise ValueError(
          f'split {split!r} has no rows in {", ".join(map(str, paths))}')

  def _download(self, manual_folder: pathlib.Path) -> pathlib.Path:
    """Downloads the files and returns their folder."""
    files = self.builder_config
    try:
      return pathlib.Path(huggingface_hub.snapshot_download(
          files.hub_repo, repo_type='dataset',
          allow_patterns=[*itertools.chain(*files.split_files.values())]))
    except Exception as error:  # Also those of proxies and of hf-xet.
      reason = ' '.join(str(error).split())
      splits = ', '.join(f'{split}.jsonl' for split in files.split_files)
      raise ValueError(
          f'{manual_folder} does not exist, and {files.hub_repo} cannot be '
          f'downloaded ({reason}); on a machine with a network, run `hf '
          f'download {files.hub_repo} --repo-type dataset --local-dir '
          f'{manual_folder}`, and copy the folder here. Or write {splits} with '
          f'the fields {", ".join(files.fields)} into the folder.') from error
