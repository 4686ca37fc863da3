"""CoopHumanEval: OpenMLRL/CoopHumanEval of the hub (arXiv 2508.04652)."""

from __future__ import annotations

from typing import Any

import tensorflow_datasets as tfds

from environments import dataset_files
from environments.programming import problems_dataset_builder as base

TIME_LIMIT = 3.0  # As of HumanEval.


class Builder(base.ProblemsBuilder):
  """82 tasks without solutions; `test[16:]` trains and `test[:16]` tests.

  The hub has had them as the split `test` and as the split `train`; here they
  are `test`.
  """

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'Prompt and tests of each row.'}
  HUB_REPO = 'OpenMLRL/CoopHumanEval'
  HUB_REVISION = 'main'
  SPLIT_FILES = {'test': (
      'data/test-*.parquet', 'data/train-*.parquet', '*.parquet', '*.jsonl')}
  FIELDS = {name: (str,) for name in ('prompt', 'test', 'entry_point')}

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    return base.make_task(
        statement=row['prompt'], comparison='check',
        tests=base.pack_check(row['test'], row['entry_point']),
        time_limit=TIME_LIMIT,
        starter_code=row['prompt'], entry_point=row['entry_point'],
        preamble=base.first_python([row['prompt']]))
