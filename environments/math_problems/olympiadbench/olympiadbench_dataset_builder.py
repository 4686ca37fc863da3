"""OlympiadBench: English text-only open-ended competition mathematics."""

from environments.math_problems import problems_dataset_builder as base


class Builder(base.ProblemsBuilder):
  HUB_REPO = 'Hothan/OlympiadBench'
  SPLIT_FILES = {'test': (
      '*/OE_TO_maths_en_COMP.parquet', 'OE_TO_maths_en_COMP/*.parquet')}
  FIELDS = {
      'question': (str,), 'final_answer': (list[str],),
      'context': (str, type(None)), 'unit': (str, type(None))}

  def task(self, row):
    problem = '\n'.join(filter(None, (row['context'], row['question'])))
    answer = ','.join(row['final_answer'])
    # A candidate may omit any unit except %: 4.2 % is not 4.2.
    if row['unit'] in ('%', r'\%') and '%' not in answer:
      answer += '%'
    return base.make_task(problem, answer)
