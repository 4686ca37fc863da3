"""CoopHumanEval: 82 tasks without solutions (arXiv 2508.04652).

`test[16:]` trains and `test[:16]` tests. The hub has had them as the split
`test` and as the split `train`; here they are `test`.
"""

from environments.programming import problems_dataset_builder as base
from environments.programming.humaneval import humaneval_dataset_builder


class Builder(base.ProblemsBuilder):
  HUB_REPO = 'OpenMLRL/CoopHumanEval'
  SPLIT_FILES = {'test': (
      'data/test-*.parquet', 'data/train-*.parquet', '*.parquet', '*.jsonl')}
  FIELDS = {name: (str,) for name in ('prompt', 'test', 'entry_point')}

  def task(self, row):
    return base.make_check_task(
        row['prompt'], row['test'], row['entry_point'],
        humaneval_dataset_builder.TIME_LIMIT,
        preamble=base.first_python([row['prompt']]))
