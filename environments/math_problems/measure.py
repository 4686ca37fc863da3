r"""Measures how the grader treats gold answers and answers with a wrong digit.

  python -m environments.math_problems.measure DATA_DIR aime24 olympiadbench

grades each gold answer of a test split against itself, and then with the last
digit changed (or with 1 added if it has no digit). It prints how many are
accepted and refused, and every exception.
"""

from __future__ import annotations

import re
import sys

from environments import datasets
from environments.math_problems import grader


def perturb(gold: str) -> str:
  """Returns an answer that differs from `gold`."""
  last = re.search(r'[0-9](?!.*[0-9])', gold, re.DOTALL)
  if last is None:
    return gold.rstrip('$. ') + '+1'
  return f'{gold[:last.start()]}{(int(last[0]) + 1) % 10}{gold[last.end():]}'


def main(data_dir: str, *names: str) -> None:
  for name in names:
    golds = [
        task['answer'] for task in datasets.load(
            'environments.math_problems.problems_dataset_builder', 'test',
            data_dir, name)]
    num_accepted = num_refused = 0
    for gold in golds:
      wrong = perturb(gold)
      verdicts = grader.grade(gold, gold), grader.grade(wrong, gold)
      is_accepted = verdicts[0] is grader.Verdict.EQUAL
      is_refused = verdicts[1] is not grader.Verdict.EQUAL
      num_accepted += is_accepted
      num_refused += is_refused
      if not (is_accepted and is_refused):
        print(f'  gold answer {gold!r}, wrong answer {wrong!r}: {verdicts}')
    print(
        f'{name}: {num_accepted} of {len(golds)} gold answers accepted, '
        f'{num_refused} wrong answers refused')


if __name__ == '__main__':
  main(*sys.argv[1:])
