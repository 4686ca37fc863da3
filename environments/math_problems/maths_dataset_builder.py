"""Training problems and four tests, with no problem in both.

The train split is Polaris, and `validation` is drawn from it by a hash of the
problems. AIME24, AIME25, OlympiadBench and GSM8K are one split each. Training
problems that overlap with a test, and then with validation, are removed; their
names are logged and stored in `metadata.json`.

Two problems overlap if they have the same words, or if they have at least
`MIN_COMMON_RUNS` runs of `RUN_WORDS` words in common and these are at least
`MIN_OVERLAP` of the runs of the shorter problem. Words are lower-case letters
and numbers; LaTeX layout commands are ignored. The rule finds problems in other
typesetting or with one number changed. The closing sentences of competitions
("where m and n are relatively prime ...") are too short to match.
"""

import collections
from collections.abc import Sequence
import hashlib
import itertools
import logging
import re
from typing import Any
import unicodedata

import tensorflow_datasets as tfds

from environments import datasets
from environments.env_api import Task
from environments.math_problems import problems_dataset_builder

TESTS = ('aime24', 'aime25', 'olympiadbench', 'gsm8k')
NUM_VALIDATION = 200
RUN_WORDS, MIN_COMMON_RUNS, MIN_OVERLAP = 8, 5, 0.5

_LAYOUT = re.compile(
    r'\\(?:left|right|displaystyle|quad|qquad|text|textbf|mathrm|mathbf|rm|bf|'
    r'[dt]?frac|[bB]igg?[lr]?|begin|end|,|;|!|:)(?![a-z])')
_WORD = re.compile(r'[^\W\d_]+|\d+')


class Builder(datasets.TaskBuilder):
  """Mathematical problems to train on, and four tests."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = problems_dataset_builder.FEATURES
  MANUAL_FOLDERS = ('polaris', *TESTS)  # Those of the joined data sets.

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    def load(name, split):
      return datasets.load(
          problems_dataset_builder.__name__, split, str(self.data_dir_root),
          name)

    tests = {name: load(name, 'test') for name in TESTS}
    train, removed = remove_overlaps(
        load('polaris', 'train'), [*itertools.chain(*tests.values())])
    train, validation = _hold_out(train)
    train, like_validation = remove_overlaps(train, validation)
    removed |= like_validation
    self.info.metadata['removed'] = removed
    logging.warning(
        'removed %d training problems that overlap with a test or with '
        'validation%s', len(removed), ''.join(
            f'\n  {task_id}: {other}' for task_id, other in removed.items()))
    return {'train': train, 'validation': validation, **tests}


def remove_overlaps(
    tasks: Sequence[Task], tests: Sequence[Task],
) -> tuple[list[Task], dict[str, str]]:
  """Returns the tasks without overlap, and the ids of the others.

  The task_id of each removed task has that of the first test it overlaps with.
  """
  test_words = [_words(test['problem']) for test in tests]
  test_runs = list(map(_runs, test_words))
  tests_with_words = collections.defaultdict(list)
  tests_with_run = collections.defaultdict(list)
  for index, words in enumerate(test_words):
    tests_with_words[words].append(index)
    for run in test_runs[index]:
      tests_with_run[run].append(index)
  kept, removed = [], {}
  for task in tasks:
    words = _words(task['problem'])
    runs = _runs(words)
    num_common = collections.Counter(
        index for run in runs for index in tests_with_run.get(run, ()))
    overlapping = tests_with_words.get(words, []) + [
        index for index, num in num_common.items() if num >= max(
            MIN_COMMON_RUNS,
            MIN_OVERLAP * min(len(runs), len(test_runs[index])))]
    if overlapping:
      removed[task['task_id']] = tests[min(overlapping)]['task_id']
    else:
      kept.append(task)
  return kept, removed


def _words(problem: str) -> tuple[str, ...]:
  text = unicodedata.normalize('NFKC', problem)
  return tuple(_WORD.findall(_LAYOUT.sub(' ', text).lower()))


def _runs(words: tuple[str, ...]) -> set[tuple[str, ...]]:
  return {
      words[start:start + RUN_WORDS]
      for start in range(len(words) - RUN_WORDS + 1)}


def _hold_out(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
  """Returns train and validation, at most a tenth; both keep their order."""
  size = min(NUM_VALIDATION, len(tasks) // 10)
  hashes = [
      hashlib.sha256(task['problem'].encode()).digest() for task in tasks]
  held_out = set(sorted(range(len(tasks)), key=lambda i: hashes[i])[:size])
  return ([task for i, task in enumerate(tasks) if i not in held_out],
          [task for i, task in enumerate(tasks) if i in held_out])
