"""Rows from files of the hub: their sources, and errors of damaged files."""

import gzip
import json
import tracemalloc

import huggingface_hub
import pyarrow
from pyarrow import parquet
import pytest

from environments import dataset_files
from environments import datasets

TLDR = 'environments.writing.tldr.tldr_dataset_builder'
ARXIV = 'environments.writing.arxiv.arxiv_dataset_builder'


def write(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix == '.parquet':
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  else:
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return path


@pytest.fixture
def no_network(monkeypatch):
  def fail(*unused_args, **unused_kwargs):
    raise huggingface_hub.errors.LocalEntryNotFoundError('no\nnetwork')

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', fail)


def test_manual_files_are_read_by_split_and_in_order(tmp_path, no_network):
  manual = tmp_path / 'downloads' / 'manual'
  posts = [{'prompt': f'naïve\n{i}', 'completion': i} for i in range(13)]
  write(manual / 'tldr' / 'train.jsonl', posts)
  write(manual / 'tldr' / 'validation.parquet', posts[:2])
  write(manual / 'tldr' / 'test.jsonl', posts[:1])
  assert datasets.load(TLDR, 'train+validation[1:]', str(tmp_path)) == [
      *({'task_id': f'tldr/train/{i}', 'text': f'naïve\n{i}'}
        for i in range(13)),
      {'task_id': 'tldr/validation/1', 'text': 'naïve\n1'}]
  # A copy of the repository.
  data = manual / 'arxiv' / 'data'
  write(data / 'val-00000-of-00001.parquet', [{'abstract_text': 'We prove.'}])
  for shard, text in ((1, 'third'), (0, 'first')):
    write(data / f'train-0000{shard}-of-00002.parquet', [
        {'abstract_text': [f'the {text} .', 'it is .'], 'article_id': 3}])
  write(data / 'train.jsonl', [{'abstract_text': 'a later pattern'}])
  assert datasets.load(ARXIV, 'train+val', str(tmp_path)) == [
      {'task_id': 'arxiv/train/0', 'text': 'the first . it is .'},
      {'task_id': 'arxiv/train/1', 'text': 'the third . it is .'},
      {'task_id': 'arxiv/val/0', 'text': 'We prove.'}]


def test_files_are_downloaded_from_the_hub(tmp_path, monkeypatch):
  asked = {}

  def download(repo_id, **options):
    asked.update(options, repo_id=repo_id)
    return str(tmp_path / 'hub')

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', download)
  for split in ('train', 'validation', 'test'):
    write(tmp_path / 'hub' / 'data' / f'{split}-00000-of-00001.parquet',
          [{'prompt': split}])
  assert datasets.load(TLDR, 'validation', str(tmp_path)) == [
      {'task_id': 'tldr/validation/0', 'text': 'validation'}]
  assert (asked['repo_id'], asked['repo_type'], asked['revision']) == (
      'trl-lib/tldr', 'dataset', 'main')
  assert 'data/test-*.parquet' in asked['allow_patterns']


@pytest.mark.parametrize('splits, words', [
    ((), 'hf download trl-lib/tldr --repo-type dataset --revision main'),
    (('train', 'test'), "split 'validation'.* it has test.jsonl, train.jsonl"),
    (('train', 'test', 'validation'), "split 'test' has no rows")])
def test_missing_and_empty_splits_are_named(
    tmp_path, no_network, splits, words):
  for split in splits:
    write(tmp_path / 'downloads' / 'manual' / 'tldr' / f'{split}.jsonl',
          [{'prompt': 'a'}] * (split != 'test'))
  with pytest.raises(ValueError, match=words):
    datasets.load(TLDR, 'train', str(tmp_path))


FIELDS = {'text': (str, list[str]), 'level': (int,)}
GOOD = {'text': 'a', 'level': 1, 'unread': None}


@pytest.mark.parametrize('name, content, words', [
    ('rows.jsonl', b'{"text": "a", "level": true}\n', "1: .*'level' is bool"),
    ('rows.jsonl', b'{"text": ["a", 1], "level": 1}\n', '1: .*str or list'),
    ('rows.jsonl', b'{"text": "a", "level": 1}\n{"text": "b"}\n',
     "2: .*'level' is missing"),
    ('rows.jsonl', b'{"text": "a", "level": 1}\n{"te', '2: .*truncated'),
    ('rows.jsonl', b'{"text": "a\\ud800", "level": 1}\n', '1: .*surrogate'),
    ('rows.jsonl', b'{"text": "\xff", "level": 1}\n', '1: .*UTF-8'),
    ('rows.jsonl', b'[1]\n', '1: .*not a JSON object'),
    ('rows.parquet', [{'text': 'a'}], ": field 'level' is missing"),
    ('rows.parquet', [GOOD, GOOD | {'level': None}], "2: field 'level'"),
    ('rows.parquet', b'PAR1', 'row 0: .*truncated'),
    ('rows.jsonl', b'\n\n{"text": "a", "level": 1}\n\n{"te', '2: .*truncated'),
    ('rows.jsonl.gz', gzip.compress(b'{}')[:-9], 'cannot be read.*truncated'),
    ('rows.jsonl.gz', gzip.compress(b'{}')[:8] + b'xyz', 'cannot be read'),
    ('rows.jsonl', gzip.compress(b'{}') + b'x', 'cannot be read'),
    *((name, b'', 'expected a .parquet, .jsonl or .jsonl.gz')
      for name in ('rows.csv', 'rows.json', 'rows.gz', 'rows.jsonl.zst',
                   'rows.jsonl.bz2', 'rows.parquet.gz'))])
def test_damaged_files_and_rows_are_named(tmp_path, name, content, words):
  path = tmp_path / name
  if isinstance(content, bytes):
    path.write_bytes(content)
  else:
    write(path, content)
  with pytest.raises(ValueError, match=f'{path}.*{words}'):
    list(dataset_files.read_rows(path, FIELDS))


def test_blank_lines_and_gzip_are_no_damage(tmp_path):
  row = json.dumps(GOOD).encode()
  for content in (
      row, row + b'\n\n', b'\n' + row, b'\r\n' + row + b'\r\n\r\n',
      row + b'\n \t\n\n' + row, b' ' + row + b' \n', b'\xef\xbb\xbf' + row):
    read = []
    for name, data in (
        ('rows.jsonl', content), ('rows.jsonl.gz', gzip.compress(content)),
        ('packed.jsonl', gzip.compress(content)), ('plain.jsonl.gz', content),
        ('members.jsonl', gzip.compress(content) + gzip.compress(b'\n'))):
      path = tmp_path / name
      path.write_bytes(data)
      rows = list(dataset_files.read_rows(path, FIELDS))
      assert [location for location, _ in rows] == [
          f'{path}, row {number}' for number in range(1, len(rows) + 1)]
      read.append([values for _, values in rows])
    assert read == [[{'text': 'a', 'level': 1}] * content.count(b'unread')] * 5


@pytest.mark.parametrize('name', ['rows.jsonl', 'rows.parquet'])
def test_a_large_file_is_read_in_little_memory(tmp_path, name):
  """Reads 3000 rows of 10 KB (30 MB) in a fraction of that memory."""
  rows = [{'prompt': f'{i:05}' * 2000} for i in range(10)]
  path = write(tmp_path / name, rows)
  if path.suffix == '.parquet':
    table = pyarrow.concat_tables([parquet.read_table(path)] * 300)
    parquet.write_table(
        table, path, row_group_size=1000, compression='none',
        use_dictionary=False)
    del table
  else:
    path.write_text(path.read_text() * 300)
  before, num_rows, held = pyarrow.total_allocated_bytes(), 0, 0
  tracemalloc.start()
  for _, row in dataset_files.read_rows(path, {'prompt': (str,)}):
    assert len(row['prompt']) == 10_000
    num_rows += 1
    held = max(held, pyarrow.total_allocated_bytes() - before)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert num_rows == 3000
  assert peak < 2e6
  assert held < 16e6
