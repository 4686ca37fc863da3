"""Loading tasks: plain values, splits, one preparation, clear errors.

This file is also the builder module of a small data set, `letters`.
"""

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


class Builder(datasets.TaskBuilder):
  """Has every kind of value that a row may hold."""

  name = 'letters'
  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {
      'words': tfds.features.Sequence(tfds.features.Text()),
      'table': tfds.features.Tensor(shape=(2, 2), dtype=np.int32),
      'cases': tfds.features.Sequence(
          {'input': tfds.features.Text(), 'points': np.int64}),
      'pair': tfds.features.Tensor(shape=(2,), dtype=np.int32),
      'scale': np.float32,
      'is_even': np.bool_,
  }

  def splits(self):
    with open(self.data_dir_root / 'preparations', 'a') as log:
      log.write('once\n')
    time.sleep(0.5)  # Makes two writing processes overlap.
    return {'test': _ROWS, 'train': _ROWS[:1]}


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


def test_common_tasks_are_counted_without_their_ids():
  tasks = [{'task_id': str(i), 'pair': [i % 3, 2]} for i in range(4)]
  others = [{'pair': [0, 2], 'task_id': 'other'}, {'pair': [5, 2]}]
  assert datasets.num_common(tasks, others) == 2
  assert datasets.num_common(others, tasks) == 1


_BUILDER = '''
import tensorflow_datasets as tfds
import {0}_words as words
from environments import datasets

SIZE = 2

class Builder(datasets.TaskBuilder, skip_registration=True):
  name = __name__
  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {{'text': tfds.features.Text()}}

  def splits(self):
    return {{'test': [
        {{'task_id': str(i), 'text': words.word(i)}} for i in range(SIZE)]}}
'''


@pytest.mark.parametrize('file, old, new, expected', [
    ('', 'SIZE = 2', 'SIZE = 1', ['a']),
    ('_words', 'return spell', 'return "-" + spell', ['-a', '-b']),
    ('_spelling', "'ab'", "'cd'", ['c', 'd']),
    ('_other', '0', '1', None)])
def test_changed_module_makes_the_data_set_again(
    file, old, new, expected, tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  name = f'user_{len(sys.modules)}'
  sources = {
      '_other': 'NUMBER = 0\n',
      '_spelling': "def spell(number): return 'ab'[number]\n",
      '_words': f'from {name}_spelling import spell\n'
                'def word(number): return spell(number)\n',
      '': _BUILDER.format(name)}

  def load():
    for suffix, source in sources.items():
      (tmp_path / f'{name}{suffix}.py').write_text(source)
      sys.modules.pop(f'{name}{suffix}', None)
    importlib.invalidate_caches()
    importlib.import_module(f'{name}_other')  # The builder does not use it.
    rows = datasets.load(name, 'test', str(tmp_path / 'data'))
    return [row['text'] for row in rows]

  assert load() == ['a', 'b']
  assert old in sources[file]
  sources[file] = sources[file].replace(old, new)
  assert load() == (expected or ['a', 'b'])
  folders = [*(tmp_path / 'data').glob('*/1.0.0')]
  assert len(folders) == (2 if expected else 1)


# ---- Functions ---------------------------------------------------------------


class _HubDataset:
  """Iterated like a `datasets.Dataset` of the Hugging Face hub."""

  def __iter__(self):
    return iter([{'text': np.str_('naïve'), 'size': np.int64(3)}])


@pytest.fixture
def given(monkeypatch, tmp_path):
  """Makes a module `given` with the function `tasks`."""
  def make(tasks_fn):
    module = types.ModuleType('given')
    module.tasks, module.__file__ = tasks_fn, str(tmp_path / 'given.py')
    monkeypatch.setitem(sys.modules, 'given', module)

  return make


def _numbers(split):
  return [{'split': split, 'number': i} for i in range(10)]


@pytest.mark.parametrize('split, expected', [
    ('test', [f'test/{i}' for i in range(10)]),
    ('test[-1:]', ['test/9']), ('test[:20%]', ['test/0', 'test/1']),
    ('train[:1] + test[8:]', ['train/0', 'test/8', 'test/9'])])
def test_function_has_splits_slices_and_sums(split, expected, given):
  given(_numbers)
  tasks = datasets.load('given', split)
  assert [task['task_id'] for task in tasks] == expected
  assert [f'{task["split"]}/{task["number"]}' for task in tasks] == expected


@pytest.mark.parametrize('source', [
    list, iter, lambda rows: _HubDataset(), lambda rows: 'a.jsonl',
    lambda rows: 'a.parquet'])
def test_function_may_return_rows_of_any_source(source, given, tmp_path):
  rows = [{'text': 'naïve', 'size': 3}]
  for name in 'a.jsonl', 'a.parquet':
    dataset_files_test.write(tmp_path / name, rows)
  given(lambda split: source(rows))
  assert datasets.load('given', 'train') == [{'task_id': 'train/0'} | rows[0]]


@pytest.mark.parametrize('tasks_fn, words', [
    (lambda split: {'train': []}[split],
     r"given\.tasks\('test'\) failed \(KeyError: 'test'\)"),
    (lambda split: [], "split 'test' of given has no tasks"),
    (lambda split: {'test': []}, 'returned dict .*; expected a list of dicts'),
    (lambda split: ['a'], "row 0 is 'a', which is not a dict"),
    (lambda split: [{'x': {1}}], 'row 0 .*set is not JSON'),
    (lambda split: [{'task_id': 'a'}] * 2, "row 1: task_id='a'"),
    (lambda split: [{'task_id': 3}], 'row 0: task_id=3'),
    (lambda split: [{'x': random.random()}], 'other tasks when .* fixed seed'),
    (lambda split: 'none.jsonl', 'none.jsonl cannot be read'),
    (_numbers, "dataset.config='2boxes', but given")])
def test_bad_function_gives_one_sentence(tasks_fn, words, given):
  given(tasks_fn)
  config = '2boxes' if tasks_fn is _numbers else None
  with pytest.raises(ValueError, match=words) as error:
    datasets.load('given', 'test', builder_config=config)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('module, sizes, splits', [
    ('given', 'test (10 tasks)', ['test[:1shard]']),
    (__name__, 'test (4 tasks), train (1 tasks)', ['tset'])])
def test_split_without_tasks_names_the_sizes(
    module, sizes, splits, given, data_dir):
  given(_numbers)
  for split in ('test[:11]', 'test[:x]', 'test[2:2]', 'test[', '', *splits):
    with pytest.raises(ValueError, match='split.*choose from') as error:
      datasets.load(module, split, data_dir)
    assert repr(split) in str(error.value)
    assert sizes in str(error.value) or not split
