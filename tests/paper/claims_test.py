"""The ledger of claims: its page and its verdicts."""

import pytest

from paper import claims
from paper import rows
from tests.paper import finished_runs

TASK = 'problems/maths'
LEDGER = [claim for claims, _ in claims.LEDGER.values() for claim in claims]


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
  result, untested = (
      claims.compare(
          claims.Claim('a', 'b', f'{TASK}/at_grpo', f'{TASK}/{row}'), records)
      for row in ('mas_grpo', 'sa_grpo'))
  line, = claims.judge([result])
  assert line['holds'] == verdict
  # Holm doubles p of two equal claims and does not count untested ones.
  both = claims.judge([result, untested, result])
  assert both[1]['holds'] == 'not tested'
  if verdict == 'yes':
    for found in (both[0], both[2]):
      assert found['p (Holm)'] == rows.p_text(2 * result.p)
