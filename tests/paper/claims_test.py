"""The ledger of claims: its page, its commands and its verdicts."""

import pytest

from paper import claims
from paper import evidence
from paper import experiments
from paper import records as records_lib
from paper import run
from tests.paper import finished_runs

AT_GRPO, GRPO = 'main/plan_path/at_grpo', 'main/plan_path/mas_grpo'
LEDGER = [claim for claims, _ in claims.LEDGER.values() for claim in claims]


def test_page_shows_the_records():
  assert claims.PAGE.read_text() == claims.page(), (
      'Run `python -m paper.claims`.')


def test_claims_are_short_and_different():
  assert len({claim.text for claim in LEDGER}) == len(LEDGER)
  for claim in LEDGER:
    assert len(claim.text.split()) <= 15, claim.text
    if isinstance(claim.evidence, evidence.Untestable):
      assert len(claim.evidence.reason.split()) <= 5, claim.evidence


def test_commands_name_jobs():
  jobs = experiments.make_jobs('nano', 1)
  for claim in LEDGER:
    command = claim.evidence.command()
    if command.startswith('bash launch/paper.sh'):
      assert run.choose(jobs, command.split("'")[1].split(','))


@pytest.mark.parametrize('first, second, margin, verdict', [
    ((48, 46), (10, 14), 0.0, evidence.REPRODUCED),
    ((10, 14), (48, 46), 0.0, evidence.CONTRADICTED),
    ((40, 42), (41, 39), 0.0, evidence.NOT_VISIBLE),
    # 2 points less, of which 30 are allowed.
    ((30, 30), (31, 31), -0.3, evidence.REPRODUCED),
    ((50, 50), (50, 50), -0.3, evidence.NOT_VISIBLE),  # At the maximum.
    ((48,), (10, 14), 0.0, evidence.NOT_RUN),
    ((48, 46), (), 0.0, evidence.NOT_RUN),
    ((48, 46), (1, 2), 0.0,
     f'{evidence.NOT_TESTABLE}: `mas_grpo` finds no reward'),
])
def test_verdicts_follow_from_records(first, second, margin, verdict):
  records = finished_runs.merge(*(
      finished_runs.run(f'{row}/seed-{seed}', before=1, after=num)
      for row, nums in ((AT_GRPO, first), (GRPO, second))
      for seed, num in enumerate(nums)))
  line, = evidence.judge([evidence.Claim(
      'a', 'b', '', evidence.Rows(AT_GRPO, GRPO, margin))], {'nano': records})
  assert line.verdict == verdict


def test_areas_on_depot_are_compared_over_the_smaller_budget():
  records = {'nano': records_lib.Records(curves={
      f'depot/{preset}/{system}/seed-{seed}': {
          # Equal up to 8000 choices, the budget of `mixed`.
          'choices': [0, 8_000, 60_000],
          'returns': [0.2, 0.4 + seed / 100, last]}
      for preset, system, last in (
          ('mixed', 'at_grpo', 0.4), ('outcome', 'at_grpo', 0.9),
          ('outcome', 'gigpo', 0.2))
      for seed in range(3)})}
  equal, better, missing = (
      evidence.Curves('depot/outcome/at_grpo', other).compare(records)
      for other in (
          'depot/mixed/at_grpo', 'depot/outcome/gigpo', 'depot/boost/gigpo'))
  assert equal.excess == pytest.approx(0) and equal.p == pytest.approx(1)
  assert '30.5' in equal.ours and equal.seeds == '3, pilot'
  assert better.excess > 0.2 and better.p < 0.01
  assert missing.verdict == evidence.NOT_RUN


def test_p_is_adjusted_for_all_claims():
  records = {'nano': finished_runs.merge(
      finished_runs.seeds(AT_GRPO, 40, 42),
      finished_runs.seeds(GRPO, 33, 35))}
  claim = evidence.Claim('a', 'b', '', evidence.Rows(AT_GRPO, GRPO))
  alone, = evidence.judge([claim], records)
  both = evidence.judge(
      [claim, evidence.Claim('c', 'd', '', evidence.Untestable('e')), claim],
      records)
  assert both[1].p == ''
  for line in both[::2]:
    assert float(line.p) == pytest.approx(2 * float(alone.p), abs=2e-4)
  assert not evidence.judge([claim], {'nano': records_lib.Records()})[0].p


def test_laboratory_is_compared_with_its_error():
  outcome = evidence.Laboratory(
      'credit', 'GiGPO', 'tree, immediate, greedy', 'step').compare({})
  assert outcome.excess < 0 and outcome.p < 1e-4
  other = evidence.Laboratory(
      'credit', 'tree, immediate, uniform', 'joint, immediate, uniform',
      'step').compare({})
  assert other.p > 0.5
