"""Rows of parquet and JSON-lines files, and errors of damaged files."""

import gzip
import json
import tracemalloc

import pyarrow
from pyarrow import parquet
import pytest

from environments import row_files
from tests.environments import dataset_files_test

FIELDS = {'text': str | list, 'level': int}
# No time, which would change the names of tests between their processes.
PACKED = gzip.compress(b'{}', mtime=0)
GOOD = {'text': 'a', 'level': 1, 'unread': None}


@pytest.mark.parametrize('name, content, words', [
    ('rows.jsonl', b'{"text": 1.5, "level": 1}\n', "1: .*'text' is float 1.5"),
    ('rows.jsonl', b'{"text": "a", "level": 1}\n{"text": "b"}\n',
     "2: .*'level' is missing"),
    ('rows.jsonl', b'{"text": "a\\ud800", "level": 1}\n', '1: .*surrogate'),
    ('rows.jsonl', b'[1]\n', '1: .*not an object'),
    ('rows.parquet', [{'text': 'a'}], ": field 'level' is missing"),
    ('rows.parquet', [GOOD, GOOD | {'level': None}], "2: field 'level'"),
    ('rows.parquet', b'PAR1', 'row 0: .*damaged'),
    ('rows.jsonl', b'\n\n{"text": "a", "level": 1}\n\n{"te', '2: .*truncated'),
    ('rows.jsonl.gz', PACKED[:-9], 'cannot be read.*truncated'),
    ('rows.jsonl.gz', PACKED[:8] + b'xyz', 'cannot be read'),
    ('rows.gz', b'', 'expected a .parquet, .jsonl or .jsonl.gz')])
def test_damaged_files_and_rows_are_named(tmp_path, name, content, words):
  path = tmp_path / name
  if isinstance(content, bytes):
    path.write_bytes(content)
  else:
    dataset_files_test.write(path, content)
  with pytest.raises(ValueError, match=f'{path}.*{words}'):
    list(row_files.read_rows(path, FIELDS))


def test_blank_lines_and_gzip_are_no_damage(tmp_path):
  row = json.dumps(GOOD).encode()
  content = b'\n\xef\xbb\xbf' + row + b'\r\n\n \t\n ' + row + b' \n\r\n'
  for name, data in (
      ('rows.jsonl', content), ('rows.jsonl.gz', gzip.compress(content))):
    path = tmp_path / name
    path.write_bytes(data)
    assert list(row_files.read_rows(path, FIELDS)) == [
        (f'{path}, row {number}', {'text': 'a', 'level': 1})
        for number in (1, 2)]


@pytest.mark.parametrize('name', ['rows.jsonl', 'rows.parquet'])
def test_a_large_file_is_read_in_little_memory(tmp_path, name):
  """Reads 3000 rows of 10 KB (30 MB) in a fraction of that memory."""
  rows = [{'prompt': f'{i:05}' * 2000} for i in range(10)] * 300
  path = dataset_files_test.write(tmp_path / name, rows)
  if path.suffix == '.parquet':
    parquet.write_table(
        pyarrow.Table.from_pylist(rows), path, row_group_size=1000,
        compression='none', use_dictionary=False)
  before, num_rows, held = pyarrow.total_allocated_bytes(), 0, 0
  tracemalloc.start()
  for _ in row_files.read_rows(path, {'prompt': str}):
    num_rows += 1
    held = max(held, pyarrow.total_allocated_bytes() - before)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert num_rows == 3000
  assert peak < 2e6
  assert held < 16e6
