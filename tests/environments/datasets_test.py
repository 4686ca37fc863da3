"""Loading tasks: plain values, splits, one preparation, clear errors.

This file is also the builder module of a small data set, `letters`.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import sys
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
  folder, = tmp_path.glob('letters_????????')
  assert os.listdir(folder) == ['1.0.0']


def test_split_hash_ignores_only_the_order_of_keys():
  tasks = [{'task_id': 'a', 'pair': [1, 2]}, {'task_id': 'b', 'pair': [3, 4]}]
  # printf '[{"pair":[1,2],"task_id":"a"},{"pair":[3,4],"task_id":"b"}]' |
  #   sha256sum | cut -c -16
  assert datasets.split_hash(tasks) == '52a480a16b55e507'
  assert datasets.split_hash(tasks[::-1]) != datasets.split_hash(tasks)


_BUILDER = '''
import tensorflow_datasets as tfds
import {0}_words as words
from {0}_more import ending
from environments import datasets

SIZE = 2
UNUSED = 3

def text(number):  # A comment.
  return f'{{words.WORDS[number]}}{{ending(number)}}'

class Builder(datasets.TaskBuilder, skip_registration=True):
  name = __name__
  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {{'text': tfds.features.Text()}}

  def splits(self):
    return {{'test': [
        {{'task_id': str(i), 'text': text(i)}} for i in range(SIZE)]}}
'''


@pytest.mark.parametrize('file, old, new, expected', [
    ('', 'SIZE = 2', 'SIZE = 1', ['a!']),
    ('', "f'{words", "f'<{words", ['<a!', '<b!']),
    ('', 'ending(number)', 'SIZE', ['a2', 'b2']),
    ('', 'range(SIZE)', '(1, 0)', ['b!', 'a!']),
    ('_words', "'b'", "'B'", ['a!', 'B!']),
    ('_words', "('a', 'b')", "tuple(map(other, 'ab'))", ['aa!', 'bb!']),
    ('_more', "'!'", "'.'", ['a.', 'b.']),
    ('_more', 'return MARK', 'return f"{number}"', ['a0', 'b1']),
    ('', 'UNUSED = 3', 'UNUSED = 4', None),
    ('', '# A comment.', '# Another.', None),
    ('_words', 'def unused(): pass', 'def unused(): return 3', None)])
def test_changed_code_makes_the_data_set_again(
    file, old, new, expected, tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  name = f'user_{len(sys.modules)}'
  sources = {
      '': _BUILDER.format(name),
      '_words': "def other(x): return 2 * x\nWORDS = ('a', 'b')\n"
                'def unused(): pass\n',
      '_more': "MARK = '!'\ndef ending(number): return MARK\n"}

  def load():
    for suffix in ('_words', '_more', ''):
      (tmp_path / f'{name}{suffix}.py').write_text(sources[suffix])
      sys.modules.pop(f'{name}{suffix}', None)
    importlib.invalidate_caches()
    rows = datasets.load(name, 'test', str(tmp_path / 'data'))
    return [row['text'] for row in rows]

  assert load() == ['a!', 'b!']
  assert old in sources[file]
  sources[file] = sources[file].replace(old, new)
  assert load() == (expected or ['a!', 'b!'])
  folders = [*(tmp_path / 'data').glob('*/1.0.0')]
  assert len(folders) == (2 if expected else 1)


_IMPORTING_BUILDER = '''
import used
import used.inside
import used.alias as short
from used import exported, module as renamed
from used.star import *
from base import Base
TABLE = {}
TABLE['key'] = 'MUTATED'
try:
  from used.guarded import GUARDED
except ImportError:
  GUARDED = ''

class Builder(Base, skip_registration=True):
  name = __name__

  def splits(self):
    from used.lazy import LAZY as lazy
    return {'test': [{'task_id': '0', 'text': ' '.join([
        used.PACKAGE, used.inside.INSIDE, short.ALIAS, exported, renamed.MODULE,
        STAR, TABLE['key'], GUARDED, lazy, self.inherited()])}]}
'''
_BASE = '''
import tensorflow_datasets as tfds
from environments import datasets

class Base(datasets.TaskBuilder, skip_registration=True):
  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {'text': tfds.features.Text()}

  def inherited(self):
    return 'INHERITED'
'''


def test_imports_of_every_form_are_followed(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  (tmp_path / 'used').mkdir()
  sources = {
      'importing.py': _IMPORTING_BUILDER, 'base.py': _BASE,
      'used/__init__.py': (
          "from .hidden import exported\nPACKAGE = 'PACKAGE'\n"),
      'used/hidden.py': "exported = 'EXPORTED'\n"} | {
          f'used/{name}.py': f"{name.upper()} = '{name.upper()}'\n"
          for name in ('inside', 'alias', 'module', 'star', 'guarded', 'lazy')}

  def load():
    for path, source in sources.items():
      (tmp_path / path).write_text(source)
    for name in [*sys.modules]:
      if name.partition('.')[0] in ('importing', 'base', 'used'):
        del sys.modules[name]
    importlib.invalidate_caches()
    row, = datasets.load('importing', 'test', str(tmp_path / 'data'))
    return row['text'].split()

  expected = load()
  assert len(expected) == 10
  for path, source in sources.items():
    word, = (x for x in expected if f"'{x}'" in source)
    sources[path] = source.replace(f"'{word}'", f"'{word}2'")
    expected[expected.index(word)] = f'{word}2'
    assert load() == expected
