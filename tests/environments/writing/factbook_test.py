"""Passages of the World Factbook: their splits and their texts."""

from importlib import metadata
import itertools
import re
import types

import pytest

from environments import datasets
from environments.writing.factbook import factbook_dataset_builder


@pytest.fixture(scope='module')
def splits():
  return factbook_dataset_builder.make_splits()


def test_splits_have_the_published_hashes(splits):
  # Results name these hashes. Change them only together with VERSION.
  assert {
      split: (len(tasks), datasets.split_hash(tasks))
      for split, tasks in splits.items()} == {
          'test': (152, 'be547ee88a4761d6'),
          'validation': (79, 'e0f75ec4dabecb79'),
          'train': (500, '911e0f0fa80864c3')}


@pytest.mark.parametrize('parts_of', [
    lambda task: re.findall(r'/(\w+)-', task['task_id']),
    lambda task: [
        x for x in re.split(r'[.;] |\n\n', task['text'].lower())
        if len(x.split()) > 8]], ids=['country', 'sentence'])
def test_splits_share_no_country_and_no_sentence(splits, parts_of):
  parts = [
      {part for task in tasks for part in parts_of(task)}
      for tasks in splits.values()]
  assert len(set.union(*parts)) == sum(map(len, parts)) > 200


def test_passages_are_plain_sentences(splits):
  for task in itertools.chain(*splits.values()):
    country, passage = task['text'].split('\n\n')
    assert country and 45 <= len(passage.split()) <= 140
    assert re.fullmatch(r'[A-Z“"][^<>&\n]*[.][)”"]?', passage), passage
    assert '  ' not in passage


@pytest.mark.parametrize('version', [None, '0.1.3'])
def test_another_version_of_the_package_is_refused(version, monkeypatch):
  def find(name):
    if version is None:
      raise metadata.PackageNotFoundError(name)
    return types.SimpleNamespace(version=version)

  monkeypatch.setattr(metadata, 'distribution', find)
  found = version or 'is not installed'
  with pytest.raises(
      ValueError, match=rf"{found}: .* 0\.1\.2; .*'\.\[factbook\]'"):
    factbook_dataset_builder.make_splits()
