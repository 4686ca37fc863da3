"""Rows from files of the hub: where they are found, and what is refused."""

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


def test_split_files_in_the_manual_directory(tmp_path, no_network):
  folder = tmp_path / 'downloads' / 'manual' / 'tldr'
  posts = [{'prompt': f'naïve\n{i}', 'completion': i} for i in range(13)]
  write(folder / 'train.jsonl', posts)
  write(folder / 'validation.parquet', posts[:2])
  write(folder / 'test.jsonl', posts[:1])
  tasks = datasets.load(TLDR, 'train', str(tmp_path))
  assert tasks == [
      {'task_id': f'tldr/train/{i}', 'text': f'naïve\n{i}'} for i in range(13)]
  assert datasets.load(TLDR, 'validation[1:]', str(tmp_path)) == [
      {'task_id': 'tldr/validation/1', 'text': 'naïve\n1'}]


def test_a_copy_of_the_repository_in_the_manual_directory(
    tmp_path, no_network):
  data = tmp_path / 'downloads' / 'manual' / 'arxiv' / 'data'
  write(data / 'val-00000-of-00001.parquet', [{'abstract_text': 'We prove.'}])
  for shard, text in ((1, 'third'), (0, 'first')):  # Read in order of names.
    write(data / f'train-0000{shard}-of-00002.parquet', [
        {'abstract_text': [f'the {text} .', 'it is .'], 'article_id': 3}])
  write(data / 'train.jsonl', [{'abstract_text': 'a later pattern'}])
  tasks = datasets.load(ARXIV, 'train+val', str(tmp_path))
  assert [(task['task_id'], task['text']) for task in tasks] == [
      ('arxiv/train/0', 'the first . it is .'),
      ('arxiv/train/1', 'the third . it is .'), ('arxiv/val/0', 'We prove.')]


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


def test_missing_files_name_the_place_and_the_command(tmp_path, no_network):
  with pytest.raises(ValueError) as error:
    datasets.load(TLDR, 'train', str(tmp_path))
  place = tmp_path / 'downloads' / 'manual' / 'tldr'
  message = str(error.value)
  for words in (
      f'{place} does not exist', '(no network)',
      'hf download trl-lib/tldr --repo-type dataset --revision main '
      f'--local-dir {place}\n', 'train.jsonl, validation.jsonl, test.jsonl',
      'prompt'):
    assert words in message
  # Other data sets that are there do not help.
  write(place.parent / 'arxiv' / 'train.jsonl', [{'abstract_text': 'a'}])
  with pytest.raises(ValueError, match='does not exist'):
    datasets.load(TLDR, 'train', str(tmp_path))


@pytest.mark.parametrize('splits, words', [
    (('train', 'test'), "has no files of the split 'validation'; expected "
                        'validation.jsonl or validation.parquet or '),
    (('train', 'test', 'validation'), "split 'test' has no rows in ")])
def test_missing_and_empty_splits(tmp_path, no_network, splits, words):
  for split in splits:
    write(tmp_path / 'downloads' / 'manual' / 'tldr' / f'{split}.jsonl',
          [{'prompt': 'a'}] * (split != 'test'))
  with pytest.raises(ValueError, match=words):
    datasets.load(TLDR, 'train', str(tmp_path))


FIELDS = {'text': (str, list[str]), 'level': (int,)}
GOOD = {'text': 'a', 'level': 1, 'unread': None}


@pytest.mark.parametrize('name', ['rows.jsonl', 'rows.parquet'])
@pytest.mark.parametrize('row, words', [
    ({'text': None}, 'row 3: expected str or list[str] in field \'text\', '
                     'found NoneType None'),
    ({'level': None}, "row 3: expected int in field 'level'"),
    ({'text': 'a', 'level': 2}, None),
])
def test_types_of_rows(tmp_path, name, row, words):
  path = write(tmp_path / name, [GOOD, GOOD, GOOD | row])
  if words is None:
    assert list(dataset_files.read_rows(path, FIELDS))[2] == (
        f'{path}, row 3', row)
    return
  with pytest.raises(ValueError) as error:
    list(dataset_files.read_rows(path, FIELDS))
  assert f'{path}, {words}' in str(error.value)


@pytest.mark.parametrize('content, words', [
    (b'{"text": "a", "level": true}\n', "row 1: expected int in field 'level'"),
    (b'{"text": ["a", 1], "level": 1}\n', 'row 1: expected str or list[str]'),
    (b'{"text": "a", "level": 1}\n{"text": "b"}\n', "row 2: no field 'level'"),
    (b'{"text": "a", "level": 1}\n{"text": "b", "le', 'row 2: the line is no '
     'JSON in UTF-8; is the file cut off?'),
    (b'{"text": "a\\ud800", "level": 1}\n', "row 1: field 'text' has half of a "
     'surrogate pair'),
    (b'{"text": "a", "level": 1}\n\n', 'row 2: the line is no JSON'),
    (b'{"text": "\xff", "level": 1}\n', 'row 1: the line is no JSON'),
    (b'[1]\n', 'row 1: the line is no JSON object'),
])
def test_refused_lines(tmp_path, content, words):
  path = tmp_path / 'rows.jsonl'
  path.write_bytes(content)
  with pytest.raises(ValueError) as error:
    list(dataset_files.read_rows(path, FIELDS))
  assert f'{path}, {words}' in str(error.value)


def test_refused_parquet_and_other_files(tmp_path):
  path = write(tmp_path / 'rows.parquet', [{'text': 'a'}])
  with pytest.raises(ValueError, match="rows.parquet: no field 'level'"):
    list(dataset_files.read_rows(path, FIELDS))
  path = write(tmp_path / 'rows.parquet', [GOOD] * 1000)
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(ValueError, match='after row 0: cannot be read; is the'):
    list(dataset_files.read_rows(path, FIELDS))
  with pytest.raises(ValueError, match='neither .parquet nor .jsonl'):
    list(dataset_files.read_rows(pathlib.Path('rows.csv'), FIELDS))


@pytest.mark.parametrize('name', ['rows.jsonl', 'rows.parquet'])
def test_a_large_file_is_read_in_little_memory(tmp_path, name):
  """Ten thousand rows of 10 KB: 100 MB, of which a fraction is held."""
  rows = [{'prompt': f'{i:05}' * 2000} for i in range(10)]
  path = write(tmp_path / name, rows)
  if path.suffix == '.parquet':
    table = pyarrow.concat_tables([parquet.read_table(path)] * 1000)
    parquet.write_table(table, path, use_dictionary=False)
    del table
  else:
    with path.open('a') as file:
      lines = path.read_text()
      for _ in range(999):
        file.write(lines)
  before, num_rows = pyarrow.total_allocated_bytes(), 0
  held = 0
  tracemalloc.start()
  for _, row in dataset_files.read_rows(path, {'prompt': (str,)}):
    assert len(row['prompt']) == 10_000
    num_rows += 1
    if not num_rows % 100:
      held = max(held, pyarrow.total_allocated_bytes() - before)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert num_rows == 10_000
  assert peak < 8 << 20
  assert held < 40 << 20


@pytest.mark.parametrize('value', ['x' * 11, ['x' * 6, 'x' * 5]])
def test_a_field_that_is_too_long_is_named(tmp_path, value):
  path = write(tmp_path / 'rows.jsonl', [{'prompt': 'x'}, {'prompt': value}])
  fields = {'prompt': (str, list[str])}
  assert len(list(dataset_files.read_rows(path, fields, 11))) == 2
  with pytest.raises(ValueError, match=(
      "row 2: field 'prompt' has 11 letters; at most 10 are expected")):
    list(dataset_files.read_rows(path, fields, 10))
