"""HumanEval: 164 tasks (arXiv 2107.03374)."""

from environments.programming import problems_dataset_builder as base

TIME_LIMIT = 3.0  # Of the official grader.


class Builder(base.ProblemsBuilder):
  HUB_REPO = 'openai/openai_humaneval'
  SPLIT_FILES = {'test': ('openai_humaneval/test-*.parquet', '*test*.parquet')}
  FIELDS = {
      name: (str,)
      for name in ('prompt', 'canonical_solution', 'test', 'entry_point')}

  def task(self, row):
    return base.make_check_task(
        row['prompt'], row['test'], row['entry_point'], TIME_LIMIT,
        preamble=row['prompt'],
        reference=row['prompt'] + row['canonical_solution'])
