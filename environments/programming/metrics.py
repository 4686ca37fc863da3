"""What the best of k answers to a problem is worth.

  python -m environments.programming.metrics --k=1,4 RUN/groups/*.jsonl.gz

prints these for every role and turn, over the prompts of the trees that a run
has written; the answers to a prompt are the samples. pass@k of the team is in
an evaluation with `evaluation.num_samples`.

  pass@k      share of problems that one of k answers solves (arXiv 2107.03374).
              For a tester, one of whose k lists of cases is right as a whole
  accuracy@k  largest share of tests that one of k passes, or of right cases
  maxcoop@k   most points for cooperation that one of k has

They are arXiv 2508.04652's PassOrNot@k, Accuracy@k and MaxCoop@k. Of n answers
they are the mean over all sets of k, which has no bias; n = k gives the best
of all.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import gzip
import json
import math
import pathlib
import statistics
import sys
from typing import Any

# Metric -> terms of a step, and how a value of them counts.
_OF_TESTS = ('golden', 'correct', 'tests')
_METRICS = {
    'pass': (_OF_TESTS, lambda value: float(value >= 1)),
    'accuracy': (_OF_TESTS, float),
    'maxcoop': (('cooperation',), float),
}


def best_at_k(values: Sequence[float], k: int) -> float:
  """The expected largest of k of the values, drawn without replacement."""
  n = len(values)
  if not 1 <= k <= n:
    raise ValueError(f'k={k}: there are {n} answers; k is 1 to {n}.')
  # The value of rank i is the largest of as many sets as choose all others
  # from the i values below it.
  return sum(
      value * math.comb(i, k - 1) for i, value in enumerate(sorted(values))
  ) / math.comb(n, k)


def pass_at_k(num_answers: int, num_right: int, k: int) -> float:
  """The chance that one of k answers is right, of n of which c are."""
  return best_at_k(
      [0.0] * (num_answers - num_right) + [1.0] * num_right, k)


def of_trees(
    trees: Iterable[Mapping[str, Any]],
    k: int) -> dict[tuple[str, int, str], float]:
  """(role, turn, metric) -> mean over the prompts that have k answers."""
  found = collections.defaultdict(list)
  for node in (node for tree in trees for node in tree['nodes']):
    for index, group in enumerate(node['groups']):
      answers = [
          terms for candidate in range(len(group['candidates']))
          if (terms := _terms(node, index, candidate)) is not None]
      for metric, (names, count) in _METRICS.items():
        values = [
            count(terms[name]) for terms in answers for name in names
            if name in terms]
        if len(values) >= k:
          found[group['role'], node['turn'], metric].append(
              best_at_k(values, k))
  return {key: statistics.fmean(x) for key, x in found.items()}


def _terms(
    node: Mapping[str, Any], group: int,
    candidate: int) -> dict[str, float] | None:
  """What a candidate's steps have told, or None if all of them failed.

  Of a candidate in several joint actions, the means.
  """
  known = [
      step['terms'] for joint_action, step in zip(
          node['joint_actions'], node['steps'])
      if joint_action[group] == candidate
      and 'infrastructure' not in step['outcomes'].values()]
  if not known:
    return None
  return {
      name: statistics.fmean(terms[name] for terms in known)
      for name in known[0]}


def _report(paths: Sequence[pathlib.Path], k: int) -> Iterator[str]:
  def trees():
    for path in paths:
      with gzip.open(path, 'rt', encoding='utf-8') as lines:
        yield from map(json.loads, lines)

  for (role, turn, metric), value in sorted(of_trees(trees(), k).items()):
    yield f'{role}, turn {turn + 1}: {metric}@{k} {value:.3f}'


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  """The arguments of the command above."""
  parser = argparse.ArgumentParser(
      prog='python -m environments.programming.metrics')
  parser.add_argument('--k', default='1', help='such as 1,5,10')
  parser.add_argument('files', nargs='+', type=pathlib.Path)
  return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
  """The command above; returns its exit code."""
  given = parse(arguments)
  try:
    for k in map(int, given.k.split(',')):
      for line in _report(given.files, k):
        print(line)
  except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
    print(f'{type(error).__name__}: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
