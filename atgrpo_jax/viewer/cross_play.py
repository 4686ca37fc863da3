"""Evaluations of one team whose roles were played by different policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any

# Evaluations that differ in one of these are not compared.
_CONDITIONS = ('split', 'step', 'sampling', 'sandbox')


def matrices(
    evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Who plays the first role against who plays the second, and the success.

  Args:
    evaluations: as a report has them.

  Returns:
    For each set of evaluations under the same conditions in which two roles
    were played by at least two pairs of policies: `title`, and a table,
    `header` and `rows`, whose entries are a success or None. Of two evaluations
    of one pair the last one counts.
  """
  found = {}
  for evaluation in evaluations:
    if len(evaluation['policy_map']) == 2:
      conditions = json.dumps([
          list(evaluation['policy_map']),
          *(evaluation[name] for name in _CONDITIONS)])
      pair = tuple(evaluation['policy_map'].values())
      found.setdefault(conditions, (evaluation, {}))[1][pair] = (
          evaluation['success'])
  return [
      _matrix(evaluation, successes)
      for evaluation, successes in found.values() if len(successes) > 1]


def _matrix(
    evaluation: Mapping[str, Any],
    successes: Mapping[tuple[str, str], float]) -> dict[str, Any]:
  first, second = evaluation['policy_map']
  rows, columns = (
      list(dict.fromkeys(names)) for names in zip(*successes))
  return {
      'title': (
          f'Success on {evaluation["split"]} after step {evaluation["step"]}, '
          f'{first} (rows) and {second} (columns) played by these policies'),
      'header': [f'{first} \\ {second}', *columns],
      'rows': [
          [row, *(successes.get((row, column)) for column in columns)]
          for row in rows]}
