"""Rows of parquet and JSON-lines files.

JSON lines may contain blank lines. Files are read a few rows at a time. A
missing field, a field of the wrong type and a truncated line raise ValueError
with the file and the row number, from 1, without blank lines.
"""

from collections.abc import Collection, Iterator, Mapping
import gzip
import json
import pathlib
import types
from typing import Any
import zlib

import pyarrow
from pyarrow import parquet

from environments import text

Row = Mapping[str, Any]
FieldType = type | types.UnionType  # str, str | None, ...

_BATCH_ROWS = 16  # Rows of a parquet file in memory at the same time.


def read_rows(
    path: pathlib.Path, fields: Mapping[str, FieldType] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields (file and row number, fields) of each row.

  `fields` are the fields to read, with their types. By default, all fields are
  read and their types are not checked.
  """
  fields = fields or {}
  if path.suffix == '.parquet':
    rows = _read_parquet(path, fields)
  elif path.name.endswith(('.jsonl', '.jsonl.gz')):
    rows = _read_json_lines(path)
  else:
    raise ValueError(f'{path}: expected a .parquet, .jsonl or .jsonl.gz file.')
  for number, row in enumerate(rows, 1):
    location = f'{path}, row {number}'
    _check_fields(location, row, fields)
    for field, kind in fields.items():
      if not isinstance(row[field], kind):
        raise ValueError(
            f'{location}: field {field!r} is {type(row[field]).__name__} '
            f'{text.shorten(repr(row[field]), 80)}; expected '
            f'{getattr(kind, "__name__", kind)}.')
    yield location, {field: row[field] for field in fields or row}


def _read_json_lines(path: pathlib.Path) -> Iterator[Row]:
  for number, line in enumerate(filter(bytes.strip, _lines(path)), 1):
    try:
      row = json.loads(line)
      json.dumps(row, ensure_ascii=False).encode()  # No lone surrogates.
      if not isinstance(row, dict):
        raise ValueError('not an object')
    except (RecursionError, ValueError) as error:
      raise ValueError(
          f'{path}, row {number}: the line is not a JSON object in UTF-8 '
          f'({error}); is the file truncated?') from error
    yield row


def _lines(path: pathlib.Path) -> Iterator[bytes]:
  try:
    with (gzip.open if path.suffix == '.gz' else open)(path, 'rb') as file:
      yield from file
  except (EOFError, OSError, zlib.error) as error:
    raise ValueError(
        f'{path} cannot be read ({error}); is the file truncated?') from error


def _read_parquet(
    path: pathlib.Path, fields: Collection[str]) -> Iterator[Row]:
  num_rows = 0
  try:
    # Pre-buffering would hold these columns of the whole file in memory.
    with parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
      _check_fields(f'{path}', file.schema_arrow.names, fields)
      for batch in file.iter_batches(
          _BATCH_ROWS, columns=list(fields) or None):
        num_rows += len(batch)
        yield from batch.to_pylist()
  except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
    raise ValueError(
        f'{path}, after row {num_rows}: cannot be read ({error}); is the file '
        'damaged?') from error


def _check_fields(
    location: str, found: Collection[str], fields: Collection[str]) -> None:
  for field in fields:
    if field not in found:
      raise ValueError(
          f'{location}: field {field!r} is missing; the file has '
          f'{sorted(found)}.')
