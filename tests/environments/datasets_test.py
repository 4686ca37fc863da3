"""Loading tasks: plain values, splits, one preparation, clear errors.

This file is also the builder module of a small data set, `letters`.
"""

from __future__ import annotations

import gzip
import importlib
import json
import multiprocessing
import os
import random
import sys
import time
import types

import numpy as np
import pytest
import tensorflow_datasets as tfds

from environments import datasets
from tests.environments import dataset_files_test

_ROWS = [
    {
        'task_id': f'letters/test/{i}',
        'words': ['', 'naïve', '≤ "3"\n'][:i],
        'table': [[i, 1], [2, 3]],
        'cases': {'input': ['1', '2'][:i], 'points': [1, -(2**40)][:i]},
        'pair': [i, i + 1],
        'scale': 0.5,
        'is_even': i % 2 == 0,
    }
    for i in range(4)
]


class Builder(tfds.core.GeneratorBasedBuilder):
  """Has every kind of value that a row may hold."""

  name = 'letters'
  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    text = tfds.features.Text()
    return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict({
            'task_id': text,
            'words': tfds.features.Sequence(text),
            'table': tfds.features.Tensor(shape=(2, 2), dtype=np.int32),
            'cases': tfds.features.Sequence(
                {'input': text, 'points': np.int64}),
            'pair': tfds.features.Tensor(shape=(2,), dtype=np.int32),
            'scale': np.float32,
            'is_even': np.bool_,
        }),
        disable_shuffling=True)

  def _split_generators(self, dl_manager):
    with open(self.data_dir_root / 'preparations', 'a') as log:
      log.write('once\n')
    time.sleep(0.5)  # Makes two writing processes overlap.
    return {
        'test': self._generate_examples(_ROWS),
        'train': self._generate_examples(_ROWS[:1]),
    }

  def _generate_examples(self, rows):
    yield from enumerate(rows)


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  return str(tmp_path_factory.mktemp('letters'))


@pytest.mark.parametrize('split, expected', [
    ('test', _ROWS),
    ('test[:2]', _ROWS[:2]),
    ('train+test[3:]', [_ROWS[0], _ROWS[3]])])
def test_rows_come_back_as_plain_values_in_order(data_dir, split, expected):
  tasks = datasets.load(__name__, split, data_dir)
  # numpy's integers equal Python's, but JSON refuses them.
  assert tasks == json.loads(json.dumps(tasks)) == expected


@pytest.mark.parametrize('split', ['tset', 'test[2:2]', 'test[:x]', ''])
def test_split_without_tasks_names_the_choices(data_dir, split):
  with pytest.raises(ValueError) as error:
    datasets.load(__name__, split, data_dir)
  assert repr(split) in str(error.value)
  assert 'test (4 tasks), train (1 tasks)' in str(error.value)


def _load_with_seeded_random(data_dir):
  # tensorflow-datasets names its temporary folder with this generator.
  random.seed(0)
  return datasets.load(__name__, 'test', data_dir)


def test_two_processes_prepare_a_data_set_once(tmp_path):
  context = multiprocessing.get_context('spawn')
  barrier = context.Barrier(2)
  with context.Pool(2, initializer=barrier.wait) as pool:
    loaded = pool.map(
        _load_with_seeded_random, [str(tmp_path)] * 2, chunksize=1)
  assert loaded == [_ROWS, _ROWS]
  assert (tmp_path / 'preparations').read_text() == 'once\n'
  folder, = tmp_path.glob('letters_????????')
  assert os.listdir(folder) == ['1.0.0']


def test_split_hash_ignores_only_the_order_of_keys():
  tasks = [{'task_id': 'a', 'pair': [1, 2]}, {'task_id': 'b', 'pair': [3, 4]}]
  # printf '[{"pair":[1,2],"task_id":"a"},{"pair":[3,4],"task_id":"b"}]' |
  #   sha256sum | cut -c -16
  assert datasets.split_hash(tasks) == '52a480a16b55e507'
  assert datasets.split_hash(tasks[::-1]) != datasets.split_hash(tasks)


def test_common_tasks_are_counted_without_their_ids():
  tasks = [{'task_id': str(i), 'pair': [i % 3, 2]} for i in range(4)]
  others = [{'pair': [0, 2], 'task_id': 'other'}, {'pair': [5, 2]}]
  assert datasets.num_common(tasks, others) == 2
  assert datasets.num_common(others, tasks) == 1


_BUILDER = '''
import tensorflow_datasets as tfds
import {0}_words as words
from {0}_more import ending
from environments import datasets

SIZE = 2

class Builder(datasets.TaskBuilder, skip_registration=True):
  name = __name__
  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {{'text': tfds.features.Text()}}

  def splits(self):
    return {{'test': [
        {{'task_id': str(i), 'text': words.WORDS[i] + ending(i)}}
        for i in range(SIZE)]}}
'''


@pytest.mark.parametrize('file, old, new, expected', [
    ('', 'SIZE = 2', 'SIZE = 1', ['a!']),
    ('_words', "'a'", "'c'", ['c!', 'b!']),
    ('_more', 'return mark.MARK', 'return str(number)', ['a0', 'b1']),
    ('_mark', '!', '?', ['a?', 'b?']),
    ('_other', '0', '1', None)])
def test_changed_module_makes_the_data_set_again(
    file, old, new, expected, tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  name = f'user_{len(sys.modules)}'
  sources = {
      '_other': 'NUMBER = 0\n', '_mark': "MARK = '!'\n",
      '_words': "WORDS = 'a', 'b'\n",
      '_more': f'import {name}_mark as mark\n'
               'def ending(number): return mark.MARK\n',
      '': _BUILDER.format(name)}

  def load():
    for suffix, source in sources.items():
      (tmp_path / f'{name}{suffix}.py').write_text(source)
      sys.modules.pop(f'{name}{suffix}', None)
    importlib.invalidate_caches()
    importlib.import_module(f'{name}_other')  # The builder does not use it.
    rows = datasets.load(name, 'test', str(tmp_path / 'data'))
    return [row['text'] for row in rows]

  assert load() == ['a!', 'b!']
  assert old in sources[file]
  sources[file] = sources[file].replace(old, new)
  assert load() == (expected or ['a!', 'b!'])
  folders = [*(tmp_path / 'data').glob('*/1.0.0')]
  assert len(folders) == (2 if expected else 1)


# ---- Functions ---------------------------------------------------------------


class _HubDataset:
  """Iterated like a `datasets.Dataset` of the Hugging Face hub."""

  def __iter__(self):
    return iter([{'text': np.str_('a'), 'size': np.int64(3)}])


def _function(monkeypatch, tmp_path, tasks_fn):
  """Makes a module with the function `tasks`, and returns its name."""
  module = types.ModuleType('given')
  module.tasks, module.__file__ = tasks_fn, str(tmp_path / 'given.py')
  monkeypatch.setitem(sys.modules, 'given', module)
  return 'given'


def _numbers(split):
  return [{'split': split, 'number': i} for i in range(10)]


@pytest.mark.parametrize('split, expected', [
    ('test', [f'test/{i}' for i in range(10)]),
    ('test[-1:]', ['test/9']), ('test[:20%]', ['test/0', 'test/1']),
    ('train[:1] + test[8:]', ['train/0', 'test/8', 'test/9'])])
def test_function_has_splits_slices_and_sums(
    split, expected, monkeypatch, tmp_path):
  tasks = datasets.load(_function(monkeypatch, tmp_path, _numbers), split)
  assert [task['task_id'] for task in tasks] == expected
  assert [f'{task["split"]}/{task["number"]}' for task in tasks] == expected


def test_function_may_return_rows_of_any_source(monkeypatch, tmp_path):
  rows = [{'text': 'naïve', 'cases': [{'in': [1, 2]}]}, {'task_id': 'mine'}]
  dataset_files_test.write(tmp_path / 'a.jsonl', rows)
  (tmp_path / 'a.jsonl.gz').write_bytes(
      gzip.compress((tmp_path / 'a.jsonl').read_bytes()))
  dataset_files_test.write(tmp_path / 'a.parquet', rows[:1])
  for source in (rows, tuple(rows), 'a.jsonl', 'a.jsonl.gz',
                 tmp_path / 'a.jsonl'):
    assert datasets.load(
        _function(monkeypatch, tmp_path, lambda _: source), 'train') == [
            {'task_id': 'train/0'} | rows[0], {'task_id': 'mine'}], source
  assert datasets.load(
      _function(monkeypatch, tmp_path, lambda _: 'a.parquet'), 'train') == [
          {'task_id': 'train/0'} | rows[0]]
  assert datasets.load(
      _function(monkeypatch, tmp_path, lambda _: _HubDataset()), 'x') == [
          {'task_id': 'x/0', 'text': 'a', 'size': 3}]
  assert datasets.load(
      _function(monkeypatch, tmp_path, lambda _: iter(rows)), 'x[1:]') == [
          {'task_id': 'mine'}]


@pytest.mark.parametrize('tasks_fn, words', [
    (lambda split: {'train': []}[split],
     r"given\.tasks\('test'\) failed \(KeyError: 'test'\)"),
    (lambda split: [], "split 'test' of given has no tasks"),
    (lambda split: None, 'returned NoneType None; expected a list of dicts'),
    (lambda split: {'test': []}, "returned dict {'test'"),
    (lambda split: ['a'], "row 0 is 'a', which is not a dict"),
    (lambda split: [{'x': {1}}], 'row 0 .*set is not JSON'),
    (lambda split: [{'x': b'\xff'}], 'row 0 .*utf-8'),
    (lambda split: [{'task_id': 'a'}] * 2, "row 1: task_id='a'"),
    (lambda split: [{'task_id': 3}], 'row 0: task_id=3'),
    (lambda split: [{'x': random.random()}], 'other tasks when .* fixed seed'),
    (lambda split: 'none.jsonl', 'none.jsonl cannot be read'),
    (lambda split: 'rows.csv', 'rows.csv: expected a .parquet'),
    (3, "'int' object is not callable")])
def test_bad_function_gives_one_sentence(
    tasks_fn, words, monkeypatch, tmp_path):
  name = _function(monkeypatch, tmp_path, tasks_fn)
  with pytest.raises(ValueError, match=words) as error:
    datasets.load(name, 'test')
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('split', [
    'test[:11]', 'test[:x]', 'test[2:2]', 'test[:1shard]', 'test[', '', 'all'])
def test_slice_without_tasks_names_the_sizes(split, monkeypatch, tmp_path):
  name = _function(monkeypatch, tmp_path, _numbers)
  with pytest.raises(ValueError, match='split.*choose from') as error:
    datasets.load(name, split)
  assert repr(split) in str(error.value)
  assert ('test (10 tasks)' in str(error.value)) == ('test' in split)


def test_function_has_no_configs(monkeypatch, tmp_path):
  name = _function(monkeypatch, tmp_path, _numbers)
  with pytest.raises(ValueError, match="dataset.config='2boxes', but given"):
    datasets.load(name, 'test', builder_config='2boxes')
