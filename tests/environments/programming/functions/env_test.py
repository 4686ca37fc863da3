"""A helper and the function that uses it: rewards and outcomes.

`tests/environments/transcripts_test.py` plays whole episodes of each team.
"""

import pytest

from environments import env_api
from environments import sandbox as sandbox_lib
from environments.programming.functions import env as functions
from tests.environments import echo_sandbox
from tests.environments.programming import examples

prompt = echo_sandbox.prompt
Outcome, Status = env_api.Outcome, sandbox_lib.Status
OK, PARSE_ERROR, PROGRAM_ERROR = (
    Outcome.OK, Outcome.PARSE_ERROR, Outcome.PROGRAM_ERROR)
AUX = 'def aux(x, y):\n  return x + y'
MAIN = '''def add(x, y):
  total = aux(x, y)
  if x is None: return 0
  return total'''
HALF = MAIN.replace('is None', 'in (1, 0.1)')  # The first two asserts fail.
IGNORING = 'def add(x, y):\n  aux(x, y)\n  return x + y'
WRAPPER = 'def add(x, y):\n  return aux(x, y)'
ALONE = 'def add(x, y):\n  return x + y'
TERMS = 'structure', 'syntax', 'tests', 'cooperation'


def make(sandbox, team='pair', max_turns=1, **options):
  return functions.make_environment(
      team=team, max_turns=max_turns, reward='outcome', sandbox=sandbox,
      **options)


def start():
  return functions.State(examples.make_check())


@pytest.mark.parametrize('aux, main, points, outcomes', [
    (AUX, MAIN, (1, .5, 1, 1.5), (OK, OK)),
    (AUX, WRAPPER, (1, .5, 1, .5), (OK, OK)),
    (AUX, ALONE, (1, .5, 1, 0), (OK, OK)),
    (AUX, IGNORING, (1, .5, 1, 1), (OK, OK)),
    # An aux without a return statement still exists.
    ('def aux(x, y): pass', 'def add(x, y):\n  z = aux(x, y)\n  if z: x = y\n'
     '  return x + y', (.6, .5, 1, 1.5), (OK, OK)),
    ('', MAIN, (.6, .5, 0, 0), (PARSE_ERROR, PROGRAM_ERROR)),
    (AUX, '', (.4, 0, 0, 0), (OK, PARSE_ERROR)),
    (AUX, 'def add(x, y): pass', (.4, 0, 0, 0), (OK, OK)),
    (AUX, 'def add(x, y):\n  return (', (1, 0, 0, 0), (OK, PROGRAM_ERROR)),
    ('def aux(x, y):\n  return )', ALONE, (1, 0, 0, 0), (PROGRAM_ERROR, OK)),
    # 3 of 5 asserts hold; strings and lists fail.
    (AUX, MAIN.replace('is None', 'in ("a", [1])'), (1, .5, .6, 1.5), (OK, OK)),
    # Cooperation needs an assert that holds.
    (AUX, 'def add(x, y):\n  y = aux(x, y)\n  z = y\n  return "no"',
     (1, .5, 0, 0), (OK, OK)),
])
def test_reward_terms_and_outcomes(sandbox, aux, main, points, outcomes):
  step = make(sandbox).step(start(), {'main': main, 'aux': aux})
  assert step.reward_terms == pytest.approx(dict(zip(TERMS, points)))
  assert step.team_reward == pytest.approx(sum(points) / 4)
  assert step.local_rewards == {'aux': 0.0, 'main': 0.0}
  assert step.outcomes == dict(zip(('aux', 'main'), outcomes))
  success = points[2] == 1
  assert (step.done, step.success, step.truncated) == (
      True, success, not success)
  assert (step.program_runs > 0) is (points[1] > 0)


def test_equal_programs_run_once_unless_the_sandbox_fails(
    sandbox, monkeypatch):
  statuses = [Status.INFRASTRUCTURE, Status.OK, Status.OK]

  def check(*_):
    return functions.checks.Verdict(True, ('a',), ('',), statuses.pop(0), 1)

  monkeypatch.setattr(functions.checks, 'check', check)
  actions = [{'main': ALONE, 'aux': f'{AUX} + {i}'} for i in (1, 2)]
  outcomes = [
      make(sandbox).step(start(), actions[i]).outcomes['main']
      for i in (0, 0, 0, 1)]
  assert outcomes == [Outcome.INFRASTRUCTURE, OK, OK, OK]
  assert not statuses


def test_a_discussion_has_two_turns():
  assert make(None, 'discussion').max_turns == 2


@pytest.mark.parametrize('num_tests, text', [(3, '1 of 3'), (0, '2 of 5')])
def test_feedback_reports_the_first_asserts(sandbox, num_tests, text):
  environment = make(sandbox, max_turns=2, feedback_tests=num_tests)
  state = environment.step(start(), {'aux': AUX, 'main': HALF}).state
  assert f'Tests: {text} hold.' in prompt(environment, state, 'main')
