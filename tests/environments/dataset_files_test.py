"""Rows from files of the hub: their sources, and refusal of damaged files."""

import json
import pathlib
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


def test_files_of_the_hub(tmp_path, monkeypatch):
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
    (('train', 'test'), "no files of the split 'validation'"),
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


def read(path, *args):
  return list(dataset_files.read_rows(path, FIELDS, *args))


@pytest.mark.parametrize('content, row, words', [
    (b'{"text": "a", "level": true}\n', 1, "field 'level' is bool"),
    (b'{"text": ["a", 1], "level": 1}\n', 1, 'expected str or list'),
    (b'{"text": "a", "level": 1}\n{"text": "b"}\n', 2, "'level' is missing"),
    (b'{"text": "a", "level": 1}\n{"text": "b", "le', 2, 'truncated'),
    (b'{"text": "a\\ud800", "level": 1}\n', 1, 'surrogate pair'),
    (b'{"text": "\xff", "level": 1}\n', 1, 'not JSON in UTF-8'),
    (b'[1]\n', 1, 'not a JSON object'),
])
def test_damaged_lines_are_named(tmp_path, content, row, words):
  path = tmp_path / 'rows.jsonl'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f'{path}, row {row}: .*{words}'):
    read(path)


def test_damaged_parquet_and_other_files_are_named(tmp_path):
  path = tmp_path / 'rows.parquet'
  assert read(write(path, [GOOD])) == [
      (f'{path}, row 1', {'text': 'a', 'level': 1})]
  for rows, words in (
      ([{'text': 'a'}], f"{path}: field 'level' is missing"),
      ([GOOD, GOOD | {'level': None}], f"{path}, row 2: field 'level'")):
    with pytest.raises(ValueError, match=words):
      read(write(path, rows))
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(ValueError, match='after row 0: .*truncated'):
    read(path)
  with pytest.raises(ValueError, match='rows.csv'):
    read(pathlib.Path('rows.csv'))


@pytest.mark.parametrize('value', ['x' * 11, ['x' * 6, 'x' * 5]])
def test_a_long_field_is_named(tmp_path, value):
  path = write(tmp_path / 'rows.jsonl', [GOOD, GOOD | {'text': value}])
  assert len(read(path, 11)) == 2
  with pytest.raises(ValueError, match="row 2: field 'text'.* 11 "):
    read(path, 10)


@pytest.mark.parametrize('name', ['rows.jsonl', 'rows.parquet'])
def test_a_large_file_is_read_in_little_memory(tmp_path, name):
  """Reads 5000 rows of 10 KB (50 MB) in a fraction of that memory."""
  rows = [{'prompt': f'{i:05}' * 2000} for i in range(10)]
  path = write(tmp_path / name, rows)
  if path.suffix == '.parquet':
    table = pyarrow.concat_tables([parquet.read_table(path)] * 500)
    parquet.write_table(table, path, use_dictionary=False)
    del table
  else:
    path.write_text(path.read_text() * 500)
  before, num_rows, held = pyarrow.total_allocated_bytes(), 0, 0
  tracemalloc.start()
  for _, row in dataset_files.read_rows(path, {'prompt': (str,)}):
    assert len(row['prompt']) == 10_000
    num_rows += 1
    if not num_rows % 100:
      held = max(held, pyarrow.total_allocated_bytes() - before)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert num_rows == 5000
  assert peak < 8 << 20
  assert held < 40 << 20
