"""Rows from files of the hub, and their sources."""

import json

import huggingface_hub
import pyarrow
from pyarrow import parquet
import pytest

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
    raise RuntimeError('no\nnetwork')  # As hf-xet does.

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
  assert (asked['repo_id'], asked['repo_type']) == ('trl-lib/tldr', 'dataset')
  assert 'data/test-*.parquet' in asked['allow_patterns']


@pytest.mark.parametrize('splits, words', [
    ((), 'hf download trl-lib/tldr --repo-type dataset --local-dir'),
    (('train', 'test'), "split 'validation'.* it has test.jsonl, train.jsonl"),
    (('train', 'test', 'validation'), "split 'test' has no rows")])
def test_missing_and_empty_splits_are_named(
    tmp_path, no_network, splits, words):
  for split in splits:
    write(tmp_path / 'downloads' / 'manual' / 'tldr' / f'{split}.jsonl',
          [{'prompt': 'a'}] * (split != 'test'))
  with pytest.raises(ValueError, match=words):
    datasets.load(TLDR, 'train', str(tmp_path))
