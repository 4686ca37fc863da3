"""GSM8K: grade school word problems."""

from environments.math_problems import problems_dataset_builder as base


class Builder(base.ProblemsBuilder):
  HUB_REPO = 'openai/gsm8k'
  SPLIT_FILES = {
      split: (f'main/{split}-*.parquet',) for split in ('train', 'test')}
  FIELDS = {'question': (str,), 'answer': (str,)}

  def task(self, row):
    _, marker, answer = row['answer'].rpartition('####')
    if not marker:
      raise ValueError("no #### in field 'answer'")
    return base.make_task(row['question'], answer)
