"""Data sets whose rows come from files of a Hugging Face hub repository.

A builder inherits from `FilesBuilder`. Each of its configs names a repository
and files, which are read from the first source that exists:

1. `<data_dir>/downloads/manual/<name>/`, the manual directory of
   tensorflow-datasets: a copy of the repository, or one file `<split>.jsonl`,
   `<split>.jsonl.gz` or `<split>.parquet` per split.
2. The hub, through the cache of huggingface_hub.

Files are parquet or JSON lines, which may be compressed by gzip and contain
blank lines. They are read a few rows at a time. A missing field, a field of the
wrong type, a truncated line and a split without rows raise ValueError with the
file and the row number, from 1, without blank lines. A row that cannot be used
as a task is skipped, and the log names it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import dataclasses
import fnmatch
import gzip
import itertools
import json
import logging
import pathlib
import types
from typing import Any
import zlib

import huggingface_hub
import pyarrow
from pyarrow import parquet
import tensorflow_datasets as tfds

from environments import datasets
from environments import text

Row = Mapping[str, Any]
FieldType = type | types.GenericAlias  # str, list[str], ...

_GZIP_START = b'\x1f\x8b'
_BATCH_ROWS = 16  # Rows of a parquet file in memory at the same time.


class UnusableRowError(Exception):
  """The row is skipped for this reason."""


@dataclasses.dataclass(eq=False, kw_only=True)
class Files(tfds.core.BuilderConfig):
  """The files of a data set, and the tasks of their rows.

  Attributes:
    hub_repo: 'owner/name' on the hub.
    hub_revision: branch, tag or commit of the repository.
    split_files: split -> patterns of its files in the repository. The first
      pattern with a match is used; '*' also matches '/'. Files are read in the
      order of their names.
    fields: field of a row -> allowed types. Other fields are not read.
    parse: converts a row to a task without task_id. It raises ValueError if the
      file is damaged, and UnusableRowError for a row to skip.
  """

  hub_repo: str
  hub_revision: str = 'main'
  split_files: Mapping[str, Sequence[str]]
  fields: Mapping[str, tuple[FieldType, ...]]
  parse: Callable[[Row], dict[str, Any]]


class FilesBuilder(datasets.TaskBuilder, skip_registration=True):
  """Writes the rows of files as tasks, in the order of the files.

  `BUILDER_CONFIGS` are `Files`. A task_id is 'name of the config/split/row'.
  """

  def task(self, row: Row) -> dict[str, Any]:
    """Converts a row to a task without task_id; see `Files.parse`."""
    return self.builder_config.parse(row)

  def splits(self) -> dict[str, list[pathlib.Path]]:
    """Returns the files of each split."""
    files = self.builder_config
    folder = datasets.manual_folder(self.data_dir_root, files.name)
    patterns = files.split_files
    if folder.is_dir():
      patterns = {
          split: (
              f'{split}.jsonl', f'{split}.jsonl.gz', f'{split}.parquet', *names)
          for split, names in patterns.items()}
    else:
      folder = self._download(folder)
    return _find_files(folder, patterns)

  def _generate_examples(
      self, split: str, paths: Sequence[pathlib.Path]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    index, files = -1, self.builder_config
    rows = (row for path in paths for row in read_rows(path, files.fields))
    for index, (location, row) in enumerate(rows):
      task_id = f'{files.name}/{split}/{index}'
      try:
        task = self.task(row)
      except UnusableRowError as error:
        logging.warning('%s is skipped: %s', task_id, error)
        continue
      except ValueError as error:
        raise ValueError(f'{location}: {error}') from error
      yield index, task | {'task_id': task_id}
    if index < 0:
      raise ValueError(
          f'split {split!r} has no rows in {", ".join(map(str, paths))}')

  def _download(self, manual_folder: pathlib.Path) -> pathlib.Path:
    """Downloads the files and returns their folder."""
    files = self.builder_config
    try:
      return pathlib.Path(huggingface_hub.snapshot_download(
          files.hub_repo, repo_type='dataset', revision=files.hub_revision,
          allow_patterns=[*itertools.chain(*files.split_files.values())]))
    except OSError as error:
      reason = ' '.join(str(error).split())
      splits = ', '.join(f'{split}.jsonl' for split in files.split_files)
      raise ValueError(
          f'The data set {files.name} is missing: {manual_folder} does not '
          f'exist, and {files.hub_repo} cannot be downloaded ({reason}).\n'
          'On a machine with a network, run\n'
          f'  hf download {files.hub_repo} --repo-type dataset --revision '
          f'{files.hub_revision} --local-dir {manual_folder}\n'
          'and copy the folder here if that is another machine. Or write '
          f'{splits} with the fields {", ".join(files.fields)} into the folder.'
      ) from error


def read_rows(
    path: pathlib.Path, fields: Mapping[str, tuple[FieldType, ...]]
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields (file and row number, fields) of each row, with checked types."""
  if path.suffix == '.parquet':
    rows = _read_parquet(path, fields)
  elif path.name.endswith(('.jsonl', '.jsonl.gz')):
    rows = _read_json_lines(path)
  else:
    raise ValueError(f'{path}: expected a .parquet, .jsonl or .jsonl.gz file.')
  for number, row in enumerate(rows, 1):
    location = f'{path}, row {number}'
    _check_fields(location, row, fields)
    for field, kinds in fields.items():
      if not any(_has_type(row[field], kind) for kind in kinds):
        expected = ' or '.join(
            str(kind) if isinstance(kind, types.GenericAlias) else kind.__name__
            for kind in kinds)
        raise ValueError(
            f'{location}: field {field!r} is {type(row[field]).__name__} '
            f'{text.shorten(repr(row[field]), 80)}; expected {expected}.')
    yield location, {field: row[field] for field in fields}


def _find_files(
    folder: pathlib.Path, split_files: Mapping[str, Sequence[str]]
) -> dict[str, list[pathlib.Path]]:
  """Returns the files of each split, or raises ValueError without any."""
  names = sorted(
      path.relative_to(folder).as_posix()
      for path in folder.rglob('*') if path.is_file())
  found = {}
  for split, patterns in split_files.items():
    matches = (fnmatch.filter(names, pattern) for pattern in patterns)
    found[split] = [folder / name for name in next(filter(None, matches), ())]
    if not found[split]:
      raise ValueError(
          f'{folder} has no files of the split {split!r}; expected '
          f'{" or ".join(patterns)}, but it has {", ".join(names[:10])}')
  return found


def _read_json_lines(path: pathlib.Path) -> Iterator[Row]:
  for number, line in enumerate(filter(bytes.strip, _lines(path)), 1):
    try:
      row = json.loads(line)
      json.dumps(row, ensure_ascii=False).encode()  # No lone surrogates.
    except ValueError as error:
      raise ValueError(
          f'{path}, row {number}: the line is not JSON in UTF-8 ({error}); '
          'is the file truncated?') from error
    if not isinstance(row, dict):
      raise ValueError(
          f'{path}, row {number}: the line is not a JSON object.')
    yield row


def _lines(path: pathlib.Path) -> Iterator[bytes]:
  """Yields the lines of a file, which is decompressed if it begins as gzip."""
  try:
    with open(path, 'rb') as file:
      is_packed = file.peek(2).startswith(_GZIP_START)
      yield from gzip.GzipFile(fileobj=file) if is_packed else file
  except (EOFError, OSError, zlib.error) as error:
    raise ValueError(
        f'{path} cannot be read ({error}); is the file truncated?') from error


def _read_parquet(path: pathlib.Path, fields: Collection[str]) -> Iterator[Row]:
  num_rows = 0
  try:
    # Pre-buffering would hold these columns of the whole file in memory.
    with parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
      _check_fields(f'{path}', file.schema_arrow.names, fields)
      for batch in file.iter_batches(_BATCH_ROWS, columns=list(fields)):
        num_rows += len(batch)
        yield from batch.to_pylist()
  except (pyarrow.ArrowException, OSError) as error:
    raise ValueError(
        f'{path}, after row {num_rows}: cannot be read ({error}); is the file '
        'truncated?') from error


def _check_fields(
    location: str, found: Collection[str], fields: Collection[str]) -> None:
  for field in fields:
    if field not in found:
      raise ValueError(
          f'{location}: field {field!r} is missing; the file has '
          f'{sorted(found)}.')


def _has_type(value: Any, kind: FieldType) -> bool:
  """True if a value has exactly this type; a bool is not an int."""
  if isinstance(kind, types.GenericAlias):
    item_kind, = kind.__args__
    return type(value) is list and all(
        _has_type(item, item_kind) for item in value)
  return type(value) is kind
