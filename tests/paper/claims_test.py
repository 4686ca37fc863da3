"""The ledger of claims: its page and its verdicts."""

import pytest

from paper import claims
from paper import records as records_lib
from paper import rows
from tests.paper import finished_runs

TASK = 'problems/maths'
LEDGER = [claim for claims, _ in claims.LEDGER.values() for claim in claims]


def _claim(first, second):
  return claims.Claim('a', 'b', first, second)


def test_page_shows_the_records():
  assert claims.PAGE.read_text() == claims.page(), (
      'Run `python -m paper.claims`.')
  assert len(LEDGER) <= 40


@pytest.mark.parametrize('first, second, verdict', [
    ((48, 46), (10, 14), 'yes'),
    ((10, 14), (48, 46), 'no'),
    ((40, 42), (41, 39), 'undecided'),
    ((48,), (10, 14), 'not tested'),
    ((48, 46), (), 'not tested'),
])
def test_verdicts_follow_from_records(first, second, verdict):
  records = finished_runs.merge(*(
      finished_runs.run(f'{TASK}/{name}/seed-{seed}', before=1, after=num)
      for name, nums in (('at_grpo', first), ('mas_grpo', second))
      for seed, num in enumerate(nums)))
  result = claims.compare(
      _claim(f'{TASK}/at_grpo', f'{TASK}/mas_grpo'), records)
  line, = claims.judge([result])
  assert line['holds'] == verdict
  # Holm doubles p of two equal claims and does not count untested ones.
  untested = claims.compare(
      _claim(f'{TASK}/at_grpo', f'{TASK}/sa_grpo'), records)
  both = claims.judge([result, untested, result])
  assert both[1]['holds'] == 'not tested'
  if verdict == 'yes':
    for found in (both[0], both[2]):
      assert found['p (Holm)'] == rows.p_text(2 * result.p)


def test_curves_on_depot_are_compared():
  records = records_lib.Records(curves={
      f'{row}/seed-{seed}': {
          'choices': [0, 60_000], 'returns': [0.2, last + seed / 100]}
      for row, last in (
          ('depot/outcome/at_grpo', 0.9), ('depot/outcome/gigpo', 0.2),
          ('depot_roles/outcome/together', 0.4),
          ('depot_roles/outcome/combined', 0.9))
      for seed in range(5)})
  area, last = (
      claims.compare(_claim(*pair), records) for pair in (
          ('depot/outcome/at_grpo', 'depot/outcome/gigpo'),
          ('depot_roles/outcome/together', 'depot_roles/outcome/combined')))
  assert area.excess == pytest.approx(0.35) and area.p < 0.01
  assert last.excess == pytest.approx(-0.5) and last.p < 0.01
  assert area.cells['seeds'] == '5'
