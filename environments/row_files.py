"""Rows of parquet and JSON-lines files.

JSON lines may be compressed by gzip and contain blank lines. Files are read a
few rows at a time. A missing field, a field of the wrong type and a truncated
line raise ValueError with the file and the row number, from 1, without blank
lines.
"""

from __future__ import annotations

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
FieldType = type | types.GenericAlias  # str, list[str], ...

_GZIP_START = b'\x1f\x8b'
_BATCH_ROWS = 16  # Rows of a parquet file in memory at the same time.


def read_rows(
    path: pathlib.Path,
    fields: Mapping[str, tuple[FieldType, ...]] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields (file and row number, fields) of each row.

  `fields` are the fields to read, with their allowed types. By default, all
  fields are read and their types are not checked.
  """
  if path.suffix == '.parquet':
    rows = _read_parquet(path, fields)
  elif path.name.endswith(('.jsonl', '.jsonl.gz')):
    rows = _read_json_lines(path)
  else:
    raise ValueError(f'{path}: expected a .parquet, .jsonl or .jsonl.gz file.')
  for number, row in enumerate(rows, 1):
    location = f'{path}, row {number}'
    if fields is None:
      yield location, row
      continue
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


def _read_json_lines(path: pathlib.Path) -> Iterator[Row]:
  for number, line in enumerate(filter(bytes.strip, _lines(path)), 1):
    try:
      row = json.loads(line)
      json.dumps(row, ensure_ascii=False).encode()  # No lone surrogates.
    except (RecursionError, ValueError) as error:
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


def _read_parquet(
    path: pathlib.Path, fields: Collection[str] | None) -> Iterator[Row]:
  num_rows = 0
  try:
    # Pre-buffering would hold these columns of the whole file in memory.
    with parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
      columns = None if fields is None else list(fields)
      _check_fields(f'{path}', file.schema_arrow.names, columns or ())
      for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
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
