r"""Measures how the grader treats gold answers and wrong answers.

  python -m environments.math_problems.measure DATA_DIR aime24 olympiadbench

grades each gold answer of a test split against itself, and then with the last
digit changed (or with 1 added if it has no digit). A second set of wrong
answers differs in size, form or order. The command prints how many are accepted
and refused, and every exception.
"""

import collections
from collections.abc import Iterator
import re
import sys

from environments import datasets
from environments.math_problems import grader
from environments.math_problems import notation


def perturb(gold: str) -> str:
  """Returns an answer that differs from `gold`."""
  last = re.search(r'[0-9](?!.*[0-9])', gold, re.DOTALL)
  if last is None:
    return gold.rstrip('$. ') + '+1'
  return f'{gold[:last.start()]}{(int(last[0]) + 1) % 10}{gold[last.end():]}'


def second_perturbations(gold: str) -> Iterator[tuple[str, str, str]]:
  """Yields kinds of wrong answers, the answers, and gold answers for them."""
  text = notation.clean(gold)
  yield 'text', rf'{text}\text{{ but really 6}}', gold
  yield 'unit', rf'{text}\text{{ dozen}}', gold
  yield 'equation', f'{text}+1={text}', gold
  yield 'unknowns', f'u-v={text}', gold
  if '=' in text:
    yield 'name', f'q_{{7}}={text.partition("=")[2]}', gold
  if re.search(r'\d\d', text):
    yield 'blank', re.sub(r'(\d)(\d)(?!\d)', r'\1 \2', text, count=1), gold
  if text != '0' and not re.search(r'[,=<>%]|\\(ge|le|cup|text)', text):
    large, small = (rf'\frac{{{text}}}{{2^{{{i}}}}}' for i in (98, 99))
    yield 'size', large, small
  if re.fullmatch(r'-?[1-9]\d*', text):
    yield 'decimal', f'{text}e-18', f'{text}e-19'
  if notation.brackets(text) == ('(', ')'):
    members = notation.split(text[1:-1], ',')
    yield 'set', rf'\{{{text[1:-1]}\}}', gold
  else:
    members = notation.items(text)
  if len(set(members)) > 1 and members[0] != members[-1] and '=' not in text:
    names = ', '.join(f'x_{{{i}}}={x}' for i, x in enumerate(members))
    yield 'order', ', '.join(members[::-1]), names


def main(data_dir: str, *names: str) -> None:
  for name in names:
    golds = [
        task['answer'] for task in datasets.load(
            'environments.math_problems.problems_dataset_builder', 'test',
            data_dir, name)]
    num_accepted = 0
    num_refused, num_wrong = collections.Counter(), collections.Counter()
    for gold in golds:
      verdict = grader.grade(gold, gold)
      num_accepted += verdict is grader.Verdict.EQUAL
      if verdict is not grader.Verdict.EQUAL:
        print(f'  gold answer {gold!r}: {verdict}')
      for kind, answer, other in (
          ('digit', perturb(gold), gold), *second_perturbations(gold)):
        verdict = grader.grade(answer, other)
        num_wrong[kind] += 1
        num_refused[kind] += verdict is not grader.Verdict.EQUAL
        if verdict is grader.Verdict.EQUAL:
          print(f'  gold answer {other!r}, wrong answer {answer!r}: {verdict}')
    print(
        f'{name}: {num_accepted} of {len(golds)} gold answers accepted; wrong '
        'answers refused: ' + ', '.join(
            f'{kind} {num_refused[kind]} of {num}'
            for kind, num in num_wrong.items()))


if __name__ == '__main__':
  main(*sys.argv[1:])
