"""Loading tasks: plain values, splits, one preparation, clear errors.

This file is also the builder module of a small data set, `letters`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds

from environments import datasets

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
    ('test[-1:]', _ROWS[-1:]),
    ('test[:50%]', _ROWS[:2]),
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
  assert os.listdir(tmp_path / 'letters') == ['1.0.0']


def test_split_hash_ignores_only_the_order_of_keys():
  tasks = [{'task_id': 'a', 'pair': [1, 2]}, {'task_id': 'b', 'pair': [3, 4]}]
  # printf '[{"pair":[1,2],"task_id":"a"},{"pair":[3,4],"task_id":"b"}]' |
  #   sha256sum | cut -c -16
  assert datasets.split_hash(tasks) == '52a480a16b55e507'
  assert datasets.split_hash(tasks[::-1]) != datasets.split_hash(tasks)
