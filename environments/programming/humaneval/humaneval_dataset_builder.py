"""HumanEval: openai/openai_humaneval of the hub (arXiv 2107.03374)."""

from __future__ import annotations

from typing import Any

import tensorflow_datasets as tfds

from environments import dataset_files
from environments.programming import problems_dataset_builder as base

TIME_LIMIT = 3.0  # Of the official grader.


class Builder(base.ProblemsBuilder):
  """164 tasks, the split `test`."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'Prompt, tests and solution of each row.'}
  HUB_REPO = 'openai/openai_humaneval'
  HUB_REVISION = 'main'
  SPLIT_FILES = {'test': ('openai_humaneval/test-*.parquet', '*test*.parquet')}
  FIELDS = {
      name: (str,)
      for name in ('prompt', 'canonical_solution', 'test', 'entry_point')}

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    return base.make_task(
        statement=row['prompt'], comparison='check',
        tests=base.pack_check(row['test'], row['entry_point']),
        time_limit=TIME_LIMIT,
        starter_code=row['prompt'], entry_point=row['entry_point'],
        preamble=row['prompt'],
        reference=row['prompt'] + row['canonical_solution'])
