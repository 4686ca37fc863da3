"""DAPO: 17,000 training problems.

The published file repeats each problem about a hundred times. Repeated pairs of
problem and answer are dropped and counted in `metadata.json`.
"""

from environments.math_problems import problems_dataset_builder as base

# The published prompts wrap each problem in these sentences.
PREFIX = (
    'Solve the following math problem step by step. The last line of your '
    'response should be of the form Answer: $Answer (without quotes) where '
    '$Answer is the answer to the problem.')
SUFFIX = 'Remember to put your answer on its own line after "Answer:".'


class Builder(base.ProblemsBuilder):
  HUB_REPO = 'BytedTsinghua-SIA/DAPO-Math-17k'
  SPLIT_FILES = {'train': ('data/dapo-math-17k.parquet',)}
  FIELDS = {'prompt': (list[dict],), 'reward_model': (dict,)}

  def task(self, row):
    try:
      content = row['prompt'][0]['content'].strip()
      answer = row['reward_model']['ground_truth']
    except (LookupError, AttributeError) as error:
      raise ValueError(
          'expected prompt[0].content and reward_model.ground_truth') from error
    if not content.startswith(PREFIX) or not content.endswith(SUFFIX):
      raise ValueError(
          'expected a prompt that starts and ends with the sentences of DAPO')
    if not isinstance(answer, str):
      raise ValueError(
          f'reward_model.ground_truth={answer!r:.80} must be a string')
    return base.make_task(content[len(PREFIX):-len(SUFFIX)], answer)

  def _generate_examples(self, split, paths):
    seen, num_repeated = set(), 0
    for index, task in super()._generate_examples(split, paths):
      key = task['problem'], task['answer']
      if key in seen:
        num_repeated += 1
      else:
        seen.add(key)
        yield index, task
    self.info.metadata['repeated_rows'] = num_repeated
